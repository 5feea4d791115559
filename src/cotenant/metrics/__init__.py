# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: one table of all of them, what they are computed from, and the page that is scraped."""
