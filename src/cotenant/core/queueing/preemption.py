# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Preemption by queue order: which running jobs to suspend so that jobs ahead of them can run.

The last in queue order are suspended first, and none that can stay after all. A cluster is a value: trying means
removing tenants from a tentative one, and nothing happens until the caller acts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Job, Placement, Reason
from cotenant.core.placement.check import Check
from cotenant.core.placement.containers import amounts_fit
from cotenant.core.placement.deciding import Decision, place_gang
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.ranking import Ranker

Turn = Callable[[Job], tuple[int, float]]
"""position in the queue, smallest first: `deciding.queue_position` at some time"""
Holder = tuple[Job, tuple[Placement, ...]]


def find_preemptions(
    ranker: Ranker, waiting: Iterable[Job], running: Sequence[Holder], cluster: Cluster, turn: Turn
) -> Iterator[list[Job]]:
    """For each waiting job that preempts others, in order: the jobs that it preempts.

    If a job cannot be placed this way, jobs of the same kind are not tried.
    """
    last_first = sorted(running, key=lambda holder: (turn(holder[0]), holder[0].id), reverse=True)
    gone: set[str] = set()
    hopeless: set[object] = set()
    for job in waiting:
        kind = (job.demand, job.replicas)
        if kind in hopeless:
            continue
        found = displace(ranker, job, [one for one in last_first if one[0].id not in gone], cluster, turn)
        if found is None:
            hopeless.add(kind)
            continue
        victims, decision = found
        cluster = decision.cluster
        gone.update(victim.id for victim in victims)
        if victims:
            yield victims


def displace(
    ranker: Ranker, job: Job, last_first: Sequence[Holder], cluster: Cluster, turn: Turn
) -> tuple[list[Job], Decision] | None:
    """The fewest last jobs whose removal lets this one start, without those that can stay after all."""
    tentative: Cluster = cluster
    removed: list[Holder] = []
    for holder in last_first:
        decision = place_gang(ranker, job, tentative)
        if decision is not None:
            return _put_back(ranker.policy.table, removed, decision)
        if turn(holder[0]) <= turn(job):
            return None
        for placement in holder[1]:
            tentative = tentative.finish(placement)
        removed.append(holder)
    decision = place_gang(ranker, job, tentative)
    return None if decision is None else _put_back(ranker.policy.table, removed, decision)


def _put_back(checks: tuple[Check, ...], removed: Sequence[Holder], decision: Decision) -> tuple[list[Job], Decision]:
    cluster, victims = decision.cluster, []
    for job, placements in reversed(removed):
        tentative: Cluster | None = cluster
        for placement in placements:
            if tentative is not None and _can_stay(checks, placement, tentative, decision.placements):
                tentative = tentative.place(placement)
            else:
                tentative = None
        if tentative is None:
            victims.append(job)
        else:
            cluster = tentative
    return victims, Decision(decision.placements, cluster)


def _can_stay(checks: tuple[Check, ...], placement: Placement, cluster: Cluster, new: Iterable[Placement]) -> bool:
    """Whether a tenant can keep its slot beside the newcomers, whose affinity group may also be its own."""
    demand, slot = placement.job.demand, placement.slot
    if demand.affinity is not None and any(name != slot.node for name, _ in cluster.groups.get(demand.affinity, ())):
        return False
    newcomers = [one for one in new if one.slot.node == slot.node]
    if not newcomers:
        return True
    node = before = cluster.node(slot.node)
    for one in newcomers:
        before = before.without_tenant(one.job.id, one.replica)
    contested = set(slot.gpus).intersection(chain.from_iterable(one.slot.gpus for one in newcomers))
    if not amounts_fit(demand, node, slot.gpus, contested):
        return False
    # Checks are for those that come: one that would refuse the tenant anyway (its GPU was cordoned since) is no reason
    # to leave. The newcomers must not be what it refuses for.
    own = [i for i in sorted(set(slot.gpus)) if i < len(node.compute)]
    return all(
        _kept(check, demand, before, own) <= _kept(check, demand, node, own)
        for check in feasibility(demand, checks).checks
    )


def _kept(check: Check, demand: Demand, node: Node, gpus: list[int]) -> set[int]:
    """The GPUs that a check keeps, however few; -1 stands for the node itself."""
    left = check.narrow(replace(demand, gpus=0), node, gpus)
    return set() if isinstance(left, Reason) else {-1, *left}
