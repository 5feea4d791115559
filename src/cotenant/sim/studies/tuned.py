# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The joint tuner in the timed simulation: what it tries, how long that takes, and what it chooses.

The tuner is that of the engines. Its measurements come from Gavel's grids, with the usual noise, and take the time that
they take in the engines: windows at the owners' sizes before and after each trial, over enough steps of both jobs.
"""

from pathlib import Path

import numpy as np

from cotenant.core.sharing.speeds import TenantSet
from cotenant.core.tuning.candidates import Point
from cotenant.core.tuning.episode import Tuning
from cotenant.core.tuning.goodput import efficiency
from cotenant.core.tuning.window import LONGEST
from cotenant.sim.colocation import signature
from cotenant.sim.contention import Episode
from cotenant.sim.studies.grids import Problem, grids

NOISE_SCALE = 8.0
"""gradient noise scale of all jobs, in multiples of their default batch size"""
TUNING = Tuning()


class GridTuning:
    """Tunes pairs of Gavel's workloads whose programs were measured with several batch sizes."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data, self._seed = data, seed
        self._known: dict[TenantSet, Episode | None] = {}

    def episode(self, company: TenantSet) -> Episode | None:
        if company not in self._known:
            problem = _problem(company, self._data)
            self._known[company] = None if problem is None else tuned(problem, self._seed)
        return self._known[company]


def _problem(company: TenantSet, data: Path) -> Problem | None:
    """None if one of the two workloads has one batch size only."""
    one, other = (signature(str(workload), 1.0) for workload in company.workloads)
    if one.family is None or other.family is None or one.batch is None or other.batch is None:
        return None
    grid = grids(company.gpu_type, data).get((one.family, other.family))
    start = one.batch, other.batch
    return None if grid is None or start not in grid.together else Problem(grid, start, NOISE_SCALE)


def tuned(problem: Problem, seed: int) -> Episode:
    """One episode of tuning."""
    chance, tuner = np.random.default_rng(seed), problem.tuner(seed)
    windows: list[Point] = []
    point: Point | None = problem.start
    while point is not None and len(windows) < 2 * TUNING.probes:
        errors = np.exp(TUNING.noise * chance.standard_normal(2))
        tuner.observe(point, list(problem.speeds(point) * errors), [TUNING.noise] * 2)
        windows += [point] if point == problem.start else [point, problem.start]
        point = tuner.suggest(TUNING.hope)
    lengths = np.array([window_seconds(problem, one) for one in windows])
    speeds = np.array([goodputs(problem, one) for one in windows])
    one, other = (lengths @ speeds / lengths.sum()).tolist()
    return Episode(float(lengths.sum()), (one, other), goodputs(problem, tuner.choose(TUNING.margin)))


def goodputs(problem: Problem, point: Point) -> tuple[float, float]:
    """How fast both train, relative to each alone at the size that its owner chose."""
    one, other = (
        speed * efficiency(size, m0, problem.noise * m0)
        for speed, size, m0 in zip(problem.speeds(point), point, problem.start, strict=True)
    )
    return one, other


def window_seconds(problem: Problem, point: Point) -> float:
    """How long both are measured at these sizes: the first step at a size does not count."""
    step = max(size / speed for size, speed in zip(point, problem.grid.together[point], strict=True))
    return step + min(max(TUNING.probe, TUNING.steps * step), LONGEST)
