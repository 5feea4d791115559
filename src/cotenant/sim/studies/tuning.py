# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the joint batch tuner on measured co-location: regret against the best batch sizes by number of
measurements."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from cotenant.sim.report import axes
from cotenant.sim.report.charts import Figure
from cotenant.sim.studies.grids import PROBES, Problem, choice, grids, middles, regrets
from cotenant.sim.studies.study import (
    Finding,
    Sample,
    Samples,
    Study,
    Task,
    judge,
    lines,
    numbers,
    over_seeds,
    plot_figure,
    row,
    runs_of,
)

GPU_TYPES = ("v100", "p100", "k80")
NOISE_SCALES = (math.inf, 8.0, 2.0)
AFTER = (4, 6, 8)
GOALS = {"v100": (5.0, 3.0, 2.0), "p100": (1.5, 0.7, 0.3), "k80": (1.5, 0.7, 0.3)}
"""percent above the minimal sum of slowdowns after each number of measurements in `AFTER`"""
NOISY_GOALS = {"v100": 2.0, "p100": 1.0, "k80": 1.0}
ERROR = 0.03
EVERY = 10
"""each seed evaluates every 10th of all other initial sizes, offset by the seed"""

NO_CURVE, ELSEWHERE, NOISY = "speed alone known at m0 only", "any other start", "3 % noise"


def tasks(seeds: Sequence[int]) -> list[Task]:
    parts = [*map(_middle, NOISE_SCALES), NO_CURVE, ELSEWHERE, NOISY]
    return [Task(gpu_type.upper(), who, seed) for seed in seeds for gpu_type in GPU_TYPES for who in parts]


def run(task: Task, data: Path) -> Sample:
    gpu_type = task.part.lower()
    if task.who == NOISY:
        return _noisy([one for noise in NOISE_SCALES for one in middles(gpu_type, noise, data)], task.seed)
    known = task.who != NO_CURVE
    problems = (
        _elsewhere(gpu_type, task.seed, data) if task.who == ELSEWHERE else _from_middle(gpu_type, task.who, data)
    )
    runs = [regrets(problem, task.seed, curve_known=known) for problem in problems]
    curve = tuple(statistics.mean(each) for each in zip(*runs, strict=True))
    untuned = statistics.mean(problem.above_best(problem.cost(problem.start)) for problem in problems)
    return Sample({"untuned": untuned, "problems": float(len(problems))}, curve)


def _middle(noise: float) -> str:
    return f"phi/m0 {noise:g}"


def _from_middle(gpu_type: str, who: str, data: Path) -> list[Problem]:
    return [
        problem
        for noise in NOISE_SCALES
        if who in (NO_CURVE, _middle(noise))
        for problem in middles(gpu_type, noise, data)
    ]


def _elsewhere(gpu_type: str, seed: int, data: Path) -> list[Problem]:
    """Problems with any initial sizes except the middle ones."""
    every = [
        Problem(grid, start, noise)
        for noise in NOISE_SCALES
        for grid in grids(gpu_type, data).values()
        for start in grid.together
        if start != grid.middle
    ]
    return every[seed % EVERY :: EVERY]


def _noisy(problems: Sequence[Problem], seed: int) -> Sample:
    chosen = [problem.cost(choice(problem, seed, ERROR)) for problem in problems]
    worse = [
        100 * max(cost / problem.cost(problem.start) - 1, 0.0) for problem, cost in zip(problems, chosen, strict=True)
    ]
    return Sample(
        {
            "regret": statistics.mean(problem.above_best(cost) for problem, cost in zip(problems, chosen, strict=True)),
            "worse": 100 * statistics.mean(one > 1e-9 for one in worse),
            "worst": max(worse),
        }
    )


def findings(samples: Samples) -> Iterator[Finding]:
    for gpu_type, goals in GOALS.items():
        part = gpu_type.upper()
        for who in [*map(_middle, NOISE_SCALES), NO_CURVE, ELSEWHERE]:
            untuned = over_seeds(numbers(samples, part, who, "untuned")).mean
            for after, goal in zip(AFTER, goals, strict=True):
                if who == NO_CURVE and after != AFTER[-1]:
                    continue
                found = over_seeds([sample.curve[after - 1] for sample in runs_of(samples, part, who)])
                name, beside = f"{who}: regret after {after} probes", f"untuned {untuned:.1f}"
                yield row(part, name, found, "%", beside=beside, verdict=judge(found, goal))
        yield from _noisy_findings(part, samples, NOISY_GOALS[gpu_type])


def _noisy_findings(part: str, samples: Samples, goal: float) -> Iterator[Finding]:
    rows = (("regret", "regret of the choice", goal), ("worse", "choices truly worse than the default", 5.0))
    for key, name, limit in rows:
        found = over_seeds(numbers(samples, part, NOISY, key))
        yield row(part, f"{NOISY}: {name}", found, "%", verdict=judge(found, limit))
    worst = max(numbers(samples, part, NOISY, "worst"))
    yield Finding(part=part, name=f"{NOISY}: worst of them, by", value=worst, unit="%", target="<= 5", met=worst <= 5)


def figures(samples: Samples) -> Iterator[Figure]:
    curves = {}
    for gpu_type in GPU_TYPES:
        runs = runs_of(samples, gpu_type.upper(), ELSEWHERE)
        curves[gpu_type.upper()] = [
            (float(probe + 1), over_seeds([sample.curve[probe] for sample in runs])) for probe in range(PROBES)
        ]
    top = max(found.mean + (found.half or 0.0) for points in curves.values() for _, found in points)
    yield plot_figure(
        "Regret of the joint tuner",
        "From any initial sizes except the middle ones: how far the best measured joint size is above the minimum of "
        "the sum of slowdowns.",
        axes.linear("Probes", 1.0, float(PROBES)),
        axes.linear("Above the minimum (%)", 0.0, top, fit=True),
        lines(curves),
    )


STUDY = Study(
    title="Joint batch tuning on measured grids",
    about=(
        "Gavel (OSDI 2020) measured pairs of job families with every joint batch size, on three GPU types. The tuner "
        "starts at the middle sizes (or at any other) and measures up to eight points. Regret is how far the best of "
        "them is above the minimum of the grid, in the sum of both jobs' slowdowns in goodput, at three gradient "
        "noise scales (phi, in multiples of the default size m0). With 3 % noise in each measurement, the point that "
        "the tuner chooses counts. Sizes that do not fit into memory together are known. The kernel of the tuner was "
        "fitted to the same three tables, so these are not results on unseen hardware."
    ),
    seeds=tuple(range(40, 50)),
    tasks=tasks,
    run=run,
    findings=findings,
    figures=figures,
)
