# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The source of one machine: it runs in the daemon and asks its engine."""

import asyncio
import time
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Mapping

from cotenant.core.footprint import memory_limit_on, memory_on
from cotenant.core.links import link_word
from cotenant.core.model import Machine
from cotenant.core.model import Tenant as CoreTenant
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.local.authority import event_shown_to, shown_to
from cotenant.local.engine import Engine
from cotenant.local.events import Subscription
from cotenant.local.identity import Caller
from cotenant.local.refusals import UnknownError
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.devices.vendors import Vendor
from cotenant.web import local_history
from cotenant.web.access import Viewer
from cotenant.web.local_costs import Costs
from cotenant.web.local_jobs import detail_of, row_of, whatif_answer, whatif_request
from cotenant.web.model import (
    Action,
    Charts,
    Day,
    Gpu,
    Health,
    JobDetail,
    JobRow,
    LogPiece,
    Node,
    Overview,
    Tenant,
    Verb,
    WhatIf,
    WhatIfAnswer,
)
from cotenant.web.samples import Samples
from cotenant.web.source import AbsentError, ForbiddenError
from cotenant.wire.job_views import ENDED, WAITING_OR_ACTIVE, JobView
from cotenant.wire.machine import GpuView

MOST_JOBS = 5000
ENDED_SHOWN = 50
TAIL_LINES = 300
MOST_PIECE = 128 * 1024
"""bytes of output that are sent at a time; if there is more, the rest is skipped"""
FOLLOW_EVERY_S = 0.3
VERBS = frozenset(Verb)
"""what this engine can do"""
NOT_OWN = "this belongs to {user}: only {user} and administrators may do it"
OF_JOBS = {Verb.CANCEL: "is cancelled", Verb.HOLD: "is held", Verb.RELEASE: "can start again"}


class LocalSource:
    """What the pages show of one daemon. A viewer sees of the jobs of others what the API shows of them."""

    group_word = None

    def __init__(self, engine: Engine, host: str) -> None:
        self._engine, self._queries = engine, engine.queries
        self._host = host
        self._waiting: set[Subscription] = set()
        self._samples = Samples()
        recorder = engine.recorded_decisions
        self._costs = None if recorder is None else Costs(recorder, engine.history)
        engine.looked.subscribe(self._on_look)

    def _on_look(self, usage: object) -> None:
        self._samples.add(time.time(), self._queries.active())
        for one in self._waiting:
            one.changed.set()

    async def changes(self) -> AsyncGenerator[None, None]:
        with self._engine.events.subscribe(-1) as subscription:
            self._waiting.add(subscription)
            try:
                while not subscription.closed:
                    yield
                    await subscription.changed.wait()
                    subscription.changed.clear()
            finally:
                self._waiting.discard(subscription)

    async def snapshot(self, viewer: Viewer) -> Overview:
        queries = self._queries
        caller = _caller(viewer)
        active = [shown_to(caller, job) for job in queries.jobs(WAITING_OR_ACTIVE, MOST_JOBS, None, requests=True)]
        ended = [shown_to(caller, job) for job in queries.jobs(ENDED, ENDED_SHOWN, None, requests=True)]
        order = {job: place for place, job in enumerate(queries.queue_order())}
        names = {job.id: job.name for job in active}
        rows = [self._row(caller, job, names) for job in active]
        rows.sort(key=lambda row: order.get(row.id, len(order)))
        status = queries.status()
        return Overview(
            name=self._host,
            policy=status["policy"],
            devices=status["notice"],
            nodes=(self._node({job.id: job for job in active}),),
            jobs=(*rows, *(self._row(caller, job, names) for job in reversed(ended))),
            notes=tuple(status["notes"][1:]),
        )

    def _row(self, caller: Caller, job: JobView, names: Mapping[str, str]) -> JobRow:
        placed = self._queries.placed.get(job.id)
        limit = None if placed is None or placed.memory is None else MiB(placed.memory * len(placed.gpus))
        return row_of(job, node=self._host, limit=limit, names=names, own=_may_act(caller, job))

    def _node(self, jobs: Mapping[str, JobView]) -> Node:
        node, usage = self._queries.node, self._queries.usage
        gpus, simulated = [], self._queries.status()["devices"] == Vendor.SIMULATED
        for view, hardware in zip(self._queries.gpus(), node.machine.gpus, strict=True):
            tenants = [
                self._tenant(one, view, jobs.get(one.job), node.machine, usage.get(view.uuid))
                for one in node.tenants
                if view.index in one.gpus
            ]
            rungs = () if simulated else (view.only,) if view.only else view.isolation
            gpus.append(_gpu(view, tuple(tenants), hardware.cordoned, rungs))
        links = node.machine.links or ()
        return Node(
            name=self._host,
            gpus=tuple(gpus),
            links=tuple(tuple(map(link_word, row)) for row in links),
            facts=(("Devices", self._queries.status()["notice"]),),
        )

    def _tenant(
        self, one: CoreTenant, gpu: GpuView, job: JobView | None, machine: Machine, usage: GpuUsage | None
    ) -> Tenant:
        hardware, demand = machine.gpus[gpu.index], one.demand
        requested, limit = memory_on(demand, hardware), memory_limit_on(demand, hardware)
        used, busy = _use_of(one.job, usage) if len(one.gpus) > 1 or job is None else (None, None)
        if job is not None and len(one.gpus) == 1:
            used, busy = job.memory_used_mib, job.utilisation
        return Tenant(
            job=one.job,
            name=one.job if job is None else job.name,
            user=None if job is None else job.user,
            memory_mib=requested,
            memory_limit_mib=limit if limit > requested else None,
            used_mib=None if used is None else MiB(used),
            compute=demand.compute,
            used_compute=None if busy is None else MilliGpu(round(10 * busy)),
            speed=None if job is None or job.speed is None else round(job.speed, 2),
            predicted=None if job is None or job.predicted is None else round(job.predicted, 2),
            rung=None if job is None else job.isolation,
            batch=None if job is None else job.batch,
        )

    async def job(self, viewer: Viewer, job: str) -> JobDetail:
        caller = _caller(viewer)
        view = shown_to(caller, self._job(caller, job))
        company: tuple[Tenant, ...] = ()
        jobs = {one.id: shown_to(caller, one) for one in self._queries.active()}
        names = {one.id: one.name for one in jobs.values()}
        if view.gpus:
            company = tuple(
                {one.job: one for index in view.gpus for one in self._node(jobs).gpus[index].tenants}.values()
            )
        events = [event_shown_to(caller, self._engine, one) for one in self._queries.events_of(view.id)]
        why = self._engine.why(view.id) if _may_act(caller, view) else None
        return detail_of(view, self._row(caller, view, names), events, why, company, names)

    def _job(self, caller: Caller, job: str) -> JobView:
        """By its ID, or the newest of that name: of the viewer first."""
        try:
            return self._queries.job(self._queries.resolve(job, caller.owner.uid)[0])
        except UnknownError as error:
            raise AbsentError(str(error)) from None

    async def charts(self, viewer: Viewer, job: str) -> Charts:
        caller = _caller(viewer)
        view = shown_to(caller, self._job(caller, job))
        recent = self._samples.of(view.id)
        history, limit = self._engine.history, self._row(caller, view, {}).limit_mib
        return await asyncio.to_thread(local_history.charts, history, view, recent, limit)

    def logs(self, viewer: Viewer, job: str) -> AsyncGenerator[LogPiece, None]:
        caller = _caller(viewer)
        view = self._job(caller, job)
        if not _may_act(caller, view):
            raise ForbiddenError(NOT_OWN.format(user=view.user))
        return self._follow(view)

    async def _follow(self, view: JobView) -> AsyncGenerator[LogPiece, None]:
        queries = self._queries
        attempt, ended = queries.progress(view.id)
        queries.refuse_pruned_log(view.id, attempt)
        offset = queries.log_tail(view.id, attempt, TAIL_LINES)
        text = getincrementaldecoder("utf-8")("replace")
        while not self._engine.stopping.is_set():
            latest, ended = queries.progress(view.id)  # before the log, so that the last output is still sent
            end, begun = queries.log_tail(view.id, attempt, 0), offset
            if end - offset > MOST_PIECE:
                offset = end - MOST_PIECE // 2
            begin, piece = queries.read_log(view.id, attempt, offset, MOST_PIECE)
            if piece:
                offset = begin + len(piece)
                yield LogPiece(text.decode(piece), begin - begun)
            elif latest != attempt:  # the job runs again
                attempt, offset = latest, 0
                yield LogPiece(f"\n(attempt {attempt})\n")
            elif ended:
                return
            await asyncio.sleep(FOLLOW_EVERY_S)

    async def whatif(self, viewer: Viewer, wish: WhatIf) -> WhatIfAnswer:
        names = {job.id: shown_to(_caller(viewer), job).name for job in self._queries.active()}
        return whatif_answer(self._queries.foresight.what_if(whatif_request(wish)), names, self._host)

    async def day(self, viewer: Viewer) -> Day | None:
        if self._engine.history is None:
            return None
        caller = _caller(viewer)
        names = {job.id: shown_to(caller, job).name for job in self._queries.jobs((), MOST_JOBS, None)}
        costs = self._costs if caller.administrator else None  # as `cotenant report`
        return await asyncio.to_thread(local_history.day, self._engine.history, names, time.time(), costs)

    async def act(self, viewer: Viewer, action: Action) -> str:
        if action.verb not in VERBS & viewer.verbs:
            raise ForbiddenError(f"{viewer.name} may not {action.verb} this")
        try:
            if action.verb in OF_JOBS:
                engine = self._engine
                does = {Verb.CANCEL: engine.cancel, Verb.HOLD: engine.hold, Verb.RELEASE: engine.release}
                name, owner = self._queries.resolve(action.target, _caller(viewer).owner.uid)
                if not _caller(viewer).owns(owner):
                    raise ForbiddenError(NOT_OWN.format(user=owner.user))
                job = does[action.verb](name)
                engine.events.record("asked", job.id, f"{viewer.name} on the pages: {action.verb}")
                return f"{job.name} ({job.id}) {OF_JOBS[action.verb]}"
            if not _caller(viewer).administrator:
                raise ForbiddenError(f"{viewer.name} is not an administrator of this daemon, and only they may do this")
            host, _, index = action.target.rpartition("/")
            if host != self._host:
                raise InputError(f"{action.target[:60]}: expected a GPU of {self._host}")
            cordoned = action.verb is Verb.CORDON
            self._engine.cordon(index, cordoned)
        except UnknownError as error:
            raise AbsentError(str(error)) from None
        self._engine.events.record("asked", None, f"{viewer.name} on the pages: {action.verb} GPU {index}")
        return f"GPU {index} takes {'no new jobs' if cordoned else 'jobs again'}"


def _caller(viewer: Viewer) -> Caller:
    """The user behind a viewer, whom the sessions have identified."""
    assert isinstance(viewer.details, Caller)
    return viewer.details


def _may_act(caller: Caller, job: JobView) -> bool:
    return caller.administrator or job.uid == caller.owner.uid


def _gpu(view: GpuView, tenants: tuple[Tenant, ...], cordoned: bool, rungs: tuple[str, ...]) -> Gpu:
    health = Health.OK if view.healthy else Health.FAULT
    if view.healthy and cordoned:
        health = Health.CORDONED
    return Gpu(
        index=view.index,
        uuid=view.uuid,
        type=view.type,
        memory_mib=MiB(view.memory_mib),
        compute=MilliGpu(view.compute),
        used_mib=None if view.used_mib is None else MiB(view.used_mib),
        utilisation=None if view.utilisation is None else round(view.utilisation),
        health=health,
        note=view.fault,
        rungs=rungs,
        mig=view.mig,
        tenants=tenants,
    )


def _use_of(job: str, usage: GpuUsage | None) -> tuple[int | None, float | None]:
    """What the processes of a job use of one GPU."""
    own = [one for one in (usage.processes or () if usage is not None else ()) if one.job == job]
    memory = [one.memory_mib for one in own if one.memory_mib is not None]
    busy = [one.utilisation for one in own if one.utilisation is not None]
    return (sum(memory) if memory else None), (float(sum(busy)) if busy else None)
