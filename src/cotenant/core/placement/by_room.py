# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that compare nodes by room alone, and a fast way to rate nodes for one GPU under them.

Room is `Node.room`. The scores are the same as those of the orders in `scores.py`.
"""

from collections.abc import Mapping
from typing import Protocol

from cotenant.core.cluster import Node
from cotenant.core.model import Gpus
from cotenant.core.placement.feasibility import Feasibility
from cotenant.core.placement.scores import Order, binpack, node_binpack, node_spread, spread
from cotenant.core.placement.shapes import REFUSED, SPAN, Rater
from cotenant.core.placement.slots import alone

_ORDERS: Mapping[Order, tuple[int, int]] = {
    binpack: (-1, 0),
    spread: (1, 0),
    node_binpack: (0, -1),
    node_spread: (0, 1),
}
"""how much the room on the chosen GPUs and on the whole node count, for orders that need nothing else"""


class Orders(Protocol):
    """The part of a policy that matters here."""

    @property
    def nodes(self) -> tuple[Order, ...]: ...
    @property
    def gpus(self) -> tuple[Order, ...]: ...
    @property
    def random(self) -> bool: ...


def compares_rooms(policy: Orders) -> bool:
    """Whether this policy compares nodes by room alone."""
    known = len(policy.nodes) == 2 and set(policy.nodes) <= _ORDERS.keys()
    return known and policy.gpus in ((binpack,), (spread,)) and not policy.random


def room_weights(policy: Orders) -> tuple[int, int]:
    """The factors of the room on the chosen GPUs and on the whole node in the label of a score (`shapes.RoomScale`)."""
    first, second = (_ORDERS[order] for order in policy.nodes)
    return first[0] * SPAN + second[0], first[1] * SPAN + second[1]


def room_rater(policy: Orders, feasible: Feasibility) -> Rater | None:
    """Rates nodes as `ranking.rate` does, with the labels of `shapes.RoomScale`; None if room alone does not decide.

    Room decides if the policy takes the GPU with the least room, the demand needs one GPU, and all checks are of
    amounts or of the kind of machine.
    """
    demand = feasible.demand
    if policy.gpus != (binpack,) or not feasible.by_amounts or demand.gpus != 1 or demand.containers:
        return None
    cpu, host_memory, least_compute, least_memory, least_slots = feasible.floors
    allowed_on = feasible.allowed
    of_gpu, of_node = room_weights(policy)

    def rate_node(node: Node) -> tuple[float, Gpus]:
        free_cpu, free_memory = node.cpu, node.host_memory
        if (free_cpu is not None and free_cpu < cpu) or (free_memory is not None and free_memory < host_memory):
            return REFUSED, ()
        allowed = allowed_on(node)
        for room, gpu, compute, memory, slots in node.by_room:
            enough = compute >= least_compute and memory >= least_memory and slots >= least_slots
            if enough and (allowed is None or gpu in allowed):
                return of_gpu * room + of_node * sum(node.room), alone(gpu)
        return REFUSED, ()

    return rate_node
