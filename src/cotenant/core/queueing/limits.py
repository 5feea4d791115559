# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Limits of accounts: how much a user or a group may use at a time, and how much in a week.

A job whose account has reached a limit waits, and nothing is reserved for it; jobs of other accounts pass it. A limit
of a group counts what all its users use together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant.core.cluster import Cluster
from cotenant.core.footprint import claims
from cotenant.core.model import Gpu, Job, Placement, Reason
from cotenant.core.queueing.fair import Account, gpus_claimed, gpus_taken, levels
from cotenant.core.units import MiB, MilliCpu, cpus_text, format_memory

CHECK = "account limit"
SLACK = 1e-6
"""GPUs; parts of GPUs are added up in floating point"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one level of an account may use; None: not limited."""

    gpus: float | None = None
    """at a time; parts of GPUs count as parts"""
    memory: MiB | None = None
    """of all GPUs, at a time"""
    running: int | None = None
    """jobs at a time"""
    queued: int | None = None
    """jobs that wait"""
    gpu_hours: float | None = None
    """in the last seven days"""
    cpu: MilliCpu | None = None
    """at a time"""
    host_memory: MiB | None = None
    """at a time"""


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Amounts:
    """What an account uses, or a job would."""

    gpus: float = 0.0
    memory: int = 0
    """MiB"""
    running: int = 0
    """jobs"""
    cpu: int = 0
    """thousandths of a CPU"""
    host_memory: int = 0
    """MiB"""

    def plus(self, other: "Amounts", sign: int = 1) -> "Amounts":
        return Amounts(
            self.gpus + sign * other.gpus,
            self.memory + sign * other.memory,
            self.running + sign * other.running,
            self.cpu + sign * other.cpu,
            self.host_memory + sign * other.host_memory,
        )


NOTHING = Amounts()


@dataclass(slots=True)
class LimitCheck:
    """The limits of all accounts, what they use at the start of a pass, and what the pass gives them."""

    limits: Callable[[Account], Limits]
    """of a level of an account"""
    used: Mapping[Account, Amounts]
    """of each level of each account"""
    gpu_hours: Callable[[Account], float]
    """of a level of an account, in the last seven days"""
    _given: dict[Account, Amounts] = field(default_factory=dict)
    _hours: dict[Account, float] = field(default_factory=dict)

    def refuse_placed(self, placements: Sequence[Placement], cluster: Cluster) -> Reason | None:
        """Why a job must wait although it fits there."""
        return self.refuse(placements[0].job.account, amounts_of(placements, cluster))

    def give(self, placements: Sequence[Placement], cluster: Cluster) -> None:
        """A job is placed in this pass."""
        amounts = amounts_of(placements, cluster)
        for level in levels(placements[0].job.account):
            self._given[level] = self._given.get(level, NOTHING).plus(amounts)

    def refuse(self, account: Account, asked: Amounts) -> Reason | None:
        """Why a job of this account that uses at least these amounts must wait; None: it need not."""
        for level in levels(account):
            limits = self.limits(level)
            if limits == NO_LIMITS:
                continue
            used, given = self.used.get(level, NOTHING), self._given.get(level)
            used = used if given is None else used.plus(given)
            text = over(level[-1], limits, used, asked) or self._over_hours(level, limits)
            if text is not None:
                return Reason(CHECK, text.replace("{", "{{").replace("}", "}}"))  # names of users may be anything
        return None

    def _over_hours(self, level: Account, limits: Limits) -> str | None:
        if limits.gpu_hours is None:
            return None
        if level not in self._hours:
            self._hours[level] = self.gpu_hours(level)
        return over_hours(level[-1], limits, self._hours[level])


def over(name: str, limits: Limits, used: Amounts, asked: Amounts) -> str | None:
    """Which limit the account would exceed with this request; None: none."""
    if limits.gpus is not None and used.gpus + asked.gpus > limits.gpus + SLACK:
        return f"{name} has {used.gpus:.3g} of at most {_count(limits.gpus, 'GPU')}, and the job needs {asked.gpus:.3g}"
    if limits.memory is not None and used.memory + asked.memory > limits.memory:
        return _over_memory(name, "GPU", used.memory, limits.memory, asked.memory)
    if limits.cpu is not None and used.cpu + asked.cpu > limits.cpu:
        return (
            f"{name} has {used.cpu / 1000:g} of at most {cpus_text(limits.cpu)}, and the job needs {asked.cpu / 1000:g}"
        )
    if limits.host_memory is not None and used.host_memory + asked.host_memory > limits.host_memory:
        return _over_memory(name, "host", used.host_memory, limits.host_memory, asked.host_memory)
    if limits.running is not None and used.running + asked.running > limits.running:
        return f"{name} has {used.running} of at most {_count(limits.running, 'running job')}"
    return None


def _over_memory(name: str, kind: str, used: int, limit: int, asked: int) -> str:
    have, most, need = (format_memory(MiB(one)) for one in (used, limit, asked))
    return f"{name} has {have} of at most {most} of {kind} memory, and the job needs {need}"


def over_hours(name: str, limits: Limits, used: float) -> str | None:
    """Says that the account has used up its GPU-hours; None: it has not."""
    if limits.gpu_hours is None or used < limits.gpu_hours:
        return None
    return f"{name} has used {used:.3g} of at most {limits.gpu_hours:g} GPU-hours in the last 7 days"


def over_queue(name: str, limits: Limits, queued: int, more: int = 1) -> str | None:
    """Why the account may not submit this number of jobs more; None: it may."""
    if limits.queued is None or queued + more <= limits.queued:
        return None
    return f"{name} has {queued} of at most {_count(limits.queued, 'queued job')}"


class LeastAmounts:
    """What jobs use at least on a cluster, computed once for each kind of job as long as the GPUs stay the same."""

    def __init__(self) -> None:
        self._gpus: tuple[Gpu, ...] = ()
        self._known: dict[int, Amounts] = {}

    def on(self, cluster: Cluster) -> None:
        """The jobs are asked about on this cluster from now on."""
        gpus = kinds_of_gpus(cluster)
        if gpus != self._gpus:
            self._gpus = gpus
            self._known.clear()

    def of(self, kind: int, job: Job) -> Amounts:
        """`kind` is a number that jobs with the same demands have in common."""
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = least_amounts(job, self._gpus)
        return found

    def forget(self, kind: int) -> None:
        self._known.pop(kind, None)


def never(job: Job, limits: Mapping[Account, Limits], gpus: Sequence[Gpu]) -> str | None:
    """Why a job exceeds a limit of its account even if nothing else runs; None: it does not."""
    asked = least_amounts(job, gpus)
    found = (over(level[-1], limits.get(level, NO_LIMITS), NOTHING, asked) for level in levels(job.account))
    return next((text for text in found if text is not None), None)


def amounts_of(placements: Iterable[Placement], cluster: Cluster) -> Amounts:
    """What a placed job uses."""
    slots = list(placements)
    memory = 0
    for one in slots:
        gpus = cluster.node(one.slot.node).machine.gpus
        memory += sum(claim.memory for claim in claims(one.job.demand, one.slot.gpus, gpus).values())
    cpu, host_memory = sum(one.job.demand.cpu for one in slots), sum(one.job.demand.host_memory for one in slots)
    return Amounts(gpus_taken(slots, cluster), memory, 1, cpu, host_memory)


def kinds_of_gpus(cluster: Cluster) -> tuple[Gpu, ...]:
    """One GPU of each size."""
    gpus = (gpu for node in cluster for gpu in node.machine.gpus)
    return tuple({(gpu.memory_capacity, gpu.compute_capacity): gpu for gpu in gpus}.values())


def least_amounts(job: Job, gpus: Sequence[Gpu]) -> Amounts:
    """What a job uses at least, on whichever of these GPUs it is placed."""
    on_each = [
        Amounts(gpus_claimed(demand, (i,), gpus), sum(claim.memory for claim in claims(demand, (i,), gpus).values()))
        for demand in (job.demand, *job.alternatives)
        for i in range(len(gpus))
    ]
    count = job.demand.steady.gpus * job.replicas
    least = min((one.gpus for one in on_each), default=0.0), min((one.memory for one in on_each), default=0)
    host = job.replicas * job.demand.cpu, job.replicas * job.demand.host_memory
    return Amounts(count * least[0], count * least[1], 1, *host)


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'s' * (number != 1)}"
