# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that compare nodes by room alone, and how.

Room is `Node.room`. The scores are the same as those of the orders in `scores.py`.
"""

from collections.abc import Mapping
from typing import Protocol

from cotenant.core.placement.scores import Order, binpack, node_binpack, node_spread, spread
from cotenant.core.placement.shapes import SPAN

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


def room_signs(policy: Orders) -> tuple[int, int] | None:
    """Whether more room on the GPU, and then on the node, is better (1) or worse (-1), if nodes are compared by these
    in this order, and GPUs by room in the same way; else None."""
    if not compares_rooms(policy) or policy.gpus != policy.nodes[:1]:
        return None
    (of_gpu, _), (other, of_node) = (_ORDERS[order] for order in policy.nodes)
    return None if other else (of_gpu, of_node)
