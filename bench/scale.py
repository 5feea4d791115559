# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures whether the cost of a decision depends on what changed, and not on the size of the cluster.

Replays run in the real-time class if that is allowed: programs that take turns with them would empty the processor's
caches, which adds a third to their CPU time.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from bench.harness import Figure, at_most, benchmark, in_fresh_process, p99, undisturbed
from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.timed import TimedRun, Timing

TYPES = ("A100", "V100", "T4")
MEAN_DURATION = 36_000.0
LOAD = 0.7


@benchmark("scale-100k")
def scale_100k() -> Iterator[Figure]:
    """Measures a long timed replay, the same at a tenth of the size, and a shortlist of named nodes."""
    large = in_fresh_process(replay, 10_000, 100_000)
    note = "100,000 jobs of 100 kinds on 10,000 nodes x 8 GPUs, binpack"
    baseline = "rating the changed nodes of each demand 18.6, prototype 14.5"
    yield at_most("timed replay, CPU", large.result, "s", limit=15, baseline=baseline, note=note)
    yield at_most("peak memory", large.peak_mib * 1.048576, "MB", limit=300)
    ratios = []
    for _ in range(3):
        # Steady state on both: ten times the nodes take ten times the jobs.
        ten, one = in_fresh_process(decision_cost, 10_000).result, in_fresh_process(decision_cost, 1_000).result
        ratios.append(ten / one)
    note = (
        f"median of {', '.join(f'{ratio:.2f}' for ratio in ratios)}; cluster 60 % full, one node changed per decision"
    )
    yield at_most("a decision at 10,000 nodes / at 1,000", statistics.median(ratios), "times", limit=1.5, note=note)
    short = in_fresh_process(shortlist_cost)
    yield at_most("top 16 of 5,000 named nodes, median", short.result[0], "ms", limit=1, note="one node changed before")
    yield Figure(name="top 16 of 5,000 named nodes, p99", figure=short.result[1], unit="ms")


@benchmark("scale-1m")
def scale_1m() -> Iterator[Figure]:
    """Measures a timed replay of a million jobs, and whether a job costs the same at its end as at its beginning."""
    large = in_fresh_process(replay_in_parts, 50_000, 1_000_000)
    spent = large.result
    tenths = [10 * part for part in spent[:10]]
    note = (
        "1,000,000 jobs of 100 kinds on 50,000 nodes x 8 GPUs, binpack; microseconds a job in each tenth of the "
        f"arrivals: {', '.join(f'{part:.0f}' for part in tenths)}"
    )
    yield at_most("timed replay, CPU", sum(spent), "s", limit=250, baseline="before: 675", note=note)
    # In the first half the cluster fills up; in the second, one job ends for each that arrives.
    growth = statistics.mean(tenths[8:]) / statistics.mean(tenths[5:7])
    yield at_most("a job in the last two tenths / in the sixth and seventh", growth, "times", limit=1.2)
    yield at_most("peak memory", large.peak_mib * 1.048576, "MB", limit=1000)


def machines(count: int) -> list[Machine]:
    return [
        Machine(
            name=f"node-{i:05d}",
            gpus=tuple(Gpu(uuid=f"{i}-{gpu}", type=TYPES[i % 3], memory=MiB(32_768)) for gpu in range(8)),
            cpu=MilliCpu(128_000),
            host_memory=MiB(1 << 20),
        )
        for i in range(count)
    ]


def demands(random: Random) -> list[Demand]:
    """80 different demands for shares of a GPU and 20 for whole GPUs."""
    shares = [
        Demand(
            compute=MilliGpu(random.randrange(50, 1000, 50)),
            memory=MiB(random.choice((1024, 2048, 4096, 8192))),
            cpu=MilliCpu(random.choice((1000, 2000, 4000))),
            use_types=random.choice(((), (), (), ("A100",), ("V100",))),
        )
        for _ in range(80)
    ]
    whole = [
        Demand(gpus=random.choice((1, 2, 4, 8)), memory=MiB(8192), cpu=MilliCpu(random.choice((4000, 8000))))
        for _ in range(20)
    ]
    return shares + whole


def arrivals(jobs: int, gpus: int, random: Random) -> Iterator[Arrival]:
    """Poisson arrivals that keep the cluster at its load once they have built up."""
    kinds = demands(random)
    mean = statistics.mean(demand.gpus * demand.compute / 1000 for demand in kinds)
    rate, now = LOAD * gpus / (mean * MEAN_DURATION), 0.0
    for i in range(jobs):
        now += random.expovariate(rate)
        job = Job(id=f"job-{i:06d}", demand=random.choice(kinds), submitted=Seconds(now))
        yield Arrival(job, Seconds(random.expovariate(1 / MEAN_DURATION)))


def replay(nodes: int, jobs: int) -> float:
    """CPU seconds of a timed replay, including the creation of the jobs and the cluster."""
    undisturbed()
    start = time.process_time()
    timing = Timing(fragmentation=False, heat=False)
    run = TimedRun(machines(nodes), "binpack", {}, 1, timing).run(arrivals(jobs, nodes * 8, Random(1)))
    if run.result("binpack", 1).summary["jobs"] != jobs:
        raise AssertionError("a job was lost")
    return time.process_time() - start


def replay_in_parts(nodes: int, jobs: int) -> list[float]:
    """CPU seconds of each tenth of a timed replay, by arrivals, and then until all jobs have ended. The first one
    includes the creation of the cluster."""
    undisturbed()
    times = [time.process_time()]

    def counted() -> Iterator[Arrival]:
        for number, arrival in enumerate(arrivals(jobs, nodes * 8, Random(1)), start=1):
            yield arrival
            if number % (jobs // 10) == 0:
                times.append(time.process_time())

    timing = Timing(fragmentation=False, heat=False)
    run = TimedRun(machines(nodes), "binpack", {}, 1, timing).run(counted())
    if run.result("binpack", 1).summary["jobs"] != jobs:
        raise AssertionError("a job was lost")
    times.append(time.process_time())
    return [after - before for before, after in pairwise(times)]


def filled(nodes: int, random: Random) -> tuple[Ranker, Cluster, list[Demand]]:
    """A cluster filled to 60 % by binpack, and the ranker that filled it."""
    kinds, cluster, ranker = demands(random), Cluster.of(machines(nodes)), Ranker(build_policy("binpack"))
    used = 0
    while used < 0.6 * nodes * 8000:
        demand = random.choice(kinds)
        fit = ranker.best(demand, cluster)
        if fit is not None:
            used += demand.gpus * demand.compute
            cluster = cluster.seat(Job(id=str(used), demand=demand), fit.slot)
    return ranker, cluster, kinds


def decision_cost(nodes: int, decisions: int = 4000) -> float:
    """CPU microseconds of one decision: rank, place, and the end of another tenant."""
    random = Random(2)
    ranker, cluster, kinds = filled(nodes, random)
    start = time.process_time()
    for i in range(decisions):
        fit = ranker.best(random.choice(kinds), cluster)
        if fit is not None:
            node = cluster.node(cluster.names[random.randrange(nodes)])
            if node.tenants:
                cluster = without(cluster, node.name)
            cluster = cluster.seat(Job(id=f"new-{i}", demand=Demand(compute=MilliGpu(50))), fit.slot)
    return 1e6 * (time.process_time() - start) / decisions


def without(cluster: Cluster, name: str) -> Cluster:
    """The cluster after the first tenant of that node left."""
    from cotenant.core.model import Placement, Slot

    tenant = cluster.node(name).tenants[0]
    return cluster.finish(Placement(Job(id=tenant.job, demand=tenant.demand), Slot(name, tenant.gpus)))


def shortlist_cost(nodes: int = 10_000, named: int = 5_000, calls: int = 400) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds of ranking named nodes after one change, with new names each time."""
    random = Random(3)
    ranker, cluster, kinds = filled(nodes, random)
    kinds = kinds[:10]
    for demand in kinds:
        ranker.top(demand, cluster, cluster.names, 16)
    took = []
    for i in range(calls):
        names = ["".join(name) for name in random.sample(cluster.names, named)]
        node = cluster.names[random.randrange(nodes)]
        if cluster.node(node).tenants:
            cluster = without(cluster, node)
        start = time.perf_counter()
        ranker.shortlist(kinds[i % 10], cluster, names, 16)
        took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took), p99(took)
