# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose limits are above their requests: what each GPU grants them at present, and which have to give it back."""

import asyncio
import time
from collections.abc import Callable

from cotenant.core.footprint import compute_on, memory_limit_on, memory_on
from cotenant.core.model import Gpu
from cotenant.core.units import MIB_BYTES, MiB, format_memory
from cotenant.local.devices import Devices
from cotenant.local.job_slices import JobSlices
from cotenant.local.tenants import PlacedJob
from cotenant.node.grants import POLL_S, Grant, Member, Round, Shortage, files_in, grant, margin_of
from cotenant.node.launch import compute_limit_of, is_throttled, of_device
from cotenant.signals import Signal
from cotenant.wire.job_views import GrantView

ASK_AGAIN_S = 5.0
"""after which a job that was asked to leave, and has not, is asked again"""


class JobGrants:
    """The grants of one daemon's jobs. Without the vGPU library nothing enforces a grant: then there are none."""

    def __init__(self, slices: JobSlices | None, devices: Devices) -> None:
        self._slices = None if slices is None or slices.library is None else slices
        self._devices = devices
        self._members: dict[int, dict[str, Member]] = {}
        """by GPU index"""
        self._starts: dict[str, Callable[[], None]] = {}
        """jobs that wait until what they need first is free on all of their GPUs"""
        self._rounds: dict[int, Round] = {}
        self._shortages: dict[int, Shortage] = {}
        self._leaving: dict[str, float] = {}
        """jobs that were asked to leave, and when"""
        self.noted: Signal[[str, str, str]] = Signal()
        """an event: its kind, the job and a text"""
        self.evicted: Signal[[str, str]] = Signal()
        """a job has to leave its GPUs, and why"""

    # Tenants

    def add(self, job: PlacedJob) -> None:
        if self._slices is None:
            return
        for index in dict.fromkeys(job.gpus):
            gpus = self._devices.machine.gpus
            if index < len(gpus):
                self._members.setdefault(index, {})[job.id] = self._member(job, gpus[index], self._slices)

    def change(self, job: PlacedJob) -> None:
        """A job that runs has another request."""
        self.add(job)
        self.found(job.id)

    def remove(self, job: str) -> None:
        self._starts.pop(job, None)
        self._leaving.pop(job, None)
        for members in self._members.values():
            members.pop(job, None)

    def begin(self, job: str, start: Callable[[], None]) -> None:
        """Calls `start` as soon as no job above its request uses what this job needs first."""
        self._starts[job] = start
        for index, members in self._members.items():
            if job in members and self._is_elastic(index):
                self._step(index)
        self._start_startable()

    def found(self, job: str) -> None:
        """A job runs already: it was started by an earlier daemon."""
        for index, members in self._members.items():
            if job in members:
                self._members[index][job] = members[job]._replace(started=True)

    def stop_waiting(self, job: str) -> None:
        """Starts a job that waits for memory and is to end: its supervisor ends it before its command starts."""
        start = self._starts.get(job)
        if start is not None:
            self.remove(job)  # no other job has to give anything back for it
            start()

    async def watch(self) -> None:
        """Grants and reclaims until it is cancelled."""
        while True:
            for index in list(self._members):
                if self._is_elastic(index):
                    self._step(index)
                else:
                    self._rounds.pop(index, None)
                    self._shortages.pop(index, None)
            self._start_startable()
            await asyncio.sleep(POLL_S)

    def _member(self, job: PlacedJob, gpu: Gpu, slices: JobSlices) -> Member:
        demand = job.placement.job.demand
        memory, limit = memory_on(demand, gpu) or gpu.memory_capacity, memory_limit_on(demand, gpu)
        return Member(
            name=job.id,
            files=files_in(slices.folder(job.id)),
            request=(memory - gpu.host_part(memory)) * MIB_BYTES,
            limit=(max(memory, limit) - gpu.host_part(max(memory, limit))) * MIB_BYTES,
            compute=of_device(gpu, compute_on(demand, gpu)),
            compute_limit=compute_limit_of(demand) if demand.mig else of_device(gpu, compute_limit_of(demand)),
            started=False,
        )

    def _is_elastic(self, index: int) -> bool:
        return any(one.is_elastic for one in self._members[index].values())

    # Rounds

    def _step(self, index: int) -> None:
        if index >= len(self._devices.machine.gpus):  # it failed, and the driver no longer lists it
            return
        gpu, now = self._devices.machine.gpus[index], time.monotonic()
        self._leaving = {job: since for job, since in self._leaving.items() if now - since < ASK_AGAIN_S}
        held, foreign = self._held(gpu.uuid)
        members = [one._replace(held=held.get(one.name, 0)) for one in self._members[index].values()]
        capacity = max(sum(one.request for one in members), gpu.memory * MIB_BYTES - foreign)
        done = self._rounds[index] = grant(
            gpu.uuid, capacity, margin_of(gpu.memory * MIB_BYTES), members, self._leaving
        )
        for job in done.startable:
            self._members[index][job] = self._members[index][job]._replace(started=True)
        self._reclaim(index, done)

    def _held(self, uuid: str) -> tuple[dict[str, int], int]:
        """Bytes that the driver last reported for each job, and for processes that belong to none."""
        usage = self._devices.usage.get(uuid)
        held: dict[str, int] = {}
        foreign = 0
        for process in (() if usage is None else usage.processes) or ():
            amount = (process.memory_mib or 0) * MIB_BYTES
            if process.job is None:
                foreign += amount
            else:
                held[process.job] = held.get(process.job, 0) + amount
        return held, foreign

    def _start_startable(self) -> None:
        for job in list(self._starts):
            # On a GPU without jobs above their requests, nothing has to be given back.
            pending = any(
                not members[job].started and self._is_elastic(index)
                for index, members in self._members.items()
                if job in members
            )
            if not pending:
                self.found(job)
                self._starts.pop(job)()

    def _reclaim(self, index: int, done: Round) -> None:
        """Evicts if it is not enough that no job above its request may grow: its grant is what it uses by now."""
        now, shortage = time.monotonic(), self._shortages.setdefault(index, Shortage())
        if shortage.update(done, now):
            why = _why(done, index)
            for job in done.grants:
                member = self._members[index][job]
                if done.grants[job].used > member.request:
                    self.noted.send("reclaiming", job, f"its memory may not grow on GPU {index}: {why}")
        if shortage.is_due(now):
            why = _why(done, index)
            for job in done.evict:
                self._leaving[job] = now
                above = done.grants[job].used - self._members[index][job].request
                fault = f"it uses {_mib(above)} above its request" if above > 0 else "its grant cannot be lowered"
                self.evicted.send(job, f"{fault} on GPU {index}, and {why}")

    # Answers

    def views(self, job: str) -> tuple[GrantView, ...]:
        """What a job requests, may use and is granted at present on each GPU on which that can differ."""
        found = []
        for index, members in sorted(self._members.items()):
            member, done = members.get(job), self._rounds.get(index)
            if member is not None and member.is_elastic:
                now = None if done is None else done.grants.get(job)
                found.append(_view(index, member, now))
        return tuple(found)

    def notes(self, job: str) -> list[str]:
        """Sentences for `why`."""
        said = []
        for view in self.views(job):
            memory = (view.memory_request_mib, view.memory_limit_mib, view.memory_granted_mib)
            requested, most, granted = (format_memory(MiB(amount)) for amount in memory)
            said.append(f"memory on GPU {view.gpu}: {requested} requested, at most {most}, {granted} granted now")
            if view.compute_limit_percent > view.compute_request_percent:
                said.append(
                    f"compute on GPU {view.gpu}: {view.compute_request_percent:g} % requested, at most "
                    f"{view.compute_limit_percent:g} %, {view.compute_granted_percent:g} % granted now"
                )
            done = self._rounds.get(view.gpu)
            if done is not None and done.waiting and done.evict and view.memory_used_mib > view.memory_request_mib:
                said.append(f"its memory may not grow on GPU {view.gpu}: {_why(done, view.gpu)}")
        if job in self._starts:
            said.append("it starts when jobs above their requests have given back what it needs")
        return said


def _view(index: int, member: Member, now: Grant | None) -> GrantView:
    throttled = is_throttled(member.compute)
    return GrantView(
        gpu=index,
        memory_request_mib=member.request // MIB_BYTES,
        memory_limit_mib=member.limit // MIB_BYTES,
        memory_granted_mib=(member.request if now is None else now.granted) // MIB_BYTES,
        memory_used_mib=0 if now is None else now.used // MIB_BYTES,
        compute_request_percent=member.compute / 10,
        compute_limit_percent=member.compute_limit / 10,
        compute_granted_percent=(now.compute if now is not None and throttled else member.compute) / 10,
    )


def _why(done: Round, index: int) -> str:
    job, missing = max(done.waiting.items(), key=lambda item: (item[1], item[0]))
    return f"{job} needs {_mib(missing)} more of its request there"


def _mib(amount: int) -> str:
    return format_memory(MiB(-(-amount // MIB_BYTES)))
