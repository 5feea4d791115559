# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which tenants to evict from a node so that a demand fits there, with the least harm.

Harm is compared in this order: the highest priority among the victims, their number, the sum of their priorities, and
how long they have run. So no tenant is evicted if ones of lower priority suffice, and among equals as few as possible,
those that started last first. `preemption` answers the same question for queues, in queue order.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, islice
from typing import NamedTuple

from cotenant.core.cluster import Node
from cotenant.core.footprint import claims
from cotenant.core.model import Demand, Gpus, Tenant
from cotenant.core.placement.ranking import Policy, rate
from cotenant.core.placement.scores import Score
from cotenant.core.units import Seconds

_TRIES = 300
"""pairs of victims that are tried, besides the sets that remain when all tenants that can stay are put back"""


class Stake(NamedTuple):
    """What is lost if a tenant is evicted."""

    priority: int
    since: Seconds
    """when it started: the later, the less is lost"""


class Harm(NamedTuple):
    """Less is better. Times are compared only between sets of equal size, so no clock is needed."""

    priority: float
    """highest among the victims; minus infinity if there are none"""
    victims: int
    priorities: int
    """sum over the victims"""
    begun: float
    """sum of the start times, negated"""


NO_HARM = Harm(float("-inf"), 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Way:
    """The GPUs that a demand gets on a node, and the tenants to evict for it."""

    gpus: Gpus
    score: Score
    victims: tuple[str, ...]
    harm: Harm


def level(policy: Policy, demand: Demand, node: Node, stakes: Mapping[str, Stake]) -> float | None:
    """The lowest priority up to which all tenants must leave for the demand to fit; None if that is not enough."""
    if rate(policy, demand, node) is not None:
        return NO_HARM.priority
    for priority in sorted({stake.priority for _, stake in _staked(node, stakes)}):
        node = _without(node, (one for one, stake in _staked(node, stakes) if stake.priority <= priority))
        if rate(policy, demand, node) is not None:
            return priority
    return None


def least_harm(policy: Policy, demand: Demand, node: Node, stakes: Mapping[str, Stake]) -> Way | None:
    """The eviction that harms least, among tenants with a stake; None if evicting all of them is not enough."""
    least = level(policy, demand, node, stakes)
    if least is None:
        return None
    eligible = sorted(
        (one for one, stake in _staked(node, stakes) if stake.priority <= least),
        key=lambda one: (stakes[one.job].priority, -stakes[one.job].since, one.job),
    )
    # Search. `level` found the lowest priority up to which tenants must be evictable, so every solution has a victim of
    # that priority or is empty, and harm differs first in the number of victims. Sets of none and of one are tried in
    # order of harm: the first that works is optimal. Larger sets are too many to try all; candidates are what remains
    # when tenants are put back greedily in several orders, and the first pairs. The least harmful of these is taken.
    for leaving in chain([()], ((one,) for one in eligible)):
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
    """The harm of evicting all of these."""
    all_of = tuple(stakes)
    if not all_of:
        return NO_HARM
    priorities = [stake.priority for stake in all_of]
    return Harm(max(priorities), len(all_of), sum(priorities), -sum(stake.since for stake in all_of))


def _cannot_stay(
    policy: Policy, demand: Demand, node: Node, eligible: Iterable[Tenant], order: Iterable[Tenant]
) -> list[Tenant]:
    """The tenants that cannot stay if all are removed and put back in this order while the demand still fits."""
    there, leaving = _without(node, eligible), []
    for tenant in order:
        beside = there.with_tenant(tenant)
        if rate(policy, demand, beside) is None:
            leaving.append(tenant)
        else:
            there = beside
    return leaving


def _orders(node: Node, eligible: list[Tenant]) -> Iterator[list[Tenant]]:
    """Orders in which tenants are put back: by priority; by size, so that few are evicted; and those on GPUs with the
    most tenants first, so that other GPUs are cleared."""
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
