# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs, made of CPU cores and a memory budget: everything but the speed can be tried without a GPU.

The third part of such a GPU is the lock that one training step at a time holds; the agent has it (`compute_lock.py`).
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cotenant.core.model import Gpu, Gpus, Machine
from cotenant.core.units import MIB_BYTES, MiB, MilliCpu, format_memory
from cotenant.errors import DeviceError, InputError
from cotenant.node.devices.backend import MACHINE, GpuUsage, ProcessUsage, Running
from cotenant.node.devices.processes import Process, job_members, process_table
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import counted, inflect

MOST_DEVICES = 256
LARGEST = MiB(16 * 1024)
"""Largest memory of a GPU if no size is given."""
_FAIR_PART = 0.75
"""Part of the available memory that GPUs get. The rest is for runtimes, which are not charged, and other programs."""
_STEP = 256
"""Budgets are multiples of this many MiB, so that they differ less from one start to the next."""
_SHORTEST_LOOK = 0.2
"""Seconds; the kernel counts CPU time in hundredths of a second, so shorter intervals say nothing."""
_NAMESPACE = uuid.UUID("5f0c9a54-6d0b-5c43-9d55-0c1c27c0d1a7")


class SimulatedBackend:
    """`count` GPUs on the cores and the memory that this process may use."""

    vendor = Vendor.SIMULATED

    def __init__(
        self,
        count: int,
        *,
        memory: MiB | None = None,
        cores: int | None = None,
        because: str | None = None,
        usable: Iterable[int] | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        usable = sorted(os.sched_getaffinity(0) if usable is None else usable)
        if not 1 <= count <= MOST_DEVICES:
            raise InputError(f"cannot simulate {count} GPUs; expected a number from 1 to {MOST_DEVICES}")
        if memory is not None and memory < 1:
            raise InputError(f"a simulated GPU of {memory} MiB holds nothing; expected at least 1 MiB")
        if cores is not None and not 1 <= cores <= len(usable):
            raise InputError(f"a simulated GPU cannot have {cores} cores; expected 1 to {len(usable)}, the usable ones")
        self._device_cores = deal(usable, count, cores)
        self._memory = fair_memory(count, proc) if memory is None else memory
        self._host_cores = len(usable)
        self._because = because
        self._proc = proc
        self._clock = clock
        self._seen: tuple[float, Mapping[tuple[int, int], float]] | None = None
        self._shares: dict[tuple[int, int], float] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        count = len(self._device_cores)
        each = ", ".join(
            f"GPU {gpu} on {inflect(len(cores), 'core')} {ranges(cores)}"
            for gpu, cores in enumerate(self._device_cores[:4])
        )
        dealt = [core for cores in self._device_cores for core in cores]
        why = f"{self._because}: " if self._because else ""
        devices = f"{counted(count, 'GPU')} of {format_memory(self._memory)} each"
        what = f"{why}simulating {devices} ({each}{', ...' if count > 4 else ''})"
        if len(set(dealt)) == len(dealt):
            return (what,)
        return what, "there are fewer cores than these GPUs need, so they share cores and slow each other down"

    def machine(self) -> Machine:
        return Machine(
            name=MACHINE,
            gpus=tuple(
                Gpu(uuid=device_uuid(index), type="simulated", memory=self._memory)
                for index in range(len(self._device_cores))
            ),
            cpu=MilliCpu(1000 * self._host_cores),
        )

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        members = job_members(jobs, process_table(self._proc)) if jobs else {}
        shares = self._cores_in_use([process for tree in members.values() for process in tree])
        return [self._usage(gpu, [job for job in jobs if gpu in job.gpus], members, shares) for gpu in self._indices]

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        return tuple(sorted({core for gpu in gpus for core in self._device_cores[gpu]}))

    def faults(self) -> dict[str, str]:
        return {}

    def absent(self) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        """Does nothing: a simulated GPU holds no resource."""

    @property
    def _indices(self) -> range:
        return range(len(self._device_cores))

    def _usage(
        self,
        gpu: int,
        jobs: Sequence[Running],
        members: Mapping[str, list[Process]],
        shares: Mapping[tuple[int, int], float] | None,
    ) -> GpuUsage:
        used, busy = 0.0, 0.0
        processes: list[ProcessUsage] = []
        for job in jobs:
            tree, parts = members[job.job], len(job.gpus)  # a job on several GPUs uses an equal part of each
            used += max(0, sum(process.memory for process in tree) - job.baseline) / parts
            for process in tree:
                percent = None
                if shares is not None:
                    share = shares.get((process.pid, process.started), 0.0) / parts
                    busy += share
                    percent = self._percent(gpu, share)
                processes.append(ProcessUsage(process.pid, MiB(process.memory // parts), percent, job.job))
        return GpuUsage(
            uuid=device_uuid(gpu),
            used_mib=MiB(round(used)),
            utilisation=None if shares is None else self._percent(gpu, busy),
            processes=tuple(processes),
        )

    def _percent(self, gpu: int, cores: float) -> int:
        return min(100, round(100 * cores / len(self._device_cores[gpu])))

    def _cores_in_use(self, processes: Iterable[Process]) -> dict[tuple[int, int], float] | None:
        """Number of cores that each process kept busy since the last poll; None at the first poll."""
        now = self._clock()
        times = {(process.pid, process.started): process.cpu_s for process in processes}
        if self._seen is not None:
            before, earlier = self._seen
            elapsed = now - before
            if elapsed < _SHORTEST_LOOK:
                return self._shares
            # A process that did not exist at the last poll has used all its time since.
            self._shares = {key: max(0.0, cpu_s - earlier.get(key, 0.0)) / elapsed for key, cpu_s in times.items()}
        self._seen = now, times
        return self._shares


def device_uuid(index: int) -> str:
    """The same on every start and machine, so that stored placements stay valid."""
    return f"SIM-{uuid.uuid5(_NAMESPACE, str(index))}"


def deal(usable: Sequence[int], count: int, cores: int | None = None) -> tuple[tuple[int, ...], ...]:
    """The cores of each GPU: the same number for each, or `cores`; if there are too few, GPUs share them."""
    if not usable:
        raise DeviceError("this process may use no CPU core, so no GPU can be simulated")
    if cores is not None:
        return tuple(
            tuple(sorted(usable[(device * cores + i) % len(usable)] for i in range(cores))) for device in range(count)
        )
    if count > len(usable):
        return tuple((usable[device % len(usable)],) for device in range(count))
    return tuple(tuple(usable[device::count][: len(usable) // count]) for device in range(count))


def fair_memory(count: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> MiB:
    """Memory of each of `count` GPUs, as a part of what is available now."""
    each = int(available_memory(proc, cgroups) * _FAIR_PART) // count
    return MiB(min(LARGEST, max(_STEP, each // _STEP * _STEP)))


def available_memory(proc: Path, cgroups: Path) -> MiB:
    """Memory that new programs can use without swapping, as the kernel estimates it, within a container's limit."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        table = dict(line.split(":", 1) for line in lines if ":" in line)
        available = int(table["MemAvailable"].split()[0]) // 1024
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise DeviceError(f"{proc}/meminfo does not say how much memory is available; give the GPUs' memory") from error
    return MiB(min([available, *_container_limits(cgroups)]))


def _container_limits(cgroups: Path) -> Iterable[int]:
    # Inside a container, its own group is the root of the hierarchy; elsewhere the root has no limit.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            yield int((cgroups / name).read_text()) // MIB_BYTES
        except (OSError, ValueError):
            continue


def ranges(cores: Iterable[int]) -> str:
    """`0-3,8` for the cores 0, 1, 2, 3 and 8."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
