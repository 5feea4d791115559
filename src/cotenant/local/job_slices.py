# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The slices of jobs on real GPUs: made when a job starts, looked at while it runs, gone when it has ended."""

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from cotenant.local.events import complain
from cotenant.node.devices import GpuUsage
from cotenant.node.launch import Slice
from cotenant.node.limits import Limits
from cotenant.node.monitor import driver_usage, notable_drift, slice_view
from cotenant.node.preload import find_library, preload, stage
from cotenant.node.priorities import POLL_S, PriorityPauser
from cotenant.node.slices import LIMITS, REGION, make_slice, read_slice, remove_slice, slices_folder


class Found(NamedTuple):
    """What is wrong with a job's slice."""

    faults: dict[str, int]
    """what did not work as meant in its processes, and how often"""
    drift: tuple[str, ...]
    """where the driver says something else than their accounts"""


NOTHING = Found({}, ())
FAULTS = "faults.json"


@dataclass(frozen=True, slots=True)
class JobSlices:
    """Where the slices of one daemon's jobs are."""

    root: Path
    owner: str
    """starts the name of each slice, so that two daemons on one machine do not meet"""
    library: Path | None
    """the staged vGPU library; None: there is none, and nothing is held"""

    def paths(self, job: str, before: str | None) -> Slice:
        """What a job is told; `before` is the LD_PRELOAD of its own."""
        folder = self._folder(job)
        own = None if self.library is None else preload(self.library, before)
        return Slice(limits=folder / LIMITS, region=folder / REGION, preload=own)

    def make(self, job: str, limits: Limits) -> None:
        make_slice(self.root, self._folder(job).name, limits)

    def leave(self, job: str, record: Path) -> None:
        """Removes the slice of a job that has ended; its faults stay in the folder of its runs, for people."""
        faults = self.found(job, record, ()).faults
        if faults:
            try:
                (record / FAULTS).write_bytes(msgspec.json.encode(faults))
            except OSError as error:
                complain(f"the faults of {job} are lost: {error}")
        remove_slice(self._folder(job))

    def sweep(self, alive: Collection[str]) -> None:
        """Removes the slices of all jobs but the living."""
        prefix = f"{self.owner}."
        for folder in self.root.glob(f"{prefix}*"):
            if folder.name.removeprefix(prefix) not in alive:
                remove_slice(folder)

    def found(self, job: str, record: Path, usage: Iterable[GpuUsage]) -> Found:
        """How a job's slice is doing, or did."""
        seen = None if self.library is None else read_slice(self._folder(job))
        if seen is None:
            return _recorded(record / FAULTS)
        view = slice_view(seen, driver_usage(usage))
        return Found(view.faults, notable_drift(view))

    async def watch(self) -> None:
        """Lets the lower class of jobs wait while the higher one works, for as long as the daemon runs."""
        pauser = PriorityPauser(self.root)
        try:
            while True:
                pauser.step(time.monotonic())
                await asyncio.sleep(POLL_S)
        finally:
            pauser.close()

    def _folder(self, job: str) -> Path:
        return self.root / f"{self.owner}.{job}"


def _recorded(path: Path) -> Found:
    try:
        return Found(msgspec.json.decode(path.read_bytes(), type=dict[str, int]), ())
    except (OSError, msgspec.DecodeError):  # there were none, or no room to write them all down
        return NOTHING


def find_slices(owner: str) -> JobSlices:
    """Where this user's slices are, and what holds them."""
    library = find_library()
    return JobSlices(slices_folder(), owner, None if library is None else stage(library))
