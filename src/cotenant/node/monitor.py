# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What slices use: the usage regions of their processes, compared with the driver's numbers for each process.

Tenants write the regions themselves, so the difference matters: it is what the driver takes for each process, or memory
that bypassed the vGPU library.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MIB_BYTES
from cotenant.node.company import inner_pid, pid_space
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.devices.processes import read_process
from cotenant.node.limits import GpuLimit
from cotenant.node.region import FAULTS, LARGEST_COUNT, GpuUse, Process, ProcessIdentity, Region
from cotenant.node.slices import SliceState
from cotenant.wire.slice_status import SliceGpu, SliceView

CONTEXT_BYTES = 768 * MIB_BYTES
"""what a driver may take for a process beyond its allocations; depends on the GPU and on the kernels that it loads"""
UNLIMITED = GpuLimit("", None)


class UsageHistory:
    """The processes that a slice has had. It keeps what ended processes used, since their slots are used again."""

    def __init__(self) -> None:
        self._known: dict[ProcessIdentity, Process] = {}
        self._peak_bytes: dict[int, int] = {}
        """most memory of all processes together, by the number of the GPU"""

    def add(self, region: Region) -> None:
        self._known |= {process.identity: process for process in region.processes}
        for gpu in range(len(region.uuids)):
            now = _held(process.gpus[gpu] for process in region.processes if process.live)
            self._peak_bytes[gpu] = max(self._peak_bytes.get(gpu, 0), now)

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(self._known.values())

    def peak_bytes(self, gpu: int) -> int:
        return self._peak_bytes.get(gpu, 0)


def gpu_uuids(seen: SliceState) -> tuple[str | None, ...]:
    """The GPUs of a slice by their number in its region; the limits take precedence over what the tenant wrote."""
    named = tuple(limit.uuid for limit in seen.limits.gpus)
    return named if seen.region is None else named + seen.region.uuids[len(named) :]


def slice_view(
    seen: SliceState, drivers: Mapping[str, "DriverUsage"] | None = None, history: UsageHistory | None = None
) -> SliceView:
    """A slice as commands show it. `drivers` are by UUID; a history adds processes that have ended."""
    history = history or UsageHistory()
    if seen.region is not None:
        history.add(seen.region)
    processes = () if seen.region is None else seen.region.processes
    live = [process for process in processes if process.live]
    counts = [() if seen.region is None else seen.region.faults, *(one.faults for one in history.processes)]
    return SliceView(
        name=seen.name,
        created=None if seen.region is None else seen.region.created_s,
        policy=seen.limits.policy,
        priority=seen.limits.priority,
        processes=len(live),
        faults=_faults(counts),
        gpus=tuple(
            _gpu(gpu, uuid, seen, live, history, (drivers or {}).get(uuid or ""))
            for gpu, uuid in enumerate(gpu_uuids(seen))
        ),
    )


def _gpu(
    gpu: int,
    uuid: str | None,
    seen: SliceState,
    live: Sequence[Process],
    history: UsageHistory,
    driver: "DriverUsage | None",
) -> SliceGpu:
    limits = seen.limits
    limit = next((one for one in limits.gpus if one.uuid == uuid), limits.others or UNLIMITED)
    ever = [process.gpus[gpu] for process in history.processes if gpu < len(process.gpus)]
    now = [process.gpus[gpu] for process in live if gpu < len(process.gpus)]
    memory = _sum(use.memory_bytes for use in now)
    nvml = None if driver is None else driver.memory_of(process.identity for process in live)
    drift = None if nvml is None else nvml - memory
    return SliceGpu(
        uuid=uuid,
        memory_limit_bytes=limit.memory_bytes,
        host_limit_bytes=limit.host_bytes,
        compute_limit=limit.compute,
        paused=limit.paused,
        memory_bytes=memory,
        host_bytes=_sum(use.host_bytes for use in now),
        peak_bytes=max([history.peak_bytes(gpu), *(use.peak_bytes for use in ever)]),
        refused=_sum(use.refused for use in ever),
        launches=_sum(use.launches for use in ever),
        busy_s=_sum(use.busy_ns for use in ever) / 1e9,
        waited_s=_sum(use.waited_ns for use in ever) / 1e9,
        nvml_bytes=nvml,
        drift_bytes=drift,
        drift_percent=None if drift is None or not memory else 100 * drift / memory,
    )


def notable_drift(view: SliceView) -> tuple[str, ...]:
    """A sentence for each GPU on which region and driver differ by more than contexts and rounding explain."""
    return tuple(
        f"{gpu.uuid}: {gpu.nvml_bytes // MIB_BYTES} MiB by the driver, {gpu.memory_bytes // MIB_BYTES} by the accounts"
        for gpu in view.gpus
        if gpu.nvml_bytes is not None and _is_notable(gpu, view.processes)
    )


def _is_notable(gpu: SliceGpu, processes: int) -> bool:
    drift = gpu.drift_bytes or 0
    # More by the driver is explained up to one context per process; less only by rounding and by memory that the driver
    # counts late.
    return drift > processes * CONTEXT_BYTES or -drift > max(64 * MIB_BYTES, gpu.memory_bytes // 10)


# The driver's side.


class DriverUsage(NamedTuple):
    """What the driver says of one GPU, with the process IDs that processes have in their own namespace."""

    memory: Mapping[tuple[int, int], Sequence[tuple[int | None, int | None]]]
    """(pid, start time) -> pid namespace (inode) and bytes of each process that matches; None: unknown"""
    complete: bool
    """whether all processes that the driver lists were identified"""

    def memory_of(self, processes: Iterable[ProcessIdentity]) -> int | None:
        """Bytes of these processes together; None if unknown."""
        total = 0
        for process in processes:
            found = self.memory.get((process.pid, process.started), ())
            if len(found) > 1:  # the same pid, started at the same moment, in two containers
                found = [one for one in found if one[0] == process.pid_space]
            if len(found) == 1 and found[0][1] is not None:
                total += found[0][1]
            elif found or not self.complete:
                return None
        return total


def driver_usage(usage: Iterable[GpuUsage], proc: Path = Path("/proc")) -> dict[str, DriverUsage]:
    """The driver's numbers by UUID, with processes identified as in usage regions."""
    return {gpu.uuid: _driver(gpu, proc) for gpu in usage if gpu.processes is not None}


def _driver(gpu: GpuUsage, proc: Path) -> DriverUsage:
    memory: dict[tuple[int, int], list[tuple[int | None, int | None]]] = {}
    complete = True
    for process in gpu.processes or ():
        inner, known = inner_pid(process.pid, proc), read_process(process.pid, proc)
        if inner is None or known is None:
            complete = False
            continue
        amount = None if process.memory_mib is None else process.memory_mib * MIB_BYTES
        memory.setdefault((inner, known.started), []).append((pid_space(process.pid, proc), amount))
    return DriverUsage(memory, complete)


def _faults(counts: Iterable[Iterable[int]]) -> dict[str, int]:
    totals = [0] * len(FAULTS)
    for one in counts:
        for number, count in enumerate(one):
            totals[number] = min(LARGEST_COUNT, totals[number] + count)
    return {name: count for name, count in zip(FAULTS, totals, strict=True) if count}


def _held(uses: Iterable[GpuUse]) -> int:
    return _sum(use.memory_bytes + use.host_bytes for use in uses)


def _sum(values: Iterable[int]) -> int:
    return min(LARGEST_COUNT, sum(values))
