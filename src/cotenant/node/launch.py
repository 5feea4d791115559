# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a slot means for a process: its environment, its cores, its limits, and which of them really hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cotenant.core.footprint import claims
from cotenant.core.model import Demand, Machine, Slot
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, MiB, MilliCpu, MilliGpu, format_memory
from cotenant.node.devices import Kind
from cotenant.node.limits import MOST_GPUS, GpuLimit, Limits, Priority
from cotenant.node.preload import NONE_BUILT
from cotenant.node.shares import Means, Shares

RESERVED = 2
"""times its limit that one process may reserve: what is reserved need not be used"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a job on a simulated GPU may use beyond what it asked for, because a real GPU would not count it."""

    runtime: MiB = MiB(250)
    """resident after importing a framework; measured with JAX"""
    compiling: MiB = MiB(180)
    """more while it compiles; measured with JAX"""
    stacks_per_core: MiB = MiB(64)
    """thread stacks that are reserved but not resident, for each core beyond the first"""

    @property
    def baseline(self) -> MiB:
        return MiB(self.runtime + self.compiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The sockets that jobs are told of."""

    agent: Path
    """the agent's socket"""
    engines: Mapping[int, Path] = field(default_factory=dict)
    """the engine socket of each simulated GPU"""


class Grant(NamedTuple):
    """What a job may use of one GPU."""

    uuid: str
    memory: MiB
    compute: MilliGpu
    whole: bool = False
    """no amount of memory was asked for: it may use the card's"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Where a job's processes find their limits, and by what they are held to them."""

    limits: Path
    region: Path | None = None
    """where they write down what they use; None: nobody reads it"""
    preload: str | None = None
    """LD_PRELOAD with the vGPU library; None: nothing holds limits on real GPUs"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a job; the names are those of the supervisor's `spec.json`."""

    env: Mapping[str, str]
    """to add to the job's own environment; these win"""
    grants: tuple[Grant, ...]
    limits: Limits
    """the same for the vGPU library"""
    cpus: tuple[int, ...] | None
    """cores to pin to before exec"""
    rlimit_data_mib: int | None
    memory_mib: int | None
    memory_baseline_mib: int
    share_percent: int | None
    """of the time it may run, by stop-and-continue"""
    cgroup: Path | None
    """group to create with `cgroup_cpu` and to join before exec"""
    cgroup_cpu: MilliCpu | None


def launch_for(
    machine: Machine,
    slot: Slot,
    demand: Demand,
    *,
    job: str,
    paths: Paths,
    slice_: Slice,
    kind: Kind,
    cores: tuple[int, ...],
    shares: Shares,
    batch: int | None = None,
    allowance: Allowance | None = None,
) -> Launch:
    """Everything that the slot means for the job's first process. `cores` are the backend's for this slot."""
    grants = _grants(machine, slot, demand)
    limits = _limits(grants, demand, slice_.region)
    env = _common_env(machine, slot, grants, kind) | {
        "COTENANT_JOB": job,
        "COTENANT_AGENT": str(paths.agent),
        "COTENANT_LIMITS": str(slice_.limits),
    }
    if slice_.preload is not None:
        env["LD_PRELOAD"] = slice_.preload
    if batch is not None:
        env["COTENANT_BATCH"] = str(batch)
    if kind is not Kind.SIMULATED or not slot.gpus:  # without a GPU there is nothing to limit
        return Launch(
            env=env,
            grants=grants,
            limits=limits,
            cpus=None,
            rlimit_data_mib=None,
            memory_mib=None,
            memory_baseline_mib=0,
            share_percent=None,
            cgroup=None,
            cgroup_cpu=None,
        )
    allowance = allowance or Allowance()
    memory = sum(grant.memory for grant in grants)
    compute = launch_compute(grants)
    throttled = is_throttled(compute)
    group = shares.group(job) if throttled else None
    return Launch(
        env=env | _simulated_env(slot, paths, len(cores)),
        grants=grants,
        limits=limits,
        cpus=cores,
        # Above the limit that is looked after, so that a job over it ends as out of memory and not by its own error;
        # what no look is fast enough for is refused to it all the same.
        rlimit_data_mib=RESERVED * memory + allowance.baseline + (len(cores) - 1) * allowance.stacks_per_core,
        memory_mib=memory,
        memory_baseline_mib=allowance.baseline,
        share_percent=_percent(compute) if throttled and group is None else None,
        cgroup=group,
        cgroup_cpu=MilliCpu(compute * len(cores)) if group is not None else None,
    )


def is_throttled(compute: MilliGpu) -> bool:
    """Whether a share of compute is a limit: a whole GPU has no limit, and 0 claims nothing and is not held back."""
    return 0 < compute < WHOLE_GPU


def launch_compute(grants: tuple[Grant, ...]) -> MilliGpu:
    """The share of its GPUs that a job has: asked of each alike, so that its processes can be held to one number."""
    return max((grant.compute for grant in grants), default=WHOLE_GPU)


def enforcement(kind: Kind, launch: Launch, means: Means) -> list[str]:
    """One sentence each on how memory and compute are held, and on what is not held at all."""
    if kind is not Kind.SIMULATED:
        return _real_enforcement(launch)
    whole = MiB(launch.memory_mib or 0)
    return [
        f"memory: {format_memory(whole)} above the runtime's own {launch.memory_baseline_mib} MiB; one process "
        f"that reserves {RESERVED} times that is refused it (RLIMIT_DATA), all of them are ended as out of memory",
        _simulated_compute(launch, means),
        "steps: only programs that use the job library take turns on the engine; others just share the cores",
        "not enforced: caches, memory bandwidth, and memory that is shared between processes or mapped from files "
        "until it is resident",
    ]


def _grants(machine: Machine, slot: Slot, demand: Demand) -> tuple[Grant, ...]:
    claimed = claims(demand, slot.gpus, machine.gpus)
    return tuple(
        Grant(
            machine.gpus[gpu].uuid,
            claimed[gpu].memory or machine.gpus[gpu].memory_capacity,
            claimed[gpu].compute,
            whole=not claimed[gpu].memory,
        )
        for gpu in dict.fromkeys(slot.gpus)
    )


def _limits(grants: tuple[Grant, ...], demand: Demand, region: Path | None) -> Limits:
    """For the vGPU library; on GPUs that are not the job's it gets nothing."""
    return Limits(
        gpus=tuple(
            GpuLimit(
                grant.uuid,
                None if grant.whole else grant.memory * MIB_BYTES,
                grant.compute if is_throttled(grant.compute) else WHOLE_GPU,
            )
            for grant in grants[:MOST_GPUS]
        ),
        others=GpuLimit("", 0) if len(grants) <= MOST_GPUS else None,  # the file cannot name more
        region=region,
        priority=Priority.LOW if demand.priority < 0 else Priority.HIGH,
    )


def _common_env(machine: Machine, slot: Slot, grants: tuple[Grant, ...], kind: Kind) -> dict[str, str]:
    indices = ",".join(str(gpu) for gpu in dict.fromkeys(slot.gpus))
    visible = indices if kind is Kind.SIMULATED else ",".join(grant.uuid for grant in grants)
    total = str(sum(grant.memory for grant in grants))
    env = {
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible,
        "ALIYUN_COM_GPU_MEM_IDX": indices,
        "ALIYUN_COM_GPU_MEM_POD": total,
        "ALIYUN_COM_GPU_MEM_CONTAINER": total,
        "ALIYUN_COM_GPU_MEM_DEV": str(min((machine.gpus[gpu].memory for gpu in slot.gpus), default=0)),
    }
    for visible_index, grant in enumerate(grants):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{visible_index}"] = f"{grant.memory}m"
    if grants:
        # 100 is "no limit" to the programs that read it, and 0 too.
        env["CUDA_DEVICE_SM_LIMIT"] = str(_percent(grants[0].compute))
    return env


def _simulated_env(slot: Slot, paths: Paths, cores: int) -> dict[str, str]:
    env = {
        "JAX_PLATFORMS": "cpu",
        # XLA sizes its thread pools by these; its own flags do not limit them.
        "NPROC": str(cores),
        "PJRT_NPROC": str(cores),
        "OMP_NUM_THREADS": str(cores),
    }
    # A job on several devices steps on all at once: in one order for all jobs, or two could wait for each other.
    engines = [str(paths.engines[gpu]) for gpu in sorted(set(slot.gpus)) if gpu in paths.engines]
    if engines:
        env["COTENANT_ENGINE"] = "\n".join(engines)
    return env


def _percent(compute: MilliGpu) -> int:
    """Whole percents as the readers of these limits want them; a share too small to say is 1, not "no limit"."""
    return 0 if compute <= 0 else max(1, min(100, compute // 10))


def _real_enforcement(launch: Launch) -> list[str]:
    held = "LD_PRELOAD" in launch.env
    compute = launch_compute(launch.grants)
    devices = "devices: the job is told its GPUs by CUDA_VISIBLE_DEVICES; a program that ignores it "
    if not held:
        told = "is told to the job and kept free by placement, not enforced"
        return [
            f"memory: {_memory_words(launch)} on each GPU {told}",
            f"compute: {_percent(compute)} % {told}" if is_throttled(compute) else "compute: not limited",
            f"{devices}can reach the others",
            NONE_BUILT,
        ]
    unlimited = all(grant.whole for grant in launch.grants)
    return [
        "memory: not limited"
        if unlimited
        else f"memory: {_memory_words(launch)} on each GPU, by the vGPU library: beyond it the job is told that it is "
        "out of memory",
        f"compute: {_percent(compute)} % while others want the GPU, by the vGPU library"
        if is_throttled(compute)
        else "compute: not limited",
        *(["priority: low, so it waits while a job of priority 0 or more works on its GPU"] if _is_low(launch) else []),
        f"{devices}finds no memory on the others",
        "not enforced: on programs that are linked statically or empty LD_PRELOAD, and what the driver itself takes "
        "for each process; this is resource control, not a security boundary",
    ]


def _is_low(launch: Launch) -> bool:
    return launch.limits.priority is Priority.LOW


def _memory_words(launch: Launch) -> str:
    amounts = sorted({grant.memory for grant in launch.grants})
    return " and ".join(format_memory(amount) for amount in amounts)


def _simulated_compute(launch: Launch, means: Means) -> str:
    compute = launch_compute(launch.grants)
    pinned = f"pinned to {len(launch.cpus or ())} core{'' if len(launch.cpus or ()) == 1 else 's'}"
    if not is_throttled(compute):
        return f"compute: not limited beyond being {pinned}"
    share = f"compute: {_percent(compute)} %, {pinned}, by"
    if launch.cgroup is not None:
        return f"{share} a CPU quota ({means})"
    return f"{share} stopping and continuing it in slots of 100 ms (no cgroup may be made here)"
