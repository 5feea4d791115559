# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a changed demand can be placed, and the highest amount with which it can.

The search is bounded: it counts the nodes that it judges, and stops at a budget. Demands whose checks have a form in
arrays are judged on all nodes at once. For others each node is asked only whether it takes more than the best node so
far, so most nodes are judged once for each amount that is searched.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator

import numpy as np

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Job, Slot
from cotenant.core.placement.check import Mask
from cotenant.core.placement.deciding import place_gang
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.gpu_arrays import GpuArrays, kept
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.placement.slots import slots_of
from cotenant.core.suggestions.changes import Axis

BUDGET = 40_000
"""nodes that one search may judge: some tenths of a second"""
Allows = Callable[[Demand, tuple[Slot, ...]], bool]
_REMEMBERED = 16
"""demands whose scores are kept"""


class Memory:
    """The arrays and the ranker of one policy. Kept between searches, so that only nodes that changed are read again.

    They are apart from those of the engine: demands that no job has must not evict the real ones.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.ranker = Ranker(policy, _REMEMBERED)
        self.arrays = GpuArrays(_REMEMBERED, tenants=False)


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

    def placed(self, demand: Demand, near: str | None = None) -> tuple[Slot, ...] | None:
        """The slots of the whole job with that demand; None if it cannot be placed. `near` is a node that takes it."""
        ranker, cluster = self.memory.ranker, self.cluster
        if self.is_plain:
            near = self.somewhere(demand) if near is None else near
            fits = [] if near is None else ranker.top(demand, cluster, (near,), 1)
            slots = tuple(fit.slot for fit in fits)
        else:
            self.left -= len(cluster)
            found = place_gang(ranker, _with_demand(self.job, demand), cluster, None, self.crowding, self.closed)
            slots = () if found is None else tuple(one.slot for one in found.placements)
        return slots if slots and (self.allows is None or self.allows(demand, slots)) else None

    def somewhere(self, demand: Demand) -> str | None:
        """A node that has a slot for the demand; None if there is none, or the search ended before one was found."""
        feasible = feasibility(demand, self.policy.checks)
        if feasible.in_arrays:
            fits = self._fits(demand)
            return self.cluster.names[int(fits.argmax())] if fits.any() else None
        return next((node.name for node in self._nodes(demand) if slots_of(feasible, node)), None)

    def highest(self, axis: Axis, demand: Demand) -> tuple[int, str] | None:
        """The highest lower amount with which some node has a slot for the demand, and the node; None if no amount."""
        amounts = axis.amounts()
        if not amounts:
            return None
        if feasibility(axis.change(demand, amounts[0]), self.policy.checks).in_arrays:
            found = highest_accepted(amounts, lambda amount: bool(self._fits(axis.change(demand, amount)).any()))
            there = None if found is None else self.somewhere(axis.change(demand, found))
            return None if found is None or there is None else (found, there)
        best: tuple[int, str] | None = None
        reached = -1
        for node in self._nodes(demand):
            here = self._reach(axis, demand, node, amounts, reached)
            if here > reached:
                best, reached = (amounts[here], node.name), here
            if reached + 1 == len(amounts):
                break
        return best

    def _reach(self, axis: Axis, demand: Demand, node: Node, amounts: range, reached: int) -> int:
        """The index of the highest amount that a node takes, if it takes more than another one; else that index."""

        def takes(i: int) -> bool:
            self.left -= 1
            changed = axis.change(demand, amounts[i])
            return bool(slots_of(feasibility(changed, self.policy.checks), node))

        first = reached + 1
        if not takes(first):
            return reached
        further = _last(len(amounts) - first - 1, lambda i: takes(first + 1 + i))
        return first if further is None else first + 1 + further

    def _fits(self, demand: Demand) -> Mask:
        """Which open nodes have a slot, for demands whose checks have a form in arrays."""
        self.left -= len(self.cluster) // 64 + 1
        feasible = feasibility(demand, self.policy.checks)
        columns = self.memory.arrays.columns(self.cluster)
        fits: Mask = kept(feasible, columns).sum(axis=0) >= demand.gpus
        if demand.gpus == 0:
            for mask in feasible.masks(columns):
                if mask.ndim == 1:
                    fits = fits & mask
        return fits & self._open

    def _nodes(self, demand: Demand) -> Iterator[Node]:
        """The open nodes that can differ in their answer, as long as the budget lasts."""
        cluster, seen = self.cluster, set[int]()
        by_name = feasibility(demand, self.policy.checks).by_name
        groups = cluster.groups.get(demand.affinity, ()) if demand.affinity is not None else ()
        home = {name for name, _ in groups}
        for i in self._open.nonzero()[0].tolist():
            version = int(cluster.versions[i])
            if (not by_name and version in seen) or (home and cluster.names[i] not in home):
                continue
            if self.spent:
                return
            self.left -= 1
            seen.add(version)
            yield cluster.at(i)


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
