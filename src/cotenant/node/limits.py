# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a slot means for a process: its environment, its cores, its limits, and which of them really hold."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cotenant.core.footprint import claims
from cotenant.core.model import Demand, Machine, Slot
from cotenant.core.units import WHOLE_GPU, MiB, MilliCpu, MilliGpu, format_memory
from cotenant.node.devices import Kind
from cotenant.node.shares import Means, Shares

VERSION = 1
RESERVED = 2
"""times its limit that one process may reserve: what is reserved need not be used"""
"""of the limits file"""


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


class GpuLimit(NamedTuple):
    """What a job may use of one GPU."""

    uuid: str
    memory_mib: MiB
    compute_milli: MilliGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a job; the names are those of the supervisor's `spec.json`."""

    env: Mapping[str, str]
    """to add to the job's own environment; these win"""
    limits: tuple[GpuLimit, ...]
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
    limits_file: Path,
    kind: Kind,
    cores: tuple[int, ...],
    shares: Shares,
    batch: int | None = None,
    allowance: Allowance | None = None,
) -> Launch:
    """Everything that the slot means for the job's first process. `cores` are the backend's for this slot."""
    limits = _gpu_limits(machine, slot, demand)
    env = _common_env(machine, slot, limits, kind) | {
        "COTENANT_JOB": job,
        "COTENANT_AGENT": str(paths.agent),
        "COTENANT_LIMITS": str(limits_file),
    }
    if batch is not None:
        env["COTENANT_BATCH"] = str(batch)
    if kind is not Kind.SIMULATED or not slot.gpus:  # without a GPU there is nothing to limit
        return Launch(
            env=env,
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
    memory = sum(limit.memory_mib for limit in limits)
    compute = launch_compute(limits)
    throttled = is_throttled(compute)
    group = shares.group(job) if throttled else None
    return Launch(
        env=env | _simulated_env(slot, paths, len(cores)),
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


def launch_compute(limits: tuple[GpuLimit, ...]) -> MilliGpu:
    """The share of its GPUs that a job has: asked of each alike, so that its processes can be held to one number."""
    return max((limit.compute_milli for limit in limits), default=WHOLE_GPU)


def limits_text(job: str, limits: tuple[GpuLimit, ...]) -> str:
    """The limits file, which the preload library reads."""
    return json.dumps({"version": VERSION, "job": job, "gpus": [limit._asdict() for limit in limits]}, indent=1) + "\n"


def write_limits(path: Path, text: str) -> None:
    """Put the limits file in place: whole or not at all, and read-only from its first moment."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o444)  # whatever the umask says: the job may run as another user
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(fresh, path)


def enforcement(kind: Kind, launch: Launch, means: Means) -> list[str]:
    """One sentence each on how memory and compute are held, and on what is not held at all."""
    if kind is not Kind.SIMULATED:
        return [
            f"memory: {_memory_words(launch)} on each GPU is told to the job and kept free by placement, not enforced",
            _real_compute(launch_compute(launch.limits)),
            "devices: the job is told its GPUs by CUDA_VISIBLE_DEVICES; a program that ignores it can reach the others",
        ]
    whole = MiB(launch.memory_mib or 0)
    return [
        f"memory: {format_memory(whole)} above the runtime's own {launch.memory_baseline_mib} MiB; one process "
        f"that reserves {RESERVED} times that is refused it (RLIMIT_DATA), all of them are ended as out of memory",
        _simulated_compute(launch, means),
        "steps: only programs that use the job library take turns on the engine; others just share the cores",
        "not enforced: caches, memory bandwidth, and memory that is shared between processes or mapped from files "
        "until it is resident",
    ]


def _gpu_limits(machine: Machine, slot: Slot, demand: Demand) -> tuple[GpuLimit, ...]:
    claimed = claims(demand, slot.gpus, machine.gpus)
    # Who asked for no amount of memory may use the card's.
    return tuple(
        GpuLimit(
            machine.gpus[gpu].uuid,
            claimed[gpu].memory or machine.gpus[gpu].memory_capacity,
            claimed[gpu].compute,
        )
        for gpu in dict.fromkeys(slot.gpus)
    )


def _common_env(machine: Machine, slot: Slot, limits: tuple[GpuLimit, ...], kind: Kind) -> dict[str, str]:
    indices = ",".join(str(gpu) for gpu in dict.fromkeys(slot.gpus))
    visible = indices if kind is Kind.SIMULATED else ",".join(limit.uuid for limit in limits)
    total = str(sum(limit.memory_mib for limit in limits))
    env = {
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible,
        "ALIYUN_COM_GPU_MEM_IDX": indices,
        "ALIYUN_COM_GPU_MEM_POD": total,
        "ALIYUN_COM_GPU_MEM_CONTAINER": total,
        "ALIYUN_COM_GPU_MEM_DEV": str(min((machine.gpus[gpu].memory for gpu in slot.gpus), default=0)),
    }
    for visible_index, limit in enumerate(limits):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{visible_index}"] = f"{limit.memory_mib}m"
    if limits:
        # 100 is "no limit" to the programs that read it, and 0 too.
        env["CUDA_DEVICE_SM_LIMIT"] = str(_percent(limits[0].compute_milli))
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


def _memory_words(launch: Launch) -> str:
    amounts = sorted({limit.memory_mib for limit in launch.limits})
    return " and ".join(format_memory(amount) for amount in amounts)


def _real_compute(compute: MilliGpu) -> str:
    if not is_throttled(compute):
        return "compute: not limited"
    return f"compute: {_percent(compute)} % is told to the job and kept free by placement, not enforced"


def _simulated_compute(launch: Launch, means: Means) -> str:
    compute = launch_compute(launch.limits)
    pinned = f"pinned to {len(launch.cpus or ())} core{'' if len(launch.cpus or ()) == 1 else 's'}"
    if not is_throttled(compute):
        return f"compute: not limited beyond being {pinned}"
    share = f"compute: {_percent(compute)} %, {pinned}, by"
    if launch.cgroup is not None:
        return f"{share} a CPU quota ({means})"
    return f"{share} stopping and continuing it in slots of 100 ms (no cgroup may be made here)"
