# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The slices of jobs on real GPUs: made when a run starts, inspected while it runs, removed when it has ended."""

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from cotenant.local.events import log_error
from cotenant.node.company import identify, write_list
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.launch import Slice
from cotenant.node.limits import Limits
from cotenant.node.monitor import driver_usage, notable_drift, slice_view
from cotenant.node.preload import find_library, preload, stage
from cotenant.node.priorities import POLL_S, PriorityPauser
from cotenant.node.slices import LIMITS, PROCESSES, REGION, make_slice, read_slice, remove_slice, slices_folder


class SliceFaults(NamedTuple):
    """What went wrong in a job's slice."""

    faults: dict[str, int]
    """how often each fault happened in the vGPU library"""
    drift: tuple[str, ...]
    """GPUs whose driver reports a different memory use than the job's processes recorded"""


NO_FAULTS = SliceFaults({}, ())
FAULTS = "faults.json"


@dataclass(frozen=True, slots=True)
class JobSlices:
    """The slices of one daemon's jobs."""

    root: Path
    owner: str
    """prefix of each slice's name, so that two daemons on one machine do not share slices"""
    library: Path | None
    """the staged vGPU library; None: not built, so limits are not enforced"""

    def paths(self, job: str, before: str | None) -> Slice:
        """The paths that a job gets in its environment; `before` is its own LD_PRELOAD."""
        folder = self.folder(job)
        own = None if self.library is None else preload(self.library, before)
        return Slice(limits=folder / LIMITS, region=folder / REGION, processes=folder / PROCESSES, preload=own)

    def make(self, job: str, limits: Limits, uid: int | None = None) -> None:
        """Makes the slice of a job that runs as this user; None: as ours."""
        make_slice(self.root, self.folder(job).name, limits, uid=uid)

    def remove(self, job: str, record: Path) -> None:
        """Removes the slice of a run that has ended, and writes its faults to the job's folder `record`."""
        faults = self.faults(job, record, ()).faults
        if faults:
            try:
                (record / FAULTS).write_bytes(msgspec.json.encode(faults))
            except OSError as error:
                log_error(f"the faults of {job} could not be written: {error}")
        remove_slice(self.folder(job))

    def sweep(self, alive: Collection[str]) -> None:
        """Removes the slices of all jobs except those in `alive`."""
        prefix = f"{self.owner}."
        for folder in self.root.glob(f"{prefix}*"):
            if folder.name.removeprefix(prefix) not in alive:
                remove_slice(folder)

    def list_processes(self, usage: Iterable[GpuUsage]) -> None:
        """Tells the vGPU library in the processes of each job which processes on the GPUs are of the same job."""
        members: dict[str, set[int]] = {}
        for process in chain.from_iterable(gpu.processes or () for gpu in usage):
            if process.job is not None:
                members.setdefault(process.job, set()).add(process.pid)
        for folder in self.root.glob(f"{self.owner}.*"):
            pids = members.get(folder.name.removeprefix(f"{self.owner}."), set())
            found = [one for one in map(identify, pids) if one is not None]
            try:
                write_list(folder / PROCESSES, found)
            except OSError as error:
                log_error(f"{folder}: the list of processes could not be written: {error.strerror}")

    def faults(self, job: str, record: Path, usage: Iterable[GpuUsage]) -> SliceFaults:
        """The faults of a job's slice: of the present run, else as written when the last run ended."""
        seen = None if self.library is None else read_slice(self.folder(job))
        if seen is None:
            return _recorded(record / FAULTS)
        view = slice_view(seen, driver_usage(usage))
        return SliceFaults(view.faults, notable_drift(view))

    async def watch(self) -> None:
        """Pauses jobs of the low priority class while jobs of the high one use the GPU, until it is cancelled."""
        pauser = PriorityPauser(self.root)
        try:
            while True:
                pauser.step(time.monotonic())
                await asyncio.sleep(POLL_S)
        finally:
            pauser.close()

    def folder(self, job: str) -> Path:
        """The folder of a job's slice."""
        return self.root / f"{self.owner}.{job}"


def _recorded(path: Path) -> SliceFaults:
    try:
        return SliceFaults(msgspec.json.decode(path.read_bytes(), type=dict[str, int]), ())
    except (OSError, msgspec.DecodeError):  # no faults, or the file was not written completely
        return NO_FAULTS


def find_slices(owner: str) -> JobSlices:
    """The slices folder of this user, and the vGPU library if it is built."""
    library = find_library()
    return JobSlices(slices_folder(), owner, None if library is None else stage(library))
