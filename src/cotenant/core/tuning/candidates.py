# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tenants of a GPU as the tuner sees them, and the batch sizes that may be tried."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from cotenant.core.units import MiB

Point = tuple[int, ...]
"""one batch size for each tenant"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """GPU memory as a straight line over the batch size."""

    baseline: MiB
    """without any sample"""
    per_sample: float
    """MiB"""
    limit: MiB | None = None
    """the job's slice"""

    def need(self, batch: int) -> float:
        return self.baseline + self.per_sample * batch

    def fits(self, batch: int) -> bool:
        return self.limit is None or self.need(batch) <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A job as the tuner sees it."""

    job: str
    family: str
    default: int
    """the batch size its owner chose"""
    sizes: tuple[int, ...]
    """what may be tried, the default among them; one size only: it is measured, not tuned"""
    noise: float | None = None
    """gradient noise scale; infinite: larger batches lose nothing; None: not known"""
    step_seconds: float = 1.0
    """of a default step, alone; an approximate value is enough"""
    alone: Mapping[int, float] | None = None
    """speed alone at each size, relative to the default size; None: not known"""
    floor: float = 0.0
    """neither its speed nor its goodput may fall below this, relative to the reference"""
    memory: MemoryModel | None = None


def candidate_sizes(default: int, least: int, most: int, memory: MemoryModel | None = None) -> tuple[int, ...]:
    """Powers of two within the owner's bounds and the memory (if its model is known), and the default."""
    powers = (1 << exponent for exponent in range(max(least, 1).bit_length() - 1, max(most, 1).bit_length()))
    sizes = {size for size in powers if least <= size <= most and (memory is None or memory.fits(size))}
    return tuple(sorted(sizes | {default}))


def candidate_points(tenants: Sequence[Tenant], most: int = 256) -> list[Point]:
    """All combinations of sizes, the default first; if they are too many, those nearest to it."""
    nearest: list[tuple[float, Point]] = [(0.0, ())]
    for tenant in tenants:
        octaves = [(abs(math.log2(size / tenant.default)), size) for size in tenant.sizes]
        longer = ((far + further, (*point, size)) for (far, point), (further, size) in product(nearest, octaves))
        nearest = sorted(longer)[:most]
    return [point for _, point in nearest]
