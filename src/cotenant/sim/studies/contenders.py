# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The policies of the placement study, and the set-up in which they are compared.

Jobs have the shape of Philly's, and the world is Gavel's measured co-location. Every policy gets the same jobs, equal
duration estimates, a queue ordered by them (shortest first; ours adds aging), and the same 30 % of all pairs as prior
measurements. The policies differ in how they use them: IADeep's table learns while it runs, Co-scheML's model is fixed,
Lucid knows the sharing score of each workload, and ours predicts, tries and learns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.interference.factorisation import factorise
from cotenant.core.interference.kernel import Pairs
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.sharing.speeds import Belief, Predicted, Tabled, TenantSet
from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.colocation import FILE, Colocation, Oracle, read_colocation
from cotenant.sim.fill import Watch
from cotenant.sim.results import RunResult
from cotenant.sim.studies.tuned import GridTuning
from cotenant.sim.studies.worlds import KINDS, simulated_world
from cotenant.sim.timed import TimedRun, Timing

GPUS, GPUS_PER_NODE = 24, 8
TENANTS = 2
"""largest number of jobs on one GPU; more were not measured"""
OBSERVED = 0.3
RANK, LEAST, MOST = 3, 0.1, 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the study."""

    gpu_type: str
    load: float
    """work that arrives, in multiples of the GPUs"""
    jobs: int = 600
    error: float = 0.0
    """error of the duration estimates: standard deviation of their logarithm"""
    noise: float = 0.0
    """error of measured speeds: standard deviation of their logarithm"""
    observed: float = OBSERVED
    """fraction of all pairs that is measured before the first job arrives"""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its queue order and its belief about speeds."""

    policy: str
    queue: str
    belief: Callable[["Instance"], Belief]
    repair: bool = False
    """whether jobs that share a GPU move to GPUs that become idle"""
    tune: bool = False
    """whether the batch sizes of jobs that share a GPU are tuned"""


@dataclass(frozen=True, slots=True)
class Instance:
    """The jobs and the prior measurements that a seed draws for a setting."""

    setting: Setting
    world: Colocation
    arrivals: tuple[Arrival, ...]
    measured: frozenset[TenantSet]
    """the pairs that were measured before the first job"""


def draw_instance(setting: Setting, seed: int, data: Path) -> Instance:
    """Draws the jobs and the prior measurements, which are the same for every policy."""
    known = setting.gpu_type in KINDS
    world = simulated_world(setting.gpu_type, seed) if known else read_colocation(data / FILE)
    workloads = world.workloads(setting.gpu_type)
    chance = np.random.RandomState(seed)
    count = setting.jobs
    durations = np.where(
        chance.rand(count) < 0.8, 60 * 10 ** chance.uniform(1.5, 3, count), 60 * 10 ** chance.uniform(3, 4, count)
    )
    kinds = chance.randint(len(workloads), size=count)
    times = np.cumsum(chance.exponential(durations.mean() / (GPUS * setting.load), count))
    estimates = durations * np.exp(setting.error * np.random.RandomState(seed).randn(count))
    drawn = np.triu(np.random.RandomState(seed).rand(len(workloads), len(workloads)) < setting.observed)
    measured = frozenset(
        company
        for i, j in zip(*np.nonzero(drawn), strict=True)
        if (company := TenantSet(setting.gpu_type, (workloads[i], workloads[j]))) in world.pairs
    )
    demands = [_demand(workload) for workload in workloads]
    arrivals = tuple(
        Arrival(
            Job(
                id=f"job-{n:05}",
                demand=demands[kinds[n]],
                submitted=Seconds(float(times[n])),
                estimate=Seconds(float(estimates[n])),
            ),
            Seconds(float(durations[n])),
        )
        for n in range(count)
    )
    return Instance(setting, world, arrivals, measured)


def _demand(workload: str) -> Demand:
    """A demand for one GPU without a compute share, so that the policy decides which jobs share."""
    # Memory is not claimed but known to the belief, by the pairs that do not fit into one GPU together.
    return Demand(compute=MilliGpu(0), workload=workload)


def predicted(instance: Instance) -> Belief:
    """Our predictor, trained on the prior measurements."""
    belief = Predicted(instance.world.signatures(instance.setting.gpu_type), instance.world.apart)
    for company in sorted(instance.measured):
        belief.observe(company, instance.world.pairs[company])
    return belief


def factored(instance: Instance, *, learns: bool) -> Belief:
    """A table of all pairs from a matrix factorisation of the prior measurements."""
    gpu_type, world = instance.setting.gpu_type, instance.world
    workloads = world.workloads(gpu_type)
    place = {workload: i for i, workload in enumerate(workloads)}
    speeds: dict[tuple[int, int], float] = {}
    for company in instance.measured:
        one, other = (place[str(workload)] for workload in company.workloads)
        speeds[one, other], speeds[other, one] = world.pairs[company]
    if not speeds:
        return Tabled({}, learns=learns, apart=world.apart)
    directions = np.array(sorted(speeds))
    factors = factorise(
        Pairs(directions[:, 0], directions[:, 1]),
        np.array([speeds[i, j] for i, j in sorted(speeds)]),
        len(workloads),
        RANK,
    )
    every = [(i, j) for i in range(len(workloads)) for j in range(len(workloads))]
    guess = np.clip(factors.predict(Pairs(*np.array(every).T)), LEAST, MOST)
    known = {pair: speeds.get(pair, float(value)) for pair, value in zip(every, guess, strict=True)}
    table = {TenantSet(gpu_type, (workloads[i], workloads[j])): (known[i, j], known[j, i]) for i, j in every if i <= j}
    return Tabled(table, learns=learns, apart=world.apart)


CONTENDERS: Mapping[str, Contender] = {
    "fifo": Contender("alone", "fifo", lambda instance: Oracle(instance.world)),
    "sjf": Contender("alone", "sjf", lambda instance: Oracle(instance.world)),
    "share-anything": Contender("share", "sjf", lambda instance: Oracle(instance.world)),
    "coscheml": Contender("coscheml", "sjf", lambda instance: factored(instance, learns=False)),
    "iadeep": Contender("iadeep", "sjf", lambda instance: factored(instance, learns=True)),
    "lucid": Contender("lucid", "sjf", lambda instance: Oracle(instance.world)),
    "cotenant": Contender("cotenant", "aged", predicted),
    "cotenant-oracle": Contender("cotenant", "aged", lambda instance: Oracle(instance.world)),
    "cotenant-repair": Contender("cotenant", "aged", predicted, repair=True),
    "cotenant-tuned": Contender("cotenant", "aged", predicted, tune=True),
    "cotenant-both": Contender("cotenant", "aged", predicted, repair=True, tune=True),
}
"""Lucid gets sharing scores from the whole table, as if every workload had been profiled long enough."""


def run(name: str, setting: Setting, seed: int, data: Path, watches: Sequence[Watch] = ()) -> RunResult:
    """Runs one contender on one seed."""
    instance, contender = _instance(setting, seed, data), CONTENDERS[name]
    timing = Timing(  # no reservations: none of the systems that are compared has them
        queue=contender.queue,
        backfill=False,
        restart=Seconds(60.0),
        noise=setting.noise,
        repair=contender.repair,
        fragmentation=False,
        heat=False,
    )
    timed = TimedRun(
        _machines(setting.gpu_type),
        contender.policy,
        mix_of(arrival.job.demand for arrival in instance.arrivals),
        seed,
        timing,
        watches,
        world=instance.world.on(setting.gpu_type),
        belief=contender.belief(instance),
        tuning=GridTuning(data, seed) if contender.tune else None,
    )
    return timed.run(iter(instance.arrivals)).result(name, seed)


_instance = lru_cache(maxsize=1)(draw_instance)


def _machines(gpu_type: str) -> Iterator[Machine]:
    for node in range(GPUS // GPUS_PER_NODE):
        gpus = (
            Gpu(uuid=f"{gpu_type}-{node}-{i}", type=gpu_type, memory=MiB(16_384), slots=TENANTS)
            for i in range(GPUS_PER_NODE)
        )
        yield Machine(name=f"node-{node}", gpus=tuple(gpus))
