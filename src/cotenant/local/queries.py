# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Answers about jobs, GPUs and the daemon. Nothing here changes the state of a job."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replaced

from cotenant import __version__
from cotenant.core.cluster import Node
from cotenant.core.isolation import Rung
from cotenant.core.model import Job, Placement, Slot
from cotenant.core.placement.repartition import repartition
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.local import attempts
from cotenant.local.admission import predicts
from cotenant.local.array_views import array_view, find_element
from cotenant.local.events import Event
from cotenant.local.foresight import Foresight
from cotenant.local.isolation import rung_of
from cotenant.local.job_slices import NO_FAULTS, SliceFaults
from cotenant.local.journal_rows import ArrayRecord
from cotenant.local.lifecycle import (
    ACTIVE,
    ENDED,
    JobRecord,
    JobState,
    Stop,
    StopRequested,
    gpus_of,
    request_of,
    step,
    unreadable,
    with_stored_compute,
)
from cotenant.local.mig_layouts import slices_of
from cotenant.local.owners import Owner
from cotenant.local.parts import Parts
from cotenant.local.refusals import UnknownError
from cotenant.local.tenants import PlacedJob
from cotenant.local.terminals import terminal_path
from cotenant.local.tuner import read_history
from cotenant.local.views import WaitReasons, gpu_views, job_view
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.launch import ISOLATION
from cotenant.wire.dependencies import parse_dependencies
from cotenant.wire.job_demands import demands_wanted
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView, TerminalView
from cotenant.wire.machine import AccountView, GpuView
from cotenant.wire.mig import MigChange, MigPlan, MigPlanRequest
from cotenant.wire.profile import JobProfile
from cotenant.wire.reservations import ReservationView

HIDDEN = "(hidden)"
"""shown instead of the value of an environment variable, which may be a secret"""
MOST_PLANNED = 100
"""jobs of the queue for which MIG layouts are planned"""
MOST_EVENTS = 200
"""of one job that are listed"""


class Queries:
    """What the parts of the daemon know of its jobs and GPUs."""

    def __init__(self, parts: Parts) -> None:
        self._resources, self._journal, self._devices = parts.resources, parts.journal, parts.devices
        self._learner, self._admission, self._queue = parts.learner, parts.admission, parts.queue
        self._launcher, self._runs, self._tenants = parts.launcher, parts.runs, parts.tenants
        self._tuner, self._interference, self._unrecorded = parts.tuner, parts.interference, parts.unrecorded
        self._grants, self._backoff, self._holds = parts.grants, parts.backoff, parts.holds
        self._accounting, self._unmanaged, self._idle = parts.accounting, parts.unmanaged, parts.idle
        self._dependencies, self._bounds, self._reservations = parts.dependencies, parts.bounds, parts.reservations
        self._orders = parts.orders
        self.foresight = Foresight(parts.learner, parts.admission, parts.queue, parts.tenants, time.time)
        self.set_aside: dict[str, str] = {}
        """queued jobs that this version cannot read, and why; another version may, so they stay in the journal"""
        self.notes: list[str] = []
        """about the daemon, for `status`"""

    def jobs(
        self,
        states: tuple[str, ...],
        limit: int,
        after: str | None,
        requests: bool = False,
        *,
        elements: bool = True,
        uid: int | None = None,
    ) -> list[JobView]:
        """Jobs in these states (all if none is given), or those of one user; with `requests` also what they requested,
        without `env`."""
        waiting = self.wait_reasons()
        records = self._journal.jobs(states or None, limit, after, elements=elements, uid=uid)
        found = list(map(self._as_cancelled, records))
        if not requests:
            return [self.view(record, waiting) for record in found]
        return [replaced(self.view(record, waiting), request=replaced(request_of(record), env={})) for record in found]

    def jobs_and_arrays(self, states: tuple[str, ...], limit: int, requests: bool = False) -> list[JobView]:
        """The newest jobs in these states, with one row for each array that has elements in them."""
        arrays = [
            array_view(self._journal, one, with_request=requests)
            for one in self._journal.newest_arrays(limit)
            if not states or self._journal.elements(one.number, states, 1)
        ]
        found = [*self.jobs(states, limit, None, requests, elements=False), *arrays]
        return sorted(found, key=lambda one: one.submitted)[-limit:]

    def elements(self, name: str, states: tuple[str, ...], limit: int) -> list[JobView]:
        """The elements of an array, the first ones first."""
        waiting, array = self.wait_reasons(), self.array(name)
        return [self.view(record, waiting) for record in self._journal.elements(array.number, states or None, limit)]

    def array(self, name: str) -> ArrayRecord:
        """An array by its id, or the newest one of that name."""
        found = self._journal.find_array(name)
        if found is None:
            raise UnknownError(f"no array {name[:100]!r} here; `cotenant jobs` lists them")
        return found

    def is_array(self, name: str) -> bool:
        """Whether an array has this id, or this name if no job has it."""
        return self._journal.find(name) is None and self._journal.find_array(name) is not None

    def active(self) -> list[JobView]:
        """The jobs that hold a slot."""
        waiting = self.wait_reasons()
        return [self.view(self._journal.job(job), waiting) for job in sorted(self._tenants.placed)]

    def queue_order(self) -> list[str]:
        """The IDs of the waiting jobs, the next one first."""
        return [job.id for job in self._queue.ordered.in_turn(self.wait_reasons().standing)]

    def events_of(self, job: str) -> list[Event]:
        """What happened to a job, oldest first, as far as it is kept."""
        return [Event(*one) for one in self._journal.events_of(job, MOST_EVENTS)]

    @property
    def node(self) -> Node:
        """The machine with its tenants, as the core sees it."""
        return self._tenants.cluster.at(0)

    @property
    def placed(self) -> Mapping[str, PlacedJob]:
        """The jobs that hold a slot, by ID."""
        return self._tenants.placed

    @property
    def usage(self) -> Mapping[str, GpuUsage]:
        """What is used of each GPU, by UUID."""
        return self._devices.usage

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue."""
        return len(self._queue)

    def job(self, name: str) -> JobView:
        """A job by its id, or the newest one of that name, with all details; or an array."""
        if self.is_array(name):
            return array_view(self._journal, self.array(name), with_request=True)
        record = self.find(name)
        request, faults = request_of(record), self._slice_faults(record)
        history = tuple(self._tuner.history(record.id)) or read_history(self._runs.of_job(record.id))
        return replaced(
            self.view(record, self.wait_reasons()),
            request=replaced(request, env=dict.fromkeys(request.env, HIDDEN)),
            enforcement=self._enforcement(record, request),
            faults=faults.faults,
            drift=faults.drift,
            tuning=history,
        )

    def profile(self, name: str, seconds: float) -> JobProfile | None:
        """The profile of a job that is alone on its GPU; None until it has been measured for that long."""
        return self._interference.profile_after(self.find(name).id, seconds, time.monotonic())

    def accounts(self) -> list[AccountView]:
        """The users and groups of this machine."""
        return self._accounting.views()

    def gpus(self) -> list[GpuView]:
        devices = self._devices
        found = self._unmanaged.processes
        reserved = self._reservations.by_gpu()
        return gpu_views(devices.machine, self._tenants.cluster.at(0), devices.usage, devices.faults, found, reserved)

    def reservations(self) -> list[ReservationView]:
        """The reservations that have not ended."""
        return self._reservations.views(self._devices.machine)

    def reservation(self, name: str) -> ReservationView:
        return self._reservations.view(name, self._devices.machine)

    async def mig_plan(self, request: MigPlanRequest) -> MigPlan:
        """Other MIG layouts for the jobs that wait, in queue order, and then for what the request names.

        The search takes up to a tenth of a second for each, so it runs beside the daemon's other work.
        """
        machine, tenants = self._devices.machine, self._tenants.cluster.at(0).tenants
        waiting = [(job.id, job.demand) for job in islice(self._queue.ordered, MOST_PLANNED)]
        wanted = [*waiting, *demands_wanted(request.want)]
        slices = await asyncio.to_thread(slices_of, self._resources.mig, machine)
        plan = await asyncio.to_thread(repartition, machine, tenants, wanted, evict=request.evict, slices=slices)
        return MigPlan(
            changes=tuple(
                MigChange(gpu=one.gpu, type=one.type, now=one.now, then=one.then, serves=one.serves, leave=one.leave)
                for one in plan.changes
            ),
            served=dict(plan.served),
            unserved=dict(plan.unserved),
            stranded=dict(plan.stranded),
        )

    def status(self) -> dict[str, Any]:
        backend = self._resources.backend
        return {
            "version": __version__,
            "pid": os.getpid(),
            "policy": self._learner.policy.name,
            "devices": str(backend.vendor),
            "notice": backend.notes[0],
            "gpus": len(self._devices.machine.gpus),
            "queued": len(self._queue),
            "running": len(self._tenants.placed),
            "slo_violations": self._interference.violations_total,
            "host": self._host(),
            "notes": [*backend.notes, *self.notes],
        }

    def _host(self) -> dict[str, float | None]:
        """CPUs and memory that jobs may request of the machine, and what is left of them; null: not counted."""
        node = self._tenants.cluster.at(0)
        cpu, free = node.machine.cpu, node.cpu
        return {
            "cpus": None if cpu is None else cpu / 1000,
            "free_cpus": None if free is None else free / 1000,
            "memory_mib": node.machine.host_memory,
            "free_memory_mib": node.host_memory,
        }

    def progress(self, job: str) -> tuple[int, bool]:
        """The number of the job's latest attempt, and whether the job has ended."""
        record = self.find(job)
        return record.attempts, record.state in ENDED

    def read_log(self, job: str, attempt: int, offset: int, most: int) -> tuple[int, bytes]:
        """A part of the log and its offset, which is larger than requested if earlier output was rotated away."""
        return attempts.read_log(self._runs.folder(job, attempt), offset, most)

    def refuse_pruned_log(self, job: str, attempt: int) -> None:
        """UnknownError if the output of an attempt was removed."""
        record = self.find(job)
        over = attempt < record.attempts or record.state in ENDED
        if attempt > 0 and over and not self._runs.folder(job, attempt).exists():
            raise UnknownError(f"the output of {job} was removed by `cotenant prune` or `cotenant up --keep-…`")

    def log_tail(self, job: str, attempt: int, lines: int) -> int:
        """The offset at which the last lines of the log begin."""
        return attempts.tail_offset(self._runs.folder(job, attempt), lines)

    def find(self, name: str) -> JobRecord:
        record = self._journal.find(find_element(self._journal, name) or name)
        if record is None and self.is_array(name):
            raise InputError(
                f"{name} is an array: name one of its elements, such as {self.array(name).id}_0; "
                f"`cotenant jobs --array {name}` lists them"
            )
        if record is None:
            raise UnknownError(f"no job {name[:100]!r} here; `cotenant jobs` lists them")
        return self._as_cancelled(record)

    def resolve(self, name: str, uid: int) -> tuple[str, Owner]:
        """The ID and the owner of a job or an array by its ID, or by the newest one of that name: first of the user
        `uid`, then of any."""
        record = self._journal.find(find_element(self._journal, name) or name, uid)
        array = self._journal.find_array(name, uid)
        first = None if array is None else self._journal.element(array.number, 0)
        if array is not None and first is not None and (record is None or (record.uid != uid and first.uid == uid)):
            return array.id, first.owner
        if record is None:
            raise UnknownError(f"no job {name[:100]!r} here; `cotenant jobs` lists them")
        return record.id, record.owner

    def with_dependencies(self, request: JobRequest, uid: int) -> JobRequest:
        """The request with IDs instead of the names of the jobs that it waits for; UnknownError if one is missing."""
        needed = [one._replace(job=self.resolve(one.job, uid)[0]) for one in parse_dependencies(request.after)]
        return replaced(request, after=tuple(map(str, needed)))

    def core_job(self, record: JobRecord) -> Job:
        queued = self._queue.jobs.get(record.id)
        if queued is not None:
            return queued
        job = self._admission.job_of(record.id, request_of(record), record.submitted)
        return replace(job, account=self._accounting.account(record.owner))

    def placement(self, record: JobRecord) -> Placement:
        gpus = gpus_of(record)
        if not gpus and unreadable(record):  # its GPUs are not known, so no GPU may be called free
            gpus = tuple(range(len(self._devices.machine.gpus)))
        slot = Slot(self._devices.machine.name, gpus)
        job = with_stored_compute(self.core_job(record), record)
        if self._resources.isolation is not None and gpus:
            started = attempts.environment_of(self.folder(record)).get(ISOLATION)
            if started in tuple(Rung):  # what it was started with, though the settings may be others now
                job = replace(job, demand=replace(job.demand, rung=Rung(started)))
        return Placement(job, slot)

    def missing_gpus(self, record: JobRecord) -> list[int]:
        return [gpu for gpu in gpus_of(record) if gpu >= len(self._devices.machine.gpus)]

    def folder(self, record: JobRecord) -> Path:
        return self._runs.folder(record.id, record.attempts)

    def terminal(self, record: JobRecord) -> TerminalView:
        """Where the terminal of a running job is; InputError if it has none now."""
        if request_of(record).terminal is None:
            raise InputError(f"{record.id} is not interactive; `cotenant logs -f {record.id}` shows its output")
        if record.state not in ACTIVE:
            raise InputError(f"{record.id} is {record.state}: it has no terminal now")
        path = terminal_path(self._resources, self.folder(record), record.id)
        return TerminalView(socket=str(path.absolute()), attempt=record.attempts)

    def wait_reasons(self) -> WaitReasons:
        cluster, queue = self._tenants.cluster, self._queue
        now, fair = Seconds(time.time()), self._learner.policy.fair
        standing = self._accounting.shares.standing(queue.ordered.accounts(), now) if fair else None
        limits = self._accounting.limit_check()
        machine = self._devices.machine
        return WaitReasons(
            self._learner.ranker,
            cluster,
            queue.ordered,
            queue.reservation,
            now,
            standing,
            limits,
            self._reservations.advance(machine),
            lambda job: self._reservations.why(job, now, machine),
        )

    def view(self, record: JobRecord, waiting: WaitReasons) -> JobView:
        job = self._queue.jobs.get(record.id)
        if job is not None:  # nothing of it is measured, and thousands may be listed
            why = waiting.reason(job)
            return job_view(
                record,
                reason=f"{why} ({record.reason})" if record.reason else why,
                batch=self._tuner.batch(record.id),
                speed=None,
                granted=lambda wish, gpus: self.rung(record.id, wish, gpus),
            )
        reason = self._runs.delayed.get(record.id)
        held = record.id in self._holds
        waits = self._dependencies.reason(record.id) or self._bounds.reason(record.id)
        reason = self._backoff.waiting.get(record.id) or waits or reason
        reason = self._holds.reason(record.id) or reason
        if record.id in self.set_aside:
            problem = self.set_aside[record.id]
            reason = f"set aside: its request cannot be read: {problem}; use the version that stored it, or cancel it"
        return job_view(
            record,
            reason=reason,
            usage=self._devices.usage_of(record.id),
            batch=self._tuner.batch(record.id),
            speed=self._interference.speed(record.id),
            predicted=self._interference.predicted(record.id),
            slo_violations=self._interference.violations(record.id),
            grants=self._grants.views(record.id),
            held=held,
            paused=self._orders.is_paused(record.id),
            idle_s=self._idle.idle_s(record.id),
            granted=lambda wish, gpus: self.rung(record.id, wish, gpus),
        )

    def rung(self, job: str, wish: Rung | None, gpus: int) -> Rung | None:
        """The rung that a job has, or would get now."""
        placed = self._tenants.placed.get(job)
        return rung_of(self._resources.isolation, wish, gpus) if placed is None else placed.placement.job.demand.rung

    def _enforcement(self, record: JobRecord, request: JobRequest) -> tuple[str, ...]:
        if record.slot is None or self.missing_gpus(record):  # not placed, or on GPUs that were removed since
            return ()
        sentences = self._launcher.enforcement(self._devices.machine, self.placement(record), request)
        policy = self._learner.policy
        if request.latency_s is None or predicts(policy):
            return sentences
        return (
            *sentences,
            f"latency: {policy.name} does not choose neighbours by it; start the daemon with --policy cotenant",
        )

    def _slice_faults(self, record: JobRecord) -> SliceFaults:
        slices = self._resources.slices
        if slices is None:
            return NO_FAULTS
        return slices.faults(record.id, self._runs.of_job(record.id), self._devices.usage.values())

    def _as_cancelled(self, record: JobRecord) -> JobRecord:
        """A queued job as it will be in the journal, if its cancellation could not be recorded yet."""
        if record.state is not JobState.QUEUED or record.id not in self._unrecorded:
            return record
        change = step(record, StopRequested(Stop.CANCEL), time.time())
        return record._replace(state=change.state, **change.columns)
