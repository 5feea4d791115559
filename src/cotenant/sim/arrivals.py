# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Arrivals: the jobs of a trace, each with its true duration, which no policy may see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cotenant.core.model import Job
from cotenant.core.units import Seconds
from cotenant.core.values import value


@value()
class Arrival:
    """A job, and how long it runs alone on its GPUs; None if the trace has no durations (fill mode needs none)."""

    job: Job
    duration: Seconds | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A named source of arrivals. Each call of `read` starts at the first row; rows are parsed lazily."""

    name: str
    read: Callable[[], Iterator[Arrival]]
    in_order: bool
    """whether rows are sorted by submission time, so that a run need not hold all of them in memory"""
