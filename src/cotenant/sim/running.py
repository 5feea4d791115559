# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The running jobs of a timed run: their true progress, and when they end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from cotenant.core.model import Job, Placement
from cotenant.sim.arrivals import Arrival


@dataclass(slots=True)
class Running:
    """A running job, its placements and its true progress."""

    job: Job
    placements: tuple[Placement, ...]
    arrival: Arrival
    started: float
    ends: float
    crowding: float
    """of the cluster when the job started"""
    unjudged: bool = True
    """whether its effect on its neighbours has not been measured yet"""
    rate: float = 1.0
    """progress per second, relative to the speed at which the trace's durations were taken"""
    done: float = 0.0
    """seconds of its work completed in this start, up to `since`"""
    since: float = 0.0
    """in the future while the job starts up"""

    def update_progress(self, now: float) -> None:
        """Adds the work done since the last update; must be called before `rate` changes."""
        self.done += max(0.0, now - self.since) * self.rate
        self.since = max(self.since, now)


@dataclass(slots=True)
class Progress:
    """The remaining work and the waiting time of a job, over all its starts."""

    arrival: Arrival
    left: float
    waiting_since: float
    waited: float = 0.0


class Finishes:
    """The times at which running jobs end, as a heap of entries (ends, sequence, job).

    Every running job has an entry with its current `ends`. Entries whose `ends` differs from the job's are stale (the
    job was preempted, or its rate changed) and are dropped when they reach the top; deleting them at once would cost a
    search. Ties are broken by the sequence number, never by job ID or by hash order.
    """

    def __init__(self, running: Mapping[str, Running]) -> None:
        self._running = running
        self._entries: list[tuple[float, int, str]] = []
        self._sequence = 0

    def push(self, running: Running) -> None:
        """Adds the present end of a job."""
        self._sequence += 1
        heappush(self._entries, (running.ends, self._sequence, running.job.id))

    def next(self) -> float:
        """The time at which the next job ends, or infinity."""
        entries = self._entries
        while entries:
            ends, _, job_id = entries[0]
            running = self._running.get(job_id)
            if running is not None and running.ends == ends:
                return ends
            heappop(entries)
        return math.inf

    def pop(self) -> str:
        """Removes the job whose end `next` returned."""
        return heappop(self._entries)[2]
