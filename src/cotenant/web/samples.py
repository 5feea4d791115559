# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The last minutes of running jobs, second by second; the history has what is older, in longer steps."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cotenant.wire.job_views import JobView

MOST_POINTS = 600
MOST_JOBS = 2000


class Sample(NamedTuple):
    """One job at one time."""

    at: float
    speed: float | None
    predicted: float | None
    batch: int | None
    used_mib: int | None


class Samples:
    """A bounded number of samples of a bounded number of jobs."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Sample]] = {}

    def add(self, at: float, jobs: Iterable[JobView]) -> None:
        """Jobs that do not run any more stay until there are too many."""
        for job in jobs:
            points = self._of.pop(job.id, None)  # and put at the end, after those that run no longer
            self._of[job.id] = points = deque(maxlen=MOST_POINTS) if points is None else points
            points.append(Sample(at, job.speed, job.predicted, job.batch, job.memory_used_mib))
        while len(self._of) > MOST_JOBS:
            self._of.pop(next(iter(self._of)))

    def of(self, job: str) -> Sequence[Sample]:
        return tuple(self._of.get(job, ()))
