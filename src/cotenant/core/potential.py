# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Placing by the change of a potential: one number says how good a node's free room is, a slot is rated by what it does
to that number. FGD's fragmentation and our own potential are both of this form.
"""

from bisect import insort
from collections.abc import Callable
from typing import Protocol

from cotenant.core.cluster import Node
from cotenant.core.model import Card, Demand, Gpus

Rooms = tuple[int, ...]
"""free thousandths of each GPU, ascending"""


class Potential(Protocol):
    """The value of free room on equal cards beside some free CPU."""

    def value(self, card: Card, cpu: int | None, rooms: Rooms) -> float: ...


def gradient(
    potential: Potential, squash: Callable[[float], float]
) -> Callable[[Demand, Node, list[Gpus]], list[float]]:
    """An order that prefers the slot after which the potential is highest; `squash` turns a change into a score."""

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        before = of_node(potential, node)
        if node.machine.card is None or not demand.plain or demand.memory:
            return [squash(of_node(potential, node.after(demand, slot)) - before) for slot in slots]
        card, need = node.machine.card, demand.compute
        cpu = None if node.cpu is None else node.cpu - demand.cpu
        scores = []
        for slot in slots:
            rooms = list(node.sorted_room)
            for i in slot:
                room = node.room[i]
                rooms.remove(room)
                insort(rooms, _room_left(node, i, room, need))
            scores.append(squash(potential.value(card, cpu, tuple(rooms)) - before))
        return scores

    return order


def of_node(potential: Potential, node: Node) -> float:
    """The potential of a whole node; different cards beside the same CPU are valued apart and added."""
    card = node.machine.card
    if card is not None:
        return potential.value(card, node.cpu, node.sorted_room)
    rooms: dict[Card, list[int]] = {}
    for gpu, room in zip(node.machine.gpus, node.room, strict=True):
        rooms.setdefault(Card(gpu.type, gpu.memory_capacity), []).append(room)
    return sum(potential.value(card, node.cpu, tuple(sorted(own))) for card, own in rooms.items())


def _room_left(node: Node, gpu: int, room: int, need: int) -> int:
    """Room on a GPU after one more tenant that takes `need` milli-GPU and no memory."""
    if node.slots[gpu] <= 1:
        return 0
    whole = node.machine.compute_capacities[gpu]
    return min(room, max(0, (node.compute[gpu] - need) * 1000 // whole))
