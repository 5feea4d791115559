# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fragmentation: what the free capacity of a node is worth for the jobs that are still to come."""
