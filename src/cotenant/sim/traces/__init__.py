# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Traces as streams of arrivals: one small parser for each format, and one door (`open_trace`) to all of them."""

from cotenant.sim.traces.registry import open_trace

__all__ = ["open_trace"]
