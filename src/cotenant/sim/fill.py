# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fill mode: jobs arrive until they request more than the cluster has; no job ends, and none is tried twice.

This is the protocol of FGD's evaluation (USENIX ATC 2023). It reports the percentage of all GPUs that is allocated, and
how fragmented the rest is, against the load that has arrived.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job, Machine
from cotenant.core.placement.deciding import Decision, place_gang
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.sharing.speeds import UNDISTURBED
from cotenant.errors import InputError
from cotenant.sim.metrics import Floats, FragmentationMeter, GpuRows
from cotenant.sim.results import HeatMap, RunResult

ONLINE = "@online"
"""suffix of a policy that learns the mix of demands from the jobs it has seen; others are given the trace's"""

MOST_ARRIVALS = 2_000_000


@dataclass(frozen=True, slots=True)
class Order:
    """The order of arrivals (positions in the trace) and the rank of each node (by position), which breaks ties."""

    arrivals: Sequence[int]
    node_ranks: Sequence[int]


def requested_milli_gpu(job: Job) -> int:
    """Compute that a job requests with all its replicas and GPUs, in milli-GPU."""
    return job.demand.total_compute * job.replicas


def shuffled(jobs: Sequence[Job], machines: Sequence[Machine], seed: int, load: float) -> Order:
    """Shuffles all jobs, then removes or repeats random ones until they request `load` times the cluster's GPUs."""
    random = Random(seed)
    arrivals = list(range(len(jobs)))
    random.shuffle(arrivals)
    requested = [requested_milli_gpu(job) for job in jobs]
    total, target = sum(requested), load * sum(len(machine.gpus) for machine in machines) * 1000
    if not total:
        raise InputError("no job of this trace requests GPU compute, which fill mode needs")
    while total > target and len(arrivals) > 1:
        total -= requested[arrivals.pop(random.randrange(len(arrivals)))]
    while total < target:
        if len(arrivals) >= MOST_ARRIVALS:
            raise InputError(
                f"more than {MOST_ARRIVALS:,} of these jobs are needed to fill the cluster; use a smaller cluster"
            )
        again = random.randrange(len(jobs))
        arrivals.append(again)
        total += requested[again]
    ranks = list(range(len(machines)))
    random.shuffle(ranks)
    return Order(arrivals, ranks)


def ranked(machines: Sequence[Machine], ranks: Sequence[int]) -> list[Machine]:
    """Renames the machines so that the order of names, which breaks ties, is the order of the ranks."""
    by_name = sorted(machines, key=lambda machine: machine.name)
    return [replace(one, name=f"{rank:06d}-{one.name}") for one, rank in zip(by_name, ranks, strict=True)]


Watch = Callable[[Job, Cluster, Policy, Decision | None], None]
"""called for each decision with the job, the cluster before it, the policy, and the decision (None: not placed)"""


@dataclass(slots=True)
class Filled:
    """The state after each arrival: milli-GPU arrived, allocated and fragmented so far, and percent of idle GPUs
    that is fragmented."""

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
    build: Callable[[str, Knowledge], Policy] = build_policy,
) -> Filled:
    """Runs one policy on one order of arrivals and records every metric after every arrival.

    `build` makes the policy from its name; studies pass their own to try variants that have no name.
    """
    # `auto` differs from `fragmentation` only in how it prepares for jobs that end, and in this mode none ends.
    policy = re.sub(r"^auto\b", "fragmentation", policy)
    cluster = Cluster.of(ranked(machines, order.node_ranks))
    mix, inventory = mix_of(job.demand for job in jobs), inventory_of(machines)
    learner = Learner(policy.removesuffix(ONLINE), inventory, belief=UNDISTURBED) if policy.endswith(ONLINE) else None
    ranker = learner.ranker if learner else Ranker(build(policy, Knowledge(mix, inventory, UNDISTURBED)), remember=4096)
    meter, draw = FragmentationMeter(mix, cluster), Random(seed).randrange
    filled = Filled([], [], [], [])
    arrived = allocated = 0
    seen: set[int] = set()
    fragmented, idle = meter.read()
    # Invariants: `cluster` only gains placements, since no job ends. The meter is updated for exactly the nodes that a
    # decision changed, so (fragmented, idle) always describe `cluster`. Each arrival appends one value to every list of
    # `filled`, placed or not, so the lists stay aligned. A job is tried once: a job that does not fit is not kept.
    for turn, position in enumerate(order.arrivals):
        job = jobs[position]
        if position in seen:  # repeated to reach the load: a new job, which needs its own ID
            job = replace(job, id=f"{job.id}@{turn}")
        seen.add(position)
        if learner is not None and learner.observe(job.demand):
            ranker = learner.ranker
        arrived += requested_milli_gpu(job)
        decision = place_gang(ranker, job, cluster, draw)
        if watch is not None:
            watch(job, cluster, ranker.policy, decision)
        if decision is not None:
            cluster = decision.cluster
            for node in {placement.slot.node for placement in decision.placements}:
                meter.update(cluster.index[node], cluster.node(node))
            allocated += requested_milli_gpu(job)
            filled.placed += 1
            fragmented, idle = meter.read()
        filled.arrived.append(arrived)
        filled.allocated.append(allocated)
        # Rounded here because the published program averages the two-digit numbers that it wrote.
        filled.fragmented.append(float(f"{fragmented:.2f}"))
        filled.fragmented_idle.append(float(f"{100 * fragmented / idle:.2f}") if idle else 0.0)
    return filled


class FillHeat:
    """The data of the heat map: the allocation of each group of GPUs at each percent of arrived load."""

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
        self._arrived += requested_milli_gpu(job)
        percent = self._arrived / self._total / 10
        if not self._columns or percent >= self._columns[-1] + 1:
            self._columns.append(float(int(percent)))
            self._snapshots.append((100 * self._used / self._rows.capacity).round(1).tolist())

    def map(self) -> HeatMap:
        values = [list(row) for row in zip(*self._snapshots, strict=True)]
        return HeatMap(columns=self._columns, rows=self._rows.labels, values=values)


def discretise(filled: Filled, gpus: int) -> dict[str, list[float]]:
    """Averages the metrics over the arrivals of each whole percent of load, with the rounding of the published
    results."""
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
    """Runs one policy on one seed and returns its result."""
    heat_map = FillHeat(machines, order) if heat else None
    observers = [*watches, *([heat_map.watch] if heat_map is not None else [])]

    def watch(job: Job, cluster: Cluster, used: Policy, decision: Decision | None) -> None:
        for one in observers:
            one(job, cluster, used, decision)

    filled = replay(jobs, machines, order, policy, seed, watch if observers else None)
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
        policy=policy, seed=seed, summary=summary, series=series, heat=heat_map.map() if heat_map is not None else None
    )
