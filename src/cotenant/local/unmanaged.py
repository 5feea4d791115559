# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Processes on the GPUs that no job owns: they are shown and counted, and never stopped.

Their memory is taken from what is free for jobs, rounded up so that small changes do not start new scheduling passes. A
process counts after it was seen in several looks: until then it may belong to a job that has just started or ended.
"""

import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MiB
from cotenant.local.devices import Devices
from cotenant.local.tenants import Tenants
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.node.devices.processes import read_process
from cotenant.signals import Signal
from cotenant.wire.machine import UnmanagedProcess
from cotenant.wire.text import printable

LOOKS = 3
"""in which a process must be seen"""
STEP_MIB = 256
"""to which memory is rounded up"""
MPS_SERVER = "nvidia-cuda-mps"
"""begins the name of the servers of MPS, which serve jobs if MPS is ours"""
MOST_NOTED = 1000
"""kinds of unmanaged use that are remembered as reported"""


class _Identity(NamedTuple):
    gpu: str
    """UUID"""
    pid: int
    started: int


class Unmanaged:
    """What processes without a job use of the GPUs."""

    def __init__(self, devices: Devices, tenants: Tenants, proc: Path = Path("/proc")) -> None:
        self._devices, self._tenants, self._proc = devices, tenants, proc
        self._looks: dict[_Identity, int] = {}
        self._noted: dict[tuple[str, str, str], None] = {}
        """user, program and GPU of what was reported"""
        self.processes: dict[str, tuple[UnmanagedProcess, ...]] = {}
        """by the UUID of the GPU"""
        self.noted: Signal[[str, str | None, str]] = Signal()
        """for users: kind of the event, no job, and a sentence"""
        self.changed: Signal[[]] = Signal()
        """other memory is free for jobs than before"""

    def look(self, usage: Sequence[GpuUsage]) -> None:
        """Subscriber of `Devices.looked`."""
        before, self._looks = self._looks, {}
        self.processes = {one.uuid: tuple(self._unmanaged(one, before)) for one in usage if one.processes}
        memory = {
            index: _rounded(self.processes[gpu.uuid], gpu.memory_capacity)
            for index, gpu in enumerate(self._devices.machine.gpus)
            if self.processes.get(gpu.uuid)
        }
        if self._tenants.set_unmanaged(memory):
            self.changed.send()

    def _unmanaged(self, gpu: GpuUsage, before: dict[_Identity, int]) -> list[UnmanagedProcess]:
        found = []
        for process in gpu.processes or ():
            # A process that cannot be read is in another PID namespace, or has ended.
            known = None if process.job is not None else read_process(process.pid, self._proc)
            if known is None:
                continue
            identity = _Identity(gpu.uuid, process.pid, known.started)
            looks = self._looks[identity] = before.get(identity, 0) + 1
            if looks >= LOOKS and (view := self._view(gpu.uuid, process)) is not None:
                found.append(view)
                if looks == LOOKS:
                    self._note(gpu.uuid, view)
        return found

    def _view(self, gpu: str, process: ProcessUsage) -> UnmanagedProcess | None:
        """The program is named without its arguments, which may hold secrets."""
        folder = self._proc / str(process.pid)
        try:
            program = printable((folder / "comm").read_text(errors="replace").strip())
            uid = int((folder / "status").read_text(errors="replace").partition("\nUid:")[2].split()[0])
        except (OSError, IndexError):  # it has ended
            return None
        if program.startswith(MPS_SERVER) and self._uses_mps(gpu):
            return None
        return UnmanagedProcess(
            pid=process.pid,
            user=_user(uid),
            program=program,
            memory_mib=process.memory_mib,
            utilisation=process.utilisation,
        )

    def _uses_mps(self, gpu: str) -> bool:
        index = self._devices.index(gpu)
        return index is not None and self._devices.machine.gpus[index].under_mps

    def _note(self, gpu: str, one: UnmanagedProcess) -> None:
        kind = (one.user, one.program, gpu)
        if kind in self._noted:
            return
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted[kind] = None
        memory = "memory of unknown size" if one.memory_mib is None else f"{one.memory_mib} MiB"
        what = f"{one.program} of {one.user} (process {one.pid}) uses {memory} of GPU {self._devices.index(gpu)}"
        self.noted.send(
            "unmanaged", None, f"{what} without a job; it is left alone, and its memory is not given to jobs"
        )


def _rounded(processes: Sequence[UnmanagedProcess], capacity: MiB) -> MiB:
    """The memory that is not free for jobs: all of it if the size of one process is not known."""
    sizes = [one.memory_mib for one in processes]
    if any(size is None for size in sizes):
        return capacity
    used = sum(size for size in sizes if size is not None)
    return MiB(min(capacity, -(-used // STEP_MIB) * STEP_MIB))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
