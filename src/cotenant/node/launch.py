# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""From a slot to a process: its environment, its cores, its limits, and a sentence on how each limit is enforced."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cotenant.core.footprint import claims, memory_limit_on
from cotenant.core.isolation import Rung
from cotenant.core.model import Demand, Gpu, Gpus, Machine, Slot
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, MiB, MilliCpu, MilliGpu, cpus_text, format_memory
from cotenant.node.devices.vendors import Vendor
from cotenant.node.grants import margin_of
from cotenant.node.limits import MOST_GPUS, VARIABLE, GpuLimit, Limits, Priority
from cotenant.node.preload import NONE_BUILT
from cotenant.node.shares import Means, Shares
from cotenant.wire.text import counted


class Grant(NamedTuple):
    """What a job may use of one GPU."""

    uuid: str
    memory: MiB
    compute: MilliGpu
    whole: bool = False
    """No amount of memory was requested: the job may use all that the GPU has."""
    host: MiB = MiB(0)
    """How much of `memory` is memory of the host, because more of the GPU is assigned than it has."""
    limit: MiB = MiB(0)
    """What the job may use while others leave it free; 0: `memory`."""
    margin: int = 0
    """Bytes that a job with such a limit is granted at its start, if it requests as much (see `grants.py`)."""

    @property
    def is_elastic(self) -> bool:
        return self.limit > self.memory


@dataclass(frozen=True, slots=True)
class GpuGrants:
    """The GPUs of a process, and what it may use of each."""

    gpus: Gpus
    """Indices on the node, each once."""
    grants: tuple[Grant, ...]
    """In the same order."""
    smallest_gpu: MiB
    """Memory of the smallest of these GPUs."""


def variables_for(vendor: Vendor, gpu_grants: GpuGrants) -> dict[str, str]:
    """The variables in the words of the vendor, and of the other systems that its row names."""
    row = vendor.row
    listed = _indices(gpu_grants) if row.visible_by_index else ",".join(grant.uuid for grant in gpu_grants.grants)
    env = dict.fromkeys(row.visible, listed)
    for system in row.other_systems:
        env |= OTHER_SYSTEMS[system](gpu_grants)
    return env


def percent_of(compute: MilliGpu) -> int:
    """Whole percents; a share too small for one is 1, since 0 means "no limit" to the programs that read it."""
    return 0 if compute <= 0 else max(1, min(100, compute // 10))


def _indices(gpu_grants: GpuGrants) -> str:
    return ",".join(map(str, gpu_grants.gpus))


def _gpushare(gpu_grants: GpuGrants) -> Mapping[str, str]:
    """Aliyun's gpushare, with memory in MiB: programs divide ..._CONTAINER by ..._DEV for their part of a GPU."""
    amounts = [grant.memory for grant in gpu_grants.grants]
    return {
        "ALIYUN_COM_GPU_MEM_IDX": _indices(gpu_grants),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(amounts)),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(min(amounts, default=0)),
        "ALIYUN_COM_GPU_MEM_DEV": str(gpu_grants.smallest_gpu),
    }


def _vgpu(gpu_grants: GpuGrants) -> Mapping[str, str]:
    """4paradigm's vGPU and HAMi: a limit for each visible GPU, and one share of compute for all of them."""
    env = {f"CUDA_DEVICE_MEMORY_LIMIT_{place}": f"{grant.memory}m" for place, grant in enumerate(gpu_grants.grants)}
    return env | ({"CUDA_DEVICE_SM_LIMIT": str(percent_of(gpu_grants.grants[0].compute))} if gpu_grants.grants else {})


OTHER_SYSTEMS: Mapping[str, Callable[[GpuGrants], Mapping[str, str]]] = {"gpushare": _gpushare, "vgpu": _vgpu}
"""the variables of other GPU-sharing systems: programs that were written for one of them find what they expect"""


ISOLATION = "COTENANT_ISOLATION"
"""the variable that tells a job the rung of the isolation ladder that it got"""
NO_CGROUP = "no control group can be made here"
RESERVED = 2
"""One process may reserve this many times its memory limit, since reserved memory need not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Memory that a job on a simulated GPU may use beyond its request, because a real GPU would not count it."""

    runtime: MiB = MiB(250)
    """Resident after a framework is imported; measured with JAX."""
    compiling: MiB = MiB(180)
    """Used in addition while the framework compiles; measured with JAX."""
    stacks_per_core: MiB = MiB(64)
    """Thread stacks that are reserved but not resident, for each core beyond the first."""

    @property
    def baseline(self) -> MiB:
        return MiB(self.runtime + self.compiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The sockets that jobs connect to."""

    agent: Path
    compute_locks: Mapping[int, Path] = field(default_factory=dict)
    """By index of the simulated GPU; one training step at a time holds the lock."""
    shared: bool = False
    """Whether jobs run as other users, who may then connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Where the processes of a job find their limits, and what enforces them."""

    limits: Path
    region: Path | None = None
    """The usage region; None: no program reads it."""
    processes: Path | None = None
    """The list of its processes on the GPUs; None: no program writes it."""
    preload: str | None = None
    """LD_PRELOAD with the vGPU library; None: limits on real GPUs are not enforced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a job; the names are those of the supervisor's `spec.json`."""

    env: Mapping[str, str]
    """Variables that replace those of the same name in the job's own environment: those of `variables_for` (the
    vendor's `visible`, and those of its `other_systems`), COTENANT_JOB, COTENANT_AGENT and COTENANT_LIMITS; if they
    apply, LD_PRELOAD, COTENANT_BATCH and those of a simulated GPU."""
    grants: tuple[Grant, ...]
    limits: Limits
    """The grants in the form that the vGPU library reads."""
    cpus: tuple[int, ...] | None
    """Cores that the job is pinned to before exec."""
    rlimit_data_mib: int | None
    memory_mib: int | None
    memory_baseline_mib: int
    share_percent: int | None
    """Percent of the time in which the job may run, enforced by stopping and continuing it."""
    cgroup: Path | None
    """The group that is created with `cgroup_cpu` and joined before exec."""
    cgroup_cpu: MilliCpu | None


def launch_for(
    machine: Machine,
    slot: Slot,
    demand: Demand,
    *,
    job: str,
    paths: Paths,
    slice_: Slice,
    vendor: Vendor,
    cores: tuple[int, ...],
    shares: Shares,
    batch: int | None = None,
    allowance: Allowance | None = None,
) -> Launch:
    """How to start the job's first process on this slot. `cores` are those that the backend gives to the slot."""
    grants = _grants(machine, slot, demand)
    limits = _limits(grants, demand, slice_)
    env = variables_for(vendor, _gpu_grants(machine, slot, grants)) | {
        "COTENANT_JOB": job,
        "COTENANT_AGENT": str(paths.agent),
        VARIABLE: str(slice_.limits),
    }
    if slice_.preload is not None:
        env["LD_PRELOAD"] = slice_.preload
    if batch is not None:
        env["COTENANT_BATCH"] = str(batch)
    cpu = [demand.cpu] if demand.cpu else []
    if vendor is not Vendor.SIMULATED or not slot.gpus:  # without a GPU there is nothing to limit on it
        group = shares.group(job) if cpu else None
        return Launch(
            env=env,
            grants=grants,
            limits=limits,
            cpus=None,
            rlimit_data_mib=None,
            memory_mib=None,
            memory_baseline_mib=0,
            share_percent=None,
            cgroup=group,
            cgroup_cpu=cpu[0] if group is not None else None,
        )
    allowance = allowance or Allowance()
    memory = sum(grant.memory for grant in grants)
    compute = launch_compute(grants)
    throttled = is_throttled(compute)
    cpu += [MilliCpu(compute * len(cores))] if throttled else []
    group = shares.group(job) if cpu else None
    return Launch(
        env=env | _simulated_env(slot, paths, len(cores)),
        grants=grants,
        limits=limits,
        cpus=cores,
        # Above the limit that the supervisor watches, so that a job beyond its limit ends as out of memory rather than
        # by an error of its own. An allocation too fast for the supervisor is refused by this limit all the same.
        rlimit_data_mib=RESERVED * memory + allowance.baseline + (len(cores) - 1) * allowance.stacks_per_core,
        memory_mib=memory,
        memory_baseline_mib=allowance.baseline,
        share_percent=percent_of(compute) if throttled and group is None else None,
        cgroup=group,
        cgroup_cpu=min(cpu) if group is not None else None,
    )


def is_throttled(compute: MilliGpu) -> bool:
    """Whether a share of compute is a limit: a whole GPU has none, and 0 claims nothing and is not limited."""
    return 0 < compute < WHOLE_GPU


def launch_compute(grants: tuple[Grant, ...]) -> MilliGpu:
    """The share of its GPUs that a job has. It is the same on each, so one number limits all its processes."""
    return max((grant.compute for grant in grants), default=WHOLE_GPU)


def enforcement(vendor: Vendor, launch: Launch, means: Means) -> list[str]:
    """One sentence each on how memory and compute are enforced, and on what is not enforced."""
    if vendor is not Vendor.SIMULATED:
        return _real_enforcement(vendor, launch)
    whole = MiB(launch.memory_mib or 0)
    return [
        f"memory: {format_memory(whole)} above the runtime's own {launch.memory_baseline_mib} MiB; one process "
        f"that reserves {RESERVED} times that is refused it (RLIMIT_DATA), all of them are ended as out of memory",
        _simulated_compute(launch, means),
        *(["limits above requests: not granted on simulated GPUs"] if any(g.is_elastic for g in launch.grants) else []),
        "steps: only programs that use the job library wait for the compute lock; others just share the cores",
        "not enforced: caches, memory bandwidth, and memory that is shared between processes or mapped from files "
        "until it is resident",
    ]


def host_enforcement(demand: Demand, launch: Launch, memory_by: Means | None) -> list[str]:
    """One sentence each on the CPUs and the host memory that a job requests."""
    sentences = []
    if demand.cpu:
        unheld = f"counted but not enforced: {NO_CGROUP}"
        how = unheld if launch.cgroup is None else "by the CPU quota of its control group"
        sentences.append(f"CPUs: {cpus_text(demand.cpu)}, {how}")
    if demand.host_memory:
        how = f"its supervisor, every 50 ms ({NO_CGROUP})" if memory_by is None else f"its control group ({memory_by})"
        sentences.append(f"host memory: {format_memory(demand.host_memory)}, by {how}: beyond it, the job is ended")
    return sentences


def _grants(machine: Machine, slot: Slot, demand: Demand) -> tuple[Grant, ...]:
    claimed = claims(demand, slot.gpus, machine.gpus)
    return tuple(
        _grant(machine.gpus[gpu], claimed[gpu].memory, claimed[gpu].compute, demand) for gpu in dict.fromkeys(slot.gpus)
    )


def _grant(gpu: Gpu, memory: MiB, compute: MilliGpu, demand: Demand) -> Grant:
    amount = memory or gpu.memory_capacity
    # Demands count compute in parts of a whole GPU, and limits in parts of the device that the process sees.
    compute = of_device(gpu, compute)
    grant = Grant(gpu.uuid, amount, compute, whole=not memory, host=gpu.host_part(amount))
    limit = MiB(0) if demand.containers else memory_limit_on(demand, gpu)
    return grant if limit <= amount else grant._replace(limit=limit, margin=margin_of(gpu.memory * MIB_BYTES))


def compute_limit_of(demand: Demand) -> MilliGpu:
    """The share of compute that a job may have while no other job requests it: at least what it requests."""
    return demand.compute if demand.compute_limit is None else max(demand.compute, demand.compute_limit)


def of_device(gpu: Gpu, compute: MilliGpu) -> MilliGpu:
    """A share of a whole GPU, in parts of this one, which may be a MIG instance."""
    return MilliGpu(min(WHOLE_GPU, -(-compute * WHOLE_GPU // gpu.part)))


def _limits(grants: tuple[Grant, ...], demand: Demand, slice_: Slice) -> Limits:
    """Limits for the vGPU library; on GPUs that are not the job's, it may allocate no memory."""
    return Limits(
        gpus=tuple(_gpu_limit(grant, is_granted_live=slice_.preload is not None) for grant in grants[:MOST_GPUS]),
        others=GpuLimit("", 0) if len(grants) <= MOST_GPUS else None,  # the file cannot name more
        region=slice_.region,
        processes=slice_.processes,
        priority=Priority.LOW if demand.priority < 0 else Priority.HIGH,
    )


def _gpu_limit(grant: Grant, is_granted_live: bool) -> GpuLimit:
    request = (grant.memory - grant.host) * MIB_BYTES
    limit = GpuLimit(
        grant.uuid,
        None if grant.whole else request,
        grant.compute if is_throttled(grant.compute) else WHOLE_GPU,
        host_bytes=grant.host * MIB_BYTES,
    )
    if not grant.is_elastic or not is_granted_live:
        return limit
    # What it could be granted is not known yet: until the first round of grants, allocations wait rather than fail.
    first = min(request, grant.margin)
    return limit._replace(memory_bytes=first, request_bytes=request, most_bytes=grant.limit * MIB_BYTES)


def _gpu_grants(machine: Machine, slot: Slot, grants: tuple[Grant, ...]) -> GpuGrants:
    smallest = min((machine.gpus[gpu].memory for gpu in slot.gpus), default=MiB(0))
    return GpuGrants(tuple(dict.fromkeys(slot.gpus)), grants, smallest)


def _simulated_env(slot: Slot, paths: Paths, cores: int) -> dict[str, str]:
    env = {
        "JAX_PLATFORMS": "cpu",
        # XLA sizes its thread pools by these; its own flags do not limit them.
        "NPROC": str(cores),
        "PJRT_NPROC": str(cores),
        "OMP_NUM_THREADS": str(cores),
    }
    # A job on several devices steps on all at once: in one order for all jobs, or two could wait for each other.
    locks = [str(paths.compute_locks[gpu]) for gpu in sorted(set(slot.gpus)) if gpu in paths.compute_locks]
    if locks:
        env["COTENANT_ENGINE"] = "\n".join(locks)
    return env


def _real_enforcement(vendor: Vendor, launch: Launch) -> list[str]:
    compute = launch_compute(launch.grants)
    devices = f"devices: {vendor.row.visible[0]} names the job's GPUs; a program that ignores it "
    rung = launch.env.get(ISOLATION)
    if rung in (Rung.DRIVER, Rung.MPS):
        return _mps_enforcement(launch, devices, by_driver=rung == Rung.DRIVER)
    if "LD_PRELOAD" not in launch.env:
        reserved = "is reserved for the job, but not enforced"
        return [
            f"memory: {_memory_words(launch)} on each GPU {reserved}",
            f"compute: {percent_of(compute)} % {reserved}" if is_throttled(compute) else "compute: not limited",
            f"{devices}can reach the others",
            "isolation: none, as the job or the settings of the daemon wish"
            if rung == Rung.NONE
            else vendor.row.unenforced() or NONE_BUILT,
        ]
    unlimited = all(grant.whole for grant in launch.grants)
    return [
        "memory: not limited"
        if unlimited
        else f"memory: {_memory_words(launch)} on each GPU, by the vGPU library: beyond it an allocation fails as out "
        "of memory",
        f"compute: {percent_of(compute)} % while others want the GPU, by the vGPU library"
        if is_throttled(compute)
        else "compute: not limited",
        *_elastic_words(launch),
        *(["priority: low, so it waits while a job of priority 0 or more works on its GPU"] if _is_low(launch) else []),
        f"{devices}finds no memory on the others",
        "not enforced: on programs that are linked statically or empty LD_PRELOAD; this is resource control, not a "
        "security boundary",
    ]


def _elastic_words(launch: Launch) -> list[str]:
    amounts = sorted({grant.limit for grant in launch.grants if grant.is_elastic})
    return [
        f"memory above the request: up to {format_memory(amount)} on each GPU while other jobs leave it free; if a job "
        "needs it within its request, growth is refused first, then the job furthest above its request is queued again"
        for amount in amounts
    ]


def _mps_enforcement(launch: Launch, devices: str, *, by_driver: bool) -> list[str]:
    compute = launch_compute(launch.grants)
    holder = "all processes together, by the driver" if by_driver else "each process, by MPS"
    unheld = "compute of" if by_driver else "the sum of"
    leaves = "; the memory of a process that moves to another cgroup, as root can" if by_driver else ""
    return [
        "memory: not limited"
        if all(grant.whole for grant in launch.grants)
        else f"memory: {_memory_words(launch)} for {holder}: beyond it an allocation fails as out of memory",
        f"compute: {percent_of(compute)} % of the GPU's threads for each process, by MPS, also while the GPU is idle"
        if is_throttled(compute)
        else "compute: not limited",
        f"{devices}finds the GPUs of others",
        "faults: MPS clients of one GPU are one trust domain; a fault in one of them ends all of them",
        f"not enforced: {unheld} several processes of the job; a process that removes the MPS variables from its "
        f"environment is limited like the largest tenant of the GPU{leaves}",
    ]


def _is_low(launch: Launch) -> bool:
    return launch.limits.priority is Priority.LOW


def _memory_words(launch: Launch) -> str:
    amounts = sorted({grant.memory for grant in launch.grants})
    return " and ".join(format_memory(amount) for amount in amounts)


def _simulated_compute(launch: Launch, means: Means) -> str:
    compute = launch_compute(launch.grants)
    pinned = f"pinned to {counted(len(launch.cpus or ()), 'core')}"
    if not is_throttled(compute):
        return f"compute: not limited beyond being {pinned}"
    share = f"compute: {percent_of(compute)} %, {pinned}, by"
    if launch.cgroup is not None:
        return f"{share} a CPU quota ({means})"
    return f"{share} stopping and continuing it in slots of 100 ms (no cgroup may be made here)"
