# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine: a table of vendors, one adapter for each, and one interface for all of them."""
