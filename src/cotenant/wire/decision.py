# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A scheduling decision as a file that can be replayed: the cluster, the job, the policy and the chosen slots.

Version 1 is JSON with the core's own field names; fields at their defaults may be left out, unknown fields are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import combinations

import msgspec

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge, Mix, Spec, inventory_of
from cotenant.core.interference import ALONE, Speed
from cotenant.core.model import Demand, Job, Machine, Slot, Tenant
from cotenant.core.placement.policies import QUEUES, build_policy, queue_name
from cotenant.core.placement.ranking import Policy
from cotenant.core.sharing.orders import company, demands_on
from cotenant.core.sharing.speeds import Basis, TenantSet
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent, Seconds
from cotenant.errors import InputError

VERSION = 1

LIMITS: Mapping[str, tuple[float, float]] = {
    "gpus": (0, 1024),
    "replicas": (1, 1024),
    "compute": (0, 100_000),
    "compute_scaling": (1, 10_000),
    "memory_scaling": (0, 10_000),
    "memory_percent": (0, 100),
    "memory_limit_percent": (0, 100),
    "compute_limit": (0, 100_000),
    "seen": (1, 1e15),
    "priority": (-1e9, 1e9),
    "submitted": (0, 1e12),
    "now": (0, 1e12),
    "at": (0, 1e12),
    "started": (0, 1e12),
    "estimate": (0, 1e12),
    "attained": (0, 1e18),
    "least_speed": (0, 100),
    "speeds": (1e-9, 10),
    "speed": (0, 10),
}
"""smallest and largest number allowed in a field of that name"""
OTHER_NUMBERS = (0, 1e9)
MOST_GPUS, MOST_CONTAINERS = 1024, 100
"""on one node, in one pod"""
_PLAIN = frozenset((str, int, float, bool))
"""types that are written as they are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpec:
    """A demand that the policy knew, and how often it had been seen."""

    seen: int
    cpu: MilliCpu = MilliCpu(0)
    compute: MilliGpu = MilliGpu(1000)
    gpus: int = 1
    types: tuple[str, ...] = ()
    memory: MiB = MiB(0)
    memory_percent: Percent = Percent(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """A machine and its tenants."""

    machine: Machine
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCompany:
    """The predicted speeds of workloads that share one GPU of type `card`."""

    card: str
    workloads: tuple[str | None, ...]
    speeds: tuple[Speed, ...]
    apart: bool = False
    """known not to fit into the GPU's memory together"""
    basis: Basis = Basis.MEASURED
    """what the speeds of two rest on"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMildness:
    """The mean predicted speed of a workload beside each of the other known workloads."""

    card: str
    workload: str | None
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDecision:
    """Everything that a policy was given, and the slots it chose (none: the job fits nowhere)."""

    version: int
    policy: str
    job: Job
    nodes: tuple[RecordedNode, ...]
    slots: tuple[Slot, ...]
    queue: str = "fifo"
    now: Seconds = Seconds(0.0)
    mix: tuple[RecordedSpec, ...] = field(default=())
    crowding: float | None = 0.0
    """waiting jobs for each GPU; None: the job was overdue, so the sharing gate was not applied"""
    closed: tuple[str, ...] = ()
    """nodes that were reserved for an overdue job"""
    waits: str = ""
    """why the job was refused although the policy may find a slot; a replay cannot find it again"""
    companies: tuple[RecordedCompany, ...] = field(default=())
    mildness: tuple[RecordedMildness, ...] = field(default=())

    def cluster(self) -> Cluster:
        return Cluster.of(Node.of(one.machine, one.tenants) for one in self.nodes)

    def build_policy(self) -> Policy:
        mix = {
            Spec(one.cpu, one.compute, one.gpus, one.types, one.memory, one.memory_percent): one.seen
            for one in self.mix
        }
        known = Knowledge(mix, inventory_of(one.machine for one in self.nodes), RecordedBelief(self))
        return build_policy(self.policy, known, self.queue)


class RecordedBelief:
    """The belief behind a recorded decision; it knows only what was recorded."""

    version = 0

    def __init__(self, decision: RecordedDecision) -> None:
        self._companies = {TenantSet(one.card, one.workloads): one for one in decision.companies}
        self._mildness = {(one.card, one.workload): one.speed for one in decision.mildness}
        self.knows_memory = any(one.apart for one in decision.companies)

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        known = self._companies.get(company)
        return (ALONE,) * len(company.workloads) if known is None else known.speeds

    def mildness(self, card: str, workload: str | None) -> float:
        return self._mildness.get((card, workload), 1.0)

    def basis(self, pair: TenantSet) -> Basis:
        known = self._companies.get(pair)
        return Basis.PREDICTED if known is None else known.basis

    def apart(self, company: TenantSet) -> bool:
        return company in self._companies and self._companies[company].apart

    def observe(self, company: TenantSet, speeds: object) -> bool:
        return False


def record(
    policy: Policy,
    job: Job,
    cluster: Cluster,
    now: Seconds,
    slots: tuple[Slot, ...],
    crowding: float | None = 0.0,
    closed: tuple[str, ...] = (),
) -> RecordedDecision:
    """A decision in the form that is written."""
    companies, mildness = beliefs(policy, job, cluster)
    return RecordedDecision(
        crowding=crowding,
        closed=closed,
        companies=companies,
        mildness=mildness,
        version=VERSION,
        policy=policy.name,
        queue=queue_name(policy),
        job=job,
        now=now,
        nodes=tuple(RecordedNode(machine=node.machine, tenants=node.tenants) for node in cluster),
        slots=slots,
        mix=specs(policy.known.mix),
    )


def specs(mix: Mix) -> tuple[RecordedSpec, ...]:
    """A mix of demands in the form that is written."""
    return tuple(RecordedSpec(seen=seen, **spec._asdict()) for spec, seen in sorted(mix.items()))


def beliefs(
    policy: Policy, job: Job, cluster: Cluster
) -> tuple[tuple[RecordedCompany, ...], tuple[RecordedMildness, ...]]:
    """The predicted speeds that a policy looks at if it places a job; none if it does not predict."""
    if not policy.more_checks:
        return (), ()
    belief, sets = policy.known.belief, _companies(job, cluster)
    workloads = sorted({(one.gpu_type, name) for one in sets for name in one.workloads}, key=str)
    companies = (
        RecordedCompany(
            card=one.gpu_type,
            workloads=one.workloads,
            speeds=belief.speeds(one),
            apart=belief.apart(one),
            basis=belief.basis(one) if len(one.workloads) == 2 else Basis.MEASURED,
        )
        for one in sets
    )
    mildness = (
        RecordedMildness(card=card, workload=name, speed=belief.mildness(card, name)) for card, name in workloads
    )
    return tuple(companies), tuple(mildness)


def _companies(job: Job, cluster: Cluster) -> list[TenantSet]:
    """The tenants of each GPU as they are, and with the job added, and all pairs of these."""
    found: set[TenantSet] = set()
    for node in cluster:
        for gpu in range(len(node.compute)):
            there = demands_on(node, gpu)
            if there:
                found |= {company(node, gpu, there), company(node, gpu, [*there, job.demand])}
    pairs = {TenantSet(one.gpu_type, two) for one in found for two in combinations(one.workloads, 2)}
    return sorted(found | pairs, key=str)


def encode(decision: RecordedDecision) -> bytes:
    """The content of the file: indented JSON without fields at their defaults."""
    return msgspec.json.format(msgspec.json.encode(compact(decision), order="deterministic"), indent=1) + b"\n"


def decode(content: bytes, source: str) -> RecordedDecision:
    """The decision in the content of a file; InputError names the field that is wrong."""
    try:
        raw = msgspec.json.decode(content)
        version = raw.get("version") if isinstance(raw, dict) else None
        if version != VERSION:
            raise InputError(f"{source}: not a recorded decision of version {VERSION} (its version is {version!r:.40})")
        decision = msgspec.convert(raw, RecordedDecision)
        problem = find_problem(raw, decision)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{source}: not a recorded decision: {error}") from None
    if problem is not None:
        raise InputError(f"{source}: {problem}")
    check_decision(decision, source)
    return decision


def check_decision(decision: RecordedDecision, source: str) -> None:
    """Checks what types alone cannot express."""
    check_nodes(decision.nodes, source)
    demands = [decision.job.demand, *(tenant.demand for one in decision.nodes for tenant in one.tenants)]
    if any(len(demand.containers) > MOST_CONTAINERS or _gpus_needed(demand) > MOST_GPUS for demand in demands):
        raise InputError(f"{source}: expected at most {MOST_CONTAINERS} containers and {MOST_GPUS} GPUs in a demand")
    if any(len(one.speeds) != len(one.workloads) for one in decision.companies):
        raise InputError(f"{source}: a company does not have a speed for each of its workloads")
    if decision.queue not in QUEUES:
        raise InputError(f"{source}: unknown queue order {decision.queue!r}; there are: {', '.join(QUEUES)}")
    try:
        decision.build_policy()
    except ValueError as error:
        raise InputError(f"{source}: {error}") from None


def check_nodes(nodes: tuple[RecordedNode, ...], source: str) -> None:
    """InputError if a node contradicts itself or another one."""
    names = [one.machine.name for one in nodes]
    if len(set(names)) != len(names):
        raise InputError(f"{source}: two nodes have the same name")
    for one in nodes:
        count = len(one.machine.gpus)
        links = one.machine.links
        if links is not None and (len(links) != count or any(len(row) != count for row in links)):
            raise InputError(f"{source}: node {one.machine.name}: links must be a {count} by {count} matrix")
        if count > MOST_GPUS:
            raise InputError(f"{source}: node {one.machine.name}: {count} GPUs; expected at most {MOST_GPUS}")
        if any(gpu not in range(count) for tenant in one.tenants for gpu in tenant.gpus):
            raise InputError(f"{source}: node {one.machine.name}: a tenant is on a GPU that is not there")
        if any(len(tenant.gpus) != _gpus_needed(tenant.demand) for tenant in one.tenants):
            raise InputError(f"{source}: node {one.machine.name}: a tenant has another number of GPUs than its demand")


def _gpus_needed(demand: Demand) -> int:
    return sum(one.gpus for one in demand.containers) if demand.containers else demand.gpus


def compact(value: object) -> object:
    """The value as plain JSON values, without fields that are derived or at their defaults."""
    if value is None or type(value) in _PLAIN:
        return value
    if (written := _written_fields(type(value))) is not None:  # type: ignore[arg-type]
        found: dict[str, object] = {}
        for name, default, factory in written:
            one = getattr(value, name)
            if one != (default if factory is None else factory()):
                found[name] = compact(one)
        return found
    if isinstance(value, list | tuple):
        return [compact(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(compact(one) for one in value)  # type: ignore[type-var]
    return value


@cache
def _written_fields(kind: type) -> tuple[tuple[str, object, Callable[[], object] | None], ...] | None:
    """The fields of a dataclass that are not derived, each with its default and the function that makes it; None if it
    is no dataclass. To ask the dataclass each time took most of the time of writing a decision."""
    if not is_dataclass(kind):
        return None
    return tuple(
        (one.name, one.default, None if one.default_factory is MISSING else one.default_factory)
        for one in fields(kind)
        if one.init
    )


def find_problem(raw: object, read: object) -> str | None:
    """An error message for a key of `raw` that no field of `read` has, or a value that is out of its limits."""
    return _unknown(raw, read, "$") or _absurd(read, "$", "")


def _unknown(raw: object, read: object, path: str) -> str | None:
    """An error message for the first key of `raw` that no field of `read` has."""
    if isinstance(raw, dict) and is_dataclass(read):
        known = {one.name for one in fields(read) if one.init}
        for key, value in raw.items():
            if key not in known:
                return f"unknown field {key!r:.60} at {path}"
            if (found := _unknown(value, getattr(read, key), f"{path}.{key}")) is not None:
                return found
    if isinstance(raw, list) and isinstance(read, tuple):
        for i, (one, other) in enumerate(zip(raw, read, strict=True)):
            if (found := _unknown(one, other, f"{path}[{i}]")) is not None:
                return found
    return None


def _absurd(value: object, path: str, name: str) -> str | None:
    """An error message for the first number out of its limits, or text that is not printable."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        low, high = LIMITS.get(name, OTHER_NUMBERS)
        shown = f"{value:g}" if -1e300 < value < 1e300 else "out of range"
        return None if low <= value <= high else f"{path} is {shown}; expected a number from {low:g} to {high:g}"
    if isinstance(value, str):
        return None if value.isprintable() else f"{path} is {value!r:.60}; expected printable text"
    parts: Iterable[tuple[str, str, object]]
    if is_dataclass(value):
        parts = ((f"{path}.{one.name}", one.name, getattr(value, one.name)) for one in fields(value) if one.init)
    elif isinstance(value, Mapping):
        parts = ((path, name, text) for item in value.items() for text in item)
    elif isinstance(value, tuple | frozenset):
        parts = ((f"{path}[{i}]", name, one) for i, one in enumerate(value))
    else:
        return None
    return next((found for at, of, one in parts if (found := _absurd(one, at, of)) is not None), None)
