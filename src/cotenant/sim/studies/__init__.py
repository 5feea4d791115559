# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Studies: the experiments behind the published results, each with its own set-up, tables and figures."""
