# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Places that a pod could have if others left, found a little at a time: there may be thousands of nodes to look at."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cotenant.core.cluster import Cluster, Node
from cotenant.core.eviction import Harm, Stake, Way, least_harm, level
from cotenant.core.model import Demand
from cotenant.core.ranking import Policy
from cotenant.kube.scheduler.seats import Seat

MOST_ROOMS = 32
"""nodes on which it is worked out who exactly would have to leave"""

Leaves = Callable[[str], bool]
"""whether a tenant, by its UID, can be counted on to leave by itself"""
StakeOf = Callable[[str], Stake | None]
"""of a tenant, by its UID; None: it may not be evicted"""


@dataclass(frozen=True, slots=True)
class Room:
    """A place that a pod could have."""

    seat: Seat
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
    policy: Policy, demand: Demand, cluster: Cluster, names: Iterable[str], leaves: Leaves, stake_of: StakeOf
) -> Iterator[tuple[Node, Way] | None]:
    """The best way onto each of those nodes where it harms least; of equals, those that are named first."""
    levels: list[tuple[float, int, Node]] = []
    for place, name in enumerate(names):
        if _is_apart(demand, cluster, name):
            continue
        node = left_by(cluster.node(name), leaves)
        least = level(policy, demand, node, _stakes(node, demand, stake_of))
        if least is not None:
            levels.append((least, place, node))
        yield None
    for _, _, node in sorted(levels, key=lambda one: one[:2])[:MOST_ROOMS]:
        way = least_harm(policy, demand, node, _stakes(node, demand, stake_of))
        yield None if way is None else (node, way)


def left_by(node: Node, leaves: Leaves) -> Node:
    """The node without those."""
    for tenant in node.tenants:
        node = node.without_tenant(tenant.job, tenant.replica) if leaves(tenant.job) else node
    return node


def _is_apart(demand: Demand, cluster: Cluster, name: str) -> bool:
    """Whether the rest of its group is on another node."""
    members = () if demand.affinity is None else cluster.groups.get(demand.affinity, ())
    return bool(members) and name not in dict(members)


def _stakes(node: Node, demand: Demand, stake_of: StakeOf) -> dict[str, Stake]:
    """Of those who may be evicted from a node, which companions of the newcomer may not."""
    strangers = (one for one in node.tenants if demand.affinity is None or one.demand.affinity != demand.affinity)
    found = ((one.job, stake_of(one.job)) for one in strangers)
    return {uid: stake for uid, stake in found if stake is not None}
