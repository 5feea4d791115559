# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Grids of joint batch sizes from Gavel's measurements: pairs of two job families, each with several batch sizes.

Five families were measured with four or five batch sizes, which makes 15 pairs of families with a full grid of joint
sizes (14 on the K80).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from cotenant.core.tuning.candidates import Point, Tenant
from cotenant.core.tuning.goodput import efficiency
from cotenant.core.tuning.proposals import Tuner
from cotenant.sim.colocation import FILE, read_colocation

PROBES = 8
"""largest number of points that the tuner may measure"""


@dataclass(frozen=True, slots=True)
class Grid:
    """Two families on one GPU type: their speeds at each joint size that fits into memory, and alone."""

    families: tuple[str, str]
    together: Mapping[Point, tuple[float, float]]
    """joint batch size -> samples per second of both"""
    alone: tuple[Mapping[int, float], Mapping[int, float]]

    @property
    def middle(self) -> Point:
        sizes = [sorted(alone) for alone in self.alone]
        return sizes[0][len(sizes[0]) // 2], sizes[1][len(sizes[1]) // 2]


@dataclass(frozen=True, slots=True)
class Problem:
    """A tuning problem: a grid, the initial batch sizes, and the gradient noise scale."""

    grid: Grid
    start: Point
    noise: float
    """gradient noise scale of both jobs, in multiples of their default sizes"""

    def speeds(self, point: Point) -> list[float]:
        """Speeds relative to the speed alone at the initial batch sizes."""
        base = [alone[size] for alone, size in zip(self.grid.alone, self.start, strict=True)]
        return [speed / alone for speed, alone in zip(self.grid.together[point], base, strict=True)]

    def cost(self, point: Point) -> float:
        """The sum of the slowdowns in goodput, which tuning minimises."""
        worth = (efficiency(size, m0, self.noise * m0) for size, m0 in zip(point, self.start, strict=True))
        return sum(1 / (speed * eff) for speed, eff in zip(self.speeds(point), worth, strict=True))

    def above_best(self, cost: float) -> float:
        """By how many percent a cost is above the minimum of the grid."""
        return 100 * (cost / min(self.cost(point) for point in self.grid.together) - 1)

    def tuner(self, seed: int, *, curve_known: bool = True) -> Tuner:
        tenants = [
            Tenant(
                job=str(index),
                family=family,
                default=m0,
                sizes=tuple(sorted(alone)),
                noise=self.noise * m0,
                step_seconds=m0 / alone[m0],
                alone={size: speed / alone[m0] for size, speed in alone.items()} if curve_known else None,
            )
            for index, (family, m0, alone) in enumerate(
                zip(self.grid.families, self.start, self.grid.alone, strict=True)
            )
        ]
        points = [self.start, *(point for point in self.grid.together if point != self.start)]
        return Tuner(tenants, points, against_default=False, seed=seed)


@lru_cache
def grids(gpu_type: str, data: Path) -> Mapping[tuple[str, str], Grid]:
    """The grids of all pairs of families on a GPU type, by (family, family) in alphabetical order."""
    world = read_colocation(data / FILE)
    jobs = {workload: (job.family, job.batch) for workload, job in world.signatures(gpu_type).items()}
    alone: dict[str, dict[int, float]] = {}
    for workload, (family, batch) in jobs.items():
        if family is not None and batch is not None:
            alone.setdefault(family, {})[batch] = batch * world.rates[gpu_type, workload]
    together: dict[tuple[str, str], dict[Point, tuple[float, float]]] = {}
    for company, speeds in world.pairs.items():
        families, sizes = zip(*(jobs.get(str(workload), (None, None)) for workload in company.workloads), strict=True)
        if company.gpu_type == gpu_type and None not in sizes:
            one, other = (
                alone[family][size] * speed for family, size, speed in zip(families, sizes, speeds, strict=True)
            )
            together.setdefault(families, {})[sizes] = one, other
            together.setdefault(families[::-1], {})[sizes[::-1]] = other, one
    return {
        pair: Grid(pair, dict(sorted(together[pair].items())), (alone[pair[0]], alone[pair[1]]))
        for pair in combinations_with_replacement(sorted(alone), 2)
    }


def middles(gpu_type: str, noise: float, data: Path) -> list[Problem]:
    """One problem for each grid whose middle sizes fit together, with these as initial sizes."""
    return [
        Problem(grid, grid.middle, noise) for grid in grids(gpu_type, data).values() if grid.middle in grid.together
    ]


def regrets(problem: Problem, seed: int, *, curve_known: bool = True) -> list[float]:
    """By how many percent the best measured point is above the minimum, after each noise-free measurement."""
    tuner = problem.tuner(seed, curve_known=curve_known)
    lowest, above = math.inf, []
    for probe in range(PROBES):
        point = problem.start if probe == 0 else tuner.suggest()
        if point is not None:
            tuner.observe(point, problem.speeds(point))
            lowest = min(lowest, problem.cost(point))
        above.append(problem.above_best(lowest))
    return above


def choice(problem: Problem, seed: int, deviation: float = 0.0) -> Point:
    """The point that the tuner chooses after all measurements, which have this relative error."""
    chance = np.random.default_rng(seed)
    tuner = problem.tuner(seed)
    for probe in range(PROBES):
        point = problem.start if probe == 0 else tuner.suggest()
        if point is None:
            break
        errors = np.exp(deviation * chance.standard_normal(2))
        tuner.observe(point, list(problem.speeds(point) * errors), [deviation] * 2)
    return tuner.choose()
