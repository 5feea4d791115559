# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the mean wait in timed replays, in which jobs end, unlike in fill mode."""

import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

from bench.harness import Figure, at_most, benchmark
from bench.replay import DATA, MOST_SEEDS
from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.model import Machine
from cotenant.core.units import Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.clusters import open_cluster
from cotenant.sim.studies.study import over_seeds
from cotenant.sim.timed import TimedRun, Timing
from cotenant.sim.traces.registry import open_trace

POLICIES = ("bestfit", "fgd", "fragmentation", "fragmentation@online")
SEEDS = tuple(range(45, 55))
"""42 to 44 were used to choose constants"""
LONGER = 0.05
"""fraction by which a mean wait may be longer, however much the seeds differ"""

WORLDS = {
    "openb, arrivals 6 times as fast, 20 of its nodes": ("openb:default", "openb", 60, 6.0),
    "philly 6c71a0 on 8x8": ("philly:6c71a0", "8x8", 1, 1.0),
}
"""(trace, cluster, n: every n-th of its nodes is used, factor by which arrivals are accelerated)"""


@benchmark("waits")
def waits() -> Iterator[Figure]:
    """Compares the mean wait of our policy with that of FGD and best-fit, paired over seeds that assign jobs to arrival
    times; at least two of them."""
    seeds = SEEDS[: max(2, MOST_SEEDS)]
    with ProcessPoolExecutor() as pool:
        for world in WORLDS:
            tasks = [(DATA, world, policy, seed) for policy, seed in product(POLICIES, seeds)]
            found = list(pool.map(mean_wait, *zip(*tasks, strict=True)))
            by_run = {(policy, seed): wait for (_, _, policy, seed), wait in zip(tasks, found, strict=True)}
            for ours, other in product(("fragmentation", "fragmentation@online"), ("fgd", "bestfit")):
                yield compared(world, by_run, ours, other, seeds)


def compared(world: str, waits: dict[tuple[str, int], float], ours: str, other: str, seeds: tuple[int, ...]) -> Figure:
    """The mean wait of a policy beside that of another, and the interval of their difference."""
    pairs = [(waits[ours, seed], waits[other, seed]) for seed in seeds]
    gap = over_seeds([mine - theirs for mine, theirs in pairs])
    mean, theirs = (statistics.mean(side) for side in zip(*pairs, strict=True))
    return at_most(
        f"mean wait, {ours} / {other}",
        mean / theirs,
        "times",
        limit=1 + LONGER,
        baseline=f"{other} {theirs / 3600:.2f} h",
        note=f"{world}; {mean / 3600:.2f} h; {gap.mean:+.0f} ± {gap.half or 0:.0f} s over {len(seeds)} seeds",
    )


def mean_wait(data: Path, world: str, policy: str, seed: int) -> float:
    trace, cluster, every, compress = WORLDS[world]
    machines: list[Machine] = list(open_cluster(cluster, data=data))[::every]
    arrivals = sorted(open_trace(trace, data=data).read(), key=lambda one: (one.job.submitted, one.job.id))
    times = [Seconds(one.job.submitted / compress) for one in arrivals]
    Random(seed).shuffle(arrivals)
    dealt = (Arrival(replace(one.job, submitted=time), one.duration) for one, time in zip(arrivals, times, strict=True))
    mix = mix_of(one.job.demand for one in arrivals)
    run = TimedRun(machines, policy, mix, seed, Timing(backfill=False, fragmentation=False, heat=False)).run(dealt)
    return run.result(policy, seed).summary["mean_wait"]
