# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs and gains to reserve GPUs for the first job in the queue, against starting whatever fits.

A trace of a real cluster shows waiting times by size; its data is read from $COTENANT_DATA (default: ../shared/data).
One small machine with more work than it can do shows the cost: GPUs that are idle until the first job can start.
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from bench.harness import Figure, at_least, at_most, benchmark
from bench.studies import DATA
from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job, Machine
from cotenant.core.placement.deciding import Decision
from cotenant.core.placement.ranking import Policy
from cotenant.core.units import Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.clusters import open_cluster
from cotenant.sim.timed import TimedRun, Timing
from cotenant.sim.traces.registry import open_trace

TRACE, NODES, WIDE = "philly:6c71a0", "8x8", 8
"""a trace whose jobs need 1 to 16 GPUs, a cluster of 64 GPUs, and the GPUs of a wide job"""
GPUS, JOBS, SEEDS = 4, 400, range(10)


class Replay:
    """One run of `fifo`: its utilisation, and how long jobs waited, by number of GPUs."""

    def __init__(
        self, nodes: str | Iterable[Machine], arrivals: Iterable[Arrival], backfill: bool, exact: bool
    ) -> None:
        machines = open_cluster(nodes, data=DATA) if isinstance(nodes, str) else nodes
        timing = Timing(backfill=backfill, fragmentation=False, heat=False)
        self.waits: dict[int, list[float]] = {}
        self._run = TimedRun(machines, "binpack", {}, 1, timing, [self._watch])
        known = (replace(one.job, estimate=one.duration if exact else None) for one in arrivals)
        durations = (one.duration for one in arrivals)
        self._run.run(Arrival(job, duration) for job, duration in zip(known, durations, strict=True))
        summary = self._run.result("binpack", 1).summary
        self.utilisation, self.makespan = summary["utilisation"], summary["makespan"]

    def _watch(self, job: Job, _cluster: Cluster, _policy: Policy, decision: Decision | None) -> None:
        if decision is not None:
            gpus = job.demand.gpus * job.replicas
            self.waits.setdefault(gpus, []).append(self._run.now - job.submitted)

    def mean_wait(self, gpus: int | None = None) -> float:
        """In hours, of all jobs or of those with so many GPUs."""
        waits = [wait for size, each in self.waits.items() if gpus in (None, size) for wait in each]
        return statistics.mean(waits) / 3600


@benchmark("backfill")
def backfill() -> Iterator[Figure]:
    """Compares `fifo` with reservations for the first job, and without: utilisation and waiting times."""
    arrivals = sorted(open_trace(TRACE, data=DATA).read(), key=lambda one: (one.job.submitted, one.job.id))
    off = Replay(NODES, arrivals, backfill=False, exact=False)
    for lengths, exact in (("lengths unknown", False), ("lengths known", True)):
        on = Replay(NODES, arrivals, backfill=True, exact=exact)
        note = f"{TRACE} on {NODES}, fifo, {lengths}"
        yield at_least(
            f"utilisation with backfill, {lengths}", on.utilisation, "%", limit=off.utilisation - 1,
            baseline=f"without {off.utilisation:.1f}", note=note,
        )  # fmt: skip
        for what, gpus in (("all jobs", None), (f"jobs for {WIDE} GPUs", WIDE)):
            yield at_most(
                f"mean wait of {what} with backfill, {lengths}", on.mean_wait(gpus), "h", limit=off.mean_wait(gpus),
                baseline=f"without {off.mean_wait(gpus):.1f}", note=note,
            )  # fmt: skip
    for lengths, exact in (("lengths unknown", False), ("lengths known", True)):
        yield saturated(lengths, exact)


def saturated(lengths: str, exact: bool) -> Figure:
    """The time to do all work of one machine on which a tenth of the jobs need all GPUs."""
    machines = list(open_cluster(f"1x{GPUS}", data=DATA))
    ratios, waits = [], []
    for seed in SEEDS:
        jobs = stream(seed)
        on, off = (Replay(machines, jobs, backfill=one, exact=exact) for one in (True, False))
        ratios.append(on.makespan / off.makespan)
        waits.append(on.mean_wait(GPUS) / off.mean_wait(GPUS))
    name = f"time for all work of a full machine, with / without backfill, {lengths}"
    note = (
        f"{GPUS} GPUs, {JOBS} jobs, a tenth of them for all GPUs, which wait {statistics.mean(waits):.2f} times as long"
    )
    if exact:
        return at_most(name, statistics.mean(ratios), "times", limit=1.05, note=note)
    note += "; GPUs are idle until the last of them can be used"
    return Figure(name=name, figure=statistics.mean(ratios), unit="times", note=note)


def stream(seed: int) -> list[Arrival]:
    """Jobs of 1 min to 10 h that arrive a little faster than the machine can run them."""
    random = np.random.RandomState(seed)
    durations = 60 * 10 ** random.uniform(0, 2.8, JOBS)
    wide = random.rand(JOBS) < 0.1
    work = np.where(wide, GPUS, 1) * durations
    times = np.cumsum(random.exponential(work.mean() / (GPUS * 1.1), JOBS))
    return [
        Arrival(
            Job(id=f"job-{n:05}", demand=Demand(gpus=GPUS if wide[n] else 1), submitted=Seconds(float(times[n]))),
            Seconds(float(durations[n])),
        )
        for n in range(JOBS)
    ]
