# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a changed demand can be placed, and the highest amount with which it can.

The search is bounded: it counts the nodes that it judges, and stops at a budget. Demands whose checks have a form in
arrays are judged on all nodes at once. For others each node is asked only whether it takes more than the best node so
far, so most nodes are judged once for each amount that is searched. A search is a generator: an engine does other work
between its steps.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator
from functools import lru_cache
from typing import TypeVar

import numpy as np

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Job, Slot
from cotenant.core.placement.check import Mask
from cotenant.core.placement.deciding import place_gang
from cotenant.core.placement.feasibility import Feasibility, feasibility
from cotenant.core.placement.gpu_arrays import kept
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.placement.slots import slots_of
from cotenant.core.suggestions.changes import Axis

BUDGET = 40_000
"""nodes that one search may judge: some tenths of a second"""
PLACING = 4
"""nodes that can be judged in the time in which one is rated for a job that must be placed as a whole"""
CHUNK = 500
"""nodes that are judged in one step"""
Allows = Callable[[Demand, tuple[Slot, ...]], bool]
_REMEMBERED = 16
"""demands whose scores are kept"""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""a search in steps, between which an engine can do other work"""


class Memory:
    """A ranker and the arrays of one policy. Kept between searches, so that only nodes that changed are read again.

    The ranker is apart from that of the engine: demands that no job has must not evict the real ones. The arrays of the
    engine's ranker can be shared, since they depend on the cluster alone.
    """

    def __init__(self, policy: Policy, arrays: Ranker | None = None) -> None:
        self.policy = policy
        self.ranker = Ranker(policy, _REMEMBERED)
        self.columns = (arrays or self.ranker).columns


class Search:
    """Tries changed demands of one job on one cluster."""

    def __init__(
        self,
        memory: Memory,
        job: Job,
        cluster: Cluster,
        *,
        closed: Collection[str] = (),
        crowding: float | None = 0.0,
        allows: Allows | None = None,
        budget: int = BUDGET,
    ) -> None:
        """`closed` are nodes that the job cannot use; a crowding of None skips the sharing gate. `allows` says whether
        a limit outside the cluster, such as a quota, allows a demand on some slots."""
        self.memory, self.job, self.cluster = memory, job, cluster
        self.policy, self.closed, self.crowding = memory.policy, frozenset(closed), crowding
        self.allows = allows
        self.left = budget
        """nodes that may still be judged"""
        self._open: Mask = np.array([name not in self.closed for name in cluster.names], dtype=bool)

    @property
    def is_plain(self) -> bool:
        """Whether the job can be placed if one node has a slot for it."""
        return self.job.replicas == 1 and (self.policy.gate is None or self.crowding is None)

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def placed(self, demand: Demand, near: str | None = None) -> Steps[tuple[Slot, ...] | None]:
        """The slots of the whole job with that demand; None if it cannot be placed. `near` is a node that takes it."""
        ranker, cluster = self.memory.ranker, self.cluster
        if self.is_plain:
            there = (yield from self.somewhere(demand)) if near is None else near
            fits = [] if there is None else ranker.top(demand, cluster, (there,), 1)
            slots = tuple(fit.slot for fit in fits)
        else:
            self.left -= PLACING * len(cluster)
            yield from ranker.prepare(demand, cluster, self.closed)
            found = place_gang(ranker, _with_demand(self.job, demand), cluster, None, self.crowding, self.closed)
            slots = () if found is None else tuple(one.slot for one in found.placements)
            yield None
        return slots if slots and (self.allows is None or self.allows(demand, slots)) else None

    def somewhere(self, demand: Demand) -> Steps[str | None]:
        """A node that has a slot for the demand; None if there is none, or the search ended before one was found."""
        feasible = feasibility(demand, self.policy.checks)
        if feasible.in_arrays:
            fits = self._fits(demand)
            return self.cluster.names[int(fits.argmax())] if fits.any() else None
        for judged, node in enumerate(self._nodes(demand), start=1):
            if slots_of(feasible, node):
                return node.name
            if judged % CHUNK == 0:
                yield None
        return None

    def highest(self, axis: Axis, demand: Demand) -> Steps[tuple[int, str] | None]:
        """The highest lower amount with which some node has a slot for the demand, and the node; None if no amount."""
        amounts = axis.amounts()
        if not amounts:
            return None
        least = axis.change(demand, amounts[0])
        if feasibility(least, self.policy.checks).in_arrays:
            found = highest_accepted(amounts, lambda amount: bool(self._fits(axis.change(demand, amount)).any()))
            there = None if found is None else (yield from self.somewhere(axis.change(demand, found)))
            return None if found is None or there is None else (found, there)
        best: tuple[int, str] | None = None
        reached = -1

        @lru_cache(maxsize=64)
        def feasible(i: int) -> Feasibility:
            return feasibility(axis.change(demand, amounts[i]), self.policy.checks)

        for judged, node in enumerate(self._nodes(least), start=1):
            here = self._reach(feasible, node, len(amounts), reached)
            if here > reached:
                best, reached = (amounts[here], node.name), here
            if reached + 1 == len(amounts):
                break
            if judged % CHUNK == 0:
                yield None
        return best

    def highest_apart(self, axis: Axis, demand: Demand) -> int:
        """The highest lower amount with which all members of a gang have GPUs of their own; 0 if there is none, or a
        check has no form in arrays. A gang can have a higher amount if several members share a GPU."""
        least = axis.change(demand, axis.least)
        if self.job.replicas == 1 or not feasibility(least, self.policy.checks).in_arrays:
            return 0

        def is_enough(amount: int) -> bool:
            changed = axis.change(demand, amount)
            gpus = self._kept(changed)[:, self._open].sum(axis=0)
            return changed.gpus > 0 and int((gpus // changed.gpus).sum()) >= self.job.replicas

        return highest_accepted(axis.amounts(), is_enough) or 0

    def _reach(self, feasible: Callable[[int], Feasibility], node: Node, amounts: int, reached: int) -> int:
        """The index of the highest amount that a node takes, if it takes more than another one; else that index."""

        def takes(i: int) -> bool:
            self.left -= 1
            return bool(slots_of(feasible(i), node))

        first = reached + 1
        if not takes(first):
            return reached
        further = _last(amounts - first - 1, lambda i: takes(first + 1 + i))
        return first if further is None else first + 1 + further

    def _fits(self, demand: Demand) -> Mask:
        """The open nodes that pass all checks that have a form in arrays: all checks, for most demands."""
        feasible = feasibility(demand, self.policy.checks)
        needed = feasible.demand.gpus  # of a pod with containers, at least one if any of them has GPUs
        fits: Mask = self._kept(demand).sum(axis=0) >= needed
        if needed == 0:
            for mask in feasible.masks(self.memory.columns(self.cluster)):
                if mask.ndim == 1:
                    fits = fits & mask
        return fits & self._open

    def _kept(self, demand: Demand) -> Mask:
        """The GPUs that the checks keep which have a form in arrays."""
        self.left -= len(self.cluster) // 64 + 1
        return kept(feasibility(demand, self.policy.checks), self.memory.columns(self.cluster))

    def _nodes(self, demand: Demand) -> Iterator[Node]:
        """The open nodes that may have a slot and can differ in their answer, as long as the budget lasts."""
        cluster, seen = self.cluster, set[int]()
        by_name = feasibility(demand, self.policy.checks).by_name
        groups = cluster.groups.get(demand.affinity, ()) if demand.affinity is not None else ()
        home = {name for name, _ in groups}
        for i in self._fits(demand).nonzero()[0].tolist():
            version = int(cluster.versions[i])
            if (not by_name and version in seen) or (home and cluster.names[i] not in home):
                continue
            if self.spent:
                return
            self.left -= 1
            seen.add(version)
            yield cluster.at(i)


def finished(steps: Steps[T]) -> T:
    """The result of a search, for an engine that has no other work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def _with_demand(job: Job, demand: Demand) -> Job:
    if demand is job.demand:
        return job
    return Job(
        id=job.id,
        demand=demand,
        replicas=job.replicas,
        submitted=job.submitted,
        estimate=job.estimate,
        attained=job.attained,
    )


def _last(number: int, accepts: Callable[[int], bool]) -> int | None:
    """The last of so many indices that is accepted, if all before one that is accepted are; None if the first is
    not."""
    refused = bisect_left(range(number), True, key=lambda i: not accepts(i))
    return refused - 1 if refused else None


def highest_accepted(amounts: range, accepts: Callable[[int], bool]) -> int | None:
    """The highest of these amounts that is accepted; None if none is."""
    index = _last(len(amounts), lambda i: accepts(amounts[i]))
    return None if index is None else amounts[index]
