# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The metric names that HAMi's dashboards query, present and older ones, for clusters that come from HAMi.

HAMi spreads them over its scheduler and its monitor; here a node has all of them. Values have HAMi's units: a "ratio"
of compute or utilisation is in percent there.
"""

from collections.abc import Callable
from typing import NamedTuple

from cotenant.metrics.figures import GpuFigures, TenantFigures, TenantGpuFigures
from cotenant.metrics.table import Measured, Type


class PodGpu(NamedTuple):
    """What a pod has of one GPU."""

    pod: TenantFigures
    place: int
    """Of the GPU among those of the pod."""
    use: TenantGpuFigures


_DEVICE = ("node", "device_uuid", "device_index", "device_type")
_OLD_DEVICE = ("nodeid", "deviceuuid", "deviceidx", "devicetype")
_OLD_HOST = ("node_name", "deviceuuid", "deviceidx", "devicetype")
_VGPU = ("node", "namespace", "pod", "container", "vdevice_index", "device_uuid")
_OLD_VGPU = ("node_name", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_OLD_POD = ("nodename", "podnamespace", "podname", "containeridx", "deviceuuid")


def _of_gpu(
    names: tuple[str, str], help_: str, value: Callable[[GpuFigures], float], *, host: bool = False
) -> tuple[Measured[GpuFigures], ...]:
    """A metric of GPUs under its present and its older name."""

    def labelled(gpu: GpuFigures) -> list[tuple[tuple[str, ...], float]]:
        return [((gpu.uuid, str(gpu.index), gpu.type), value(gpu))]

    return tuple(
        Measured(name=name, type=Type.GAUGE, help=help_, labels=labels, more=labels[1:], values=labelled)
        for name, labels in zip(names, (_DEVICE, _OLD_HOST if host else _OLD_DEVICE), strict=True)
        if name
    )


def _of_pod(
    names: tuple[str, str], help_: str, value: Callable[[TenantGpuFigures], float], *, allocated: bool = False
) -> tuple[Measured[PodGpu], ...]:
    """A metric of containers under its present and its older name."""

    def of_container(one: PodGpu) -> list[tuple[tuple[str, ...], float]]:
        pod, use = one.pod, one.use
        return [((pod.namespace, pod.name, pod.container, str(one.place), use.uuid), value(use))]

    def of_place(one: PodGpu) -> list[tuple[tuple[str, ...], float]]:
        return [((one.pod.namespace, one.pod.name, "0", one.use.uuid), value(one.use))]

    old = _OLD_POD if allocated else _OLD_VGPU
    rows = ((names[0], _VGPU, of_container), (names[1], old, of_place if allocated else of_container))
    return tuple(
        Measured(name=name, type=Type.GAUGE, help=help_, labels=labels, more=labels[1:], values=values)
        for name, labels, values in rows
        if name
    )


def _limit(use: TenantGpuFigures) -> float:
    return use.memory_limit_bytes or 0


def _used(use: TenantGpuFigures) -> float:
    return (use.used_bytes if use.used_bytes is not None else use.recorded_bytes) or 0


HAMI_GPU: tuple[Measured[GpuFigures], ...] = (
    *_of_gpu(("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit"), "Memory.", lambda gpu: gpu.allocatable_bytes),
    *_of_gpu(
        ("hami_gpu_core_limit_ratio", "GPUDeviceCoreLimit"), "Compute, percent.", lambda gpu: 100 * gpu.compute_capacity
    ),
    *_of_gpu(
        ("hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated"),
        "Memory that is assigned.",
        lambda gpu: gpu.allocated_bytes,
    ),
    *_of_gpu(("hami_gpu_shared_count", "GPUDeviceSharedNum"), "Containers on the GPU.", lambda gpu: gpu.tenants),
    *_of_gpu(
        ("hami_gpu_core_allocated_ratio", "GPUDeviceCoreAllocated"),
        "Compute that is assigned, percent.",
        lambda gpu: 100 * gpu.compute_allocated,
    ),
    *_of_gpu(
        ("hami_node_gpu_overview", "nodeGPUOverview"), "Memory that is assigned.", lambda gpu: gpu.allocated_bytes
    ),
    *_of_gpu(
        ("hami_node_gpu_memory_allocated_ratio", "nodeGPUMemoryPercentage"),
        "Part of the memory that is assigned.",
        lambda gpu: gpu.allocated_bytes / max(1, gpu.allocatable_bytes),
    ),
    *_of_gpu(
        ("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage"),
        "Memory in use.",
        lambda gpu: gpu.used_bytes or 0,
        host=True,
    ),
    *_of_gpu(
        ("hami_host_gpu_utilization_ratio", "HostCoreUtilization"),
        "Utilisation, percent.",
        lambda gpu: 100 * (gpu.utilization or 0),
        host=True,
    ),
    *_of_gpu(
        ("hami_host_gpu_memory_controller_utilization_ratio", ""),
        "Utilisation of the memory's bandwidth, percent.",
        lambda gpu: 100 * (gpu.bandwidth or 0),
    ),
)

HAMI_POD: tuple[Measured[PodGpu], ...] = (
    *_of_pod(("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"), "Memory in use.", _used),
    *_of_pod(("hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"), "Memory limit.", _limit),
    *_of_pod(("hami_container_device_memory_bytes", "Device_memory_desc_of_container"), "Memory in use.", _used),
    *_of_pod(
        ("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container"),
        "Compute in use, percent.",
        lambda use: 100 * (use.compute_got or 0),
    ),
    *_of_pod(("hami_vgpu_memory_context_bytes", ""), "Memory of contexts.", lambda use: use.context_bytes or 0),
    *_of_pod(("hami_vgpu_memory_buffer_bytes", ""), "Memory that was allocated.", lambda use: use.recorded_bytes or 0),
    *_of_pod(
        ("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated"), "Memory that is assigned.", _limit, allocated=True
    ),
    *_of_pod(("", "vGPUPodsDeviceAllocated"), "Memory that is assigned.", _limit, allocated=True),
    *_of_pod(
        ("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated"),
        "Compute that is assigned, percent.",
        lambda use: 100 * (use.compute_asked or 0),
        allocated=True,
    ),
)
