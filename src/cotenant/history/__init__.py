# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What was: samples of GPUs and tenants over time, in a store of bounded size."""
