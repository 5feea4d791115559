# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the interference predictor on pairs that it has not seen, against matrix factorisation and trees."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from cotenant.core.interference import Profile, Signature
from cotenant.core.interference.evaluation import Pair, factorisation_error, score, split, trained
from cotenant.core.interference.fitting import ROUNDS, fit_shares
from cotenant.core.interference.kernel import SHARES, Floats, Shares
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
from cotenant.sim.studies.trees import boosted, forest
from cotenant.sim.studies.worlds import KINDS, mig_pairs, simulated_pairs

GOALS = {"v100": (0.2, 0.095), "p100": (0.2, 0.037), "k80": (0.2, 0.030)}
"""share of the pairs that is seen, and the largest error then"""
TABLES = ("v100", "p100", "k80", "a100", *KINDS)
SPLITS = {0.1: 24, 0.2: 12, 0.4: 6, 0.6: 4, 0.8: 3}
"""share of the pairs that is seen -> times that each seed splits a measured table: these tables are small, so one split
says little about coverage, and the less the fewer pairs are seen"""
SPLITS_OF_TYPES = 3
OBSERVED = tuple(SPLITS)
RANKS = (2, 4)
"""ranks of the factorisation; the better one counts"""
COVERED = (87.0, 93.0)
"""percent of the true speeds that the 90 % intervals should contain"""
ERROR = "mean absolute error"
UNSEEN, HIDDEN = "types without a measurement", 0.2
"""share of the types that is hidden"""
NEW, NEW_GPU_TYPE = "new family", "v100"
PROBES = (2, 4, 8)
NEW_GOALS = (0.13, 0.095, 0.08)


def tasks(seeds: Sequence[int]) -> list[Task]:
    often = {_seen(share): times for share, times in SPLITS.items()} | {UNSEEN: SPLITS_OF_TYPES}
    known = [
        Task(_part(table), who, seed + 1000 * number)
        for table in TABLES
        for who, times in often.items()
        for number in range(1 if table in KINDS else times)
        for seed in seeds
    ]
    return known + [Task(_part(NEW_GPU_TYPE), NEW, seed) for seed in seeds]


def _part(table: str) -> str:
    return f"Simulated: {table}" if table in KINDS else table.upper()


def run(task: Task, data: Path) -> Sample:
    table = next(table for table in TABLES if _part(table) == task.part)
    pairs = simulated_pairs(table, task.seed) if table in KINDS else measured_pairs(table, data)
    shares = shares_without(table, data) if table in GOALS else SHARES
    if task.who == NEW:
        types = dict.fromkeys(job for pair in pairs for job in pair.jobs)
        errors = [new_type_errors(pairs, new, task.seed, shares) for new in types]
        return Sample({}, tuple(statistics.mean(each) for each in zip(*errors, strict=True)))
    if task.who == UNSEEN:
        seen, unseen = split_types(pairs, task.seed)
        beside = {"forest": tree_error(seen, unseen, partial(forest, task.seed))}
    else:
        share = next(share for share in OBSERVED if _seen(share) == task.who)
        seen, unseen = split(pairs, share, task.seed)
        beside = {f"rank {rank}": factorisation_error(seen, unseen, rank) for rank in RANKS}
        beside["trees"] = tree_error(seen, unseen, boosted)
    found = score(trained(seen, shares), unseen)
    return Sample({"error": found.error, "covered": 100 * found.covered} | beside)


def _seen(share: float) -> str:
    return f"{100 * share:.0f} % of pairs seen"


def split_types(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Half of the pairs without any hidden type, and the pairs of one hidden type with another type that is seen."""
    types = list(dict.fromkeys(job for pair in pairs for job in pair.jobs))
    chance = np.random.default_rng(seed)
    hidden = {types[i] for i in chance.permutation(len(types))[: round(HIDDEN * len(types))]}
    rest = [pair for pair in pairs if hidden.isdisjoint(pair.jobs)]
    seen = [rest[i] for i in chance.permutation(len(rest))[: len(rest) // 2]]
    return seen, [pair for pair in pairs if len(hidden.intersection(pair.jobs)) == 1]


Trees = Callable[[Floats, Floats, Floats], Floats]


def tree_error(seen: Sequence[Pair], unseen: Sequence[Pair], predict: Trees) -> float:
    """Mean absolute error of trees that know the numbers of both jobs, and their sums."""
    families = {job.family: i for i, job in enumerate(dict.fromkeys(job for p in (*seen, *unseen) for job in p.jobs))}

    def table(some: Sequence[Pair]) -> tuple[Floats, Floats]:
        rows = [row for pair in some for row in pair.directions()]
        sides = [
            np.array([_numbers(job, families) for job in jobs]) for jobs in zip(*(r[:2] for r in rows), strict=True)
        ]
        same = (sides[0][:, 0] == sides[1][:, 0])[:, None]
        return np.hstack([*sides, (sides[0] + sides[1])[:, 1:], same]), np.array([row.speed for row in rows])

    (known, speeds), (asked, true) = table(seen), table(unseen)
    return float(np.abs(predict(known, speeds, asked) - true).mean())


def _numbers(job: Signature, families: Mapping[str | None, int]) -> list[float]:
    profile = job.profile or Profile()
    told = (profile.utilisation, profile.bandwidth, profile.memory_mib, profile.pcie_mib_s)
    return [
        families[job.family],
        job.batch or -1,
        job.step_seconds or -1,
        *(-1 if one is None else one for one in told),
    ]


def measured_pairs(gpu_type: str, data: Path) -> list[Pair]:
    """All pairs that fit into the memory of the GPU type together."""
    return mig_pairs(data) if gpu_type == "a100" else read_pairs(data / FILE)[gpu_type]


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
    for table in TABLES:
        for share in OBSERVED:
            yield from _compared(samples, table, _seen(share), ("rank 2", "rank 4", "trees"))
        yield from _compared(samples, table, UNSEEN, ("forest",))
    for place, (probes, goal) in enumerate(zip(PROBES, NEW_GOALS, strict=True)):
        found = over_seeds([sample.curve[place] for sample in runs_of(samples, _part(NEW_GPU_TYPE), NEW)])
        name = f"after {probes} chosen probes: {ERROR}"
        yield row(f"A new family on {NEW_GPU_TYPE.upper()}", name, found, "of speed", verdict=judge(found, goal))


def _compared(samples: Samples, table: str, who: str, baselines: Sequence[str]) -> Iterator[Finding]:
    part = _part(table)
    ours = numbers(samples, part, who, "error")
    theirs = {name: numbers(samples, part, who, name) for name in baselines}
    best = min(theirs, key=lambda name: statistics.mean(theirs[name]))
    found = over_seeds([mine - other for mine, other in zip(ours, theirs[best], strict=True)])
    beside = f"{statistics.mean(ours):.4f}; {best} {statistics.mean(theirs[best]):.4f}"
    yield row(
        part,
        f"{who}: error less that of the best baseline",
        found,
        "of speed",
        beside=beside,
        verdict=judge(found, 0.0),
    )
    covered = over_seeds(numbers(samples, part, who, "covered"))
    low, high = COVERED
    verdict = (f"{low:g} to {high:g}", low <= covered.mean <= high) if who != UNSEEN else (None, None)
    yield row(part, f"{who}: 90 % intervals hold", covered, "%", verdict=verdict)


def figures(samples: Samples) -> Iterator[Figure]:
    for table in TABLES:
        part = _part(table)
        names = (
            ("cotenant", "error"),
            *((f"factorisation, rank {n}", f"rank {n}") for n in RANKS),
            ("boosted trees", "trees"),
        )
        curves = {
            name: [(100 * share, over_seeds(numbers(samples, part, _seen(share), key))) for share in OBSERVED]
            for name, key in names
        }
        top = max(found.mean for points in curves.values() for _, found in points)
        yield plot_figure(
            f"Prediction of unseen pairs: {part}",
            "Mean absolute error of a tenant's speed, of its speed alone; lower is better. Band: 95 % interval.",
            axes.linear("Pairs seen (%)", 0.0, 100.0),
            axes.linear("Mean absolute error", 0.0, top, fit=True),
            lines(curves),
        )


STUDY = Study(
    title="Interference prediction for unseen pairs",
    about=(
        "Gavel (OSDI 2020) measured nearly every pair of 26 job types on V100, P100 and K80 GPUs. A100 stands for "
        "the pairs that follow from MISO's measurements (SoCC 2022) of 32 job types on slices of an A100: the GPU "
        "is divided so that the two speeds add up to most. The simulated tables have 60 job types with profiles, "
        "about 1,450 pairs and a fifth of all speeds above 1; there are six kinds of them, and each seed draws "
        "other ones. The predictor sees a random part of the pairs and predicts both speeds of all others; the "
        "fixed shares of its kernel were fitted to other GPU types only. Baselines in the same run: matrix "
        "factorisation of ranks 2 and 4, and 150 boosted trees that know the numbers of both jobs; for types of "
        "which no pair was seen, a forest of 60 trees that knows them too. Each seed splits a measured table 3 to "
        "24 times, and differences are taken split by split. A new family is one without any seen pair, while half of "
        "all other pairs are seen; then some of its pairs are measured, each chosen for the most information."
    ),
    seeds=tuple(range(300, 304)),
    tasks=tasks,
    run=run,
    findings=findings,
    figures=figures,
)
