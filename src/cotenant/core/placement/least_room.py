# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which waiting jobs cannot fit on a few nodes, by free amounts alone: far faster than ranking a demand.

The answer "may fit" is no promise: other checks may refuse. The answer "cannot fit" is always right, because every
demand needs at least its floors, on usable GPUs.
"""

from collections.abc import Iterable
from typing import NamedTuple

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand
from cotenant.core.placement.check import Check, Floors
from cotenant.core.placement.checks import usable
from cotenant.core.placement.feasibility import floors_of, of_any_container

MOST_NODES = 8
"""with more nodes, ranking is faster than a look at each"""
UNKNOWN = 1 << 62
"""more than any demand needs: the node does not say how much it has"""


class Need(NamedTuple):
    """The least that a demand needs of one node."""

    gpus: int
    floors: Floors


class NodeRoom(NamedTuple):
    """What is free on one node, and the free compute, memory and share slots of each GPU that jobs may use."""

    cpu: int
    host_memory: int
    gpus: tuple[tuple[int, int, int], ...]


def need_of(demand: Demand, checks: tuple[Check, ...]) -> Need:
    """What a demand needs of one node at least. The GPUs of containers may be the same one."""
    return Need(of_any_container(demand).gpus, floors_of(demand, checks))


def room_of(cluster: Cluster, checks: Iterable[Check]) -> tuple[NodeRoom, ...] | None:
    """What is free on the nodes of a cluster; None if they are too many."""
    if len(cluster) > MOST_NODES:
        return None
    needs_health = any(check.narrow is usable for check in checks)
    rooms = []
    for node in map(cluster.at, range(len(cluster))):
        closed = node.machine.unusable if needs_health else ()
        free = zip(node.compute, node.memory, node.slots, strict=True)
        rooms.append(
            NodeRoom(
                UNKNOWN if node.cpu is None else node.cpu,
                UNKNOWN if node.host_memory is None else node.host_memory,
                tuple(amounts for gpu, amounts in enumerate(free) if gpu not in closed),
            )
        )
    return tuple(rooms)


def may_fit(rooms: Iterable[NodeRoom], needs: Iterable[Need]) -> bool:
    """Whether one of these nodes has enough of everything for one of these needs."""
    for needed, (cpu, host_memory, compute, memory, slots) in needs:
        for room in rooms:
            if room.cpu < cpu or room.host_memory < host_memory:
                continue
            left = needed
            for free_compute, free_memory, free_slots in room.gpus:
                if left and free_compute >= compute and free_memory >= memory and free_slots >= slots:
                    left -= 1
            if not left:
                return True
    return False
