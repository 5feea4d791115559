# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Placement: which slot of which node a job gets, and why the other nodes are refused."""
