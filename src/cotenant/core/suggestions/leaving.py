# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which tenants would have to end for a job to fit, by the rules of eviction; nothing is evicted here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Job, Slot
from cotenant.core.placement.deciding import place_gang
from cotenant.core.placement.ranking import rate
from cotenant.core.queueing.eviction import Stake, Way, least_harm
from cotenant.core.queueing.preemption import Holder, displace
from cotenant.core.sharing.orders import tenants_on
from cotenant.core.suggestions.changes import Change, Suggestion
from cotenant.core.suggestions.search import CHUNK, Search, Steps

END_SIZE = 0.5
"""how large a change is for each job that has to end, beside an amount that is lowered by such a part"""
MOST_NODES = 24
"""nodes that are searched: those with the fewest tenants on as many GPUs as are needed"""
MOST_NAMED = 8
"""jobs in one sentence"""
MOST_TENANTS = 64
"""on a node that is searched"""
MOST_HOLDERS = 128
"""running jobs that may have to end for a gang"""


def least_leaving(search: Search, stakes: Mapping[str, Stake]) -> Steps[Suggestion | None]:
    """The tenants of one node that would have to end, with the least harm; None if that is not enough anywhere."""
    demand = search.job.demand
    if not search.is_plain and (yield from search.somewhere(demand)) is not None:
        demand = replace(demand, exclusive=True)  # the sharing gate lets no job share, so a GPU must be idle
    best: tuple[Way, Node] | None = None
    for node in (yield from _emptiest(search)):
        if search.spent:
            break
        search.left -= 8 * (1 + len(node.tenants))  # each tenant is tried alone, and some sets of them
        way = least_harm(search.policy, demand, node, stakes)
        yield None
        if way is not None and (best is None or (way.harm, node.name) < (best[0].harm, best[1].name)):
            best = way, node
    if best is None:
        return None
    way, node = best
    if not search.is_plain:
        return (yield from _past_the_gate(search, node, way.victims))
    slots = (Slot(node.name, way.gpus),)
    allowed = way.victims and (search.allows is None or search.allows(search.job.demand, slots))
    return ending(way.victims, slots) if allowed else None


def _past_the_gate(search: Search, node: Node, victims: Sequence[str]) -> Steps[Suggestion | None]:
    """The same victims without those that can stay, if the sharing gate lets the job in then."""

    def without(jobs: Sequence[str]) -> tuple[Slot, ...] | None:
        search.left -= len(search.cluster)
        kept = (one for one in node.tenants if one.job not in jobs)
        cluster = search.cluster.with_node(Node.of(node.machine, kept))
        found = place_gang(search.memory.ranker, search.job, cluster, None, search.crowding, search.closed)
        return None if found is None else tuple(one.slot for one in found.placements)

    leaving, slots = list(victims), without(victims)
    if slots is None:
        return None
    for job in victims:
        fewer = [one for one in leaving if one != job]
        found = without(fewer) if fewer else None
        yield None
        if found is not None:
            leaving, slots = fewer, found
    return ending(leaving, slots)


def ending(jobs: Sequence[str], slots: tuple[Slot, ...]) -> Suggestion:
    """The suggestion that these jobs end."""
    text = ", ".join(jobs[:MOST_NAMED]) + f" and {len(jobs) - MOST_NAMED} more" * (len(jobs) > MOST_NAMED)
    return Suggestion((Change("end", text, names=tuple(jobs)),), END_SIZE * len(jobs), slots=slots)


def least_leaving_for_gang(search: Search, running: Sequence[Holder]) -> Suggestion | None:
    """The jobs, of any nodes, that would have to end for a gang: the last in queue order first, and none that can
    stay. `running` is in that order."""
    if len(running) > MOST_HOLDERS or search.spent:
        return None
    search.left -= len(running) * len(search.cluster)

    def turn(job: Job) -> tuple[int, float]:
        return (0, 0.0) if job.id == search.job.id else (1, 0.0)  # each running job may have to end

    found = displace(search.memory.ranker, search.job, running, search.cluster, turn)
    if found is None or not found[0]:
        return None
    jobs, decision = found
    return ending(sorted(job.id for job in jobs), tuple(one.slot for one in decision.placements))


def _emptiest(search: Search) -> Steps[list[Node]]:
    """The nodes on which the demand would fit if they were empty, those with the fewest tenants in the way first."""
    demand, cluster = search.job.demand, search.cluster
    needed = max(1, sum(one.gpus for one in demand.containers) if demand.containers else demand.gpus)
    fits: dict[object, bool] = {}
    found: list[tuple[int, Node]] = []
    by_name = bool(demand.use_uuids or demand.avoid_uuids)
    for judged, node in enumerate(cluster, start=1):
        if judged % CHUNK == 0:
            yield None
        if node.name in search.closed or not node.tenants or len(node.tenants) > MOST_TENANTS:
            continue
        key = node.name if by_name else node.machine.kind
        if key not in fits:
            search.left -= 1
            fits[key] = rate(search.policy, demand, Cluster.of([node.machine]).at(0)) is not None
        if fits[key]:
            found.append((_in_the_way(node, needed), node))
    found.sort(key=lambda item: (item[0], item[1].name))
    return [node for _, node in found[:MOST_NODES]]


def _in_the_way(node: Node, gpus: int) -> int:
    """The number of tenants on the GPUs with the fewest of them."""
    counts = sorted(len(tenants_on(node, i)) for i in range(len(node.compute)) if i not in node.machine.unusable)
    return sum(counts[:gpus])
