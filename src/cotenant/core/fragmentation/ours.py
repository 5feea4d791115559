# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Our own potential of free room, for a known mix of demands: what can still be done with a node, priced.

Per GPU, a remainder is worth what the best packing could still cut from it (`remainder_values`), less if the CPU to use
it is gone. Per node, free room that some demand cannot use counts against it, each demand weighed by how scarce its
places are, so that the few nodes that can hold an 8-GPU job or have a rare GPU are kept for it.

    value = packing - strands - places, in milli-GPU, for rooms r_i, T = sum r_i, C free milli-CPU
    packing  P * 1000 * sum_i v(r_i)                  what can still be cut from each GPU
    strands  1000 * sum_i v(r_i) * (1 - u(r_i, C))    u: share of that work which still finds its CPU
    places   sum_m w_m * (K * (T - copies_m * k_m * g_m) + (1 - K) * F_m)
                                                      room that demand m cannot use: in whole copies of it, and as FGD
                                                      counts it; w_m grows with popularity and with scarcity

P, K and the size of a tie are in `Terms`, which can also leave a term out.
`docs/explanation/fragmentation.md` has what each term brings and what was tried instead.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cotenant.core.fragmentation.mix import Inventory, Knowledge, MachineKind, Mix, Spec, spec_of
from cotenant.core.fragmentation.potential import Rooms, gradient
from cotenant.core.model import Demand, GpuModel
from cotenant.core.placement.checks import type_allowed
from cotenant.core.placement.scores import Order

STEP = 10
"""resolution in milli-GPU"""
WHOLE = 1000 // STEP

_MOST_PIVOTS = 2000
_TOLERANCE = 1e-9


# Filling GPUs with shares is cutting stock: GPUs are rolls of 1000, shares are the pieces. The dual prices of its
# linear relaxation say how much of a GPU each size of share is worth when everything is packed as well as possible; the
# value of a remainder is the best price of what still fits into it. A remainder that no share fits into is worth
# nothing.
def remainder_values(wanted: Mapping[int, int]) -> tuple[float, ...]:
    """`values[r // STEP]`: what r milli-GPU of free room are worth, as a share of a whole GPU.

    `wanted` counts GPUs by the size of share asked on them (1000: a whole one).
    """
    steps: dict[int, int] = {}
    for size, count in wanted.items():
        if 0 < size <= 1000:
            steps[-(-size // STEP)] = steps.get(-(-size // STEP), 0) + count
    return _values(tuple(sorted(steps.items())))


@lru_cache(maxsize=256)
def _values(wanted: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
    if not wanted:
        return tuple(r / WHOLE for r in range(WHOLE + 1))
    sizes = [size for size, _ in wanted]
    best, _ = _best_fill(sizes, _dual_prices(sizes, [count for _, count in wanted]))
    return (*[min(1.0, value) for value in best[:WHOLE]], 1.0)


def _dual_prices(sizes: list[int], counts: list[int]) -> list[float]:
    """Gilmore and Gomory's column generation: price, find the most valuable pattern, pivot it in, until none pays."""
    copies = [WHOLE // size for size in sizes]
    basis = np.diag(np.array(copies, dtype=np.float64))
    amounts = np.array(counts, dtype=np.float64) / copies
    prices = [1.0 / each for each in copies]
    for _ in range(_MOST_PIVOTS):
        best, pattern = _best_fill(sizes, prices)
        if best[WHOLE] <= 1 + _TOLERANCE:
            break
        direction = np.linalg.solve(basis, pattern)
        blocking = np.flatnonzero(direction > _TOLERANCE)
        ratios = amounts[blocking] / direction[blocking]
        leaving = int(blocking[int(ratios.argmin())])
        step = amounts[leaving] / direction[leaving]
        amounts -= step * direction
        amounts[leaving] = step
        basis[:, leaving] = pattern
        prices = np.linalg.solve(basis.T, np.ones(len(sizes))).tolist()
    return prices


def _best_fill(sizes: list[int], prices: list[float]) -> tuple[list[float], list[int]]:
    """The best total price for every length up to a whole GPU, and the pattern that reaches it for a whole one."""
    best = [0.0] * (WHOLE + 1)
    choice: list[int | None] = [None] * (WHOLE + 1)
    paying = [(size, price, item) for item, (size, price) in enumerate(zip(sizes, prices, strict=True)) if price > 0]
    for length in range(1, WHOLE + 1):
        most = best[length - 1]
        for size, price, item in paying:
            if size > length:
                break
            total = best[length - size] + price
            if total > most + _TOLERANCE:
                most, choice[length] = total, item
        best[length] = most
    pattern = [0] * len(sizes)
    length = WHOLE
    while length > 0:
        item_here = choice[length]
        if item_here is None:
            length -= 1
        else:
            pattern[item_here] += 1
            length -= sizes[item_here]
    return best, pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of the potential and their weights. `bench/ablation.py` measures what each of them contributes."""

    packing: int = 30
    """weight of packing"""
    copies: float = 0.25
    """part of places that is counted in whole copies of a demand; the rest is counted as FGD counts it"""
    quantum: int = 100
    """milli-GPU: smaller differences are ties, which go to the first node; chasing them costs more than it brings"""
    strands: bool = True
    """whether room without CPU is worth less"""
    scarcity: bool = True
    """whether demands with few places weigh more; else only popular demands do"""
    by_gpus: bool = False
    """whether a demand counts as many times as it needs GPUs"""

    def score(self, change: float) -> int:
        """A change of the potential in whole quanta."""
        return math.floor(change / self.quantum + 1e-9)


TERMS = Terms()
LEAVING = Terms(quantum=10, by_gpus=True)
"""for clusters in which jobs end: a job that needs several GPUs of a node waits long if small jobs are on all nodes"""


def order_of(known: Knowledge, terms: Terms = TERMS) -> Order:
    """The order of the policy `fragmentation` for what is known."""
    potential = FreeRoom(known.mix, known.inventory, terms)
    return gradient(potential, terms.score, potential.expected_loss)


class FreeRoom:
    """The potential for one mix on one inventory, remembered for every state of a node."""

    def __init__(self, mix: Mix, inventory: Inventory, terms: Terms = TERMS) -> None:
        self._terms = terms
        self._asking = {spec: count for spec, count in mix.items() if spec.gpus > 0}
        counted = {spec: count * (spec.gpus if terms.by_gpus else 1) for spec, count in self._asking.items()}
        self._weights = _weights(counted, inventory if terms.scarcity else {})
        self._models: dict[GpuModel, _GpuTables] = {}
        self._values: dict[tuple[GpuModel, int, Rooms], float] = {}
        self._expected: dict[tuple[int, int, int, GpuModel], float] = {}

    def expected_loss(self, demand: Demand, model: GpuModel) -> float:
        """The loss in packing that a demand causes on an empty GPU of this model, in whole quanta."""
        spec = spec_of(demand)
        key = (spec.compute, spec.memory, spec.memory_percent, model)
        loss = self._expected.get(key)
        if loss is None:
            left = max(0, 1000 - _size(spec, model)) if spec.gpus else 1000
            raw = self._terms.packing * 1000 * (1 - self._tables(model).worth(left))
            loss = self._expected[key] = float(self._terms.quantum * round(raw / self._terms.quantum))
        return loss

    def _tables(self, model: GpuModel) -> "_GpuTables":
        tables = self._models.get(model)
        if tables is None:
            tables = self._models[model] = _GpuTables(model, self._asking, self._weights, self._terms)
        return tables

    def value(self, model: GpuModel, cpu: int | None, rooms: Rooms) -> float:
        tables = self._tables(model)
        key = (model, tables.most_cpu if cpu is None else min(max(cpu, 0), tables.most_cpu), rooms)
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = tables.value(key[1], rooms)
        return value


class _GpuTables:
    """The tables of one model of GPU: sizes of the demands on it, values of remainders."""

    def __init__(self, model: GpuModel, asking: Mix, weights: dict[Spec, float], terms: Terms) -> None:
        self._packing, self._copies, self._strands = terms.packing, terms.copies, terms.strands
        own = {spec: count for spec, count in asking.items() if type_allowed(model.type, spec.types, ())}
        self._elsewhere = sum(weights[spec] for spec in asking if spec not in own)
        self._weight = np.array([weights[spec] for spec in own])
        sizes = {spec: _size(spec, model) for spec in own}
        self._size = np.array(list(sizes.values()), dtype=np.int64)
        self._gpus = np.array([spec.gpus for spec in own], dtype=np.int64)
        self._single = self._gpus == 1
        self._cpu = np.array([spec.cpu for spec in own], dtype=np.int64)
        self._asks_cpu = self._cpu > 0
        self._whole = self._gpus * self._size
        wanted: dict[int, int] = {}
        for spec, count in own.items():
            wanted[sizes[spec]] = wanted.get(sizes[spec], 0) + count * spec.gpus
        self._worth = remainder_values(wanted)
        self._shares = [
            (sizes[spec], spec.cpu, float(count * sizes[spec]))
            for spec, count in own.items()
            if spec.gpus == 1 and self._worth[min(WHOLE, sizes[spec] // STEP)] > 0
        ]
        self.most_cpu = max((spec.cpu for spec in asking), default=0) * 64 + 1
        self._usable: dict[tuple[int, int], float] = {}

    def worth(self, room: int) -> float:
        """The value of this much room on one GPU, as a share of a whole one."""
        return self._worth[room // STEP]

    def value(self, cpu: int, rooms: Rooms) -> float:
        total = sum(rooms)
        gpus = 0.0
        for room in rooms:
            worth = self._worth[room // STEP]
            if worth:
                gpus += worth * (self._packing - 1 + self._usable_share(room, cpu // 1000))
        return 1000 * gpus - self._unplaceable(cpu, rooms, total)

    def _usable_share(self, room: int, cores: int) -> float:
        """Of the work of single-GPU demands that this much room could serve, the share that finds its CPU."""
        if not self._strands:
            return 1.0
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
        copies = np.where(self._single, (free // size).sum(axis=0), holding // self._gpus)
        copies = np.where(self._asks_cpu, np.minimum(copies, cpu // np.maximum(self._cpu, 1)), copies)
        too_small = np.where(enough, 0, free).sum(axis=0)
        fragmented = np.where((self._cpu <= cpu) & (holding >= self._gpus), too_small, total)
        lost = self._copies * (total - copies * self._whole) + (1 - self._copies) * fragmented
        return float(self._weight @ lost) + self._elsewhere * total


def _weights(asking: Mix, inventory: Inventory) -> dict[Spec, float]:
    """w_m ~ popularity / (GPU room of all copies of m that the empty cluster holds); they add up to one.

    With an empty inventory, popularity alone counts.
    """
    raw = {
        spec: count / max(1, sum(machines * _room_of_copies(spec, kind) for kind, machines in inventory.items()))
        for spec, count in asking.items()
    }
    total = sum(raw.values()) or 1.0
    return {spec: weight / total for spec, weight in raw.items()}


def _room_of_copies(spec: Spec, kind: MachineKind) -> int:
    """The GPU room that an empty machine of that kind gives to as many such jobs as it holds."""
    if not type_allowed(kind.model.type, spec.types, ()):
        return 0
    size = _size(spec, kind.model)
    copies = kind.gpus * (1000 // size) if spec.gpus == 1 else kind.gpus // spec.gpus
    if kind.cpu is not None and spec.cpu:
        copies = min(copies, kind.cpu // spec.cpu)
    return copies * spec.gpus * size


def _size(spec: Spec, model: GpuModel) -> int:
    """Thousandths of the GPU, at least 1."""
    return max(1, spec.size_on(model))
