# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reproduces Gavel's published FIFO results on three GPU types with the timed simulator, to validate it."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random

from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.units import MiB, Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.colocation import FILE, Colocation, Oracle, read_colocation
from cotenant.sim.report import axes
from cotenant.sim.report.charts import Figure
from cotenant.sim.studies.study import (
    Finding,
    Sample,
    Samples,
    Study,
    Task,
    lines,
    numbers,
    over_seeds,
    plot_figure,
    row,
)
from cotenant.sim.timed import TimedRun, Timing

HOUR = 3600.0
PUBLISHED = {0.4: 17.58, 1.2: 17.70, 2.0: 18.32, 2.8: 18.62, 3.6: 24.25, 4.0: 25.38, 4.4: 44.28, 4.8: 99.19}
"""jobs per hour -> mean completion time in hours (Gavel, OSDI 2020, single-GPU jobs, FIFO)"""
WITHIN = 10.0
"""target in percent; from 4.4 jobs per hour on the queue grows without bound, and results depend on the seed"""
GPU_TYPES = ("v100", "p100", "k80")
"""GPU types in the order in which a job takes them"""
ROUND, REST = Seconds(360.0), Seconds(1920.0)
"""Gavel starts jobs at the beginning of a round, and decides again at the earliest so long after its last decision"""
EACH, PER_NODE = 36, 4
FIRST, LAST = 4000, 5000
"""the jobs whose completion times count"""
FAMILIES = (
    ("ResNet-18", (16, 32, 64, 128, 256)),
    ("ResNet-50", (16, 32, 64, 128)),
    ("Transformer", (16, 32, 64, 128, 256)),
    ("LM", (5, 10, 20, 40, 80)),
    ("Recommendation", (512, 1024, 2048, 4096, 8192)),
)
WORKLOADS = [
    *(f"{family} (batch size {size})" for family, sizes in FAMILIES for size in sizes),
    "A3C",
    "CycleGAN",
]
"""in Gavel's order, which its generator depends on"""


def tasks(seeds: Sequence[int]) -> list[Task]:
    return [Task(_part(rate), "fifo", seed) for seed, rate in product(seeds, PUBLISHED)]


def run(task: Task, data: Path) -> Sample:
    world = read_colocation(data / FILE)
    jobs = list(arrivals(task.seed, float(task.part.split()[0]), LAST))
    # In FIFO order without preemption later jobs affect a job only by the times of decisions, so the difference of two
    # runs is the sum over the jobs between them, but for a few of the last starts.
    late = sum_of_times(jobs, world) - sum_of_times(jobs[:FIRST], world)
    return Sample({"mean_jct": late / (LAST - FIRST)})


def _part(rate: float) -> str:
    return f"{rate:g} jobs per hour"


def arrivals(seed: int, rate: float, count: int) -> Iterator[Arrival]:
    """The jobs of Gavel's own runs, from the same random generators with the same order of draws."""
    chance, gaps = Random(seed + 2), Random(seed + 3)
    now = 0.0
    for number in range(count):
        chance.random()  # Gavel draws the number of GPUs here, also if all jobs have one
        low, high = (3, 4) if chance.random() >= 0.8 else (1.5, 3)
        duration = 60 * 10 ** chance.uniform(low, high)
        demand = Demand(workload=chance.choice(WORKLOADS))
        yield Arrival(Job(id=f"job-{number:05}", demand=demand, submitted=Seconds(now)), Seconds(duration))
        now -= math.log(1 - gaps.random()) * HOUR / rate


def sum_of_times(jobs: Sequence[Arrival], world: Colocation) -> float:
    """The sum of the completion times of these jobs, in seconds."""
    timing = Timing(queue="fifo", backfill=False, tick=ROUND, rest=REST, fragmentation=False, heat=False)
    mix = mix_of(arrival.job.demand for arrival in jobs)
    timed = TimedRun(_machines(), "alone", mix, 0, timing, world=world, belief=Oracle(world)).run(iter(jobs))
    return timed.result("fifo", 0).summary["mean_jct"] * len(jobs)


def _machines() -> Iterator[Machine]:
    """Ties between equal slots are broken by node name, so the names put the GPU types in order."""
    for place, gpu_type in enumerate(GPU_TYPES):
        for node in range(EACH // PER_NODE):
            gpus = (Gpu(uuid=f"{gpu_type}-{node}-{i}", type=gpu_type, memory=MiB(16_384)) for i in range(PER_NODE))
            yield Machine(name=f"{place}-{gpu_type}-{node}", gpus=tuple(gpus))


def findings(samples: Samples) -> Iterator[Finding]:
    for rate, published in PUBLISHED.items():
        found = over_seeds([jct / HOUR for jct in numbers(samples, _part(rate), "fifo", "mean_jct")])
        away = 100 * (found.mean / published - 1)
        yield row(
            "Mean completion time of jobs 4000 to 5000",
            _part(rate),
            found,
            "h",
            beside=f"published {published:.2f}, {away:+.1f} %",
            verdict=(f"within {WITHIN:g} %", abs(away) <= WITHIN),
        )


def figures(samples: Samples) -> Iterator[Figure]:
    curve = [
        (rate, over_seeds([jct / HOUR for jct in numbers(samples, _part(rate), "fifo", "mean_jct")]))
        for rate in PUBLISHED
    ]
    top = max(*PUBLISHED.values(), *(found.mean for _, found in curve))
    yield plot_figure(
        "First come, first served on three GPU types",
        "Mean completion time by arrival rate. Dotted: as published.",
        axes.linear("Jobs per hour", 0.0, max(PUBLISHED), fit=True),
        axes.linear("Mean completion time (h)", 0.0, top, fit=True),
        lines({"cotenant": curve}),
        reference=list(PUBLISHED.items()),
        reference_name="published",
    )


STUDY = Study(
    title="Gavel's published FIFO",
    about=(
        "36 V100, 36 P100 and 36 K80 GPUs run single-GPU jobs in order of arrival, without preemption and without "
        "sharing. The jobs are those of Gavel's own runs, from the same random generators with the same order of "
        "draws. The first job of the queue takes a V100 if one is free, else a P100, else a K80: the published policy "
        "ignores GPU types, but its curve at low load is that of jobs that all run on V100s, and its code takes the "
        "last free type by name. Gavel starts jobs at the beginning of six-minute rounds, and decides again at the "
        "earliest 32 minutes after its last decision, so a GPU that becomes idle waits for that; so does this replay. "
        "Without these pauses the highest load would be 16 % too low. What is left may come from which GPU a job gets: "
        "Gavel gives the GPU of a job that ended to the next in the queue even if a faster one is idle, and its code "
        "can give the V100s more jobs than there are, which then take turns. The published results use three seeds, "
        "0 to 2, which differ by a factor of two at the highest load."
    ),
    seeds=(0, 1, 2),
    tasks=tasks,
    run=run,
    findings=findings,
    figures=figures,
)
