# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The joint batch tuner on measured co-location: how far from the best sizes it is after so many probes.

Gavel (OSDI 2020) measured every pair of 26 job types on three GPUs; five families come in four or five batch sizes, so
15 pairs of families have a full grid of joint sizes. The data is read from $COTENANT_DATA (default: ../shared/data).
"""

import csv
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from bench.harness import Figure, at_most, benchmark
from cotenant.core.candidates import Point, Tenant
from cotenant.core.goodput import efficiency
from cotenant.core.tuning import Tuner

DATA = Path(os.environ.get("COTENANT_DATA") or Path(__file__).parents[2] / "shared" / "data")
NOISE_SCALES = (math.inf, 8.0, 2.0)
"""gradient noise scale of both jobs, in multiples of their default sizes"""
PROBES = (4, 6, 8)
GOALS = {"v100": (5.0, 3.0, 2.0), "p100": (1.5, 0.7, 0.3), "k80": (1.5, 0.7, 0.3)}
"""percent above the best sum of slowdowns after so many probes"""
NOISY_GOALS = {"v100": 2.0, "p100": 1.0, "k80": 1.0}
NAME = re.compile(r"(.+) \(batch size (\d+)\)")


@dataclass(frozen=True, slots=True)
class Surface:
    """Two families on one GPU: their speeds together at each joint size that fitted, and alone."""

    families: tuple[str, str]
    together: Mapping[Point, tuple[float, float]]
    """samples per second"""
    alone: tuple[Mapping[int, float], Mapping[int, float]]

    @property
    def middle(self) -> Point:
        sizes = [sorted(alone) for alone in self.alone]
        return sizes[0][len(sizes[0]) // 2], sizes[1][len(sizes[1]) // 2]


@dataclass(frozen=True, slots=True)
class Task:
    """A surface, where its owners started, and what their batch sizes are worth."""

    surface: Surface
    start: Point
    noise: float

    def speeds(self, point: Point) -> list[float]:
        """Relative to the speed alone at the start."""
        base = [alone[size] for alone, size in zip(self.surface.alone, self.start, strict=True)]
        return [speed / alone for speed, alone in zip(self.surface.together[point], base, strict=True)]

    def cost(self, point: Point) -> float:
        """The sum of slowdowns in goodput."""
        worth = (efficiency(size, m0, self.noise * m0) for size, m0 in zip(point, self.start, strict=True))
        return sum(1 / (speed * eff) for speed, eff in zip(self.speeds(point), worth, strict=True))

    def best(self) -> float:
        return min(self.cost(point) for point in self.surface.together)

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
                zip(self.surface.families, self.start, self.surface.alone, strict=True)
            )
        ]
        points = [self.start, *(point for point in self.surface.together if point != self.start)]
        return Tuner(tenants, points, against_default=False, seed=seed)


@lru_cache
def surfaces(gpu: str, data: Path = DATA) -> list[Surface]:
    """All pairs of families whose middle sizes fit onto the GPU together."""
    together: dict[tuple[str, str], dict[Point, tuple[float, float]]] = {}
    alone: dict[str, dict[int, float]] = {}
    with (data / "gavel" / "colocation_pairs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            match = NAME.fullmatch(row["job1"]), NAME.fullmatch(row["job2"])
            if row["gpu"] != gpu or match[0] is None or match[1] is None:
                continue
            families = match[0][1], match[1][1]
            sizes = int(match[0][2]), int(match[1][2])
            for family, size, column in zip(families, sizes, ("solo1_steps_s", "solo2_steps_s"), strict=True):
                alone.setdefault(family, {})[size] = size * float(row[column])
            if row["oom"] == "0" and float(row["norm1"]) > 0 and float(row["norm2"]) > 0:
                speeds = sizes[0] * float(row["co1_steps_s"]), sizes[1] * float(row["co2_steps_s"])
                together.setdefault(families, {})[sizes] = speeds
                together.setdefault(families[::-1], {})[sizes[::-1]] = speeds[::-1]
    found = [
        Surface(pair, dict(sorted(together[pair].items())), (alone[pair[0]], alone[pair[1]]))
        for pair in combinations_with_replacement(sorted(alone), 2)
    ]
    return [surface for surface in found if surface.middle in surface.together]


def regrets(task: Task, seed: int, *, curve_known: bool = True) -> list[float]:
    """How far the best measured point is above the best there is, in percent, after each of eight exact probes."""
    tuner = task.tuner(seed, curve_known=curve_known)
    lowest, above = math.inf, []
    for probe in range(max(PROBES)):
        point = task.start if probe == 0 else tuner.suggest()
        if point is not None:
            tuner.observe(point, task.speeds(point))
            lowest = min(lowest, task.cost(point))
        above.append(100 * (lowest / task.best() - 1))
    return above


def noisy_choice(task: Task, seed: int, deviation: float = 0.03) -> tuple[float, float]:
    """Regret of the final choice when measurements err, and how much worse than the default it truly is, in percent."""
    chance = np.random.default_rng(seed)
    tuner = task.tuner(seed)
    for probe in range(max(PROBES)):
        point = task.start if probe == 0 else tuner.suggest()
        if point is None:
            break
        errors = np.exp(deviation * chance.standard_normal(2))
        tuner.observe(point, list(task.speeds(point) * errors), [deviation] * 2)
    chosen = task.cost(tuner.choose())
    return 100 * (chosen / task.best() - 1), 100 * max(chosen / task.cost(task.start) - 1, 0)


def middle_tasks(gpu: str, noise: float, data: Path = DATA) -> list[Task]:
    """Every surface, started at the middle size of each family."""
    return [Task(surface, surface.middle, noise) for surface in surfaces(gpu, data)]


def mean_regrets(tasks: Sequence[Task], seeds: Sequence[int], *, curve_known: bool = True) -> list[float]:
    """Averages after each number of probes."""
    runs = [regrets(task, seed, curve_known=curve_known) for task in tasks for seed in seeds]
    return [statistics.mean(run[probes - 1] for run in runs) for probes in PROBES]


@benchmark("tuner-regret")
def tuner_regret() -> Iterator[Figure]:
    """Regret after 4, 6 and 8 probes from the middle sizes and from all others, and under measurement noise."""
    for gpu, goals in GOALS.items():
        for noise in NOISE_SCALES:
            tasks = middle_tasks(gpu, noise)
            untuned = statistics.mean(100 * (task.cost(task.start) / task.best() - 1) for task in tasks)
            for probes, goal, regret in zip(PROBES, goals, mean_regrets(tasks, range(5)), strict=True):
                baseline = f"default {untuned:.1f}"
                yield at_most(_name(gpu, noise, probes), regret, "%", limit=goal, baseline=baseline)
    yield from _no_curve()
    yield from _elsewhere()
    yield from _noisy()


def _name(gpu: str, noise: float, probes: int) -> str:
    return f"{gpu.upper()}, phi/m0 {noise:g}: after {probes} probes"


def _no_curve() -> Iterator[Figure]:
    for gpu, goals in GOALS.items():
        means = [mean_regrets(middle_tasks(gpu, noise), range(5), curve_known=False) for noise in NOISE_SCALES]
        regret = statistics.mean(mean[-1] for mean in means)
        yield at_most(
            f"{gpu.upper()}, speed alone known at m0 only: 8", regret, "%", limit=goals[-1], note="mean of phi"
        )


def _elsewhere() -> Iterator[Figure]:
    """Owners may have started anywhere: every second point of each grid."""
    for gpu, goals in GOALS.items():
        tasks = [
            Task(surface, start, noise)
            for noise in NOISE_SCALES
            for surface in surfaces(gpu)
            for start in list(surface.together)[::2]
            if start != surface.middle
        ]
        for probes, goal, regret in zip(PROBES, goals, mean_regrets(tasks, [0]), strict=True):
            name = f"{gpu.upper()}, any other start: after {probes} probes"
            yield at_most(name, regret, "%", limit=goal, note=f"mean of phi, {len(tasks)} tasks")


def _noisy() -> Iterator[Figure]:
    for gpu, goal in NOISY_GOALS.items():
        runs = [
            noisy_choice(task, seed)
            for noise in NOISE_SCALES
            for task in middle_tasks(gpu, noise)
            for seed in range(40, 50)
        ]
        name = f"{gpu.upper()}, 3 % noise"
        yield at_most(f"{name}: regret of the choice", statistics.mean(run[0] for run in runs), "%", limit=goal)
        worse = 100 * statistics.mean(run[1] > 1e-9 for run in runs)
        yield at_most(f"{name}: choices truly worse than default", worse, "%", limit=5)
        yield at_most(f"{name}: worst of them, by", max(run[1] for run in runs), "%", limit=5)
