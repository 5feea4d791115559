# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Collects what the metrics of a node say of its GPUs and tenants, for every engine.

An engine says which tenants there are and what they were assigned. The driver and the usage regions say what they use.
Regions are files, so this may run in a thread: it reads nothing that an event loop changes.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MIB_BYTES, WHOLE_GPU
from cotenant.metrics.figures import GpuFigures, TenantFigures, TenantGpuFigures
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.node.monitor import CONTEXT_BYTES, DriverUsage, UsageHistory, driver_usage, slice_view
from cotenant.node.slices import SliceState
from cotenant.wire.slice_status import SliceGpu

SHORTEST_S = 0.5
"""Between two looks from which the compute that a tenant got is computed."""


class Assigned(NamedTuple):
    """What a tenant was assigned of one GPU."""

    memory_bytes: int | None = None
    """What it is guaranteed, and counts as allocated; None: no amount."""
    compute: float | None = None
    """Fraction of the GPU; None: no limit."""
    memory_limit_bytes: int | None = None
    """What it may use while others leave it free; None: no more than it is guaranteed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A tenant as its engine knows it."""

    key: str
    """Its job or the UID of its pod."""
    known: TenantFigures
    """Without its GPUs."""
    assigned: Mapping[str, Assigned]
    """By UUID."""
    reported_busy_s: float = 0.0
    """Device time that its program reported; used if no usage region says more."""
    read_throttled_s: Callable[[], float] = lambda: 0.0
    """How long something other than the vGPU library held it back; called in a thread."""
    read_slices: Callable[[], Iterable[SliceState]] = lambda: ()
    """Reads its limits and usage regions; called in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What an engine hands over at one scrape."""

    machine: Machine
    vendor: str
    usage: Sequence[GpuUsage]
    occupants: Sequence[Occupant]
    allocated: Mapping[str, Assigned]
    """Of each GPU, to all tenants."""
    owner_of: Callable[[ProcessUsage], str | None]
    """The key of the tenant that a process belongs to; called in a thread."""


@dataclass(slots=True)
class _Seen:
    """What was seen of one tenant on one GPU at the last look."""

    device_s: float
    at: float
    got: float | None = None


@dataclass(slots=True)
class Collector:
    """Collects, and keeps what a later look needs of an earlier one. Not to be called by two threads at a time."""

    proc: Path = Path("/proc")
    clock: Callable[[], float] = time.monotonic
    _histories: dict[tuple[str, str, float | None], UsageHistory] = field(default_factory=dict)
    """By tenant, slice and the time at which the slice was made."""
    _seen: dict[tuple[str, str], _Seen] = field(default_factory=dict)
    """By tenant and UUID."""

    def collect(self, look: Look) -> tuple[tuple[GpuFigures, ...], tuple[TenantFigures, ...]]:
        """The GPUs and the tenants."""
        drivers = driver_usage(look.usage, self.proc)
        processes = _by_tenant(look)
        histories, seen = self._histories, self._seen
        self._histories, self._seen = {}, {}
        tenants = tuple(
            replace(one.known, gpus=self._on_gpus(one, drivers, processes, histories, seen)) for one in look.occupants
        )
        used = {one.uuid: one for one in look.usage}
        counts = [gpu for one in look.occupants for gpu in one.assigned]
        gpus = tuple(
            _gpu(gpu, index, look, used.get(gpu.uuid), counts.count(gpu.uuid))
            for index, gpu in enumerate(look.machine.gpus)
        )
        return gpus, tenants

    def _on_gpus(
        self,
        one: Occupant,
        drivers: Mapping[str, DriverUsage],
        processes: Mapping[tuple[str, str], Sequence[ProcessUsage]],
        histories: Mapping[tuple[str, str, float | None], UsageHistory],
        seen: Mapping[tuple[str, str], _Seen],
    ) -> tuple[TenantGpuFigures, ...]:
        recorded: dict[str, list[tuple[SliceGpu, int]]] = {}
        for state in one.read_slices():
            if state.region is None:
                continue
            key = one.key, state.name, state.region.created_s
            history = self._histories[key] = histories.get(key) or UsageHistory()
            view = slice_view(state, drivers, history)
            for gpu in view.gpus:
                recorded.setdefault(gpu.uuid or "", []).append((gpu, view.processes))
        return tuple(
            self._on_gpu(one, uuid, recorded.get(uuid, ()), processes.get((one.key, uuid), ()), seen)
            for uuid in one.assigned
        )

    def _on_gpu(
        self,
        one: Occupant,
        uuid: str,
        slices: Sequence[tuple[SliceGpu, int]],
        processes: Sequence[ProcessUsage],
        seen: Mapping[tuple[str, str], _Seen],
    ) -> TenantGpuFigures:
        parts = [part for part, _ in slices]
        throttled_s = one.read_throttled_s() / max(1, len(one.assigned))
        device_s = sum(part.busy_s for part in parts) if parts else one.reported_busy_s / max(1, len(one.assigned))
        # Without a usage region, the driver's own number is better than what a program reports of itself.
        got, busy = self._got((one.key, uuid), device_s, seen), _busy(processes)
        drifts = [_explained(part, count) for part, count in slices]
        known = None if not drifts or None in drifts else [drift for drift in drifts if drift is not None]
        memory = [process.memory_mib for process in processes]
        used = sum(MIB_BYTES * mib for mib in memory if mib is not None)
        return TenantGpuFigures(
            uuid=uuid,
            memory_request_bytes=one.assigned[uuid].memory_bytes,
            memory_limit_bytes=one.assigned[uuid].memory_limit_bytes or one.assigned[uuid].memory_bytes,
            compute_asked=one.assigned[uuid].compute,
            compute_got=got if parts or busy is None else busy,
            used_bytes=None if None in memory else used,
            recorded_bytes=sum(part.memory_bytes for part in parts) if parts else None,
            peak_bytes=sum(part.peak_bytes for part in parts),
            host_bytes=sum(part.host_bytes for part in parts),
            processes=len(processes) or sum(count for _, count in slices),
            device_s=device_s,
            throttled_s=sum(part.waited_s for part in parts) + throttled_s,
            refused=sum(part.refused for part in parts),
            launches=sum(part.launches for part in parts),
            paused=any(part.paused for part in parts),
            context_bytes=None if known is None else sum(context for context, _ in known),
            drift_bytes=None if known is None else sum(drift for _, drift in known),
        )

    def _got(self, key: tuple[str, str], device_s: float, seen: Mapping[tuple[str, str], _Seen]) -> float | None:
        """The part of the GPU's time since the last look; a steady clock, so a clock that is set changes nothing."""
        now, before = self.clock(), seen.get(key)
        if before is not None and now - before.at < SHORTEST_S:
            self._seen[key] = before
            return before.got
        got = None if before is None else max(0.0, device_s - before.device_s) / (now - before.at)
        self._seen[key] = _Seen(device_s, now, got)
        return got


def _explained(part: SliceGpu, processes: int) -> tuple[int, int] | None:
    """What the driver holds for contexts, and the rest of the difference between it and the region."""
    if part.drift_bytes is None:
        return None
    context = min(max(0, part.drift_bytes), processes * CONTEXT_BYTES)
    return context, part.drift_bytes - context


def _busy(processes: Sequence[ProcessUsage]) -> float | None:
    """The part of the GPU that these processes used; None if the driver does not say it of all."""
    parts = [process.utilisation for process in processes]
    return None if not parts or None in parts else sum(part for part in parts if part is not None) / 100


def _by_tenant(look: Look) -> dict[tuple[str, str], list[ProcessUsage]]:
    found: dict[tuple[str, str], list[ProcessUsage]] = {}
    for gpu in look.usage:
        for process in gpu.processes or ():
            owner = look.owner_of(process)
            if owner is not None:
                found.setdefault((owner, gpu.uuid), []).append(process)
    return found


def _gpu(gpu: Gpu, index: int, look: Look, usage: GpuUsage | None, tenants: int) -> GpuFigures:
    allocated = look.allocated.get(gpu.uuid, Assigned())
    return GpuFigures(
        uuid=gpu.uuid,
        index=index,
        type=gpu.type,
        vendor=look.vendor,
        mode=gpu.mig or "",
        memory_bytes=MIB_BYTES * gpu.memory,
        allocatable_bytes=MIB_BYTES * gpu.memory_capacity,
        allocated_bytes=allocated.memory_bytes or 0,
        compute_capacity=gpu.compute_capacity / WHOLE_GPU,
        compute_allocated=allocated.compute or 0.0,
        slots=gpu.slots,
        tenants=tenants,
        healthy=gpu.healthy,
        cordoned=gpu.cordoned,
        used_bytes=None if usage is None or usage.used_mib is None else MIB_BYTES * usage.used_mib,
        utilization=None if usage is None else _fraction(usage.utilisation),
        bandwidth=None if usage is None else _fraction(usage.bandwidth),
        temperature_celsius=None if usage is None else usage.temperature_celsius,
        power_watts=None if usage is None else usage.power_watts,
    )


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
