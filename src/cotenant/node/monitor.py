# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What slices really use: the accounts that their processes keep, joined with what the driver says of each process.

The accounts are the tenant's own, so the difference is worth knowing: it is what the driver takes for each process, or
memory that went past the vGPU library.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MIB_BYTES
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.devices.processes import read_process
from cotenant.node.limits import GpuLimit
from cotenant.node.region import FAULTS, MOST, GpuUse, Process, Region, Who
from cotenant.node.slices import Seen
from cotenant.wire.slice_status import SliceGpu, SliceView

CONTEXT_BYTES = 768 * MIB_BYTES
"""what a driver may take for a process beside what it allocates; depends on the card and on the kernels it loads"""
UNLIMITED = GpuLimit("", None)


class Tally:
    """All processes that a slice has had, as far as they were seen: a slot is used again when its process has ended."""

    def __init__(self) -> None:
        self._known: dict[Who, Process] = {}
        self._largest: dict[int, int] = {}
        """memory of all processes together, by the number of the GPU"""

    def look(self, region: Region) -> None:
        self._known |= {process.who: process for process in region.processes}
        for gpu in range(len(region.uuids)):
            now = _held(process.gpus[gpu] for process in region.processes if process.live)
            self._largest[gpu] = max(self._largest.get(gpu, 0), now)

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(self._known.values())

    def largest(self, gpu: int) -> int:
        return self._largest.get(gpu, 0)


def gpu_names(seen: Seen) -> tuple[str | None, ...]:
    """The GPUs of a slice by their number in its region; the limits are believed before what the tenant wrote."""
    named = tuple(limit.uuid for limit in seen.limits.gpus)
    return named if seen.region is None else named + seen.region.uuids[len(named) :]


def slice_view(seen: Seen, drivers: Mapping[str, "Driver"] | None = None, tally: Tally | None = None) -> SliceView:
    """A slice as people and programs are shown it. `drivers` by UUID; a tally adds processes that have ended."""
    tally = tally or Tally()
    if seen.region is not None:
        tally.look(seen.region)
    processes = () if seen.region is None else seen.region.processes
    live = [process for process in processes if process.live]
    counts = [() if seen.region is None else seen.region.faults, *(one.faults for one in tally.processes)]
    return SliceView(
        name=seen.name,
        created=None if seen.region is None else seen.region.created_s,
        policy=seen.limits.hold,
        priority=seen.limits.priority,
        processes=len(live),
        faults=_faults(counts),
        gpus=tuple(
            _gpu(gpu, uuid, seen, live, tally, (drivers or {}).get(uuid or ""))
            for gpu, uuid in enumerate(gpu_names(seen))
        ),
    )


def _gpu(
    gpu: int, uuid: str | None, seen: Seen, live: Sequence[Process], tally: Tally, driver: "Driver | None"
) -> SliceGpu:
    limits = seen.limits
    limit = next((one for one in limits.gpus if one.uuid == uuid), limits.others or UNLIMITED)
    ever = [process.gpus[gpu] for process in tally.processes if gpu < len(process.gpus)]
    now = [process.gpus[gpu] for process in live if gpu < len(process.gpus)]
    memory = _sum(use.memory_bytes for use in now)
    nvml = None if driver is None else driver.memory_of(process.who for process in live)
    drift = None if nvml is None else nvml - memory
    return SliceGpu(
        uuid=uuid,
        memory_limit_bytes=limit.memory_bytes,
        host_limit_bytes=limit.host_bytes,
        compute_limit=limit.compute,
        paused=limit.paused,
        memory_bytes=memory,
        host_bytes=_sum(use.host_bytes for use in now),
        peak_bytes=max([tally.largest(gpu), *(use.peak_bytes for use in ever)]),
        refused=_sum(use.refused for use in ever),
        launches=_sum(use.launches for use in ever),
        busy_s=_sum(use.busy_ns for use in ever) / 1e9,
        waited_s=_sum(use.waited_ns for use in ever) / 1e9,
        nvml_bytes=nvml,
        drift_bytes=drift,
        drift_percent=None if drift is None or not memory else 100 * drift / memory,
    )


def notable_drift(view: SliceView) -> tuple[str, ...]:
    """A sentence for each GPU on which accounts and driver differ by more than contexts and rounding explain."""
    return tuple(
        f"{gpu.uuid}: {gpu.nvml_bytes // MIB_BYTES} MiB by the driver, {gpu.memory_bytes // MIB_BYTES} by the accounts"
        for gpu in view.gpus
        if gpu.nvml_bytes is not None and _is_notable(gpu, view.processes)
    )


def _is_notable(gpu: SliceGpu, processes: int) -> bool:
    drift = gpu.drift_bytes or 0
    return drift > processes * CONTEXT_BYTES or -drift > max(64 * MIB_BYTES, gpu.memory_bytes // 10)


# The driver's side.


class Driver(NamedTuple):
    """What the driver says of one GPU, with processes named as they see themselves."""

    memory: Mapping[tuple[int, int], Sequence[tuple[int | None, int | None]]]
    """(pid, start) -> inode of the pid namespace and bytes, of each process that this may be; None: not known"""
    complete: bool
    """whether all processes that the driver lists could be named"""

    def memory_of(self, processes: Iterable[Who]) -> int | None:
        """What these have together; None where it cannot be known."""
        total = 0
        for who in processes:
            found = self.memory.get((who.pid, who.started), ())
            if len(found) > 1:  # the same pid at the same moment in two containers
                found = [one for one in found if one[0] == who.pid_space]
            if len(found) == 1 and found[0][1] is not None:
                total += found[0][1]
            elif found or not self.complete:
                return None
        return total


def drivers(usage: Iterable[GpuUsage], proc: Path = Path("/proc")) -> dict[str, Driver]:
    """What the driver said, by UUID, made comparable with regions."""
    return {gpu.uuid: _driver(gpu, proc) for gpu in usage if gpu.processes is not None}


def _driver(gpu: GpuUsage, proc: Path) -> Driver:
    memory: dict[tuple[int, int], list[tuple[int | None, int | None]]] = {}
    complete = True
    for process in gpu.processes or ():
        inner, known = _inner_pid(process.pid, proc), read_process(process.pid, proc)
        if inner is None or known is None:
            complete = False
            continue
        amount = None if process.memory_mib is None else process.memory_mib * MIB_BYTES
        memory.setdefault((inner, known.started), []).append((_pid_space(process.pid, proc), amount))
    return Driver(memory, complete)


def _inner_pid(pid: int, proc: Path) -> int | None:
    """A process's number as it sees it itself, in the innermost of its pid namespaces."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return int(numbers[-1]) if numbers else pid


def _pid_space(pid: int, proc: Path) -> int | None:
    try:
        return os.stat(proc / str(pid) / "ns" / "pid").st_ino
    except OSError:  # another user's
        return None


def _faults(counts: Iterable[Iterable[int]]) -> dict[str, int]:
    totals = [0] * len(FAULTS)
    for one in counts:
        for number, count in enumerate(one):
            totals[number] = min(MOST, totals[number] + count)
    return {name: count for name, count in zip(FAULTS, totals, strict=True) if count}


def _held(uses: Iterable[GpuUse]) -> int:
    return _sum(use.memory_bytes + use.host_bytes for use in uses)


def _sum(values: Iterable[int]) -> int:
    return min(MOST, sum(values))
