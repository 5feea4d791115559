# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fill: jobs arrive until more was asked than the cluster has, none leaves, none is tried twice.

The protocol of FGD's evaluation (USENIX ATC 2023): what share of all GPUs is allocated, and how fragmented the rest is,
against the load that has arrived.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job, Machine
from cotenant.core.placement.deciding import Decision, place_together
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.errors import InputError
from cotenant.sim.metrics import Floats, FragmentationMeter, GpuRows
from cotenant.sim.results import HeatMap, RunResult

ONLINE = "@online"
"""suffix of a policy that learns its mix from the jobs it has seen, instead of being told the trace's"""


MOST_ARRIVALS = 2_000_000


@dataclass(frozen=True, slots=True)
class Order:
    """In which order jobs arrive (positions in the trace) and which nodes go first among equals (position -> rank)."""

    arrivals: Sequence[int]
    node_ranks: Sequence[int]


def asked_milli_gpu(job: Job) -> int:
    """What a job and its replicas ask in all."""
    return job.demand.total_compute * job.replicas


def shuffled(jobs: Sequence[Job], machines: Sequence[Machine], seed: int, load: float) -> Order:
    """All jobs in random order, then repeated or thinned by lot until they ask `load` times the cluster's GPUs."""
    random = Random(seed)
    arrivals = list(range(len(jobs)))
    random.shuffle(arrivals)
    asked = [asked_milli_gpu(job) for job in jobs]
    total, target = sum(asked), load * sum(len(machine.gpus) for machine in machines) * 1000
    if not total:
        raise InputError("no job of this trace asks for a share of GPU compute; fill mode needs some")
    while total > target and len(arrivals) > 1:
        total -= asked[arrivals.pop(random.randrange(len(arrivals)))]
    while total < target:
        if len(arrivals) >= MOST_ARRIVALS:
            raise InputError(
                f"it takes more than {MOST_ARRIVALS:,} of these jobs to fill the cluster; use a smaller one"
            )
        again = random.randrange(len(jobs))
        arrivals.append(again)
        total += asked[again]
    ranks = list(range(len(machines)))
    random.shuffle(ranks)
    return Order(arrivals, ranks)


def ranked(machines: Sequence[Machine], ranks: Sequence[int]) -> list[Machine]:
    """The machines renamed so that name order, which breaks ties, is the order of the ranks."""
    by_name = sorted(machines, key=lambda machine: machine.name)
    return [replace(one, name=f"{rank:06d}-{one.name}") for one, rank in zip(by_name, ranks, strict=True)]


Watch = Callable[[Job, Cluster, Policy, Decision | None], None]
"""told of each decision: the job, the cluster before it, the policy, and what was decided"""


@dataclass(slots=True)
class Filled:
    """What happened at each arrival: milli-GPU asked so far, allocated, fragmented; percent of idle fragmented."""

    arrived: list[int]
    allocated: list[int]
    fragmented: list[float]
    fragmented_idle: list[float]
    placed: int = 0


def replay(
    jobs: Sequence[Job],
    machines: Sequence[Machine],
    order: Order,
    policy: str,
    seed: int,
    watch: Watch | None = None,
) -> Filled:
    """One policy on one order of arrivals, with every metric after every event; `watch` sees each decision."""
    cluster = Cluster.of(ranked(machines, order.node_ranks))
    mix, inventory = mix_of(job.demand for job in jobs), inventory_of(machines)
    learner = Learner(policy.removesuffix(ONLINE), inventory) if policy.endswith(ONLINE) else None
    ranker = learner.ranker if learner else Ranker(build_policy(policy, Knowledge(mix, inventory)), remember=4096)
    meter, draw = FragmentationMeter(mix, cluster), Random(seed).randrange
    filled = Filled([], [], [], [])
    arrived = allocated = 0
    came: set[int] = set()
    fragmented, idle = meter.read()
    for turn, position in enumerate(order.arrivals):
        job = jobs[position]
        if position in came:  # drawn a second time: a job of its own
            job = replace(job, id=f"{job.id}@{turn}")
        came.add(position)
        if learner is not None and learner.observe(job.demand):
            ranker = learner.ranker
        arrived += asked_milli_gpu(job)
        decision = place_together(ranker, job, cluster, draw)
        if watch is not None:
            watch(job, cluster, ranker.policy, decision)
        if decision is not None:
            cluster = decision.cluster
            for node in {placement.slot.node for placement in decision.placements}:
                meter.update(cluster.index[node], cluster.node(node))
            allocated += asked_milli_gpu(job)
            filled.placed += 1
            fragmented, idle = meter.read()
        filled.arrived.append(arrived)
        filled.allocated.append(allocated)
        # the published program writes these with two digits, and averages what it wrote
        filled.fragmented.append(float(f"{fragmented:.2f}"))
        filled.fragmented_idle.append(float(f"{100 * fragmented / idle:.2f}") if idle else 0.0)
    return filled


class FillHeat:
    """How full each group of GPUs was when each percent of load had arrived."""

    def __init__(self, machines: Sequence[Machine], order: Order) -> None:
        cluster = Cluster.of(ranked(machines, order.node_ranks))
        self._rows = GpuRows(cluster)
        self._used: Floats = np.zeros(self._rows.rows)
        self._total = sum(len(machine.gpus) for machine in machines)
        self._arrived = 0
        self._columns: list[float] = []
        self._snapshots: list[list[float]] = []

    def watch(self, job: Job, _cluster: Cluster, _policy: Policy, decision: Decision | None) -> None:
        for placement in decision.placements if decision is not None else ():
            self._rows.add(self._used, placement.slot.node, placement.slot.gpus, job.demand.compute)
        self._arrived += asked_milli_gpu(job)
        percent = self._arrived / self._total / 10
        if not self._columns or percent >= self._columns[-1] + 1:
            self._columns.append(float(int(percent)))
            self._snapshots.append((100 * self._used / self._rows.capacity).round(1).tolist())

    def map(self) -> HeatMap:
        values = [list(row) for row in zip(*self._snapshots, strict=True)]
        return HeatMap(columns=self._columns, rows=self._rows.labels, values=values)


def discretise(filled: Filled, gpus: int) -> dict[str, list[float]]:
    """Averages over all events at which each whole percent of load had arrived, rounded as published."""
    arrived = np.array([round(one, 0) for one in np.array(filled.arrived) / gpus / 10])
    allocated = np.array([round(one, 2) for one in np.array(filled.allocated) / gpus / 10])
    fragmented, idle = np.array(filled.fragmented), np.array(filled.fragmented_idle)
    series: dict[str, list[float]] = {"arrived": [], "allocated": [], "fragmented": [], "fragmented_idle": []}
    for percent in range(int(arrived[-1]) + 1):
        at = arrived == percent
        if not at.any():
            at = (arrived >= percent - 1) & (arrived <= percent + 1)
        if not at.any():
            continue
        series["arrived"].append(float(percent))
        series["allocated"].append(round(float(allocated[at].mean()), 2))
        series["fragmented"].append(round(100 * float(fragmented[at].mean()) / 1000 / gpus, 2))
        series["fragmented_idle"].append(round(float(idle[at].mean()), 2))
    return series


def run(
    jobs: Sequence[Job],
    machines: Sequence[Machine],
    order: Order,
    policy: str,
    seed: int,
    watches: Sequence[Watch] = (),
    heat: bool = True,
) -> RunResult:
    """One policy on one seed, as a result to report."""
    drawn = FillHeat(machines, order) if heat else None
    told = [*watches, *([drawn.watch] if drawn is not None else [])]

    def watch(job: Job, cluster: Cluster, used: Policy, decision: Decision | None) -> None:
        for one in told:
            one(job, cluster, used, decision)

    filled = replay(jobs, machines, order, policy, seed, watch if told else None)
    series = discretise(filled, sum(len(machine.gpus) for machine in machines))
    summary = {
        "allocated": series["allocated"][-1],
        "fragmented": series["fragmented"][-1],
        "placed": float(filled.placed),
        "rejected": float(len(filled.arrived) - filled.placed),
    }
    if 100.0 in series["arrived"]:
        at = series["arrived"].index(100.0)
        summary |= {"allocated_at_100": series["allocated"][at], "fragmented_at_100": series["fragmented"][at]}
    return RunResult(
        policy=policy, seed=seed, summary=summary, series=series, heat=drawn.map() if drawn is not None else None
    )
