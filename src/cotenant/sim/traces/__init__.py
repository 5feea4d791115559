# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Traces as streams of arrivals: one parser module for each format; `open_trace` opens any of them."""

from cotenant.sim.traces.registry import open_trace

__all__ = ["open_trace"]
