# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The one-machine engine: observes the devices and the journal, asks the core, acts by starting processes.

The journal owns the state: everything here can be rebuilt from it and from the job folders, after a kill at any moment.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from cotenant import __version__
from cotenant.core.cluster import Cluster
from cotenant.core.deciding import Queue, decide, place_together, rank
from cotenant.core.footprint import memory_on
from cotenant.core.learning import Learner
from cotenant.core.mix import inventory_of
from cotenant.core.model import Job, Machine, Placement, Slot
from cotenant.core.units import MiB, Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.local import supervisor
from cotenant.local.journal import JobState, Journal, JournalJob
from cotenant.local.tuner import TuningLoop
from cotenant.node.devices import Backend
from cotenant.node.limits import Launch, Paths, enforcement, launch_for, limits_text, write_limits
from cotenant.node.shares import Shares
from cotenant.wire.local import GpuView, JobRequest, JobView, job_of

ACTIVE = ("starting", "running")
MOST_PROCESSES = 512
"""of one job"""


class UnknownError(CotenantError):
    """No such job or GPU."""


class RefusedError(CotenantError):
    """A request that can never be carried out here, with the numbers."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as it is told to those who listen."""

    id: int
    at: float
    kind: str
    job: str | None
    text: str


def supervision(launch: Launch, request: JobRequest) -> supervisor.Spec:
    """What the supervisor is told of a job."""
    base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return supervisor.Spec(
        argv=list(request.command),
        cwd=request.cwd,
        env={**base, **request.env, **launch.env},
        cpus=None if launch.cpus is None else list(launch.cpus),
        rlimit_data_mib=launch.rlimit_data_mib,
        memory_mib=launch.memory_mib,
        memory_baseline_mib=launch.memory_baseline_mib,
        share_percent=launch.share_percent,
        cgroup=None if launch.cgroup is None else str(launch.cgroup),
        grace_s=request.grace_s,
        max_processes=MOST_PROCESSES,
    )


class Engine:
    """What the daemon does, without its sockets: called from one event loop, never from two threads."""

    def __init__(
        self, state: Path, journal: Journal, backend: Backend, paths: Paths, shares: Shares, policy: str, queue: str
    ) -> None:
        self._state, self._journal, self._backend = state, journal, backend
        self._paths, self._shares = paths, shares
        self._machine = self._with_cordons(backend.machine())
        self._cluster = Cluster.of([self._machine])
        self._learner = Learner(policy, inventory_of([self._machine]), queue)
        self._queue = Queue(self._learner.policy)
        self._placed: dict[str, Placement] = {}
        self._starters = ThreadPoolExecutor(2, "start")
        self._listeners: set[asyncio.Queue[Event]] = set()
        self._wake = asyncio.Event()
        self.stopping = asyncio.Event()
        self._tuning = TuningLoop(
            str(paths.agent), {gpu: str(path) for gpu, path in paths.engines.items()}, self.leader_of
        )

    # Asked from outside

    def submit(self, request: JobRequest) -> JobView:
        """Accepts a job for good, or refuses it at once if it could never run here."""
        submitted = time.time()
        trial = job_of("new", request, submitted)
        self._refuse_impossible(trial)
        job_id = self._journal.submit(msgspec.json.encode(request), submitted)
        job = job_of(job_id, request, submitted)
        self._queue.add(job, Seconds(submitted))
        self._learner.observe(job.demand)
        self._tell("submitted", job_id, f"submitted: {' '.join(request.command)[:200]}")
        self._wake.set()
        return self.job(job_id)

    def jobs(self, states: tuple[str, ...], limit: int, after: str | None) -> list[JobView]:
        found = self._journal.jobs(states or None, limit, after)
        return [self._view(row) for row in found]

    def job(self, name: str) -> JobView:
        """A job by id, or the newest by name."""
        row = self._row(name)
        request = msgspec.json.decode(row.request, type=JobRequest)
        view = self._view(row)
        return msgspec.structs.replace(
            view,
            request=request,
            reason=self._reason(row.id) if row.state == "queued" else view.reason,
            enforcement=self._enforcement(row, request),
            tuning=tuple(self._tuning.history(row.id)) or self._kept_history(row.id),
        )

    def cancel(self, name: str) -> JobView:
        row = self._row(name)
        if row.state == "queued":
            self._journal.transition(row.id, ("queued",), "cancelled", ended=time.time(), outcome="cancelled")
            self._queue.remove(self._job(row))
            self._tell("cancelled", row.id, "cancelled while it waited")
        elif row.state in ACTIVE:
            supervisor.cancel(self._folder(row))
            self._tell("cancelling", row.id, "told to stop")
        else:
            raise InputError(f"{row.id} has already ended ({row.state})")
        return self.job(row.id)

    def why(self, name: str) -> dict[str, Any]:
        row = self._row(name)
        job = self._job(row)
        ranking = rank(self._learner.policy, job, self._cluster, ranker=self._learner.ranker)
        placed = self._placed.get(row.id)
        return {
            "job": row.id,
            "state": row.state,
            "policy": self._learner.policy.name,
            "placed_on": None if placed is None else list(placed.slot.gpus),
            "reason": row.reason if placed is not None else self._reason(row.id),
            "fits": [{"gpus": list(fit.slot.gpus), "score": list(fit.score)} for fit in ranking.fits],
            "reasons": {node: str(why) for node, why in ranking.reasons.items()},
            "ahead": self._ahead(row.id),
        }

    def gpus(self) -> list[GpuView]:
        usage = {one.uuid: one for one in self._backend.usage()}
        node = self._cluster.at(0)
        views = []
        for i, gpu in enumerate(self._machine.gpus):
            seen = usage.get(gpu.uuid)
            views.append(
                GpuView(
                    index=i,
                    uuid=gpu.uuid,
                    type=gpu.type,
                    memory_mib=gpu.memory_capacity,
                    free_memory_mib=node.memory[i],
                    free_compute=node.compute[i],
                    used_mib=None if seen is None else seen.used_mib,
                    utilisation=None if seen is None else seen.utilisation,
                    healthy=gpu.healthy,
                    cordoned=gpu.cordoned,
                    tenants=tuple(tenant.job for tenant in node.tenants if i in tenant.gpus),
                )
            )
        return views

    def cordon(self, name: str, cordoned: bool) -> GpuView:
        index = self._gpu(name)
        uuid = self._machine.gpus[index].uuid
        names = {*self._cordoned(), uuid} if cordoned else self._cordoned() - {uuid}
        self._journal.remember("cordoned", json.dumps(sorted(names)))
        self._machine_changed(self._with_cordons(self._machine))
        self._tell("cordoned" if cordoned else "uncordoned", None, f"GPU {index} ({uuid})")
        return self.gpus()[index]

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "policy": self._learner.policy.name,
            "devices": str(self._backend.kind),
            "notice": self._backend.notes[0],
            "gpus": len(self._machine.gpus),
            "queued": len(self._queue),
            "running": len(self._placed),
            "notes": list(self._backend.notes),
        }

    def has_ended(self, job: str) -> bool:
        return self._row(job).state not in ("queued", *ACTIVE)

    def read_log(self, job: str, offset: int, most: int) -> bytes:
        """A piece of the log; rotated files count as one long log from the oldest kept on."""
        return supervisor.read_log(self._folder(self._row(job)), offset, most)[1]

    @contextmanager
    def subscribe(self, after: int) -> Iterator[asyncio.Queue[Event]]:
        """Events since `after` (-1: none of the past), then new ones; a slow reader loses the oldest."""
        queue: asyncio.Queue[Event] = asyncio.Queue(maxsize=10_000)
        if after >= 0:
            for event in self._journal.events(after, 5_000):
                queue.put_nowait(Event(event.id, event.at, event.kind, event.job, event.text))
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    def ask_to_stop(self) -> None:
        self.stopping.set()
        self._wake.set()

    # The loop

    def recover(self) -> None:
        """Finds everything again after a stop or a kill: running processes, ended ones, the queue in its order."""
        for row in self._journal.jobs(ACTIVE, 1_000_000, None):
            self._adopt(row)
        self._shares.sweep(self._placed)
        for row in self._journal.queued_in_order():
            job = self._job(row)
            self._queue.add(job, Seconds(row.submitted))
            self._learner.observe(job.demand)
        self._wake.set()

    async def run(self) -> None:
        """Schedules whenever something changed, until asked to stop; jobs go on without us."""
        tuning = asyncio.create_task(self._tuning.run())
        try:
            while not self.stopping.is_set():
                self._wake.clear()
                self._schedule()
                await self._wake.wait()
        finally:
            tuning.cancel()

    def observe_devices(self) -> None:
        """Takes note of cards that failed, recovered or changed."""
        machine = self._with_cordons(self._backend.machine())
        if machine.kind != self._machine.kind:
            self._machine_changed(machine)
            self._tell("devices", None, "the devices have changed")

    def _schedule(self) -> None:
        decision = decide(
            self._learner.policy, self._queue, self._cluster, Seconds(time.time()), ranker=self._learner.ranker
        )
        for placement in decision.placements:
            self._start(placement)

    def _start(self, placement: Placement) -> None:
        """Durable first, then the process: a kill in between leaves a job that is started again, never twice."""
        row = self._journal.job(placement.job.id)
        request = msgspec.json.decode(row.request, type=JobRequest)
        launch = self._launch(row.id, placement.slot, placement.job, request)
        attempt = row.attempts + 1
        self._journal.transition(
            row.id,
            ("queued",),
            "starting",
            slot=json.dumps(list(placement.slot.gpus)),
            attempts=attempt,
            started=time.time(),
            reason=f"{self._learner.policy.name}: best of the slots that fit",
        )
        self._queue.remove(placement.job)
        self._cluster = self._cluster.place(placement)
        self._placed[row.id] = placement
        self._run_attempt(row.id, attempt, launch, request)
        self._tell("started", row.id, f"on GPU {' '.join(map(str, placement.slot.gpus)) or 'none'}")
        self._seat(row.id, placement, request)

    def _run_attempt(self, job: str, attempt: int, launch: Launch, request: JobRequest) -> None:
        """What the supervisor needs, then the supervisor itself, in a thread: starting a process takes a while."""
        folder = self._attempt(job, attempt)

        def begin() -> None:
            supervisor.prepare(folder, supervision(launch, request))
            write_limits(self._limits_file(job), limits_text(job, launch.limits))
            if launch.cgroup is not None and launch.cgroup_cpu is not None:
                self._shares.create(job, launch.cgroup_cpu)
            supervisor.launch(folder)

        starting = asyncio.get_running_loop().run_in_executor(self._starters, begin)
        starting.add_done_callback(lambda done: self._begun(job, attempt, done.exception()))

    def _begun(self, job: str, attempt: int, problem: BaseException | None) -> None:
        if problem is None:
            self._look(job, attempt)
            return
        self._vacate(job)
        self._journal.transition(job, ACTIVE, "finished", ended=time.time(), outcome="exec-failed", error=str(problem))
        self._tell("finished", job, f"could not be started: {problem}")
        self._wake.set()

    def _look(self, job: str, attempt: int) -> None:
        """Watches the supervisor, or takes note that it has already ended."""
        status = supervisor.status(self._attempt(job, attempt))
        if status.state != "running" or status.pidfd is None:
            self._ended(job, attempt, status)
            return
        self._watch(job, attempt, status.pidfd)
        if self._journal.job(job).state == "starting":
            self._journal.transition(job, ("starting",), "running")

    def _watch(self, job: str, attempt: int, pidfd: int) -> None:
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._ended(job, attempt, supervisor.status(self._attempt(job, attempt)))

        loop.add_reader(pidfd, gone)

    def _adopt(self, row: JournalJob) -> None:
        """A job that was starting or running when the last daemon stopped."""
        job = self._job(row)
        placement = Placement(job, Slot(self._machine.name, tuple(json.loads(row.slot or "[]"))))
        self._cluster = self._cluster.place(placement)
        self._placed[row.id] = placement
        self._learner.observe(job.demand)
        folder = self._attempt(row.id, row.attempts)
        status = supervisor.status(folder)
        if status.state == "new":  # killed between the journal and the process: nothing has run
            request = msgspec.json.decode(row.request, type=JobRequest)
            self._run_attempt(row.id, row.attempts, self._launch(row.id, placement.slot, job, request), request)
        else:
            self._look(row.id, row.attempts)
        if row.id in self._placed:
            self._tell("found", row.id, "found again after a restart of the daemon")
            self._seat(row.id, placement, msgspec.json.decode(row.request, type=JobRequest))

    def _ended(self, job: str, attempt: int, status: supervisor.Status) -> None:
        """Books how a job ended, frees its slot, and queues it again if it may be tried once more."""
        self._vacate(job)
        row = self._journal.job(job)
        if row.state not in ACTIVE:
            return
        if status.exit is None:
            supervisor.kill_leftovers(self._attempt(job, attempt))
            rebooted = status.state == "interrupted"
            state: JobState = "interrupted" if rebooted else "lost"
            text = "the machine was restarted" if rebooted else "its supervisor was killed"
            self._journal.transition(job, ACTIVE, state, ended=time.time(), outcome=state, error=text)
            self._tell(state, job, text)
        else:
            self._book_exit(row, status.exit)
        self._wake.set()

    def _vacate(self, job: str) -> None:
        placement = self._placed.pop(job, None)
        if placement is not None:
            self._cluster = self._cluster.finish(placement)
            self._shares.remove(job)
            self._keep_history(job)
            self._tuning.unseat(job)

    def _book_exit(self, row: JournalJob, ending: supervisor.Exit) -> None:
        request = msgspec.json.decode(row.request, type=JobRequest)
        failed = ending.outcome not in ("exited", "cancelled") or (ending.outcome == "exited" and ending.code != 0)
        if failed and row.attempts <= request.retries:
            text = (
                f"attempt {row.attempts} failed ({ending.outcome} {ending.code or ending.signal or ''}), trying again"
            )
            self._journal.transition(row.id, ACTIVE, "queued", slot=None, started=None, reason=text)
            self._queue.add(self._job(row), Seconds(row.submitted))
            self._tell("retrying", row.id, text)
            return
        state: JobState = "cancelled" if ending.outcome == "cancelled" else "finished"
        self._journal.transition(
            row.id,
            ACTIVE,
            state,
            started=ending.started,
            ended=ending.ended,
            outcome=ending.outcome,
            code=ending.code,
            signal=ending.signal,
            error=ending.error,
        )
        self._tell(state, row.id, f"{ending.outcome} {ending.code if ending.code is not None else ''}".strip())

    # Small things

    def leader_of(self, job: str) -> int | None:
        """The process that leads a running job."""
        placement = self._placed.get(job)
        run = None if placement is None else supervisor.read_json(str(self._folder(self._journal.job(job)) / "run"))
        return None if run is None else int(run["pid"])

    def _seat(self, job: str, placement: Placement, request: JobRequest) -> None:
        cards, gpus = self._machine.gpus, placement.slot.gpus
        memory = memory_on(placement.job.demand, cards[gpus[0]]) if gpus else MiB(0)
        self._tuning.seat(job, gpus, request, memory or None)

    def _refuse_impossible(self, job: Job) -> None:
        """A request that would not fit even if nobody else were here is refused now, with the numbers."""
        usable = replace(
            self._machine, gpus=tuple(replace(gpu, healthy=True, cordoned=False) for gpu in self._machine.gpus)
        )
        empty = Cluster.of([usable])
        if place_together(self._learner.ranker, job, empty) is None:
            reasons = self._learner.ranker.reasons(job.demand, empty)
            raise RefusedError("this can never run here", {node: str(why) for node, why in reasons.items()})

    def _reason(self, job_id: str) -> str:
        row = self._journal.job(job_id)
        reasons = self._learner.ranker.reasons(self._job(row).demand, self._cluster)
        refusal = next(iter(reasons.values()), None)
        if refusal is not None:
            return str(refusal)
        return "its turn has not come" if self._ahead(job_id) else "about to start"

    def _ahead(self, job_id: str) -> int:
        """How many jobs wait before it."""
        for place, job in enumerate(self._queue):
            if job.id == job_id:
                return place
        return 0

    def _row(self, name: str) -> JournalJob:
        row = self._journal.find(name)
        if row is None:
            raise UnknownError(f"no job {name[:100]!r} here; `cotenant jobs` lists them")
        return row

    def _job(self, row: JournalJob) -> Job:
        return job_of(row.id, msgspec.json.decode(row.request, type=JobRequest), row.submitted)

    def _view(self, row: JournalJob) -> JobView:
        request = msgspec.json.decode(row.request, type=JobRequest)
        return JobView(
            id=row.id,
            name=request.name or Path(request.command[0]).name,
            state=row.state,
            submitted=row.submitted,
            started=row.started,
            ended=row.ended,
            gpus=tuple(json.loads(row.slot)) if row.slot else (),
            outcome=row.outcome,
            code=row.code,
            signal=row.signal,
            error=row.error,
            attempts=row.attempts,
            reason=row.reason,
            batch=self._tuning.batch(row.id) or request.batch,
            speed=self._tuning.speed(row.id),
        )

    def _launch(self, job_id: str, slot: Slot, job: Job, request: JobRequest) -> Launch:
        return launch_for(
            self._machine,
            slot,
            job.demand,
            job=job_id,
            paths=self._paths,
            limits_file=self._limits_file(job_id),
            kind=self._backend.kind,
            cores=self._backend.cores(slot.gpus),
            shares=self._shares,
            batch=request.batch,
        )

    def _keep_history(self, job: str) -> None:
        """What was tried for a job, beside its logs: for people, so losing it in a crash is no harm."""
        history = self._tuning.history(job)
        if history:
            (self._state / "jobs" / job / "tuning.json").write_bytes(msgspec.json.encode(history))

    def _kept_history(self, job: str) -> tuple[dict[str, Any], ...]:
        path = self._state / "jobs" / job / "tuning.json"
        return msgspec.json.decode(path.read_bytes(), type=tuple[dict[str, Any], ...]) if path.exists() else ()

    def _limits_file(self, job: str) -> Path:
        return self._state / "jobs" / job / "limits.json"

    def _enforcement(self, row: JournalJob, request: JobRequest) -> tuple[str, ...]:
        if row.slot is None:
            return ()
        slot = Slot(self._machine.name, tuple(json.loads(row.slot)))
        launch = self._launch(row.id, slot, self._job(row), request)
        return tuple(enforcement(self._backend.kind, launch, self._shares.means))

    def _gpu(self, name: str) -> int:
        for i, gpu in enumerate(self._machine.gpus):
            if name in (str(i), gpu.uuid):
                return i
        raise UnknownError(f"no GPU {name[:100]!r} here; `cotenant gpus` lists them")

    def _cordoned(self) -> set[str]:
        return set(json.loads(self._journal.recall("cordoned") or "[]"))

    def _with_cordons(self, machine: Machine) -> Machine:
        names = self._cordoned()
        return replace(machine, gpus=tuple(replace(gpu, cordoned=gpu.uuid in names) for gpu in machine.gpus))

    def _machine_changed(self, machine: Machine) -> None:
        self._machine = machine
        self._cluster = self._cluster.replace(machine)
        self._wake.set()

    def _attempt(self, job: str, attempt: int) -> Path:
        return self._state / "jobs" / job / str(max(1, attempt))

    def _folder(self, row: JournalJob) -> Path:
        return self._attempt(row.id, row.attempts)

    def _tell(self, kind: str, job: str | None, text: str) -> None:
        at = time.time()
        event = Event(self._journal.record_event(at, kind, job, text), at, kind, job, text)
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)
