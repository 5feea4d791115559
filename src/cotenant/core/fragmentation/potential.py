# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Placing by the change of a potential: one number says how good a node's free room is, a slot is rated by what it does
to that number. FGD's fragmentation and our own potential are both of this form.
"""

from bisect import insort
from collections.abc import Callable
from typing import Protocol

from cotenant.core.cluster import Node, room_of
from cotenant.core.model import Card, Demand, Gpus

Rooms = tuple[int, ...]
"""free thousandths of each GPU, ascending"""


class Potential(Protocol):
    """The value of free room on equal cards beside some free CPU."""

    def value(self, card: Card, cpu: int | None, rooms: Rooms) -> float: ...


def gradient(
    potential: Potential,
    squash: Callable[[float], float],
    expected: Callable[[Demand, Card], float] | None = None,
) -> Callable[[Demand, Node, list[Gpus]], list[float]]:
    """An order that prefers the slot after which the potential is highest; `squash` turns a change into a score.

    `expected` is the loss that a demand brings to a fresh card of some kind. It is not held against the slot: a demand
    takes more of a small card than of a large one, and would otherwise be kept off small cards for that alone.
    """

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        before = of_node(potential, node)
        card = node.machine.card
        asked = demand.steady if demand.containers else demand
        fair = 0.0 if expected is None or card is None else expected(demand, card) * asked.gpus
        claim = demand.claim
        if card is None or claim is None:
            cards = node.machine.gpus
            scores = []
            for slot in slots:
                if card is None and expected is not None:
                    fair = sum(expected(demand, cards[i].card) for i in slot)
                scores.append(squash(of_node(potential, node.after(demand, slot)) - before + fair))
            return scores
        compute, memory = claim.compute, claim.memory
        cpu = None if node.cpu is None else node.cpu - demand.cpu
        scores = []
        for slot in slots:
            rooms = list(node.sorted_room)
            for i in slot:
                rooms.remove(node.room[i])
                left = room_of(node.machine, i, node.compute[i] - compute, node.memory[i] - memory, node.slots[i] - 1)
                insort(rooms, left)
            scores.append(squash(potential.value(card, cpu, tuple(rooms)) - before + fair))
        return scores

    return order


def of_node(potential: Potential, node: Node) -> float:
    """The potential of a whole node; different cards beside the same CPU are valued apart and added."""
    card = node.machine.card
    if card is not None:
        return potential.value(card, node.cpu, node.sorted_room)
    rooms: dict[Card, list[int]] = {}
    for gpu, room in zip(node.machine.gpus, node.room, strict=True):
        rooms.setdefault(gpu.card, []).append(room)
    return sum(potential.value(card, node.cpu, tuple(sorted(own))) for card, own in rooms.items())
