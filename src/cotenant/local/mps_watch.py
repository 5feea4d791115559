# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps MPS in step with the tenants of this machine: which jobs are clients, what crashed, which GPUs are closed."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from cotenant.core.isolation import uses_mps
from cotenant.errors import CotenantError
from cotenant.local.devices import Devices
from cotenant.local.events import log_error
from cotenant.local.launching import Launcher
from cotenant.local.tenants import PlacedJob, Tenants
from cotenant.node.mps import LOOK_EVERY_S, Crash, Mps
from cotenant.signals import Signal


class MpsWatch:
    """Called from one event loop; what waits for processes has a thread of its own."""

    def __init__(self, mps: Mps, devices: Devices, tenants: Tenants, launcher: Launcher) -> None:
        self._mps, self._devices, self._tenants, self._launcher = mps, devices, tenants, launcher
        self._told: dict[str, str] = {}
        """GPUs that were closed when last looked at, and why"""
        self._state = frozenset(mps.closed), mps.ending()
        self.crashed: Signal[[Crash, tuple[str, ...]]] = Signal()
        """sent with the jobs that have to be stopped, every second until they have ended"""
        self.noted: Signal[[str, str | None, str]] = Signal()
        """an event for users: kind, job, text"""
        tenants.added.subscribe(self._add)
        tenants.removed.subscribe(self._remove)
        devices.looked.subscribe(mps.note)

    async def run(self) -> None:
        """Looks after the control daemons until it is cancelled; then ends those that no job uses."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "mps") as thread:
            try:
                while True:
                    with _logged_errors():
                        self._report(await loop.run_in_executor(thread, self._mps.step))
                    await asyncio.sleep(LOOK_EVERY_S)
            finally:
                with _logged_errors():
                    await asyncio.wrap_future(thread.submit(self._mps.step))

    def fault_of(self, job: str) -> Crash | None:
        """The fault that ended the MPS clients beside a job, or its own."""
        return self._mps.fault_of(job)

    def _add(self, job: PlacedJob) -> None:
        limit = self._launcher.mps_limit(self._devices.machine, job.placement, job.request)
        if limit is not None:
            self._mps.add(job.id, limit)
            self._adjust()

    def _remove(self, job: str) -> None:
        self._mps.remove(job)
        self._adjust()

    def _report(self, crashes: list[Crash]) -> None:
        closed = dict(self._mps.closed)
        for crash in crashes:
            stopped = " ".join(self._clients_of(crash.uuid))
            then = f"; stops {stopped}" if stopped else ""
            self.noted.send("mps", None, f"GPU {self._devices.index(crash.uuid)}: {crash.why}{then}")
        for uuid, why in closed.items():
            if uuid not in self._told:
                self.noted.send("mps", None, f"GPU {self._devices.index(uuid)} takes no jobs: {why}")
            self.crashed.send(self._mps.crashes.get(uuid, Crash(uuid, why)), self._clients_of(uuid))
        for uuid in self._told.keys() - closed.keys():
            self.noted.send("mps", None, f"GPU {self._devices.index(uuid)} takes jobs again")
        self._told = closed
        self._adjust()

    def _adjust(self) -> None:
        """Tells placement if other GPUs are closed, or are being left by MPS, than before."""
        state = frozenset(self._mps.closed), self._mps.ending()
        if state != self._state:
            self._state = state
            self._devices.adjust()

    def _clients_of(self, uuid: str) -> tuple[str, ...]:
        index = self._devices.index(uuid)
        return tuple(
            job
            for job, placed in self._tenants.placed.items()
            if index in placed.gpus and uses_mps(placed.placement.job.demand.rung)
        )


@contextmanager
def _logged_errors() -> Iterator[None]:
    """An error of one look, such as a full disk, must not end the loop: the next look does what this one could not."""
    try:
        yield
    except (CotenantError, OSError) as error:
        log_error(f"MPS: {error}")
