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
from cotenant.core.model import Demand, GpuModel, Gpus

Rooms = tuple[int, ...]
"""free thousandths of each GPU, ascending"""


class Potential(Protocol):
    """The value of free room on GPUs of one model, with some free CPU."""

    def value(self, model: GpuModel, cpu: int | None, rooms: Rooms) -> float: ...


def gradient(
    potential: Potential,
    squash: Callable[[float], float],
    expected: Callable[[Demand, GpuModel], float] | None = None,
) -> Callable[[Demand, Node, list[Gpus]], list[float]]:
    """An order that prefers the slot after which the potential is highest; `squash` turns a change into a score.

    `expected` is the loss that a demand causes on an empty GPU of some model, and is added back: a demand takes a
    larger part of a small GPU than of a large one, and would otherwise avoid small GPUs for that alone.
    """

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        before = of_node(potential, node)
        model = node.machine.gpu_model
        asked = demand.steady if demand.containers else demand
        fair = 0.0 if expected is None or model is None else expected(demand, model) * asked.gpus
        claim = demand.claim
        if model is None or claim is None:
            gpus = node.machine.gpus
            scores = []
            for slot in slots:
                if model is None and expected is not None:
                    fair = sum(expected(demand, gpus[i].gpu_model) for i in slot)
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
            scores.append(squash(potential.value(model, cpu, tuple(rooms)) - before + fair))
        return scores

    return order


def of_node(potential: Potential, node: Node) -> float:
    """The potential of a node; different models of GPUs are valued separately, with the same CPU, and added."""
    model = node.machine.gpu_model
    if model is not None:
        return potential.value(model, node.cpu, node.sorted_room)
    rooms: dict[GpuModel, list[int]] = {}
    for gpu, room in zip(node.machine.gpus, node.room, strict=True):
        rooms.setdefault(gpu.gpu_model, []).append(room)
    return sum(potential.value(model, node.cpu, tuple(sorted(own))) for model, own in rooms.items())
