# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who must leave a node so that a demand fits there, with the least harm.

Harm is compared in this order: how important the most important of them is, how many they are, how important they are
together, and how long they have run. So nobody is evicted where less important ones would do, and of equals as few as
possible, those that have just begun first. `preemption` answers the same for queues, where all are ordered by turn.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, islice
from typing import NamedTuple

from cotenant.core.cluster import Node
from cotenant.core.footprint import claims
from cotenant.core.model import Demand, Gpus, Tenant
from cotenant.core.placement.ladder import Score
from cotenant.core.placement.ranking import Policy, rate
from cotenant.core.units import Seconds

_TRIES = 300
"""pairs who might leave; else those are taken who are left when all who can stay are put back"""


class Stake(NamedTuple):
    """What is lost where a tenant has to leave."""

    priority: int
    since: Seconds
    """when it began: the later, the less is lost"""


class Harm(NamedTuple):
    """Less is better; of sets with the same first parts, the times are of as many tenants, and no clock is needed."""

    priority: float
    """of the most important; minus infinity where nobody has to leave"""
    victims: int
    priorities: int
    """in sum"""
    begun: float
    """in sum, negative"""


NO_HARM = Harm(float("-inf"), 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Way:
    """The GPUs that a demand gets on a node, and who has to leave for that."""

    gpus: Gpus
    score: Score
    victims: tuple[str, ...]
    harm: Harm


def level(policy: Policy, demand: Demand, node: Node, stakes: Mapping[str, Stake]) -> float | None:
    """How important one must be whose leaving lets a demand in at last; None where none of them can help."""
    if rate(policy, demand, node) is not None:
        return NO_HARM.priority
    for priority in sorted({stake.priority for _, stake in _staked(node, stakes)}):
        node = _without(node, (one for one, stake in _staked(node, stakes) if stake.priority <= priority))
        if rate(policy, demand, node) is not None:
            return priority
    return None


def least_harm(policy: Policy, demand: Demand, node: Node, stakes: Mapping[str, Stake]) -> Way | None:
    """The way onto a node that harms least, if those leave who have a stake; None where that is not enough."""
    least = level(policy, demand, node, stakes)
    if least is None:
        return None
    eligible = sorted(
        (one for one, stake in _staked(node, stakes) if stake.priority <= least),
        key=lambda one: (stakes[one.job].priority, -stakes[one.job].since, one.job),
    )
    for leaving in chain([()], ((one,) for one in eligible)):  # least harm first: no other set is better
        way = _way(policy, demand, node, leaving, stakes)
        if way is not None:
            return way
    kept = (_cannot_stay(policy, demand, node, eligible, order) for order in _orders(node, eligible))
    sets = chain(kept, islice(combinations(eligible, 2), _TRIES))
    ways = (_way(policy, demand, node, leaving, stakes) for leaving in sets)
    return min((way for way in ways if way is not None), key=lambda way: (way.harm, way.victims), default=None)


def _way(
    policy: Policy, demand: Demand, node: Node, leaving: Iterable[Tenant], stakes: Mapping[str, Stake]
) -> Way | None:
    victims = tuple(leaving)
    rated = rate(policy, demand, _without(node, victims))
    if rated is None:
        return None
    harm = harm_of(stakes[one.job] for one in victims)
    return Way(rated[1], rated[0], tuple(sorted(one.job for one in victims)), harm)


def harm_of(stakes: Iterable[Stake]) -> Harm:
    """Of all these together."""
    all_of = tuple(stakes)
    if not all_of:
        return NO_HARM
    priorities = [stake.priority for stake in all_of]
    return Harm(max(priorities), len(all_of), sum(priorities), -sum(stake.since for stake in all_of))


def _cannot_stay(
    policy: Policy, demand: Demand, node: Node, eligible: Iterable[Tenant], order: Iterable[Tenant]
) -> list[Tenant]:
    """Those who are left when all are away and come back in this order, as long as the demand still fits."""
    there, leaving = _without(node, eligible), []
    for tenant in order:
        beside = there.with_tenant(tenant)
        if rate(policy, demand, beside) is None:
            leaving.append(tenant)
        else:
            there = beside
    return leaving


def _orders(node: Node, eligible: list[Tenant]) -> Iterator[list[Tenant]]:
    """In which to put back who can stay: the most important first; those who take little, so that few are left; those
    of the GPUs with the most of them, so that the others are cleared."""
    important_first = eligible[::-1]
    yield important_first
    taken = {one.job: claims(one.demand, one.gpus, node.machine.gpus).values() for one in eligible}
    by_memory = sorted(important_first, key=lambda one: sum(claim.memory for claim in taken[one.job]))
    by_compute = sorted(by_memory, key=lambda one: sum(claim.compute for claim in taken[one.job]))
    crowds = Counter(gpu for one in eligible for gpu in one.gpus)
    for order in (by_memory, by_compute):
        yield order
        yield sorted(order, key=lambda one: -max((crowds[gpu] for gpu in one.gpus), default=0))


def _staked(node: Node, stakes: Mapping[str, Stake]) -> list[tuple[Tenant, Stake]]:
    return [(one, stakes[one.job]) for one in node.tenants if one.job in stakes]


def _without(node: Node, tenants: Iterable[Tenant]) -> Node:
    for tenant in tenants:
        node = node.without_tenant(tenant.job, tenant.replica)
    return node
