# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the default policy of one machine against packing, which was the default before.

Jobs that name memory share GPUs at the speeds that Gavel's authors measured; a fifth of the jobs need a whole GPU. The
data is read from $COTENANT_DATA (default: ../shared/data).
"""

import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.harness import Figure, at_most, benchmark
from bench.studies import DATA
from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.units import WHOLE_MEMORY, MiB, MilliGpu, Seconds
from cotenant.local.daemon_options import Options
from cotenant.sim.arrivals import Arrival
from cotenant.sim.colocation import FILE, Colocation, Oracle, read_colocation
from cotenant.sim.timed import TimedRun, Timing

GPU_TYPE, GPUS, TENANTS = "v100", 4, 2
JOBS, SEEDS = 400, range(10)
LOADS = (0.3, 0.6, 0.9)
"""work that arrives, in multiples of the GPUs"""
WHOLE = 0.2
"""fraction of the jobs that name no memory"""
DEFAULT = Options(state=Path("/")).policy


def arrivals(world: Colocation, load: float, seed: int) -> list[Arrival]:
    """Jobs of 30 s to 17 h that arrive at random."""
    random = np.random.RandomState(seed)
    workloads = world.workloads(GPU_TYPE)
    durations = 60 * 10 ** random.uniform(-0.3, 3, JOBS)
    times = np.cumsum(random.exponential(durations.mean() / (GPUS * load), JOBS))
    found = []
    for n in range(JOBS):
        workload = workloads[random.randint(len(workloads))]
        share = Demand(memory=MiB(1024 * random.randint(1, 9)), compute=MilliGpu(0), workload=workload)
        whole = Demand(memory_percent=WHOLE_MEMORY, workload=workload)
        demand = whole if random.rand() < WHOLE else share
        job = Job(id=f"job-{n:05}", demand=demand, submitted=Seconds(float(times[n])))
        found.append(Arrival(job, Seconds(float(durations[n]))))
    return found


def mean_completion(policy: str, load: float, seed: int) -> float:
    """Seconds from the submission of a job to its end, on average."""
    world = read_colocation(DATA / FILE)
    jobs = arrivals(world, load, seed)
    gpus = tuple(Gpu(uuid=f"{i}", type=GPU_TYPE, memory=MiB(16_384), slots=TENANTS) for i in range(GPUS))
    run = TimedRun(
        [Machine(name="local", gpus=gpus)],
        policy,
        mix_of(one.job.demand for one in jobs),
        seed,
        Timing(backfill=False, fragmentation=False, heat=False),
        world=world.on(GPU_TYPE),
        belief=Oracle(world),
    )
    return run.run(iter(jobs)).result(policy, seed).summary["mean_jct"]


@benchmark("one-machine")
def one_machine() -> Iterator[Figure]:
    """Compares the mean completion time under the default policy with that under binpack."""
    for load in LOADS:
        own = [mean_completion(DEFAULT, load, seed) for seed in SEEDS]
        packed = [mean_completion("binpack", load, seed) for seed in SEEDS]
        won = sum(a < b for a, b in zip(own, packed, strict=True))
        yield at_most(
            f"mean completion at load {load:g}, {DEFAULT} / binpack",
            statistics.mean(own) / statistics.mean(packed),
            "times",
            limit=0.9,
            note=f"{GPUS} GPUs, {JOBS} jobs, 20 % of them for whole GPUs; faster on {won} of {len(SEEDS)} seeds",
        )
