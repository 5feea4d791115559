# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs several policies on several seeds in a process pool: a `Plan` in, `Results` out."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from random import Random

import msgspec

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Mix, mix_of
from cotenant.core.model import Job, Machine
from cotenant.core.placement.deciding import Decision
from cotenant.core.placement.policies import PREEMPTIVE, QUEUES, build_policy
from cotenant.core.placement.ranking import Policy
from cotenant.core.sharing.speeds import Belief, Predicted
from cotenant.core.units import WHOLE_MEMORY, MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.sim import fill
from cotenant.sim.arrivals import Arrival, Trace
from cotenant.sim.clusters import open_cluster
from cotenant.sim.colocation import FILE, Colocation, Oracle, read_colocation
from cotenant.sim.pool import run_parallel
from cotenant.sim.results import Results, RunResult
from cotenant.sim.timed import TimedRun, Timing
from cotenant.sim.traces.recorded import is_recorded
from cotenant.sim.traces.registry import data_folder, open_trace
from cotenant.wire.decision import RecordedDecision, record
from cotenant.wire.text import printable

BLOCK = 50
"""jobs within which `vary_arrivals` shuffles the gaps"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to simulate, as the user gave it; `check` validates it before anything runs."""

    trace: str
    nodes: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    mode: str = "fill"
    load: float = 1.3
    """fill: total demand that arrives, in multiples of the cluster's GPUs"""
    published_order: bool = False
    """fill: the exact arrival orders of FGD's evaluation, from the data folder"""
    limit: int | None = None
    """number of jobs to take from the start of the trace; None: all"""
    compress: float = 1.0
    """timed: factor by which the gaps between arrivals are divided"""
    estimates: str = "none"
    """timed: duration estimates for the queue: the trace's (none), exact (oracle), or noisy:SIGMA"""
    timing: Timing = field(default_factory=Timing)
    world: str = "none"
    """timed: slowdown between jobs on one GPU: none, or as measured by Gavel (gavel)"""
    oracle: bool = False
    """whether policies are given the true slowdowns, as an upper bound of what prediction can achieve"""
    tenants: int = 2
    """with a world: largest number of jobs on one GPU"""
    data: Path | None = None
    vary: str = "order"
    """how timed runs of different seeds differ: by the order of equal nodes, or also by their `arrivals`"""
    record: frozenset[str] = frozenset()
    """IDs of the jobs whose decisions are recorded"""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one (policy, seed), and the decisions recorded in it."""

    result: RunResult
    decisions: tuple[RecordedDecision, ...]


def check(plan: Plan) -> None:
    """Raises InputError for everything that can be found wrong before the first run."""
    for policy in plan.policies:
        try:
            build_policy(policy.removesuffix(fill.ONLINE))
        except ValueError as error:
            raise InputError(str(error)) from None
    if plan.timing.queue not in QUEUES:
        raise InputError(f"unknown queue order {plan.timing.queue!r}; expected one of {', '.join(QUEUES)}")
    if plan.mode == "timed" and plan.timing.queue in PREEMPTIVE and plan.timing.restart >= plan.timing.round:
        raise InputError(
            "--restart must be shorter than --round, or a job preempted in every round would make no progress"
        )
    _estimator(plan, 0)
    machines = _machines(plan)
    if plan.world != "none":
        _check_world(plan, machines)
    elif plan.oracle:
        raise InputError("--oracle needs --world gavel")
    if not any(machine.gpus for machine in machines):
        raise InputError(f"cluster {plan.nodes} has no GPUs; expected at least 1")
    first = next(_arrivals(plan, _trace(plan)), None)
    if first is None:
        raise InputError(f"trace {plan.trace} has no jobs")
    needs_estimates = plan.mode == "timed" and plan.timing.queue in ("sjf", "srpt")
    if needs_estimates and plan.estimates == "none" and first.job.estimate is None:
        raise InputError(
            f"queue order {plan.timing.queue} needs duration estimates, and the trace has none; "
            "use --estimates oracle, or --estimates noisy:0.5"
        )
    if plan.mode == "timed" and first.duration is None:
        raise _no_duration(plan, 1, first)
    if plan.published_order:
        if plan.limit is not None:
            raise InputError("--order published needs the whole trace; remove --limit")
        for seed in plan.seeds:
            _published(plan, seed, len(machines))


def run_all(plan: Plan, processes: int, finished: Callable[[Run], None]) -> None:
    """Runs every policy on every seed, and calls `finished` with each run as it ends, in no particular order."""
    run_parallel(
        [partial(run_one, plan, policy, seed) for seed in plan.seeds for policy in plan.policies], processes, finished
    )


def results_of(plan: Plan, command: str, runs: list[RunResult]) -> Results:
    """The finished runs, in the order in which the policies were given."""
    machines = _machines(plan)
    place = {policy: i for i, policy in enumerate(plan.policies)}
    return Results(
        command=command,
        mode=plan.mode,
        trace=printable(_trace(plan).name),
        nodes=len(machines),
        gpus=sum(len(machine.gpus) for machine in machines),
        runs=sorted(runs, key=lambda run: (place[run.policy], run.seed)),
        complete=len(runs) == len(plan.policies) * len(plan.seeds),
    )


def run_one(plan: Plan, policy: str, seed: int) -> Run:
    """Runs one policy on one seed in this process. Called in the workers, so its arguments and its result are
    pickled."""
    machines = _machines(plan)
    recorder = _Recorder(plan.record)
    watches = [recorder.watch] if plan.record else []
    if plan.mode == "timed":
        ranks = list(range(len(machines)))
        if not is_recorded(plan.nodes):  # recorded nodes keep their order, so that equal decisions are possible
            Random(seed).shuffle(ranks)
        world = _world(plan)
        belief = None if world is None else _belief(world, oracle=plan.oracle)
        timed = TimedRun(
            fill.ranked(machines, ranks), policy, _mix(plan), seed, plan.timing, watches, world=world, belief=belief
        )
        arrivals = _arrivals(plan, _trace(plan))
        if plan.vary == "arrivals":
            arrivals = vary_arrivals(arrivals, seed)
        timed.run(_with_estimates(plan, seed, arrivals))
        return Run(timed.result(policy, seed), tuple(recorder.decisions))
    jobs = _jobs(plan)
    order = (
        _published(plan, seed, len(machines))
        if plan.published_order
        else fill.shuffled(jobs, machines, seed, plan.load)
    )
    return Run(fill.run(jobs, machines, order, policy, seed, watches), tuple(recorder.decisions))


class _Recorder:
    """Records the decisions about selected jobs."""

    def __init__(self, jobs: frozenset[str]) -> None:
        self._jobs = jobs
        self.decisions: list[RecordedDecision] = []

    def watch(self, job: Job, cluster: Cluster, policy: Policy, decision: Decision | None) -> None:
        if job.id in self._jobs:
            placements = () if decision is None else decision.placements
            slots = tuple(placement.slot for placement in placements)
            overdue = any(placement.overdue for placement in placements)
            crowding = 0.0 if decision is None else None if overdue else decision.crowding
            kept = () if decision is None or overdue else decision.kept
            # A node that was kept free and also got a placement was kept only after that placement.
            closed = () if {slot.node for slot in slots} & set(kept) else tuple(kept)
            self.decisions.append(record(policy, job, cluster, job.submitted, slots, crowding, closed))


@lru_cache(maxsize=1)
def _machines(plan: Plan) -> tuple[Machine, ...]:
    machines = open_cluster(plan.nodes, data=plan.data)
    if plan.world == "none":
        return machines
    return tuple(
        replace(machine, gpus=tuple(replace(gpu, slots=min(gpu.slots, plan.tenants)) for gpu in machine.gpus))
        for machine in machines
    )


@lru_cache(maxsize=1)
def _world(plan: Plan) -> Colocation | None:
    if plan.world == "none":
        return None
    return read_colocation(data_folder(f"--world {plan.world}", plan.data) / FILE)


def _belief(world: Colocation, *, oracle: bool) -> Belief:
    """What policies know in advance: the workloads of jobs, and which pairs do not fit into memory together."""
    return Oracle(world) if oracle else Predicted(world.signatures_of_all(), world.apart)


def _check_world(plan: Plan, machines: tuple[Machine, ...]) -> None:
    if plan.world != "gavel":
        raise InputError(f"unknown world {plan.world!r:.60}; expected none or gavel")
    if plan.mode != "timed":
        raise InputError("--world needs --mode timed")
    world = _world(plan)
    gpu_types = world.gpu_types if world is not None else []
    unmeasured = {gpu.type for machine in machines for gpu in machine.gpus} - set(gpu_types)
    if unmeasured:
        raise InputError(
            f"--world {plan.world} was measured on {', '.join(gpu_types)}, not on {min(unmeasured)!r:.60}; "
            "use GPUs of one of these types, for example --nodes 3x8:v100"
        )


@lru_cache(maxsize=1)
def _trace(plan: Plan) -> Trace:
    most = max((len(machine.gpus) for machine in _machines(plan)), default=8)
    return open_trace(plan.trace, data=plan.data, gpus_per_node=max(1, most))


@lru_cache(maxsize=1)
def _jobs(plan: Plan) -> tuple[Job, ...]:
    return tuple(arrival.job for arrival in islice(_trace(plan).read(), plan.limit))


@lru_cache(maxsize=1)
def _mix(plan: Plan) -> Mix:
    return mix_of(arrival.job.demand for arrival in islice(_trace(plan).read(), plan.limit))


def _arrivals(plan: Plan, trace: Trace) -> Iterator[Arrival]:
    """Arrivals sorted by submission time; only a trace that is not sorted is held in memory."""
    arrivals: Iterator[Arrival] = islice(trace.read(), plan.limit)
    if not trace.in_order:
        arrivals = iter(sorted(arrivals, key=lambda arrival: (arrival.job.submitted, arrival.job.id)))
    if plan.world != "none":
        arrivals = map(_shareable, arrivals)
    if plan.compress == 1.0:
        return arrivals
    return (
        Arrival(replace(one.job, submitted=Seconds(one.job.submitted / plan.compress)), one.duration)
        for one in arrivals
    )


def vary_arrivals(arrivals: Iterator[Arrival], seed: int) -> Iterator[Arrival]:
    """The same jobs in the same order, with the gaps between arrivals shuffled within blocks of `BLOCK` jobs.

    Load and daily pattern stay as they are, and only one block is held in memory.
    """
    random = Random(seed)
    last: float | None = None
    while block := list(islice(arrivals, BLOCK)):
        start = float(block[0].job.submitted) if last is None else last
        last = float(block[-1].job.submitted)
        gaps = [later - earlier for earlier, later in pairwise([start, *(float(one.job.submitted) for one in block)])]
        random.shuffle(gaps)
        for one, time in zip(block, islice(accumulate(gaps, initial=start), 1, None), strict=True):
            yield Arrival(replace(one.job, submitted=Seconds(time)), one.duration)


def _shareable(one: Arrival) -> Arrival:
    """The job without a compute share and without a claim on all memory, so that the policy decides which jobs share
    its GPUs. The measurements say which pairs do not fit into memory together."""
    demand = one.job.demand
    memory_percent = None if demand.memory_percent == WHOLE_MEMORY else demand.memory_percent
    demand = replace(demand, compute=MilliGpu(0), memory_percent=memory_percent)
    return Arrival(replace(one.job, demand=demand), one.duration)


def _with_estimates(plan: Plan, seed: int, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    """Adds the duration estimates that the queue sees; raises InputError if a duration is missing."""
    estimate = _estimator(plan, seed)
    for number, one in enumerate(arrivals, start=1):
        if one.duration is None:
            raise _no_duration(plan, number, one)
        if estimate is None:
            yield one
        else:
            yield Arrival(replace(one.job, estimate=Seconds(estimate(one.duration))), one.duration)


def _no_duration(plan: Plan, number: int, one: Arrival) -> InputError:
    text = f"trace {plan.trace}: job {number} ({printable(one.job.id[:80])}) has no duration, which timed mode needs"
    return InputError(f"{text}; add it, or use --mode fill")


def _estimator(plan: Plan, seed: int) -> Callable[[float], float] | None:
    """A function from the true duration to its estimate, or None to keep the trace's estimates."""
    kind, _, sigma = plan.estimates.partition(":")
    if plan.estimates == "none":
        return None
    if plan.estimates == "oracle":
        return lambda duration: duration
    try:
        spread = float(sigma) if kind == "noisy" else -1.0
    except ValueError:
        spread = -1.0
    if not 0 <= spread <= 10:
        raise InputError(f"--estimates {plan.estimates}: expected none, oracle, or noisy:SIGMA with SIGMA from 0 to 10")
    random = Random(seed)
    return lambda duration: duration * random.lognormvariate(0.0, spread)


class _PublishedOrder(msgspec.Struct):
    order: tuple[int, ...]
    node_rank: tuple[int, ...]


class _PublishedOrders(msgspec.Struct):
    seeds: dict[str, _PublishedOrder]


@lru_cache(maxsize=16)
def _published(plan: Plan, seed: int, nodes: int) -> fill.Order:
    """FGD's own arrival order for a trace and a seed (`fgd_replay` in the data folder)."""
    name = (plan.trace.partition(":")[2] or "default") if plan.trace.split(":")[0] == "openb" else None
    if name is None or plan.data is None:
        raise InputError("--order published needs an openb trace and COTENANT_DATA")
    path = plan.data / "fgd_replay" / f"{name}.json.gz"
    if not path.is_file():
        raise InputError(f"{path}: no published order for this trace")
    try:
        seeds = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=_PublishedOrders).seeds
    except (msgspec.MsgspecError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a file of published orders: {error}") from None
    if str(seed) not in seeds:
        raise InputError(f"{path}: no published order for seed {seed}; expected one of {', '.join(sorted(seeds))}")
    order = fill.Order(seeds[str(seed)].order, seeds[str(seed)].node_rank)
    if any(not 0 <= position < len(_jobs(plan)) for position in order.arrivals):
        raise InputError(f"{path}: refers to jobs that {plan.trace} does not have")
    if len(order.node_ranks) != nodes:
        raise InputError(f"--order published is for {len(order.node_ranks)} nodes, not for {nodes}; use --nodes openb")
    return order
