# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Does it pay to share, and to know with whom? Mean completion time of our policy beside others, seed by seed."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job
from cotenant.core.placement.deciding import Decision
from cotenant.core.placement.ranking import Policy
from cotenant.core.sharing import orders as sharing
from cotenant.core.sharing.speeds import Company
from cotenant.sim.report import axes
from cotenant.sim.report.charts import Figure
from cotenant.sim.report.stats import Estimate
from cotenant.sim.studies.contenders import Setting
from cotenant.sim.studies.contenders import run as simulate
from cotenant.sim.studies.grids import Problem, choice, grids
from cotenant.sim.studies.study import (
    Finding,
    Sample,
    Samples,
    Study,
    Task,
    held,
    lines,
    numbers,
    of,
    over_seeds,
    plotted,
    row,
)
from cotenant.sim.worlds.colocation import signature

HOUR = 3600.0
OURS, ORACLE, REPAIR = "cotenant", "cotenant-oracle", "cotenant-repair"
RIVALS = ("iadeep", "coscheml", "lucid", "sjf")
NEAR_ORACLE = 2.0
"""percent"""
SETTINGS = {
    "V100, load 1.2": Setting(card="v100", load=1.2),
    "V100, load 1.4": Setting(card="v100", load=1.4),
    "P100, load 1.1": Setting(card="p100", load=1.1),
    "V100, load 1.2, lengths guessed": Setting(card="v100", load=1.2, error=1.0),
}
NOT_ABOVE = {("P100, load 1.1", "sjf")}
"""where interference is mild and the load low, sharing is only asked to do no harm"""

REFERENCE_SEEDS = (0, 1)
REFERENCE = {
    "V100, load 1.2, 800 jobs": (Setting(card="v100", load=1.2, jobs=800), (61.86, 24.37, 26.45, 22.85, 21.16, 23.33)),
    "V100, load 1.4, 800 jobs": (Setting(card="v100", load=1.4, jobs=800), (86.24, 28.51, 31.37, 30.92, 28.47, 26.18)),
    "P100, load 1.1, 800 jobs": (Setting(card="p100", load=1.1, jobs=800), (47.09, 22.90, 23.07, 21.41, 21.15, 23.31)),
}
"""mean completion time in hours over two seeds, by `BASELINES`, as a simulator written apart from this one has it"""
BASELINES = ("fifo", "sjf", "share-anything", "coscheml", "iadeep", "lucid")
UNTOLD = "share-anything"
"""of which the reference does not say whom a job joins"""
HONEST = 3.0
"""percent"""
ON_TOP = 8.0
"""gradient noise scale at which batch tuning is valued, in multiples of the default size"""

_EVERY: Mapping[str, Setting] = SETTINGS | {part: setting for part, (setting, _) in REFERENCE.items()}


def tasks(seeds: Sequence[int]) -> list[Task]:
    compared = [Task(part, who, seed) for seed in seeds for part in SETTINGS for who in (OURS, ORACLE, REPAIR, *RIVALS)]
    return compared + [Task(part, who, seed) for seed in REFERENCE_SEEDS for part in REFERENCE for who in BASELINES]


def run(task: Task, data: Path) -> Sample:
    formed: Counter[Company] = Counter()

    def watch(_job: Job, _before: Cluster, _policy: Policy, decision: Decision | None) -> None:
        if decision is not None:
            formed.update(_pairs(decision))

    setting = _EVERY[task.part]
    ours = task.who == OURS
    result = simulate(task.who, setting, task.seed, data, [watch] if ours else [])
    found = {
        name: result.summary[name]
        for name in ("mean_jct", "p95_jct", "makespan", "shared", "trials", "reverted", "moved")
    }
    if ours:
        found |= _tuned(formed, task.seed, data)
    return Sample(found, tuple(result.quantiles["jct"]))


def _pairs(decision: Decision) -> Iterator[Company]:
    """Who shares a card from now on."""
    for placement in decision.placements:
        node = decision.cluster.node(placement.slot.node)
        for gpu in placement.slot.gpus:
            tenants = sharing.tenants_on(node, gpu)
            if len(tenants) > 1:
                yield sharing.company(node, gpu, (tenant.demand for tenant in tenants))


def _tuned(formed: Counter[Company], seed: int, data: Path) -> dict[str, float]:
    """What tuning the batch sizes of the pairs that were formed would take off the sum of their slowdowns."""
    saved = {company: _saved(company, seed, data) for company in formed}
    total = formed.total() or 1
    return {
        "tuned": sum(count * (saved[company] or 0.0) for company, count in formed.items()) / total,
        "tunable": 100 * sum(count for company, count in formed.items() if saved[company] is not None) / total,
    }


def _saved(company: Company, seed: int, data: Path) -> float | None:
    """In percent; None where one of the two comes in one size only."""
    one, other = (signature(str(workload), 1.0) for workload in company.workloads)
    if one.family is None or other.family is None or one.batch is None or other.batch is None:
        return None
    start = one.batch, other.batch
    problem = Problem(grids(company.card, data)[one.family, other.family], start, ON_TOP)
    return 100 * (1 - problem.cost(choice(problem, seed)) / problem.cost(start))


def findings(samples: Samples) -> Iterator[Finding]:
    for part in SETTINGS:
        yield from _compared(part, samples)
    for part, (_, reference) in REFERENCE.items():
        for who, hours in zip(BASELINES, reference, strict=True):
            mine = statistics.mean(numbers(samples, part, who, "mean_jct")) / HOUR
            away = 100 * (mine / hours - 1)
            told = who != UNTOLD
            yield Finding(
                part="Baselines against a reference, 800 jobs, seeds 0 and 1",
                name=f"{part.removesuffix(', 800 jobs')}: {who}",
                value=away,
                unit="%",
                beside=f"{mine:.2f} h; reference {hours:.2f}",
                target=f"within {HONEST:g}" if told else None,
                met=abs(away) <= HONEST if told else None,
                note="" if told else "which of the shared cards it takes is up to the simulator",
            )
    for part in SETTINGS:
        moved = over_seeds(numbers(samples, part, REPAIR, "moved"))
        yield row(
            "On top: re-pairing, jobs that share move to cards that have become idle",
            f"{part}: against {OURS} without",
            paired(samples, part, OURS, REPAIR),
            "%",
            note=f"{moved.mean:.0f} moves, each loses 60 s of work",
        )
    for part in SETTINGS:
        tuned, tunable = (over_seeds(numbers(samples, part, OURS, name)) for name in ("tuned", "tunable"))
        yield row(
            "On top: batch tuning of the pairs that were formed",
            f"{part}: less summed slowdown",
            tuned,
            "%",
            note=f"phi/m0 {ON_TOP:g}; {tunable.mean:.0f} % of the pairs are tunable, the others count as nothing",
        )


def _compared(part: str, samples: Samples) -> Iterator[Finding]:
    ours = over_seeds([jct / HOUR for jct in numbers(samples, part, OURS, "mean_jct")])
    yield row(part, f"{OURS}: mean completion time", ours, "h")
    for other in (*RIVALS, ORACLE):
        gap = paired(samples, part, other)
        if other == ORACLE:
            verdict = held(gap, NEAR_ORACLE)
        else:
            verdict = held(gap, 0.0, "at most" if (part, other) in NOT_ABOVE else "below")
        theirs = statistics.mean(numbers(samples, part, other, "mean_jct")) / HOUR
        yield row(part, f"{OURS} against {other}", gap, "%", beside=f"{other} {theirs:.2f} h", verdict=verdict)


def paired(samples: Samples, part: str, other: str, who: str = OURS) -> Estimate:
    """By how many percent our mean completion time is above another's, seed by seed."""
    ours, theirs = (numbers(samples, part, one, "mean_jct") for one in (who, other))
    return over_seeds([100 * (mine / their - 1) for mine, their in zip(ours, theirs, strict=True)])


def figures(samples: Samples) -> Iterator[Figure]:
    for part in SETTINGS:
        curves = {who: _percentiles(of(samples, part, who)) for who in (OURS, *RIVALS)}
        every = [found.mean for points in curves.values() for _, found in points]
        yield plotted(
            f"Completion times: {part}",
            "Time from arrival to end by share of jobs; lower is better. Line: mean over seeds; band: 95 % interval.",
            axes.straight("Share of jobs (%)", 0.0, 100.0),
            axes.log_time("Completion time (logarithmic)", axes.log_floor(min(every)), max(every)),
            lines(curves),
        )


def _percentiles(runs: Sequence[Sample]) -> list[tuple[float, Estimate]]:
    return [
        (float(percent), over_seeds(values))
        for percent, values in enumerate(zip(*(sample.curve for sample in runs), strict=True))
    ]


STUDY = Study(
    title="Placement beside published policies",
    about=(
        "24 cards take 600 jobs of Philly's shape (Gavel's generator); what pairs do to each other is what Gavel (OSDI "
        "2020) measured, of which each policy knows 30 % beforehand. Load is the work that arrives, in cards. Every "
        "policy meets the same jobs, and differences are taken seed by seed. A job that is moved away loses 60 s of "
        "work; at most two share a card. `iadeep`, `coscheml` and `lucid` are our versions of those systems' placement "
        "rules, with a shortest-first queue that they did not have; without batch tuning, and Lucid with its sharing "
        "scores from the full table. `sjf` shares nothing. `cotenant-oracle` is our policy with the truth for a "
        "predictor. Lengths are known exactly, or guessed with a lognormal error of sigma 1.\n\n"
        "The baselines themselves are held against a second simulator, written apart from this one, on its own "
        "settings. What is reported on top is not part of any other figure: moving jobs that share to cards that have "
        "become idle, and batch tuning, of which the figure is what the joint tuner would save on the pairs that were "
        "formed, not a simulation with it."
    ),
    seeds=tuple(range(100, 110)),
    tasks=tasks,
    run=run,
    findings=findings,
    figures=figures,
)
