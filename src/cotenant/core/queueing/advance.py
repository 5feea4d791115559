# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Advance reservations: GPUs that belong to a user or a group between two times.

A job of another user is not placed on such a GPU unless its time limit ends it before the reservation starts, so the
GPU is free in time and no job has to be stopped. An estimate is no promise: only a limit that is enforced counts. This
is not the reservation of `backfill`, which is for the first job of the queue and begins when others have ended.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cotenant.core.model import Demand, Job, Machine
from cotenant.core.units import Seconds

SLACK = Seconds(30.0)
"""between the latest end of a job and the start of a reservation: a process starts a little after its placement"""
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceReservation:
    """GPUs, and when they are reserved."""

    id: str
    gpus: frozenset[str]
    """UUIDs"""
    start: Seconds
    end: Seconds

    def overlaps(self, start: float, end: float) -> bool:
        return self.start < end and start < self.end


@dataclass(frozen=True, slots=True)
class Advance:
    """The reservations of one pass, and for whom they are."""

    reservations: tuple[AdvanceReservation, ...]
    """those that have not ended"""
    admits: Callable[[AdvanceReservation, Job], bool]
    """whether a job belongs to the user or group of a reservation"""
    everything: frozenset[str]
    """UUIDs of all GPUs"""

    def blocking(self, job: Job, now: Seconds) -> list[AdvanceReservation]:
        """The reservations that keep a job from GPUs: those of others that start before it has ended for sure."""
        ends = None if job.limit is None else now + job.limit + SLACK
        return [
            one
            for one in self.reservations
            if one.end > now and (ends is None or one.start < ends) and not self.admits(one, job)
        ]

    def own(self, job: Job) -> AdvanceReservation | None:
        """The reservation that a job was submitted for, if that has not ended."""
        if job.reservation is None:
            return None
        return next((one for one in self.reservations if one.id == job.reservation), None)

    def closed(self, job: Job, now: Seconds) -> frozenset[str]:
        """UUIDs of the GPUs on which a job must not start now."""
        found = NONE.union(*(one.gpus for one in self.blocking(job, now)))
        own = self.own(job)
        if own is None or own.end <= now:
            return found
        return found | (self.everything - own.gpus) if own.start <= now else self.everything


def restricted(job: Job, closed: frozenset[str]) -> Job:
    """The job, which avoids these GPUs."""
    if not closed:
        return job
    others = tuple(_avoiding(one, closed) for one in job.alternatives)
    return replace(job, demand=_avoiding(job.demand, closed), alternatives=others)


def _avoiding(demand: Demand, closed: frozenset[str]) -> Demand:
    return replace(demand, avoid_uuids=demand.avoid_uuids | closed)


class Busy(NamedTuple):
    """A job of another user on a GPU."""

    job: str
    until: Seconds | None
    """when its time limit ends it; None: it has none"""


class Obstacle(NamedTuple):
    """Why a GPU cannot be reserved; one of the fields is set."""

    unusable: str | None = None
    reserved: AdvanceReservation | None = None
    busy: Busy | None = None


def obstacles(
    machine: Machine,
    busy: Mapping[int, Sequence[Busy]],
    reservations: Iterable[AdvanceReservation],
    start: Seconds,
    end: Seconds,
    *,
    evict: bool = False,
) -> list[Obstacle | None]:
    """For each GPU why it cannot be reserved between two times; None: it can. With `evict`, jobs are no obstacle."""
    overlapping = [one for one in reservations if one.overlaps(start, end)]
    found = list[Obstacle | None]()
    for index, gpu in enumerate(machine.gpus):
        late = [one for one in busy.get(index, ()) if one.until is None or one.until + SLACK > start]
        reserved = next((one for one in overlapping if gpu.uuid in one.gpus), None)
        if gpu.cordoned or not gpu.healthy:
            found.append(Obstacle(unusable="cordoned" if gpu.cordoned else "unhealthy"))
        elif reserved is not None:
            found.append(Obstacle(reserved=reserved))
        elif late and not evict:
            found.append(Obstacle(busy=max(late, key=lambda one: (one.until is None, one.until or 0.0))))
        else:
            found.append(None)
    return found


def choose(count: int, found: Sequence[Obstacle | None], busy: Mapping[int, Sequence[Busy]]) -> tuple[int, ...] | None:
    """The GPUs to reserve: those with the fewest jobs of others, and among equals the last; None: too few are free."""
    free = sorted((len(busy.get(index, ())), -index) for index, one in enumerate(found) if one is None)
    return tuple(sorted(-index for _, index in free[:count])) if len(free) >= count else None
