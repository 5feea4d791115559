# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The claim of a tenant: what it takes of each GPU at its peak, counted as Kubernetes counts containers.

peak = max(app containers + sidecars, each init container + the sidecars started before it), for each GPU.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from cotenant.core.model import Claim, Container, ContainerKind, Demand, Gpu, Gpus
from cotenant.core.units import WHOLE_GPU, MiB, MilliGpu

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Size = TypeVar("Size", int, "NDArray[np.int64]")
"""one amount, or an array of them"""

NOTHING = Claim(MiB(0), MilliGpu(0), 0)


def memory_of(request: Demand | Container, capacity: Size) -> MiB | Size:
    """MiB needed on a GPU with so much memory, or on each of many; a percentage is rounded down, so that two halves
    fit."""
    return request.memory if request.memory_percent is None else capacity * request.memory_percent // 100


def with_margin(peak: float, margin_percent: int) -> MiB:
    """The memory that is requested for a workload: its measured peak in MiB, and a margin for what was not measured."""
    return MiB(max(1, math.ceil(peak * (100 + margin_percent) / 100)))


def memory_on(request: Demand | Container, gpu: Gpu) -> MiB:
    """MiB needed on this GPU; a percentage is of what the GPU hands out."""
    return MiB(memory_of(request, int(gpu.memory_capacity)))


def memory_limit_on(request: Demand | Container, gpu: Gpu) -> MiB:
    """MiB that it may use on this GPU while others leave it free: at least what it requests, at most what there is."""
    limit = request.memory_limit
    if request.memory_limit_percent is not None:
        limit = MiB(gpu.memory_capacity * request.memory_limit_percent // 100)
    requested = memory_on(request, gpu)
    return requested if limit is None else max(requested, min(limit, gpu.memory_capacity))


def compute_of(request: Demand | Container, capacity: Size) -> MilliGpu | Size:
    """Milli-GPU needed on a GPU with so much compute, or on each of many: a request that names a MIG profile needs a
    share of the instance."""
    return request.compute if request.mig is None else capacity * request.compute // WHOLE_GPU


def compute_on(request: Demand | Container, gpu: Gpu) -> MilliGpu:
    """Milli-GPU needed on this GPU."""
    return MilliGpu(compute_of(request, int(gpu.compute_capacity)))


def compute_limit_on(request: Demand | Container, gpu: Gpu) -> MilliGpu:
    """Milli-GPU that it may have on this GPU while no other tenant requests them: at least what it requests."""
    requested = compute_on(request, gpu)
    if request.compute_limit is None:
        return requested
    limit = request.compute_limit if request.mig is None else gpu.compute_capacity * request.compute_limit // WHOLE_GPU
    return MilliGpu(max(requested, min(limit, WHOLE_GPU)))


def claims(demand: Demand, chosen: Gpus, gpus: Sequence[Gpu]) -> Mapping[int, Claim]:
    """The peak claim on each GPU of a slot; a GPU that was removed has nothing to claim."""
    if demand.claim is not None:
        present = chosen if max(chosen, default=0) < len(gpus) else tuple(i for i in chosen if i < len(gpus))
        return dict.fromkeys(present, demand.claim)
    if demand.containers:
        return container_claims(demand, chosen, gpus)
    return {
        i: Claim(
            memory_on(demand, gpus[i]),
            compute_on(demand, gpus[i]),
            gpus[i].slots if demand.exclusive else 1,
        )
        for i in chosen
        if i < len(gpus)
    }


def by_container(demand: Demand, chosen: Gpus) -> Iterator[tuple[Container, Gpus]]:
    """Each container of a pod with its own GPUs of the slot."""
    start = 0
    for container in demand.containers:
        yield container, chosen[start : start + container.gpus]
        start += container.gpus


def container_claims(demand: Demand, chosen: Gpus, gpus: Sequence[Gpu]) -> Mapping[int, Claim]:
    """Peak per GPU over the phases of a pod: its init containers one after the other, then everything that stays."""
    staying: dict[int, Claim] = {}
    peak: dict[int, Claim] = {}
    apps: list[tuple[Container, Gpus]] = []
    for container, own in by_container(demand, chosen):
        if container.kind is ContainerKind.APP:
            apps.append((container, own))
            continue
        running = _with(staying, container, own, gpus)
        peak = _larger(peak, running)
        if container.kind is ContainerKind.SIDECAR:
            staying = running
    for container, own in apps:
        staying = _with(staying, container, own, gpus)
    peak = _larger(peak, staying)
    if demand.exclusive:
        return {i: claim._replace(slots=gpus[i].slots) for i, claim in peak.items()}
    return peak


def _with(running: dict[int, Claim], container: Container, own: Gpus, gpus: Sequence[Gpu]) -> dict[int, Claim]:
    total = dict(running)
    for i in (one for one in own if one < len(gpus)):
        old = total.get(i, NOTHING)
        total[i] = Claim(
            MiB(old.memory + memory_on(container, gpus[i])),
            MilliGpu(old.compute + compute_on(container, gpus[i])),
            old.slots + 1,
        )
    return total


def _larger(one: dict[int, Claim], other: dict[int, Claim]) -> dict[int, Claim]:
    return {i: larger_of(one.get(i, NOTHING), other.get(i, NOTHING)) for i in sorted(one.keys() | other.keys())}


def larger_of(a: Claim, b: Claim) -> Claim:
    """The larger of each amount."""
    return Claim(max(a.memory, b.memory), max(a.compute, b.compute), max(a.slots, b.slots))
