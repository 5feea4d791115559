# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine as the daemon knows them: installed, healthy, cordoned, and how much of them was in use."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from cotenant.core.model import Machine
from cotenant.errors import CotenantError
from cotenant.local.events import complain
from cotenant.local.journal import Journal
from cotenant.local.views import UNKNOWN, Used, used_by_jobs
from cotenant.node.devices.backend import Backend, GpuUsage, Running

LOOK_EVERY_S = 1.0
MOST_OF_A_CORE = 0.01


class _Look(NamedTuple):
    """What was seen, and what it took."""

    machine: Machine
    faults: dict[str, str]
    usage: list[GpuUsage]
    cpu_s: float


class Devices:
    """Cordons are the journal's, the rest is asked of the driver."""

    def __init__(self, backend: Backend, journal: Journal) -> None:
        self._backend, self._journal = backend, journal
        self._cordoned: set[str] = set(json.loads(journal.recall("cordoned") or "[]"))
        self._used: dict[str, Used] = {}
        self.usage: dict[str, GpuUsage] = {}
        """by UUID"""
        self.machine = self._with_cordons(backend.machine())
        self.faults = backend.faults()
        """why each unhealthy one is unhealthy, by UUID"""

    def index(self, name: str) -> int | None:
        """The GPU of this number or UUID."""
        return next((i for i, gpu in enumerate(self.machine.gpus) if name in (str(i), gpu.uuid)), None)

    def used_by(self, job: str) -> Used:
        return self._used.get(job, UNKNOWN)

    def cordon(self, index: int, cordoned: bool) -> None:
        uuid = {self.machine.gpus[index].uuid}
        names = self._cordoned | uuid if cordoned else self._cordoned - uuid
        self._journal.remember("cordoned", json.dumps(sorted(names)))
        self._cordoned = names
        self.machine = self._with_cordons(self.machine)

    async def watch(self, running: Callable[[], Sequence[Running]], changed: Callable[[], None]) -> None:
        """Looks again and again, in a thread of its own: a driver may take its time, and scheduling must not wait."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "devices") as eyes:
            while True:
                jobs, pause = running(), LOOK_EVERY_S
                try:
                    look = await loop.run_in_executor(eyes, self._look, jobs)
                except (OSError, CotenantError) as error:
                    complain(str(error))
                else:
                    self.usage = {one.uuid: one for one in look.usage}
                    self._used = used_by_jobs(jobs, look.usage)
                    self.faults = look.faults
                    self._seen(look.machine, changed)
                    pause = max(LOOK_EVERY_S, look.cpu_s / MOST_OF_A_CORE)
                await asyncio.sleep(pause)

    def _look(self, jobs: Sequence[Running]) -> _Look:
        # Waiting for a driver, as for PCIe traffic, is no work: only the processor's time counts.
        began = time.thread_time()
        machine, faults = self._backend.machine(), self._backend.faults()
        usage = self._backend.usage(jobs)
        return _Look(machine, faults, usage, time.thread_time() - began)

    def _seen(self, machine: Machine, changed: Callable[[], None]) -> None:
        seen = self._with_cordons(machine)
        if seen.kind != self.machine.kind:
            self.machine = seen
            changed()

    def _with_cordons(self, machine: Machine) -> Machine:
        return replace(machine, gpus=tuple(replace(gpu, cordoned=gpu.uuid in self._cordoned) for gpu in machine.gpus))
