# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine as the daemon knows them: installed, healthy, cordoned, and how much of them was in use."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from cotenant.core.model import Machine
from cotenant.errors import CotenantError
from cotenant.local.events import complain
from cotenant.local.journal import Journal
from cotenant.local.views import UNKNOWN, Used, used_by_jobs
from cotenant.node.devices import Backend, GpuUsage, Running

LOOK_EVERY_S = 1.0
MOST_OF_A_CORE = 0.01


class Devices:
    """Cordons are the journal's, the rest is asked of the driver."""

    def __init__(self, backend: Backend, journal: Journal) -> None:
        self._backend, self._journal = backend, journal
        self._cordoned: set[str] = set(json.loads(journal.recall("cordoned") or "[]"))
        self._used: dict[str, Used] = {}
        self.usage: dict[str, GpuUsage] = {}
        """by UUID"""
        self.machine = self._with_cordons(backend.machine())

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
                began, jobs = time.monotonic(), running()
                try:
                    machine = await loop.run_in_executor(eyes, self._backend.machine)
                    usage = await loop.run_in_executor(eyes, self._backend.usage, jobs)
                except (OSError, CotenantError) as error:
                    complain(str(error))
                else:
                    self.usage = {one.uuid: one for one in usage}
                    self._used = used_by_jobs(jobs, usage)
                    self._seen(machine, changed)
                await asyncio.sleep(max(LOOK_EVERY_S, (time.monotonic() - began) / MOST_OF_A_CORE))

    def _seen(self, machine: Machine, changed: Callable[[], None]) -> None:
        seen = self._with_cordons(machine)
        if seen.kind != self.machine.kind:
            self.machine = seen
            changed()

    def _with_cordons(self, machine: Machine) -> Machine:
        return replace(machine, gpus=tuple(replace(gpu, cordoned=gpu.uuid in self._cordoned) for gpu in machine.gpus))
