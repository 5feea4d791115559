# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the interference predictor: its error on unseen pairs, and its run time alone and in a policy that uses
it."""

import statistics
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import numpy as np

from bench.harness import Figure, at_most, benchmark, in_fresh_process
from bench.studies import figures_of
from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.interference import Predictor, Signature
from cotenant.core.model import Demand, Gpu, Machine, Tenant
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.sharing.speeds import Predicted, tenant_set_of
from cotenant.core.units import MiB, MilliCpu, MilliGpu


@benchmark("predict")
def predict() -> Iterator[Figure]:
    """Measures the error on unseen pairs against matrix factorisation, the coverage of the intervals, and the error on
    new families."""
    return figures_of("predict")


NODES, GPUS = 1000, 8000
GPU_TYPE = "V100"


@benchmark("score-8000")
def score_8000() -> Iterator[Figure]:
    """Measures the time to score one job against the tenants of 8,000 GPUs, to learn from one measurement, to load, and
    to place one job."""
    for kinds in (26, 200):
        costs = in_fresh_process(cost, kinds).result
        note = f"CPU time, {costs.rows} measured directions"
        yield at_most(f"{kinds} types: one job beside 8,000 GPUs", costs.again, "ms", limit=5, note=note)
        yield at_most(f"{kinds} types: first after a measurement", costs.first, "ms", limit=5, note=note)
        yield at_most(f"{kinds} types: measurement of a new pair", costs.update, "ms", limit=1, note=note)
        yield Figure(name=f"{kinds} types: of a known pair, mean", figure=costs.repeat, unit="ms", note=note)
        yield at_most(f"{kinds} types: loading", costs.load, "ms", limit=100, note=note)
        placing = in_fresh_process(cost_of_placing, kinds).result
        note = "CPU time of policy cotenant, 1,000 nodes x 8 GPUs, all shared"
        yield at_most(
            f"{kinds} types: the best of 8,000 GPUs", placing.kept, "ms", limit=5, note=f"{note}, pairs known"
        )
        yield at_most(f"{kinds} types: the best after a measurement", placing.news, "ms", limit=5, note=note)
        yield Figure(name=f"{kinds} types: the best, first of all", figure=placing.start, unit="ms", note=note)


class Cost(NamedTuple):
    """Times in milliseconds: medians, except for repetitions the mean, because few of them do any work."""

    rows: int
    again: float
    first: float
    update: float
    repeat: float
    load: float


def cost(kinds: int) -> Cost:
    """Measures a predictor with 580 rows."""
    chance = np.random.default_rng(kinds)
    types = [Signature(f"{i % 20}", 1 << (i // 20), float(2 ** chance.normal())) for i in range(kinds)]
    predictor = Predictor()
    tenants = np.array([predictor.learn(kind) for kind in types])[chance.integers(0, kinds, GPUS)]
    pairs = [(one, other) for i, one in enumerate(types) for other in types[:i]]
    chosen = [pairs[i] for i in chance.permutation(len(pairs))]

    def observe(place: int) -> None:
        predictor.observe(*chosen[place], *chance.uniform(0.3, 0.9, 2))

    for place in range(250):
        observe(place)
    update, first, again, repeat = [], [], [], []
    for place in range(250, 290):
        update.append(milliseconds(lambda: observe(place)))  # noqa: B023 -- called at once
        first.append(milliseconds(lambda: predictor.speeds(types[0], tenants)))
        again.append(milliseconds(lambda: predictor.speeds(types[0], tenants)))
    for place in 4 * list(range(40)):
        repeat.append(milliseconds(lambda: observe(place)))  # noqa: B023 -- called at once
    state = predictor.state()
    load = [milliseconds(lambda: Predictor.restore(state).pair(types[0], types[1])) for _ in range(5)]
    return Cost(
        rows=len(state.rows),
        again=statistics.median(again),
        first=statistics.median(first),
        update=statistics.median(update),
        repeat=statistics.mean(repeat),
        load=statistics.median(load),
    )


class CostOfPlacing(NamedTuple):
    """Median times in milliseconds."""

    kept: float
    """another demand, next to workloads that were predicted before"""
    news: float
    """all pairs must be predicted again"""
    start: float
    """with a ranker that has not seen the cluster"""


def cost_of_placing(kinds: int) -> CostOfPlacing:
    random = Random(kinds)
    signatures = {f"w{i}": Signature(f"{i % 20}", 1 << (i // 20), 2 ** random.gauss(0, 1)) for i in range(kinds)}
    belief, workloads = Predicted(signatures), list(signatures)

    def news() -> None:
        learned = False
        while not learned:  # a known pair that is measured nearly as predicted is no news
            pair = tenant_set_of(GPU_TYPE, random.sample(workloads, 2))
            learned = belief.observe(pair, [random.uniform(0.3, 0.9), random.uniform(0.3, 0.9)])

    for _ in range(290):
        news()
    demands = [
        Demand(
            workload=workload,
            compute=MilliGpu(0),
            memory=MiB(random.choice((2000, 4000, 6000, 8000))),
            cpu=MilliCpu(random.choice((2000, 4000))),
        )
        for workload in workloads
    ]
    cluster = shared_by(demands, random)
    known = Knowledge(mix_of(demands), inventory_of(node.machine for node in cluster), belief)
    policy, asked = build_policy("cotenant", known, "aged"), demands[1:21]
    start = [milliseconds(lambda: Ranker(policy).best(demand, cluster)) for demand in asked]  # noqa: B023 -- at once
    ranker = Ranker(policy)
    ranker.best(demands[0], cluster)
    kept = [milliseconds(lambda: ranker.best(demand, cluster)) for demand in asked]  # noqa: B023 -- called at once
    after = []
    for demand in asked:
        news()
        after.append(milliseconds(lambda: ranker.best(demand, cluster)))  # noqa: B023 -- called at once
    return CostOfPlacing(kept=statistics.median(kept), news=statistics.median(after), start=statistics.median(start))


def shared_by(demands: list[Demand], random: Random) -> Cluster:
    """A cluster with one tenant on every GPU."""
    per_node = GPUS // NODES
    nodes = []
    for i in range(NODES):
        gpus = tuple(Gpu(uuid=f"{i}-{gpu}", type=GPU_TYPE, memory=MiB(32_000)) for gpu in range(per_node))
        machine = Machine(name=f"node-{i:04}", gpus=gpus, cpu=MilliCpu(96_000))
        nodes.append(Node.of(machine, [Tenant(f"{gpu}", random.choice(demands), (gpu,)) for gpu in range(per_node)]))
    return Cluster.of(nodes)


def milliseconds(run: Callable[[], object]) -> float:
    """CPU time, which other load of the machine does not affect much."""
    start = time.process_time_ns()
    run()
    return (time.process_time_ns() - start) / 1e6
