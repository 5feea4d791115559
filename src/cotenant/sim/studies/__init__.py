# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Studies: questions asked of the simulator over many seeds, each with its own set-up, tables and figures."""
