# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning: joint batch sizes for all tenants of one GPU."""
