# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Orders by the change of a potential: a number that values the free room of a node. A slot scores by its effect on it.

FGD's fragmentation and our own potential both have this form. A potential values amounts, CPU and GPU types; which
slots are feasible at all is decided before, by the checks.
"""

from bisect import insort
from collections.abc import Callable
from typing import Protocol

from cotenant.core.cluster import Node, room_of
from cotenant.core.model import Card, Demand, Gpus

Rooms = tuple[int, ...]
"""free thousandths of each GPU, ascending"""


class Potential(Protocol):
    """The value of free room on GPUs of one model, with some free CPU."""

    def value(self, card: Card, cpu: int | None, rooms: Rooms) -> float: ...


def gradient(
    potential: Potential,
    squash: Callable[[float], float],
    expected: Callable[[Demand, Card], float] | None = None,
) -> Callable[[Demand, Node, list[Gpus]], list[float]]:
    """An order that prefers the slot after which the potential is highest; `squash` turns a change into a score.

    `expected` is the loss that a demand causes on an empty GPU of some model, and is added back: a demand takes a
    larger part of a small GPU than of a large one, and would otherwise avoid small GPUs for that alone.
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
    """The potential of a node; different models of GPUs are valued separately, with the same CPU, and added."""
    card = node.machine.card
    if card is not None:
        return potential.value(card, node.cpu, node.sorted_room)
    rooms: dict[Card, list[int]] = {}
    for gpu, room in zip(node.machine.gpus, node.room, strict=True):
        rooms.setdefault(gpu.card, []).append(room)
    return sum(potential.value(card, node.cpu, tuple(sorted(own))) for card, own in rooms.items())
