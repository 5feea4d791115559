# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Places that a pod could have if others left, found a little at a time: there may be thousands of nodes to look at."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand
from cotenant.core.placement.ranking import Policy
from cotenant.core.queueing.eviction import Harm, Stake, Way, harm_of, least_harm, level
from cotenant.kube.state.allocation import Allocation

MOST_ROOMS = 16
"""nodes on which it is worked out who exactly would have to leave"""


@dataclass(frozen=True, slots=True)
class Movable:
    """Which tenants, by their UIDs, are not there for good."""

    leaves: Callable[[str], bool]
    """whether it can be counted on to leave by itself"""
    stake_of: Callable[[str], Stake | None]
    """None: it may not be evicted"""
    musts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """those of a node who have to leave anyhow, for something of which the state know nothing"""


@dataclass(frozen=True, slots=True)
class Room:
    """A place that a pod could have."""

    seat: Allocation
    victims: tuple[str, ...]
    """UIDs of those who would have to be evicted for it"""
    harm: Harm

    @property
    def node(self) -> str:
        return self.seat.record.node


def best_of(rooms: Iterable[Room | None]) -> Room | None:
    """The one that harms least, by name of the node among equals."""
    return min((room for room in rooms if room is not None), key=lambda room: (room.harm, room.node), default=None)


def ways(
    policy: Policy, demand: Demand, cluster: Cluster, names: Iterable[str], who: Movable
) -> Iterator[tuple[Node, Way] | None]:
    """The best way onto each of those nodes where it harms least; of equals, those that are named first."""
    levels: list[tuple[float, int, Node, dict[str, Stake]]] = []
    for place, name in enumerate(names):
        stakes = None if _is_apart(demand, cluster, name) else _must(cluster.node(name), demand, who)
        if stakes is None:
            continue
        node = left_by(left_by(cluster.node(name), who.leaves), stakes.__contains__)
        least = level(policy, demand, node, _stakes(node, demand, who))
        if least is not None:
            levels.append((max(least, harm_of(stakes.values()).priority), place, node, stakes))
        yield None
    for _, _, node, stakes in sorted(levels, key=lambda one: one[:2])[:MOST_ROOMS]:
        way = least_harm(policy, demand, node, _stakes(node, demand, who))
        yield None if way is None else (node, _with(way, stakes, _stakes(node, demand, who)))


def _must(node: Node, demand: Demand, who: Movable) -> dict[str, Stake] | None:
    """The stakes of those who have to leave a node anyhow; None where one of them may not be evicted."""
    musts = {uid for uid in who.musts.get(node.name, ()) if not who.leaves(uid)}
    stakes = _stakes(node, demand, who)
    return {uid: stakes[uid] for uid in sorted(musts)} if musts <= stakes.keys() else None


def _with(way: Way, more: Mapping[str, Stake], stakes: Mapping[str, Stake]) -> Way:
    victims = tuple(sorted({*way.victims, *more}))
    return replace(way, victims=victims, harm=harm_of(more.get(uid) or stakes[uid] for uid in victims))


def left_by(node: Node, leaves: Callable[[str], bool]) -> Node:
    """The node without those."""
    for tenant in node.tenants:
        node = node.without_tenant(tenant.job, tenant.replica) if leaves(tenant.job) else node
    return node


def _is_apart(demand: Demand, cluster: Cluster, name: str) -> bool:
    """Whether the rest of its group is on another node."""
    members = () if demand.affinity is None else cluster.groups.get(demand.affinity, ())
    return bool(members) and name not in dict(members)


def _stakes(node: Node, demand: Demand, who: Movable) -> dict[str, Stake]:
    """Of those who may be evicted from a node, which companions of the newcomer may not."""
    strangers = (one for one in node.tenants if demand.affinity is None or one.demand.affinity != demand.affinity)
    found = ((one.job, who.stake_of(one.job)) for one in strangers)
    return {uid: stake for uid, stake in found if stake is not None}
