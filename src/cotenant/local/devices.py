# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine: which are installed, healthy or cordoned, and how much of each is in use."""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import msgspec

from cotenant.core.model import Machine
from cotenant.core.units import MiB, MilliCpu
from cotenant.errors import CotenantError
from cotenant.local.events import log_error, stored_setting
from cotenant.local.isolation import JobIsolation
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.local.views import usage_by_job
from cotenant.node.devices.backend import Backend, GpuUsage, KnownGpu, Running
from cotenant.node.measurement import UNKNOWN_USAGE, JobUsage
from cotenant.signals import Signal

ORDER = "gpu-order"
"""the journal's key for the GPUs in the order of their indices"""
LOOK_EVERY_S = 1.0
MOST_OF_A_CORE = 0.01


class HostAmounts(NamedTuple):
    """What jobs may request of the machine beside its GPUs."""

    cpu: MilliCpu | None = None
    """None: all CPUs"""
    memory: MiB | None = None
    """None: it is not counted"""


class _Look(NamedTuple):
    """The state of the GPUs, and the processor time that reading it took."""

    machine: Machine
    faults: dict[str, str]
    usage: list[GpuUsage]
    cpu_s: float


class Devices:
    """The GPUs of one machine. Cordons are stored in the journal; everything else comes from the driver."""

    def __init__(
        self,
        backend: Backend,
        journal: Journal,
        isolation: JobIsolation | None = None,
        host: HostAmounts = HostAmounts(),  # noqa: B008 -- a value
    ) -> None:
        self._backend, self._journal, self._isolation, self._host = backend, journal, isolation, host
        self._cordoned: set[str] = set(stored_setting(journal, "cordoned", list[str], []))
        self._reserved: set[str] = set()
        """partitioned GPUs whose MIG instances take no new jobs, because their layout is being changed"""
        self._withheld: frozenset[str] = frozenset()
        """the same, because their layout is a half-made one, until a later start of the daemon has restored it"""
        self._used: dict[str, JobUsage] = {}
        self.changed: Signal[[Machine]] = Signal()
        """a GPU was cordoned, uncordoned, or changed by itself"""
        self.inventory_changed: Signal[[]] = Signal()
        """a GPU changed by itself: health, number or type"""
        self.looked: Signal[[Sequence[GpuUsage]]] = Signal()
        """the use of the GPUs was read"""
        self.usage: dict[str, GpuUsage] = {}
        """by UUID"""
        self.looks = 0
        """how often the GPUs were read"""
        self._seen = backend.machine()
        self.machine = self._adjusted(self._seen)
        self._remember_order()
        self._faults = backend.faults()

    @property
    def faults(self) -> dict[str, str]:
        """Why each unhealthy GPU is unhealthy, by UUID."""
        return self._faults if self._isolation is None else {**self._isolation.mps.closed, **self._faults}

    def index(self, name: str) -> int | None:
        """The index of the GPU with this index or UUID."""
        return next((i for i, gpu in enumerate(self.machine.gpus) if name in (str(i), gpu.uuid)), None)

    def usage_of(self, job: str) -> JobUsage:
        return self._used.get(job, UNKNOWN_USAGE)

    def cordon(self, index: int, cordoned: bool) -> None:
        uuid = {self.machine.gpus[index].uuid}
        names = self._cordoned | uuid if cordoned else self._cordoned - uuid
        self._journal.remember("cordoned", json.dumps(sorted(names)))
        self._cordoned = names
        self.adjust()

    @contextmanager
    def reserved(self, cards: Collection[str]) -> Iterator[None]:
        """Meanwhile no job is placed on the MIG instances of these GPUs."""
        self._reserved = set(cards)
        self.adjust()
        try:
            yield
        finally:
            self._reserved = set()
            self.adjust()

    def withhold(self, cards: Collection[str]) -> None:
        """No job is placed on the MIG instances of these GPUs as long as this daemon runs."""
        self._withheld |= frozenset(cards)
        self.adjust()

    def adjust(self) -> None:
        """The cordons changed, or the GPUs that MPS has closed."""
        self.machine = self._adjusted(self._seen)
        self.changed.send(self.machine)

    async def watch(self, running: Callable[[], Sequence[Running]]) -> None:
        """Polls the driver in a thread of its own, because a driver may be slow and scheduling must not wait for it."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "devices") as eyes:
            while True:
                jobs, pause = running(), LOOK_EVERY_S
                try:
                    look = await loop.run_in_executor(eyes, self._look, jobs)
                except (OSError, CotenantError) as error:
                    log_error(str(error))
                else:
                    self.usage = {one.uuid: one for one in look.usage}
                    self._used = usage_by_job(jobs, look.usage)
                    self.looked.send(look.usage)
                    self._faults = look.faults
                    self._update(look.machine)
                    self.looks += 1
                    pause = max(LOOK_EVERY_S, look.cpu_s / MOST_OF_A_CORE)
                await asyncio.sleep(pause)

    def _look(self, jobs: Sequence[Running]) -> _Look:
        # Only processor time limits how often we poll: waiting for the driver costs nothing.
        began = time.thread_time()
        machine, faults = self._backend.machine(), self._backend.faults()
        usage = self._backend.usage(jobs)
        return _Look(machine, faults, usage, time.thread_time() - began)

    def _update(self, machine: Machine) -> None:
        self._seen = machine
        seen = self._adjusted(machine)
        if seen.kind != self.machine.kind:
            self.machine = seen
            self.changed.send(seen)
            self.inventory_changed.send()
            self._remember_order()

    def _remember_order(self) -> None:
        """The journal knows the GPUs of a job by index: the next daemon lists them in the same order.

        Only MIG instances come and go, so without any there is nothing to store, unless something was stored before.
        """
        stored = self._journal.recall(ORDER)
        if stored is None and not self.machine.has_instances:
            return
        order = [
            KnownGpu(uuid=one.uuid, type=one.type, memory=one.memory, mig=one.mig, card=one.card, part=one.part)
            for one in self.machine.gpus
        ]
        text = msgspec.json.encode(order).decode()
        try:
            if text != stored:
                self._journal.remember(ORDER, text)
        except JournalError as error:
            log_error(f"the order of the GPUs cannot be stored: {error}")

    def _adjusted(self, machine: Machine) -> Machine:
        gpus = tuple(
            replace(gpu, cordoned=gpu.uuid in self._cordoned or gpu.card in self._reserved | self._withheld)
            for gpu in machine.gpus
        )
        cpu = machine.cpu if self._host.cpu is None else self._host.cpu
        cordoned = replace(machine, gpus=gpus, cpu=cpu, host_memory=self._host.memory)
        return cordoned if self._isolation is None else self._isolation.of_machine(cordoned)
