# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Bounded backfill: GPUs are reserved for the first job that does not fit, and later jobs must not delay it.

A reservation lists the running jobs that must end before its job can start. A later job may start if it is expected to
end by then too, or if it fits beside the reserved job. So once a job has a reservation it starts as soon as the listed
jobs have ended, whatever arrives behind it. Only a job of higher priority, which is no later job, may use what is
reserved. If one of them is of unknown length, the start is unknown: the GPUs are
reserved all the same, and become free one by one.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain, islice
from typing import NamedTuple

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Claim, Demand, Job, Placement, Tenant
from cotenant.core.queueing.overdue import wall_left
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Seconds

QueuePosition = tuple[int, tuple[float, ...], float, str]
"""position in the queue: higher priority first, then the pressure of the account (empty unless shares are fair), the
policy's queue order, the job's ID"""
SHORTEST = Seconds(1.0)
"""A job is never expected to end sooner. A job that has run for its whole estimate could otherwise always start."""
Place = Callable[[Cluster], Sequence[Placement] | None]
"""places the job on a cluster; None if it does not fit"""


class End(NamedTuple):
    """The estimated end of a running job. Ordered: the first to end comes first."""

    at: Seconds
    """if the length is unknown: as for a job of `UNKNOWN_LENGTH`"""
    job: str
    known: bool
    """whether the job's length was estimated"""
    placements: tuple[Placement, ...]

    @classmethod
    def of(cls, placements: Sequence[Placement], started: Seconds) -> "End":
        """The estimated end of a job that started on these slots at that time."""
        job = placements[0].job
        return cls(Seconds(started + wall_left(job)), job.id, job.estimate is not None, tuple(placements))


class Ends:
    """The estimated ends of all running jobs, the first to end first.

    They are put in order when they are read, which happens only if a job does not fit. A job that starts and ends in
    between costs nothing but its entry.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[Sequence[Placement], Seconds]] = {}
        self._ordered: list[End] = []
        self._by_job: dict[str, End] = {}
        """those in `_ordered`"""
        self._changed: dict[str, None] = {}
        """jobs for which `_ordered` is out of date"""

    def __iter__(self) -> Iterator[End]:
        for job in self._changed:
            before, now = self._by_job.pop(job, None), self._running.get(job)
            if before is not None:
                del self._ordered[bisect_left(self._ordered, before)]
            if now is not None:
                end = self._by_job[job] = End.of(*now)
                insort(self._ordered, end)
        self._changed.clear()
        return iter(self._ordered)

    def add(self, placements: Sequence[Placement], started: Seconds) -> None:
        job = placements[0].job.id
        self._running[job] = (placements, started)
        self._changed[job] = None

    def remove(self, job: str) -> None:
        del self._running[job]
        if job in self._by_job:
            self._changed[job] = None
        else:
            del self._changed[job]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where a waiting job will start, and the jobs that must end before."""

    job: Job
    position: QueuePosition
    placements: tuple[Placement, ...]
    """its slots"""
    waits_for: tuple[End, ...]
    """running jobs that must end first; and jobs that started since because they are expected to end before `start`"""
    start: Seconds
    """estimated"""
    known: bool
    """whether the lengths of all jobs in `waits_for` are known, so that `start` is more than a guess"""
    versions: tuple[int, ...] = ()
    """of the nodes of its slots: as long as they do not change, nothing that it waits for has ended"""

    @property
    def gpus(self) -> set[tuple[str, int]]:
        """The reserved GPUs, each by the name of its node and its index."""
        return _gpus(self.placements)

    def yields_to(self, job: Job) -> bool:
        """Whether a job has a higher priority than the one with the reservation."""
        return job.demand.priority > self.job.demand.priority

    def allows(self, job: Job, now: Seconds) -> bool:
        """Whether a job may use the reserved GPUs: it has a higher priority, or it is expected to end before they are
        needed."""
        if self.yields_to(job):
            return True
        return self.known and job.estimate is not None and now + max(SHORTEST, wall_left(job)) <= self.start

    def without_reserved(self, cluster: Cluster) -> Cluster:
        """The cluster as jobs see it that may not use what is reserved."""
        for name in dict.fromkeys(one.slot.node for one in self.placements):
            if name in cluster.index:
                cluster = cluster.with_node(self._reduced(cluster.node(name)))
        return cluster

    def _reduced(self, node: Node) -> Node:
        """The node with stand-ins for the job: on each GPU and of the host they take what is free now and will not be
        free beside the job when it starts."""
        later = node
        for end in self.waits_for:
            later = _without(later, end)
        for one in self.placements:
            if one.slot.node == node.name:
                later = later.with_tenant(Tenant(one.job.id, one.job.demand, one.slot.gpus, one.replica))
        stand_ins: dict[int, list[Tenant]] = {}
        for one in (one for one in self.placements if one.slot.node == node.name):
            like = _likeness(one.job.demand)
            for gpu in one.slot.gpus:
                stand_ins[gpu] = _stand_ins(like, one.job.id, gpu, node.free(gpu), later.free(gpu))
        host = Demand(
            gpus=0,
            compute=MilliGpu(0),
            cpu=MilliCpu(max(0, (node.cpu or 0) - (later.cpu or 0))),
            host_memory=MiB(max(0, (node.host_memory or 0) - (later.host_memory or 0))),
        )
        more = chain.from_iterable(stand_ins.values())
        return Node.of(node.machine, (*node.tenants, *more, Tenant(self.job.id, host, ())))

    def overtaken_by(self, end: End) -> "Reservation":
        """The reservation after a job that it allows has started."""
        start = Seconds(max(self.start, end.at))
        return replace(self, waits_for=(*self.waits_for, end), start=start, known=self.known and end.known)

    def renewed(self, cluster: Cluster, now: Seconds, place: Place) -> "Reservation | None":
        """The reservation after jobs have ended or started; None if its job could not start as it was expected to."""
        if self.versions == _versions(cluster, self.placements):
            return replace(self, start=Seconds(max(now, self.start)))
        waits_for = [end for end in self.waits_for if _is_there(cluster, end)]
        return _first_that_suffices(self.job, self.position, cluster, waits_for, now, place)


Names = Callable[[Sequence[str]], str]
"""how users know jobs, from their IDs"""
MOST_NAMES = 3
"""jobs that are named in one sentence"""


def named(jobs: Sequence[str]) -> str:
    """The first of these names, and the number of the others."""
    return ", ".join(jobs[:MOST_NAMES]) + f" and {len(jobs) - MOST_NAMES} more" * (len(jobs) > MOST_NAMES)


def when(reservation: Reservation, now: Seconds, names: Names = named) -> str:
    """When the job can start: "in about 12 min", or "when j-000003 has ended"."""
    if reservation.known and reservation.start > now:
        return f"in about {_duration(reservation.start - now)}"
    jobs = [end.job for end in reservation.waits_for]
    return f"when {names(jobs)} {'has' if len(jobs) == 1 else 'have'} ended"


def why_held_back(reservation: Reservation, job: Job, now: Seconds, names: Names = named) -> str:
    """Why a later job that fits must not start."""
    first = f"which can start {when(reservation, now, names)}"
    if not reservation.known:
        length = "it is not known when that will be, so no other job may use them until then"
    elif job.estimate is None:
        length = "this job has no estimate of its length, and could take longer"
    else:
        length = f"this job is expected to take {_duration(wall_left(job))}, which is longer"
    return f"the GPUs on which it would fit are reserved for {names([reservation.job.id])}, {first}; {length}"


def why_overtook(reservation: Reservation, job: Job, allowed: bool, now: Seconds, names: Names = named) -> str:
    """Why a job was placed before the job with the reservation."""
    first = names([reservation.job.id])
    if reservation.yields_to(job):
        return f"{first}: has a higher priority than that job"
    if allowed:
        return f"{first}: expected to end before that job can start, {when(reservation, now, names)}"
    return f"{first}: fits beside what is reserved for that job"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@dataclass(slots=True)
class Reserver:
    """Makes reservations in one pass, from the estimated ends of the running jobs."""

    ends: Iterable[End]
    """of the jobs that ran before the pass"""
    new: list[End] = field(default_factory=list)
    """of the jobs that were placed in this pass"""
    drained: Cluster | None = None
    """the cluster after all jobs have ended, once it was needed"""

    def reserve(
        self, job: Job, position: QueuePosition, cluster: Cluster, now: Seconds, place: Place
    ) -> Reservation | None:
        """The earliest start of a job that does not fit now, if no other job starts; None if it does not even fit when
        all jobs have ended.

        Jobs are taken to end in the order of their estimates. The number that must end is doubled until the job fits,
        and then bisected, so the cost depends on that number and not on the size of the cluster.
        """
        if self.drained is not None and place(self.drained) is None:
            return None
        ends = merge(self.ends, sorted(self.new))
        ended: list[End] = []
        before, few = cluster, 0
        """the job does not fit after the first `few` jobs have ended, which gives the cluster `before`"""
        while True:
            more = list(islice(ends, max(1, few)))
            after = _released(before, more)
            ended += more
            if more and place(after) is not None:
                break
            if not more:
                self.drained = before
                return None
            before, few = after, len(ended)
        many = len(ended)
        while many - few > 1:
            middle = (few + many) // 2
            after = _released(before, ended[few:middle])
            if place(after) is None:
                before, few = after, middle
            else:
                many = middle
        return _first_that_suffices(job, position, cluster, ended[:many], now, place)


def _first_that_suffices(
    job: Job, position: QueuePosition, cluster: Cluster, ended: list[End], now: Seconds, place: Place
) -> Reservation | None:
    """The reservation of a job that fits after all these have ended, most of which are elsewhere and need not end;
    None if it does not fit."""
    placements = place(_released(cluster, ended))
    if placements is None or not ended:
        return None
    gpus, nodes = _gpus(placements), {one.slot.node for one in placements}
    on_gpus = [end for end in ended if gpus & _gpus(end.placements)]
    on_nodes = [end for end in ended if nodes & {one.slot.node for one in end.placements}]
    for waits_for in (on_gpus, on_nodes):
        found = place(_released(cluster, waits_for)) if waits_for else None
        if found is not None:
            return _reservation(job, position, found, waits_for, cluster, now)
    return _reservation(job, position, placements, ended, cluster, now)


def _reservation(
    job: Job,
    position: QueuePosition,
    placements: Sequence[Placement],
    waits_for: Sequence[End],
    cluster: Cluster,
    now: Seconds,
) -> Reservation:
    start = Seconds(max(now, *(end.at for end in waits_for)))
    known = all(end.known for end in waits_for)
    slots = tuple(placements)
    return Reservation(job, position, slots, tuple(waits_for), start, known, _versions(cluster, slots))


def _gpus(placements: Iterable[Placement]) -> set[tuple[str, int]]:
    return {(one.slot.node, gpu) for one in placements for gpu in one.slot.gpus}


def _versions(cluster: Cluster, placements: Iterable[Placement]) -> tuple[int, ...]:
    there = dict.fromkeys(one.slot.node for one in placements)
    return tuple(cluster.node(name).version for name in there if name in cluster.index)


def _stand_ins(like: Demand, job: str, gpu: int, free: Claim, left: Claim) -> list[Tenant]:
    """Tenants that look like the job to other jobs, and take of a GPU what is free now and will not be left."""
    memory, compute = MiB(max(0, free.memory - left.memory)), MilliGpu(max(0, free.compute - left.compute))
    more = 0 if like.exclusive else max(0, free.slots - left.slots - 1)
    demands = [replace(like, memory=memory, compute=compute) if memory or compute else like, *[like] * more]
    return [Tenant(job, demand, (gpu,)) for demand in demands]


def _likeness(demand: Demand) -> Demand:
    """The demand for nothing of one GPU, by a job that shares it with the same others."""
    return replace(
        demand,
        gpus=1,
        memory=MiB(0),
        memory_percent=None,
        compute=MilliGpu(0),
        mig=None,
        containers=(),
        affinity=None,
        cpu=MilliCpu(0),
        host_memory=MiB(0),
    )


def _released(cluster: Cluster, ends: Iterable[End]) -> Cluster:
    """The cluster after these jobs have ended."""
    for end in ends:
        for placement in end.placements:
            if _holds(cluster, placement):
                cluster = cluster.finish(placement)
    return cluster


def _is_there(cluster: Cluster, end: End) -> bool:
    return any(_holds(cluster, placement) for placement in end.placements)


def _holds(cluster: Cluster, placement: Placement) -> bool:
    name = placement.slot.node
    return name in cluster.index and _has(cluster.node(name), placement)


def _has(node: Node, placement: Placement) -> bool:
    return any(one.job == placement.job.id and one.replica == placement.replica for one in node.tenants)


def _without(node: Node, end: End) -> Node:
    for placement in end.placements:
        if placement.slot.node == node.name and _has(node, placement):
            node = node.without_tenant(placement.job.id, placement.replica)
    return node
