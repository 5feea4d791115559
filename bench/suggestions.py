# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs to say what would make a pod fit, in a full cluster of 5,000 nodes.

The scheduler answers kube-scheduler between the steps of a search, so what matters is the longest step, and then the
whole answer. The baseline is the answer without suggestions: the reason of each node.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from bench.harness import Figure, at_most, benchmark, in_fresh_process
from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Gpu, Job, Link, Machine, Tenant
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.eviction import Stake
from cotenant.core.suggestions.outlook import outlook
from cotenant.core.suggestions.search import Memory, Search
from cotenant.core.suggestions.suggesting import ordered, suggestions
from cotenant.core.units import MiB, MilliGpu, Seconds

NODES, GPUS, MEMORY = 5_000, 8, 40_960
TYPES = "A100", "V100", "T4", "L40"
LONGEST_STEP_MS = 150.0
"""as long as a call of kube-scheduler may be delayed; a first ranking of all nodes takes most of it"""
WHOLE_MS = 1_000.0
"""as long as a user waits for an answer"""
AGAIN = 3

CASES = {
    "memory": Demand(memory=MiB(38_000), compute=MilliGpu(200)),
    "type and memory": Demand(memory=MiB(30_000), compute=MilliGpu(100), use_types=("H100",)),
    "8 linked GPUs": Demand(gpus=8, memory=MiB(20_000), compute=MilliGpu(500), link=Link.NVLINK),
    "gang of 64": Demand(memory=MiB(38_000), compute=MilliGpu(200)),
}
POLICIES = "binpack", "cotenant"


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU of one answer."""

    reasons: float
    """without suggestions"""
    whole: float
    longest_step: float
    found: int
    left: int
    """of the budget"""


def full_cluster() -> Cluster:
    """Every GPU has two tenants, which leave some memory and compute; no two nodes are alike."""
    random, nodes = Random(7), []
    for number in range(NODES):
        name, kind = f"node-{number:05}", TYPES[number % len(TYPES)]
        gpus = tuple(Gpu(uuid=f"{name}-{i}", type=kind, memory=MiB(MEMORY)) for i in range(GPUS))
        tenants = [
            Tenant(
                f"{name}-{gpu}-{which}",
                Demand(memory=MiB(random.randrange(6_000, 18_000)), compute=MilliGpu(random.randrange(100, 460, 10))),
                (gpu,),
            )
            for gpu in range(GPUS)
            for which in range(2)
        ]
        nodes.append(Node.of(Machine(name=name, gpus=gpus), tenants))
    return Cluster.of(nodes)


def measure(policy_name: str, case: str) -> Cost:
    cluster, policy = full_cluster(), build_policy(policy_name)
    job = Job(id="new", demand=CASES[case], replicas=64 if "gang" in case else 1)
    stakes = {one.job: Stake(0, Seconds(0.0)) for node in cluster for one in node.tenants}
    ranker = Ranker(policy)
    memory = Memory(policy, ranker)
    ranker.columns(cluster)  # as in a scheduler, which has placed pods before
    _freeze()
    costs = []
    for _ in range(AGAIN):
        began = time.process_time()
        ranker.reasons(job.demand, cluster)
        reasons = time.process_time() - began
        search, found, steps = Search(memory, job, cluster), [], [time.process_time()]
        for one in suggestions(search, stakes):
            found.append(one)
            steps.append(time.process_time())
        longest = max(after - before for before, after in pairwise(steps))
        costs.append(
            Cost(1000 * reasons, 1000 * (steps[-1] - steps[0]), 1000 * longest, len(ordered(found)), search.left)
        )
    return max(costs, key=lambda cost: cost.whole)


def _freeze() -> None:
    """The collector leaves alone what is there by now, as in a scheduler that is ready."""
    gc.collect()
    gc.freeze()


def measure_outlook(policy_name: str) -> tuple[float, float]:
    """Milliseconds of CPU of a first what-if for a job that fits: the whole answer, and its longest step."""
    cluster, policy = full_cluster(), build_policy(policy_name)
    memory = Memory(policy, Ranker(policy))
    memory.columns(cluster)
    _freeze()
    job = Job(id="new", demand=Demand(memory=MiB(4_000), compute=MilliGpu(100)))
    steps, moments = outlook(Search(memory, job, cluster, crowding=None)), [time.process_time()]
    ended = False
    while not ended:
        ended = next(steps, steps) is steps
        moments.append(time.process_time())
    return 1000 * (moments[-1] - moments[0]), 1000 * max(after - before for before, after in pairwise(moments))


@benchmark("suggestions")
def suggestion_cost() -> Iterator[Figure]:
    """Measures the worst of three answers for each kind of request, with a policy in arrays and one that predicts."""
    for policy in POLICIES:
        for case in CASES:
            cost = in_fresh_process(measure, policy, case).result
            note = f"{cost.found} suggestions in {cost.whole:.0f} ms; budget left {cost.left:,}; worst of {AGAIN}"
            about = f"{case}, {policy}, {NODES:,} nodes"
            yield at_most(f"{about}: longest step", cost.longest_step, "ms", limit=LONGEST_STEP_MS, note=note)
            baseline = f"reasons of all nodes alone: {cost.reasons:.0f}"
            yield at_most(f"{about}: whole answer", cost.whole, "ms", limit=WHOLE_MS, baseline=baseline)
        whole, longest = in_fresh_process(measure_outlook, policy).result
        about, note = f"what-if, {policy}, {NODES:,} nodes", "the first of its kind; a second one is remembered"
        yield at_most(f"{about}: longest step", longest, "ms", limit=LONGEST_STEP_MS, note=note)
        yield at_most(f"{about}: whole answer", whole, "ms", limit=WHOLE_MS, note=note)
