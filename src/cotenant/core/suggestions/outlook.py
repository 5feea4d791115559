# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What-if: where a job would go now, and how slow it and its neighbours would get. Nothing is placed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.core.cluster import Cluster, Node
from cotenant.core.interference import ALONE, Speed
from cotenant.core.model import Placement, Reason, Slot, Tenant
from cotenant.core.placement.deciding import place_gang, rank
from cotenant.core.placement.ranking import Fit, Ranking
from cotenant.core.sharing.gates import PLACE
from cotenant.core.sharing.orders import tenants_on
from cotenant.core.sharing.speeds import Belief, tenant_set_of
from cotenant.core.suggestions.search import Search, Steps

MOST_RANKED = 1000
"""nodes up to which all are ranked by any policy"""
MOST_FITS = 64
"""slots whose scores are computed"""


class TenantOutlook(NamedTuple):
    """The job itself or a neighbour, on a GPU that the job would use. Speeds are relative to running alone."""

    job: str
    replica: int
    slot: Slot
    """the node and the GPU"""
    workload: str | None
    before: Speed | None
    """the predicted speed now; None: it is the job itself"""
    after: Speed
    """the predicted speed beside the job"""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a job would go, or why it would wait."""

    placements: tuple[Placement, ...] = ()
    """empty: it would wait"""
    tenants: tuple[TenantOutlook, ...] = ()
    fits: tuple[Fit, ...] = ()
    """the best slots for one member, best first, at most `MOST_FITS`"""
    nodes: int = 0
    """number of nodes that were considered"""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """Why each other node refuses it. In a large cluster it is left out if the job fits, and so are all fits but the
    best, unless the policy compares all nodes at once."""
    waits: Reason | None = None
    """why the sharing gate lets it wait although it fits"""
    trial: bool = False
    """it would be judged again after a measurement"""


def outlook(search: Search, workloads: Mapping[str, str] | None = None) -> Steps[Outlook]:
    """What would happen to the job of a search. `workloads` names those of tenants whose demands name none."""
    memory, job, cluster = search.memory, search.job, search.cluster
    closed = search.closed
    nodes = None if not closed else [name for name in cluster.names if name not in closed]
    yield from memory.ranker.prepare(job.demand, cluster, closed)
    ranking = _ranking(search, nodes)
    yield None
    found = place_gang(memory.ranker, job, cluster, None, search.crowding, closed)
    total = len(cluster) - len(closed)
    if found is None:
        return Outlook(fits=ranking.fits, nodes=total, reasons=ranking.reasons, waits=ranking.verdict.reason)
    after, belief = found.cluster, search.policy.known.belief
    tenants = tuple(_tenants(belief, cluster, after, found.placements, workloads or {}))
    trial = any(one.trial for one in found.placements)
    return Outlook(found.placements, tenants, ranking.fits, total, ranking.reasons, None, trial)


def _ranking(search: Search, nodes: list[str] | None) -> Ranking:
    """The ranking of all nodes, or of the best one if ranking all of them would take long."""
    ranker, demand, cluster = search.memory.ranker, search.job.demand, search.cluster
    if len(cluster) <= MOST_RANKED or ranker.at_once(demand):
        return rank(search.policy, search.job, cluster, nodes, most=MOST_FITS, ranker=ranker, crowding=search.crowding)
    best, gate = ranker.best(demand, cluster, None, search.closed), search.policy.gate
    if best is None:
        return Ranking((), ranker.reasons(demand, cluster, nodes))
    return Ranking((best,), {}, PLACE if gate is None or search.crowding is None else gate(best.score, search.crowding))


def _tenants(
    belief: Belief, before: Cluster, after: Cluster, placements: tuple[Placement, ...], workloads: Mapping[str, str]
) -> Iterator[TenantOutlook]:
    new = {(one.job.id, one.replica) for one in placements}
    gpus = dict.fromkeys((one.slot.node, gpu) for one in placements for gpu in one.slot.gpus)
    for node, gpu in gpus:
        then = _speeds(belief, after.node(node), gpu, workloads)
        now = {(one.job, one.replica): speed for one, _, speed in _speeds(belief, before.node(node), gpu, workloads)}
        for tenant, workload, speed in sorted(then, key=lambda item: (item[0].job, item[0].replica) not in new):
            key = tenant.job, tenant.replica
            known = None if key in new else now.get(key, ALONE)
            yield TenantOutlook(tenant.job, tenant.replica, Slot(node, (gpu,)), workload, known, speed)


def _speeds(
    belief: Belief, node: Node, gpu: int, workloads: Mapping[str, str]
) -> list[tuple[Tenant, str | None, Speed]]:
    """The tenants of a GPU with their workloads and predicted speeds."""
    there = [(one.demand.workload or workloads.get(one.job), one) for one in tenants_on(node, gpu)]
    if not there:
        return []
    there.sort(key=lambda item: str(item[0]))  # the order of a `TenantSet`
    speeds = belief.speeds(tenant_set_of(node.machine.gpus[gpu].type, [workload for workload, _ in there]))
    return [(one, workload, speed) for (workload, one), speed in zip(there, speeds, strict=True)]
