# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the mean completion time of our policy with that of other policies, seed by seed."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from cotenant.sim.report import axes
from cotenant.sim.report.charts import Figure
from cotenant.sim.report.stats import Estimate
from cotenant.sim.studies.contenders import Setting
from cotenant.sim.studies.contenders import run as simulate
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
from cotenant.sim.studies.tuned import NOISE_SCALE, TUNING

HOUR = 3600.0
OURS, ORACLE = "cotenant", "cotenant-oracle"
MOVES, EPISODES = ("moved", "moves, each of which loses 60 s of work"), ("tuned", "episodes of tuning")
ADDITIONAL = {
    "cotenant-repair": ("Additional: re-pairing (jobs that share move to GPUs that become idle)", (MOVES,)),
    "cotenant-tuned": ("Additional: batch tuning of jobs that share", (EPISODES,)),
    "cotenant-both": ("Additional: re-pairing and batch tuning", (MOVES, EPISODES)),
}
"""what engines do besides placing jobs: the title of its part of the tables, and what is counted"""
RIVALS = ("iadeep", "coscheml", "lucid", "sjf")
NEAR_ORACLE = 2.0
"""percent by which our policy may be above its own result with true speeds"""
SETTINGS = {
    "V100, load 1.2": Setting(gpu_type="v100", load=1.2),
    "V100, load 1.4": Setting(gpu_type="v100", load=1.4),
    "P100, load 1.1": Setting(gpu_type="p100", load=1.1),
    "V100, load 1.2, durations estimated": Setting(gpu_type="v100", load=1.2, error=1.0),
}
NOT_ABOVE = {("P100, load 1.1", "sjf")}
"""(setting, policy) for which the target is only not to be worse: interference is mild and the load is low"""

MILD = {
    "V100, load 0.6": Setting(gpu_type="v100", load=0.6),
    "V100, load 0.8": Setting(gpu_type="v100", load=0.8),
    "V100, load 1.0": Setting(gpu_type="v100", load=1.0),
    "P100, load 0.9": Setting(gpu_type="p100", load=0.9),
    "K80, load 0.9": Setting(gpu_type="k80", load=0.9),
    "K80, load 1.2": Setting(gpu_type="k80", load=1.2),
    "V100, load 1.2, measured with 10 % noise": Setting(gpu_type="v100", load=1.2, noise=0.1),
    "K80, load 1.2, measured with 10 % noise": Setting(gpu_type="k80", load=1.2, noise=0.1),
    "V100, load 0.8, nothing measured before": Setting(gpu_type="v100", load=0.8, observed=0.0),
    "V100, load 1.2, nothing measured before": Setting(gpu_type="v100", load=1.2, observed=0.0),
    "K80, load 1.2, nothing measured before": Setting(gpu_type="k80", load=1.2, observed=0.0),
}
"""settings in which sharing gains little or nothing, or is judged by inexact measurements or at first by none"""
WORLDS = {
    f"Simulated: {kind}, load {load:g}": Setting(gpu_type=kind, load=load, jobs=400)
    for kind in ("contention", "factors", "programs")
    for load in (0.9, 1.2, 1.5)
}
"""settings in which sharing gains much, and a fifth of all speeds is above that of a job alone"""
WORLD_RIVALS = ("iadeep", "coscheml", "sjf")
MILD_RIVALS = ("sjf", "iadeep")
NO_HARM = 0.5
"""percent by which our policy may be above not sharing, in the settings of `MILD`"""


def tasks(seeds: Sequence[int]) -> list[Task]:
    return [
        Task(part, who, seed) for seed in seeds for part in SETTINGS for who in (OURS, ORACLE, *ADDITIONAL, *RIVALS)
    ]


def mild_tasks(seeds: Sequence[int]) -> list[Task]:
    return [Task(part, who, seed) for seed in seeds for part in MILD for who in (OURS, *MILD_RIVALS)]


def world_tasks(seeds: Sequence[int]) -> list[Task]:
    return [Task(part, who, seed) for seed in seeds for part in WORLDS for who in (OURS, *WORLD_RIVALS)]


def run(task: Task, data: Path) -> Sample:
    result = simulate(task.who, (SETTINGS | MILD | WORLDS)[task.part], task.seed, data)
    names = ("mean_jct", "p95_jct", "makespan", "shared", "trials", "reverted", "moved", "tuned")
    return Sample({name: result.summary[name] for name in names}, tuple(result.quantiles["jct"]))


def findings(samples: Samples) -> Iterator[Finding]:
    for part in SETTINGS:
        yield from _compared(part, samples)
    for who, (title, did) in ADDITIONAL.items():
        for part in SETTINGS:
            counts = [f"{over_seeds(numbers(samples, part, who, name)).mean:.0f} {text}" for name, text in did]
            name, gap = f"{part}: against {OURS} without", paired(samples, part, OURS, who)
            yield row(title, name, gap, "%", verdict=judge(gap, 0.0), note=", ".join(counts))


def _compared(part: str, samples: Samples) -> Iterator[Finding]:
    ours = over_seeds([jct / HOUR for jct in numbers(samples, part, OURS, "mean_jct")])
    yield row(part, f"{OURS}: mean completion time", ours, "h")
    for other in (*RIVALS, ORACLE):
        gap = paired(samples, part, other)
        if other == ORACLE:
            verdict = judge(gap, NEAR_ORACLE)
        else:
            verdict = judge(gap, 0.0, "at most" if (part, other) in NOT_ABOVE else "below")
        theirs = statistics.mean(numbers(samples, part, other, "mean_jct")) / HOUR
        yield row(part, f"{OURS} against {other}", gap, "%", beside=f"{other} {theirs:.2f} h", verdict=verdict)


def mild_findings(samples: Samples) -> Iterator[Finding]:
    for part in MILD:
        shared = over_seeds(numbers(samples, part, OURS, "shared"))
        for other in MILD_RIVALS:
            gap = paired(samples, part, other)
            theirs = statistics.mean(numbers(samples, part, other, "mean_jct")) / HOUR
            yield row(
                part,
                f"{OURS} against {other}",
                gap,
                "%",
                beside=f"{other} {theirs:.2f} h",
                verdict=judge(gap, NO_HARM) if other == "sjf" else (None, None),
                note=f"{shared.mean:.0f} of 600 jobs start beside another" if other == "sjf" else "",
            )


def world_findings(samples: Samples) -> Iterator[Finding]:
    for part in WORLDS:
        for other in WORLD_RIVALS:
            gap = paired(samples, part, other)
            theirs = statistics.mean(numbers(samples, part, other, "mean_jct")) / HOUR
            beside = f"{other} {theirs:.2f} h"
            yield row(part, f"{OURS} against {other}", gap, "%", beside=beside, verdict=judge(gap, 0.0, "not above"))
    gaps = [paired(samples, part, other) for part in WORLDS for other in WORLD_RIVALS]
    lower = 100 * sum(gap.mean < 0 for gap in gaps) / len(gaps)
    name = f"comparisons in which the mean completion time under {OURS} is lower"
    yield row("All simulated worlds", name, Estimate(lower, None), "%", verdict=("> 50", lower > 50))


def paired(samples: Samples, part: str, other: str, who: str = OURS) -> Estimate:
    """By how many percent our mean completion time is above another policy's, seed by seed."""
    ours, theirs = (numbers(samples, part, one, "mean_jct") for one in (who, other))
    return over_seeds([100 * (mine / their - 1) for mine, their in zip(ours, theirs, strict=True)])


def figures(samples: Samples) -> Iterator[Figure]:
    for part in SETTINGS:
        curves = {who: _percentiles(runs_of(samples, part, who)) for who in (OURS, *RIVALS)}
        every = [found.mean for points in curves.values() for _, found in points]
        yield plot_figure(
            f"Completion times: {part}",
            "Time from arrival to end by share of jobs; lower is better. Line: mean over seeds; band: 95 % interval.",
            axes.linear("Share of jobs (%)", 0.0, 100.0),
            axes.log_time("Completion time (logarithmic)", axes.log_floor(min(every)), max(every)),
            lines(curves),
        )


def _percentiles(runs: Sequence[Sample]) -> list[tuple[float, Estimate]]:
    return [
        (float(percent), over_seeds(values))
        for percent, values in enumerate(zip(*(sample.curve for sample in runs), strict=True))
    ]


STUDY = Study(
    title="Placement compared with published policies",
    about=(
        "24 GPUs run 600 jobs with the shape of Philly's (Gavel's generator). Pairs slow each other down as Gavel "
        "(OSDI 2020) measured; each policy knows 30 % of these measurements in advance. Load is the work that "
        "arrives, in multiples of the GPUs. Every policy gets the same jobs, and differences are taken seed by seed. "
        "A job that is moved loses 60 s of work; at most two jobs share a GPU. `iadeep`, `coscheml` and `lucid` are "
        "our versions of the placement rules of those systems, with a shortest-first queue that they did not have and "
        "without batch tuning. Lucid gets its sharing scores from the full table; the speeds that separate its three "
        "scores, 0.6 and 0.8, are ours, because it published none for these workloads. `sjf` does not share. "
        "`cotenant-oracle` is our policy with the true speeds in place of predictions. Durations are known exactly, "
        "or estimated with a log-normal error of sigma 1.\n\n"
        "The additional results are not part of any other value: moving jobs that share to GPUs that become idle, and "
        "batch tuning. Both are simulated with their costs: a move loses 60 s of work, and an episode of tuning has a "
        "window at the jobs' own sizes before and after each of at most eight trials, each at least 1 s and eight "
        f"steps long. The tuner is that of the engines, with {TUNING.noise:.0%} noise in what it measures and a "
        f"gradient noise scale of {NOISE_SCALE:g} times the batch size. Jobs have the batch sizes of Gavel's table; "
        "sizes that it does not have are not tried, programs with one size are not tuned, and a job alone keeps its "
        "own size."
    ),
    seeds=tuple(range(100, 110)),
    tasks=tasks,
    run=run,
    findings=findings,
    figures=figures,
)

MILD_STUDY = Study(
    title="Placement if sharing gains little",
    about=(
        "The same comparison if there are enough GPUs (loads up to 1), on K80 GPUs, whose tenants together hardly do "
        "more work than one, with noise in every measured speed (standard deviation of its logarithm 0.1), and if no "
        "pair was measured before the first job arrives; `iadeep` then assumes no slowdown. On a "
        "K80, and on any GPU while others are idle, sharing gains nothing; the target is that our policy does no harm "
        f"there: a mean completion time at most {NO_HARM:g} % above that of `sjf`, which does not share."
    ),
    seeds=tuple(range(100, 105)),
    tasks=mild_tasks,
    run=run,
    findings=mild_findings,
    figures=lambda _samples: [],
)

WORLD_STUDY = Study(
    title="Placement in simulated worlds of 60 job types",
    about=(
        "The same comparison with 400 jobs of 60 types in simulated worlds, which each seed draws anew. Jobs slow each "
        "other down by little: two on one GPU do the work of 1.8 on average, and a fifth of all speeds is above that "
        "of a job alone. The target is that our policy is not worse than any other one at any load, so no 95 % "
        "interval may lie above 0, and that its mean is lower in most comparisons."
    ),
    seeds=tuple(range(100, 105)),
    tasks=world_tasks,
    run=run,
    findings=world_findings,
    figures=lambda _samples: [],
)
