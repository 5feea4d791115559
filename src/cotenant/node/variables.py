# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Environment variables that tell a process which GPUs it has, and how much of each.

The vendor's own names are in the table of vendors. Names of other GPU-sharing systems are here: programs that were
written for one of them find what they expect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.core.model import Gpus
from cotenant.core.units import MiB, MilliGpu
from cotenant.node.devices.vendors import Vendor


class Grant(NamedTuple):
    """What a job may use of one GPU."""

    uuid: str
    memory: MiB
    compute: MilliGpu
    whole: bool = False
    """No amount of memory was requested: the job may use all that the GPU has."""


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
    """Aliyun's gpushare, with memory in MiB: programs divide ..._CONTAINER by ..._DEV to learn their fraction."""
    total = str(sum(grant.memory for grant in gpu_grants.grants))
    return {
        "ALIYUN_COM_GPU_MEM_IDX": _indices(gpu_grants),
        "ALIYUN_COM_GPU_MEM_POD": total,
        "ALIYUN_COM_GPU_MEM_CONTAINER": total,
        "ALIYUN_COM_GPU_MEM_DEV": str(gpu_grants.smallest_gpu),
    }


def _vgpu(gpu_grants: GpuGrants) -> Mapping[str, str]:
    """4paradigm's vGPU and HAMi: a limit for each visible GPU, and one share of compute for all of them."""
    env = {f"CUDA_DEVICE_MEMORY_LIMIT_{place}": f"{grant.memory}m" for place, grant in enumerate(gpu_grants.grants)}
    return env | ({"CUDA_DEVICE_SM_LIMIT": str(percent_of(gpu_grants.grants[0].compute))} if gpu_grants.grants else {})


OTHER_SYSTEMS: Mapping[str, Callable[[GpuGrants], Mapping[str, str]]] = {"gpushare": _gpushare, "vgpu": _vgpu}
