# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The fragmentation measure and the descent rule of FGD (Weng et al., USENIX ATC 2023), exactly as published.

F_n(m) is the free GPU room of node n that a typical pod m cannot use:
    all of it, if m needs no GPU, the model is wrong, or n lacks CPU or GPUs for m
    the GPUs with less room than m needs, otherwise
F_n = sum_m p_m F_n(m), p_m the popularity of m among the most popular 95 % of pods.

The order of the float additions matters: near-zero gradients round to a score of 49 or 50 by their last bit, so the
seven amounts are kept apart as the authors' program keeps them and added up in its order.
"""

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate

from cotenant.core.cluster import Node
from cotenant.core.fragmentation.mix import Mix, Spec
from cotenant.core.fragmentation.potential import Rooms
from cotenant.core.model import GpuModel
from cotenant.core.placement.checks import type_allowed

POPULAR = 95
"""percent of the pods that the typical ones make up"""

LACK_BOTH, LACK_GPU, SATISFIED, LACK_CPU, NO_GPU_ASKED, NO_GPU_ASKED_LACK_CPU, WRONG_MODEL = range(7)
FRAGMENTED = (LACK_BOTH, LACK_GPU, LACK_CPU, NO_GPU_ASKED, NO_GPU_ASKED_LACK_CPU, WRONG_MODEL)

_Typical = tuple[int, int, int | None, float]

Amounts = tuple[float, ...]
"""free room by what the typical pods could do with it, one number for each of the seven cases"""


def typical_pods(mix: Mix) -> list[tuple[Spec, float]]:
    """The fewest specs, most popular first, that make up 95 % of the mix, with their shares of it."""

    def popularity(item: tuple[Spec, int]) -> tuple[int, int, int, int, str, int, int]:
        spec, count = item
        return count, spec.cpu, spec.compute, spec.gpus, "|".join(spec.types), spec.memory, spec.memory_percent

    ordered = sorted(mix.items(), key=popularity, reverse=True)
    total = float(sum(mix.values()))
    typical: list[tuple[Spec, float]] = []
    covered = 0.0
    for spec, count in ordered:
        if covered >= POPULAR * total / 100.0:
            break
        covered += count
        typical.append((spec, count / total))
    if len(typical) == len(ordered):
        return typical
    return [(spec, share / (covered / total)) for spec, share in typical]


class Fragmentation:
    """F_n for one mix, remembered for every state of a node, since states recur."""

    def __init__(self, mix: Mix) -> None:
        self._typical = typical_pods(mix)
        self._cpu_steps = sorted({spec.cpu for spec, _ in self._typical})
        self._on_model: dict[GpuModel, list[_Typical]] = {}
        self._amounts: dict[tuple[GpuModel, int, Rooms], tuple[float, Amounts]] = {}

    def value(self, model: GpuModel, cpu: int | None, rooms: Rooms) -> float:
        """The negative of F: a potential grows as things get better."""
        return -self._look_up(model, cpu, rooms)[0]

    def amounts(self, node: Node) -> Amounts:
        """The seven amounts of one node; nodes with different GPUs are not part of this measure."""
        if node.machine.gpu_model is None:
            return (0.0,) * 7
        return self._look_up(node.machine.gpu_model, node.cpu, node.sorted_room)[1]

    def _look_up(self, model: GpuModel, cpu: int | None, rooms: Rooms) -> tuple[float, Amounts]:
        # Only which typical pods still find enough CPU matters, so nearby amounts of CPU share one answer.
        enough = len(self._cpu_steps) if cpu is None else bisect_right(self._cpu_steps, cpu)
        key = (model, enough, rooms)
        found = self._amounts.get(key)
        if found is None:
            found = self._amounts[key] = self._measure(model, enough, rooms)
        return found

    def _measure(self, model: GpuModel, enough: int, rooms: Rooms) -> tuple[float, Amounts]:
        most_cpu = self._cpu_steps[enough - 1] if enough else -1
        below = [0, *accumulate(rooms)]
        total, count = below[-1], len(rooms)
        amounts = [0.0] * 7
        for cpu, gpus, size, share in self._typical_on(model):
            has_cpu = cpu <= most_cpu
            if gpus == 0:
                amounts[NO_GPU_ASKED if has_cpu else NO_GPU_ASKED_LACK_CPU] += share * total
                continue
            if size is None:
                amounts[WRONG_MODEL] += share * total
                continue
            too_small = bisect_left(rooms, size)
            if count - too_small < gpus:
                amounts[LACK_GPU if has_cpu else LACK_BOTH] += share * total
            elif not has_cpu:
                amounts[LACK_CPU] += share * total
            else:
                amounts[LACK_GPU] += share * below[too_small]
                amounts[SATISFIED] += share * (total - below[too_small])
        return fragmented(amounts), tuple(amounts)

    def _typical_on(self, model: GpuModel) -> "list[_Typical]":
        """The typical pods on one model of GPU: CPU, GPUs, size (None: wrong model), popularity."""
        if model not in self._on_model:
            self._on_model[model] = [
                (spec.cpu, spec.gpus, spec.size_on(model) if type_allowed(model.type, spec.types, ()) else None, share)
                for spec, share in self._typical
            ]
        return self._on_model[model]


def fragmented(amounts: "list[float] | Amounts") -> float:
    """All but what satisfied pods can use, added in the published order."""
    return (
        amounts[LACK_BOTH]
        + amounts[LACK_GPU]
        + amounts[LACK_CPU]
        + amounts[NO_GPU_ASKED]
        + amounts[NO_GPU_ASKED_LACK_CPU]
        + amounts[WRONG_MODEL]
    )


def descent_score(change: float) -> int:
    """The published integer score of a change of the potential: a sigmoid in GPUs, cut to a whole number."""
    return int(1.0 / (1.0 + math.exp(-change / 1000)) * 100.0)
