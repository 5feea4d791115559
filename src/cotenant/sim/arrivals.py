# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a trace says: jobs as they arrive, and the truth about them that no policy may see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cotenant.core.model import Job
from cotenant.core.units import Seconds


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, and how long it really runs alone; None where the trace does not say (fill mode needs no duration)."""

    job: Job
    duration: Seconds | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A named source of arrivals. Each call of `read` starts over; rows are parsed as they are asked for."""

    name: str
    read: Callable[[], Iterator[Arrival]]
    in_order: bool
    """whether rows come by submission time, so that they can be simulated without holding all of them"""
