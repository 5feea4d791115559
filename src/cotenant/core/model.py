# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The terms of the core as frozen values: demands, jobs, hardware, tenants, slots and reasons.

A `Machine` is the hardware of a node; a `Node` (`cluster.py`) is a machine with its tenants.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from cotenant.core.isolation import USUAL, Offer, Rung
from cotenant.core.units import WHOLE_GPU, MiB, MilliCpu, MilliGpu, Percent, Seconds, cpus_text
from cotenant.core.values import value

Gpus = tuple[int, ...]
"""GPU indices on one node."""


MACHINE_TYPE_LABEL = "cotenant.io/machine-type"
"""names a table of well-linked GPU sets (`topology.STATIC_TABLES`)"""

ANY_PROFILE = "*"
"""instead of a MIG profile: any MIG instance, and no GPU that is none"""


class Link(IntEnum):
    """How two GPUs reach each other, worst first; the value is the pair's score (nvidia-smi's names)."""

    SYS = 10
    """across the CPU interconnect"""
    NODE = 20
    """within one NUMA node, across host bridges"""
    PHB = 30
    """through one host bridge"""
    PXB = 40
    """through several PCIe switches"""
    PIX = 50
    """through one PCIe switch"""
    PSB = 60
    """on one board"""
    NVLINK = 100
    """one NVLink; n of them count n times"""


class ContainerKind(StrEnum):
    """When a container of a pod runs, as Kubernetes orders it."""

    INIT = "init"
    """runs to its end before the next starts"""
    SIDECAR = "sidecar"
    """starts in init order and stays (an init container with restartPolicy Always)"""
    APP = "app"
    """runs beside all other app containers and all sidecars"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The demand of one container of a pod; its GPUs are distinct, other containers may use the same ones."""

    kind: ContainerKind = ContainerKind.APP
    gpus: int = 1
    memory: MiB = MiB(0)
    memory_percent: Percent | None = None
    compute: MilliGpu = WHOLE_GPU
    memory_limit: MiB | None = None
    memory_limit_percent: Percent | None = None
    compute_limit: MilliGpu | None = None
    mig: str | None = None
    use_uuids: frozenset[str] = frozenset()
    """the only GPUs that it can use; empty: every GPU"""


class _KnowsItsHash:
    """The place for a hash, which is no field: hashes of text differ between processes, so it must not be pickled."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(_KnowsItsHash):
    """What a job needs of each GPU it runs on, and of the host.

    Its amounts are requests: guaranteed, and all that placement counts. A limit above a request may be used while other
    tenants leave it free (`sharing/surplus.py`).

    A policy cannot tell two jobs with equal demands apart, so scores can be remembered by demand.
    """

    gpus: int = 1
    """number of GPUs"""
    memory: MiB = MiB(0)
    """on each GPU"""
    memory_percent: Percent | None = None
    """of the memory of each GPU, instead of `memory`"""
    compute: MilliGpu = WHOLE_GPU
    """on each GPU; 0 claims no share of compute"""
    memory_limit: MiB | None = None
    """on each GPU, at least `memory`; None: what is requested"""
    memory_limit_percent: Percent | None = None
    """of the memory of each GPU, instead of `memory_limit`"""
    compute_limit: MilliGpu | None = None
    """on each GPU, at least `compute`; None: what is requested"""
    mig: str | None = None
    """only on MIG instances of this profile, such as `1g.10gb`; then `compute` is a share of each instance"""
    exclusive: bool = False
    """only on GPUs that no other job uses"""
    use_types: tuple[str, ...] = ()
    """patterns of GPU types that it can use, `*` matches anything; empty: every type"""
    avoid_types: tuple[str, ...] = ()
    use_uuids: frozenset[str] = frozenset()
    avoid_uuids: frozenset[str] = frozenset()
    one_numa: bool = False
    """all its GPUs on one NUMA node"""
    link: Link | None = None
    """the worst link that it accepts between any two of its GPUs (of one container, if it has several)"""
    affinity: str | None = None
    """members of this group share the same GPUs"""
    anti_affinity: str | None = None
    """members of this group never share a GPU"""
    priority: int = 0
    """the larger priority goes first"""
    workload: str | None = None
    """name of the kind of work, by which interference is predicted"""
    least_speed: Percent | None = None
    """the speed, in percent of running alone, that sharing must leave it"""
    rung: Rung | None = None
    """what holds it to its limits; None: the engine does not distinguish that"""
    cpu: MilliCpu = MilliCpu(0)
    host_memory: MiB = MiB(0)
    containers: tuple[Container, ...] = ()
    """of a pod whose containers have different demands; then `gpus`, `memory` and `compute` above are not used"""
    claim: "Claim | None" = field(default=None, init=False, repr=False, compare=False)
    """What it takes of each of its GPUs if that is the same on every GPU; else None (see `footprint.claims`)."""

    def __post_init__(self) -> None:
        if self.memory_percent is None and self.mig is None and not self.exclusive and not self.containers:
            object.__setattr__(self, "claim", Claim(self.memory, self.compute, 1))

    def __hash__(self) -> int:
        """Computed once, since every memo looks demands up, and they have many fields."""
        try:
            return self._hash
        except AttributeError:
            known = hash(_COMPARED(self))
            object.__setattr__(self, "_hash", known)
            return known

    @property
    def steady(self) -> "Container":
        """What it needs after its init containers have ended, as one container: the most GPUs, all amounts on each."""
        staying = [one for one in self.containers if one.kind is not ContainerKind.INIT]
        if not staying:
            return Container(
                gpus=self.gpus,
                memory=self.memory,
                memory_percent=self.memory_percent,
                compute=self.compute,
                mig=self.mig,
            )
        percents = [one.memory_percent for one in staying if one.memory_percent is not None]
        return Container(
            gpus=max(one.gpus for one in staying),
            memory=MiB(sum(one.memory for one in staying)),
            memory_percent=Percent(sum(percents)) if percents else None,
            compute=MilliGpu(min(WHOLE_GPU, sum(one.compute for one in staying))),
        )

    @property
    def total_compute(self) -> MilliGpu:
        """Milli-GPU on all its GPUs together, after its init containers have ended."""
        if not self.containers:
            return MilliGpu(self.gpus * self.compute)
        staying = (one for one in self.containers if one.kind is not ContainerKind.INIT)
        return MilliGpu(sum(one.gpus * one.compute for one in staying))

    @property
    def grouped(self) -> bool:
        """Whether checks or orders can depend on which GPUs it uses."""
        groups = self.affinity, self.anti_affinity, self.workload, self.rung
        return groups != (None, None, None, None)


_COMPARED = attrgetter(*(one.name for one in fields(Demand) if one.compare))


@value(kw_only=True)
class Job:
    """A demand with an identity."""

    id: str
    demand: Demand
    replicas: int = 1
    """copies of the demand that start together or not at all (a gang)"""
    submitted: Seconds = Seconds(0.0)
    estimate: Seconds | None = None
    """estimated run time; never the true one, which only the simulator knows"""
    limit: Seconds | None = None
    """the longest that one run can take, because it is stopped then; None: it is not"""
    reservation: str | None = None
    """ID of the advance reservation that it was submitted for"""
    attained: Seconds = Seconds(0.0)
    """GPU-seconds that it has run so far"""
    alternatives: tuple[Demand, ...] = ()
    """other demands for the same job, tried in this order if `demand` does not fit"""
    account: tuple[str, ...] = ()
    """who it is charged to under fair share: groups from the outermost to the innermost, then the user"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as installed. Scaling above 100 % hands out more than the GPU has (oversubscription)."""

    uuid: str
    type: str = "gpu"
    memory: MiB = MiB(0)
    slots: int = 1000
    """how many tenants may share it"""
    numa: int | None = None
    healthy: bool = True
    cordoned: bool = False
    memory_scaling: Percent = Percent(100)
    compute_scaling: Percent = Percent(100)
    mig: str | None = None
    """the profile of the MIG instance that it is, such as `1g.10gb`; None: it is handed out as a GPU"""
    card: str | None = None
    """UUID of the GPU that was partitioned, if it is a MIG instance"""
    part: MilliGpu = WHOLE_GPU
    """its compute, of that of the partitioned GPU"""
    offer: Offer | None = None
    """what decides which rungs it has, for engines that ask about all GPUs of a cluster; None: not known"""
    rungs: frozenset[Rung] = USUAL
    """the rungs of the isolation ladder that it has; read only for demands with a rung"""
    mps_clients: int = 0
    """how many tenants MPS takes on it"""
    under_mps: bool = False
    """whether it still belongs to MPS, though it has no tenant through MPS any more"""

    @property
    def memory_capacity(self) -> MiB:
        return MiB(self.memory * self.memory_scaling // 100)

    def host_part(self, memory: MiB) -> MiB:
        """How much of an assigned amount is memory of the host, if more is assigned than the GPU has.

        The rest is memory of the GPU: each tenant has the same ratio of both, so the rests of all tenants together
        never exceed the GPU.
        """
        capacity = self.memory_capacity
        return MiB(memory - memory * self.memory // capacity) if capacity > self.memory else MiB(0)

    @property
    def compute_capacity(self) -> MilliGpu:
        return MilliGpu(self.part * self.compute_scaling // 100)

    @property
    def gpu_model(self) -> "GpuModel":
        return GpuModel(self.type, self.memory_capacity, self.compute_capacity, self.mig is not None)


class GpuModel(NamedTuple):
    """The model of a GPU: type and capacities."""

    type: str
    memory: MiB
    compute: MilliGpu = WHOLE_GPU
    """capacity: more than a whole GPU if it is oversubscribed"""
    is_instance: bool = False
    """of a GPU that is partitioned by MIG"""


_SIZE_SPAN = 1 << 24
"""more MiB than a GPU has, so that compute and then memory are compared as one number"""

_KINDS: dict[tuple[object, ...], object] = {}
"""one object for each kind of machine, which is quicker to compare than all of the hardware"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware of a node: its GPUs, their links, its host."""

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[tuple[int, ...], ...] | None = None
    """score of each pair of GPUs (see `links.link_matrix`); None: not known, all pairs are equal"""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu: MilliCpu | None = None
    host_memory: MiB | None = None

    @cached_property
    def kind(self) -> object:
        """The same object for all machines that differ only in names and UUIDs, which policies do not see."""
        hardware = self._cards, self.links, tuple(sorted(self.labels.items())), self.cpu, self.host_memory
        return _KINDS.setdefault(hardware, object())

    @cached_property
    def _cards(self) -> tuple[tuple[object, ...], ...]:
        return tuple(
            (
                gpu.type,
                gpu.memory_capacity,
                gpu.compute_capacity,
                gpu.slots,
                gpu.numa,
                gpu.healthy,
                gpu.cordoned,
                gpu.mig,
                gpu.rungs,
                gpu.mps_clients,
                gpu.under_mps,
            )
            for gpu in self.gpus
        )

    @cached_property
    def uniform(self) -> bool:
        """Whether its GPUs differ only in what is free on them."""
        return self.links is None and MACHINE_TYPE_LABEL not in self.labels and len(set(self._cards)) <= 1

    @cached_property
    def unusable(self) -> frozenset[int]:
        """GPUs that take no new tenant: unhealthy or cordoned."""
        return frozenset(i for i, gpu in enumerate(self.gpus) if gpu.cordoned or not gpu.healthy)

    @cached_property
    def compute_capacities(self) -> tuple[int, ...]:
        return tuple(gpu.compute_capacity for gpu in self.gpus)

    @cached_property
    def memory_capacities(self) -> tuple[int, ...]:
        return tuple(gpu.memory_capacity for gpu in self.gpus)

    @cached_property
    def gpu_model(self) -> "GpuModel | None":
        """The model of its GPUs if they are all the same."""
        models = {gpu.gpu_model for gpu in self.gpus}
        return models.pop() if len(models) == 1 else None

    @cached_property
    def has_instances(self) -> bool:
        """Whether some of its GPUs are MIG instances."""
        return any(gpu.mig is not None for gpu in self.gpus)

    @cached_property
    def instance_sizes(self) -> tuple[int, ...]:
        """A number for each GPU, larger for a larger MIG instance, and the same for all GPUs that are none."""
        whole = _SIZE_SPAN * (WHOLE_GPU + 1)
        return tuple(whole if gpu.mig is None else _SIZE_SPAN * gpu.part + gpu.memory for gpu in self.gpus)

    @cached_property
    def types(self) -> frozenset[str]:
        return frozenset(gpu.type for gpu in self.gpus)


class Claim(NamedTuple):
    """What one tenant takes of one GPU at its peak."""

    memory: MiB
    compute: MilliGpu
    slots: int


@value()
class Tenant:
    """A job's replica on some GPUs of a node; with containers, `gpus` lists theirs one after the other."""

    job: str
    demand: Demand
    gpus: Gpus
    replica: int = 0


@value(order=True)
class Slot:
    """Some GPUs of one node. Ordered, so that ties break the same way everywhere."""

    node: str
    gpus: Gpus


@value()
class Placement:
    """A job (one replica of it) on a slot."""

    job: Job
    slot: Slot
    replica: int = 0
    trial: bool = False
    """to be judged again soon: the policy is not sure that these tenants can share"""
    overdue: bool = False
    """it was overdue, and skipped the sharing gate"""


class Reason(NamedTuple):
    """Why a node is refused: the check, what was needed and the most that there was."""

    check: str
    text: str
    """A sentence with placeholders for the numbers (see `__str__`). Reasons with the same text are of one class."""
    needed: int = 0
    available: int = 0

    def __str__(self) -> str:
        return self.text.format(
            needed=self.needed,
            available=self.available,
            gpus="1 GPU" if self.needed == 1 else f"{self.needed} GPUs",
            needed_percent=f"{self.needed / 10:g}",
            available_percent=f"{self.available / 10:g}",
            needed_cpus=cpus_text(self.needed),
            available_cpus=f"{self.available / 1000:g}",
        )
