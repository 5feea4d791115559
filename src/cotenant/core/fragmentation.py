# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Our own potential of free room, for a known mix of demands: what can still be done with a node, priced.

Per GPU, a remainder is worth what the best packing could still cut from it (`cutting.py`), less where the CPU to use it
is gone. Per node, free room that some demand cannot use counts against it, each demand weighed by how scarce its places
are, so that the few nodes that can hold an 8-GPU job or a rare card are kept for it.

    value = packing + strands + places + models, in milli-GPU, for rooms r_i, T = sum r_i, C free milli-CPU:
    packing  PACKING * 1000 * sum_i v(r_i)                              what can still be cut from each GPU
    strands -1000 * sum_i v(r_i) * (1 - u(r_i, C))                      u: share of that work whose CPU is still there
    places  -sum_m w_m * (COPIES * (T - copies_m * k_m g_m) + (1 - COPIES) * F_m)
                                                                        room demand m cannot use: by copies, by FGD
    models   MODELS * pressure(card) * T                                free room on cards that are asked for by type
"""

import math
from collections.abc import Iterable

import numpy as np

from cotenant.core.cutting import STEP, WHOLE, remainder_values
from cotenant.core.filters import type_allowed
from cotenant.core.mix import Inventory, MachineKind, Mix, Spec
from cotenant.core.model import Card
from cotenant.core.potential import Rooms

PACKING = 30
COPIES = 0.25
MODELS = 0.5
QUANTUM = 100
"""milli-GPU: smaller differences are ties, which go to the first node; chasing them costs more than it brings"""


def descent_score(change: float) -> int:
    """Changes of the potential in steps of a tenth of a GPU."""
    return math.floor(change / QUANTUM + 1e-9)


class FreeRoom:
    """The potential for one mix on one inventory, remembered for every state of a node that was asked about."""

    def __init__(self, mix: Mix, inventory: Inventory) -> None:
        self._asking = {spec: count for spec, count in mix.items() if spec.gpus > 0}
        self._pressure = _pressure(self._asking, inventory)
        self._weights = _weights(self._asking, mix, inventory)
        self._cards: dict[Card, _CardTables] = {}
        self._values: dict[tuple[Card, int, Rooms], float] = {}

    def value(self, card: Card, cpu: int | None, rooms: Rooms) -> float:
        tables = self._cards.get(card)
        if tables is None:
            tables = self._cards[card] = _CardTables(card, self._asking, self._weights, self._pressure.get(card, 0.0))
        key = (card, tables.most_cpu if cpu is None else min(max(cpu, 0), tables.most_cpu), rooms)
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = tables.value(key[1], rooms)
        return value


class _CardTables:
    """The tables of one kind of card: sizes of the demands on it, values of remainders."""

    def __init__(self, card: Card, asking: Mix, weights: dict[Spec, float], pressure: float) -> None:
        own = [spec for spec in asking if type_allowed(card.type, spec.types, ())]
        self._elsewhere = sum(weights[spec] for spec in asking if spec not in own)
        self._weight = np.array([weights[spec] for spec in own])
        self._size = np.array([spec.size_on(card) for spec in own], dtype=np.int64)
        self._gpus = np.array([spec.gpus for spec in own], dtype=np.int64)
        self._cpu = np.array([spec.cpu for spec in own], dtype=np.int64)
        self._whole = self._gpus * self._size
        self._pressure = pressure
        wanted: dict[int, int] = {}
        for spec, count in asking.items():
            size = spec.size_on(card)
            wanted[size] = wanted.get(size, 0) + count * spec.gpus
        self._worth = remainder_values(wanted)
        self._shares = sorted(
            (spec.size_on(card), spec.cpu, float(count * spec.size_on(card)))
            for spec, count in asking.items()
            if spec.gpus == 1 and self._worth[min(WHOLE, spec.size_on(card) // STEP)] > 0
        )
        self.most_cpu = max((spec.cpu for spec in asking), default=0) * 64 + 1
        self._usable: dict[tuple[int, int], float] = {}

    def value(self, cpu: int, rooms: Rooms) -> float:
        total = sum(rooms)
        gpus = 0.0
        for room in rooms:
            worth = self._worth[room // STEP]
            if worth:
                gpus += worth * (PACKING - 1 + self._usable_share(room, cpu // 1000))
        return 1000 * gpus - self._unplaceable(cpu, rooms, total) + MODELS * self._pressure * total

    def _usable_share(self, room: int, cores: int) -> float:
        """Of the work of single-GPU demands that this much room could serve, the share that finds its CPU."""
        key = (room, cores)
        share = self._usable.get(key)
        if share is None:
            fitting = [(cpu, volume) for size, cpu, volume in self._shares if size <= room]
            most = cores * 1000 + 999
            served = sum(volume for cpu, volume in fitting if cpu <= most)
            share = self._usable[key] = served / sum(volume for _, volume in fitting) if fitting else 1.0
        return share

    def _unplaceable(self, cpu: int, rooms: Rooms, total: int) -> float:
        """Free room that demands cannot use, weighed by how scarce their places are."""
        if not len(self._size):
            return self._elsewhere * total
        free = np.array(rooms, dtype=np.int64)[:, None]
        size = self._size
        enough = free >= size
        holding = enough.sum(axis=0)
        by_gpu = np.where(self._gpus == 1, (free // size).sum(axis=0), holding // self._gpus)
        copies = np.minimum(by_gpu, np.where(self._cpu > 0, cpu // np.maximum(self._cpu, 1), by_gpu))
        too_small = np.where(enough, 0, free).sum(axis=0)
        fragmented = np.where((self._cpu <= cpu) & (holding >= self._gpus), too_small, total)
        lost = COPIES * (total - copies * self._whole) + (1 - COPIES) * fragmented
        return float(self._weight @ lost) + self._elsewhere * total


def _weights(asking: Mix, mix: Mix, inventory: Inventory) -> dict[Spec, float]:
    """w_m ~ popularity / (GPU room of all copies of m that the empty cluster holds); they add up to one."""
    raw = {
        spec: count / max(1, sum(n * _copies(spec, kind) for kind, n in inventory.items()) * spec.gpus * spec.compute)
        for spec, count in asking.items()
    }
    total = sum(raw.values()) or 1.0
    return {spec: weight / total for spec, weight in raw.items()}


def _copies(spec: Spec, kind: MachineKind) -> int:
    """How many such jobs an empty machine of that kind holds."""
    if spec.types and not type_allowed(kind.card.type, spec.types, ()):
        return 0
    size = max(1, spec.size_on(kind.card))
    by_gpu = kind.gpus * (1000 // size) if spec.gpus == 1 else kind.gpus // spec.gpus
    return min(by_gpu, kind.cpu // spec.cpu) if kind.cpu is not None and spec.cpu else by_gpu


def _pressure(asking: Mix, inventory: Inventory) -> dict[Card, float]:
    """How much of all work asks for a card by type, against that card's share of the GPUs."""
    capacity: dict[Card, int] = {}
    for kind, machines in inventory.items():
        capacity[kind.card] = capacity.get(kind.card, 0) + machines * kind.gpus
    total_gpus, total_work = sum(capacity.values()), sum(_work(asking.items()))
    bound = dict.fromkeys(capacity, 0.0)
    for spec, count in asking.items():
        accepted = [card for card in capacity if spec.types and type_allowed(card.type, spec.types, ())]
        room = sum(capacity[card] for card in accepted)
        for card in accepted:
            bound[card] += count * spec.gpus * spec.compute * capacity[card] / room
    if not total_work:
        return bound
    return {card: work / total_work * total_gpus / capacity[card] for card, work in bound.items()}


def _work(counted: Iterable[tuple[Spec, int]]) -> Iterable[int]:
    return (count * spec.gpus * spec.compute for spec, count in counted)
