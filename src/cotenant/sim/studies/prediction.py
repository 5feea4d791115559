# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the interference predictor on measured pairs that it has not seen, against matrix factorisation."""

import statistics
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from cotenant.core.interference import Signature
from cotenant.core.interference.evaluation import Pair, factorisation_error, score, split, trained
from cotenant.core.interference.fitting import ROUNDS, fit_shares
from cotenant.core.interference.kernel import Shares
from cotenant.sim.colocation import FILE, read_pairs
from cotenant.sim.report import axes
from cotenant.sim.report.charts import Figure
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

OBSERVED = (0.2, 0.4, 0.8)
GOALS = {"v100": (0.095, 0.072, 0.055), "p100": (0.037, 0.027, 0.022), "k80": (0.030, 0.023, 0.021)}
RANKS = (2, 4)
"""ranks of the factorisation; the better one counts"""
COVERED = (85.0, 95.0)
"""percent of the true speeds that the 90 % intervals should contain"""
ERROR = "mean absolute error"
NEW, NEW_GPU_TYPE = "new family", "v100"
PROBES = (2, 4, 8)
NEW_GOALS = (0.13, 0.095, 0.08)


def tasks(seeds: Sequence[int]) -> list[Task]:
    known = [Task(gpu_type.upper(), _seen(share), seed) for seed in seeds for gpu_type in GOALS for share in OBSERVED]
    return known + [Task(NEW_GPU_TYPE.upper(), NEW, seed) for seed in seeds]


def run(task: Task, data: Path) -> Sample:
    gpu_type = task.part.lower()
    shares = shares_without(gpu_type, data)
    pairs = measured_pairs(gpu_type, data)
    if task.who == NEW:
        types = dict.fromkeys(job for pair in pairs for job in pair.jobs)
        errors = [new_type_errors(pairs, new, task.seed, shares) for new in types]
        return Sample({}, tuple(statistics.mean(each) for each in zip(*errors, strict=True)))
    share = next(share for share in OBSERVED if _seen(share) == task.who)
    seen, unseen = split(pairs, share, task.seed)
    found = score(trained(seen, shares), unseen)
    plain = {f"rank {rank}": factorisation_error(seen, unseen, rank) for rank in RANKS}
    return Sample({"error": found.error, "covered": 100 * found.covered} | plain)


def _seen(share: float) -> str:
    return f"{100 * share:.0f} % of pairs seen"


def measured_pairs(gpu_type: str, data: Path) -> list[Pair]:
    """All pairs that fit into the memory of the GPU type together."""
    return read_pairs(data / FILE)[gpu_type]


@lru_cache
def shares_without(gpu_type: str, data: Path, rounds: int = ROUNDS) -> Shares:
    """The kernel shares, fitted to the other GPU types."""
    others = [measured_pairs(other, data) for other in GOALS if other != gpu_type]
    return fit_shares([[row for pair in pairs for row in pair.directions()] for pairs in others], rounds=rounds)


def new_type_errors(pairs: Sequence[Pair], new: Signature, seed: int, shares: Shares) -> list[float]:
    """Errors on the pairs of a job type of an unseen family, after each number of chosen measurements; half of the
    other pairs are known."""
    rest = [pair for pair in pairs if all(job.family != new.family for job in pair.jobs)]
    known = np.random.default_rng(seed).permutation(len(rest))[: len(rest) // 2]
    predictor = trained([rest[i] for i in known], shares)
    left = {
        next((job for job in pair.jobs if job != new), new): pair
        for pair in pairs
        if new in pair.jobs and all(job == new or job.family != new.family for job in pair.jobs)
    }
    errors, probed = [], 0
    for probes in PROBES:
        for partner in predictor.probes(new, list(left), probes - probed):
            pair = left.pop(partner)
            predictor.observe(*pair.jobs, *pair.speeds)
        probed = probes
        errors.append(score(predictor, list(left.values())).error)
    return errors


def findings(samples: Samples) -> Iterator[Finding]:
    for gpu_type, goals in GOALS.items():
        part = gpu_type.upper()
        for share, goal in zip(OBSERVED, goals, strict=True):
            who = _seen(share)
            found = over_seeds(numbers(samples, part, who, "error"))
            beside = f"factorisation {_plain(samples, part, who):.4f}"
            yield row(part, f"{who}: {ERROR}", found, "of speed", beside=beside, verdict=judge(found, goal))
            covered = over_seeds(numbers(samples, part, who, "covered"))
            low, high = COVERED
            verdict = f"{low:g} to {high:g}", low <= covered.mean <= high
            yield row(part, f"{who}: 90 % intervals hold", covered, "%", verdict=verdict)
    for place, (probes, goal) in enumerate(zip(PROBES, NEW_GOALS, strict=True)):
        found = over_seeds([sample.curve[place] for sample in runs_of(samples, NEW_GPU_TYPE.upper(), NEW)])
        name = f"after {probes} chosen probes: {ERROR}"
        yield row(f"A new family on {NEW_GPU_TYPE.upper()}", name, found, "of speed", verdict=judge(found, goal))


def _plain(samples: Samples, part: str, who: str) -> float:
    return min(statistics.mean(numbers(samples, part, who, f"rank {rank}")) for rank in RANKS)


def figures(samples: Samples) -> Iterator[Figure]:
    for gpu_type in GOALS:
        part = gpu_type.upper()
        curves = {
            name: [(100 * share, over_seeds(numbers(samples, part, _seen(share), key))) for share in OBSERVED]
            for name, key in (("cotenant", "error"), *((f"factorisation, rank {n}", f"rank {n}") for n in RANKS))
        }
        top = max(found.mean for points in curves.values() for _, found in points)
        yield plot_figure(
            f"Prediction of unseen pairs on {part}",
            "Mean absolute error of a tenant's speed, of its speed alone; lower is better. Band: 95 % interval.",
            axes.linear("Pairs seen (%)", 0.0, 100.0),
            axes.linear("Mean absolute error", 0.0, top, fit=True),
            lines(curves),
        )


STUDY = Study(
    title="Interference prediction for unseen pairs",
    about=(
        "Gavel (OSDI 2020) measured nearly every pair of 26 job types on V100, P100 and K80 GPUs. The predictor sees "
        "a random part of the pairs of one GPU type and predicts both speeds of all others; the amplitudes of its "
        "kernel were fitted to the other two GPU types only. The baseline is matrix factorisation of the same pairs, "
        "the better of ranks 2 and 4. A new family is one without any seen pair, while half of all other pairs are "
        "seen; then some of its pairs are measured, each chosen for the most information. The predictor knows the "
        "program of a job, its batch size and its seconds per step alone."
    ),
    seeds=tuple(range(300, 312)),
    tasks=tasks,
    run=run,
    findings=findings,
    figures=figures,
)
