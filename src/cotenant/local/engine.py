# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The one-machine engine: observes the devices and the journal, asks the core, acts by starting processes.

The journal owns the state: everything here can be rebuilt from it and from the job folders, after a kill at any moment.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cotenant import __version__
from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job, Placement, Slot
from cotenant.core.placement.deciding import Queue, decide, judge_again
from cotenant.core.placement.ranking import Draw
from cotenant.core.sharing.speeds import Belief
from cotenant.core.tuning.episode import Tuning
from cotenant.core.units import Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.local import attempts
from cotenant.local.admission import admit, as_asked, predicts, usable_and_empty
from cotenant.local.devices import Devices
from cotenant.local.events import Events, complain
from cotenant.local.interference import Neighbours, Ties
from cotenant.local.job_slices import NOTHING, Found, JobSlices
from cotenant.local.journal import STATES, JobState, Journal, JournalError, JournalJob, Stop
from cotenant.local.knowledge import Beliefs
from cotenant.local.launching import Launcher
from cotenant.local.measurement import LOOK
from cotenant.local.outcomes import ACTIVE, ENDED, book_end, queue_again, request_of
from cotenant.local.runs import Runs
from cotenant.local.supervisor import read_json
from cotenant.local.tenants import Seats
from cotenant.local.tuner import TuningLoop
from cotenant.local.views import Waiting, chosen, explained, gpu_views, gpus_of, job_view, placed_because, slot_text
from cotenant.node.devices import Backend, Kind
from cotenant.node.launch import Paths
from cotenant.node.shares import Shares
from cotenant.wire.local import GpuView, JobRequest, JobView
from cotenant.wire.profile import JobProfile

TRY_AGAIN_S = 5.0
"""after the journal could not be written"""
PASS_EVERY_S = 60.0
"""while jobs wait that may become overdue"""


class UnknownError(CotenantError):
    """No such job or GPU."""


class Engine:
    """What the daemon does, without its sockets: called from one event loop, never from two threads."""

    def __init__(
        self,
        state: Path,
        journal: Journal,
        backend: Backend,
        paths: Paths,
        shares: Shares,
        policy: str,
        queue: str,
        *,
        tuning: Tuning | None = None,
        slices: JobSlices | None = None,
        launch: Callable[[Path], None] = attempts.launch,
        draw: Draw = random.randrange,
        belief: Belief | None = None,
        look: Seconds = LOOK,
    ) -> None:
        self._journal, self._shares, self._draw = journal, shares, draw
        self._notes, self._kind = backend.notes, backend.kind
        self._devices = Devices(backend, journal)
        self._runs = Runs(state / "jobs", self._seen)
        self._slices = slices
        self._launcher = Launcher(
            jobs=state / "jobs", backend=backend, paths=paths, shares=shares, slices=slices, launch=launch
        )
        machine = self._devices.machine
        self._empty = usable_and_empty(machine)
        self.beliefs = Beliefs(journal, machine, belief)
        self._learner = Learner(policy, inventory_of([machine]), queue, belief=self.beliefs.belief)
        self._queue = Queue(self._learner.policy)
        self._waiting: dict[str, Job] = {}
        self._untried: dict[str, Job] = {}
        """those that have come since the last pass"""
        self._tried: tuple[Cluster, int] | None = None
        """the cluster that the last pass left, and the version of the belief it went by"""
        self.events = Events(journal)
        self._wake = asyncio.Event()
        self.stopping = asyncio.Event()
        ties = Ties(
            held=backend.kind is Kind.SIMULATED,
            used=self._devices.used_by,
            solo=lambda job: self._tuning.solo(job),
            untuned=lambda job: self._tuning.untuned(job),
            say=self.events.tell,
            learned=self._wake.set,
            look_again=self._look_again,
            revert=self._revert,
        )
        self.neighbours = Neighbours(self.beliefs, ties, look)
        self._tuning = TuningLoop(
            str(paths.agent),
            {gpu: str(path) for gpu, path in paths.engines.items()},
            self._supervisor_of,
            cores_of=backend.cores,
            say=lambda job, text: self.events.tell("tuning", job, text),
            settings=tuning,
            hear=self.neighbours.hear,
            disturbed=self.neighbours.disturbed,
            tick=self.neighbours.tick,
        )
        self._seats = Seats(machine, self._runs, shares, self._tuning, self.neighbours)

    # Asked from outside

    def submit(self, request: JobRequest) -> JobView:
        """Accepts a job for good, or refuses it at once if it could never run here."""
        submitted = time.time()
        job = admit(self._learner, self.beliefs, self._empty, request, submitted)
        job_id = self._journal.submit(msgspec.json.encode(request), submitted)
        self._enqueue(replace(job, id=job_id))
        self._learner.observe(self._waiting[job_id].demand)
        self.events.tell("submitted", job_id, f"submitted: {' '.join(request.command)[:200]}")
        return self.job(job_id)

    def jobs(self, states: tuple[str, ...], limit: int, after: str | None) -> list[JobView]:
        unknown = next((state for state in states if state not in STATES), None)
        if unknown is not None:
            raise InputError(f"no state {unknown[:40]!r}; there are: {', '.join(STATES)}")
        waiting = Waiting(self._learner.ranker, self._seats.cluster, self._queue)
        return [self._view(row, waiting) for row in self._journal.jobs(states or None, limit, after)]

    def job(self, name: str) -> JobView:
        """A job by id, or the newest by name, with everything that is known of it."""
        row = self._row(name)
        request, found = request_of(row), self._found(row)
        return msgspec.structs.replace(
            self._view(row, Waiting(self._learner.ranker, self._seats.cluster, self._queue)),
            request=request,
            enforcement=self._enforcement(row, request),
            faults=found.faults,
            drift=found.drift,
            tuning=self._seats.history(row.id),
        )

    def profile(self, name: str, seconds: float) -> JobProfile | None:
        """What a job takes that is alone on its GPU; None while it has not been measured for so long."""
        return self.neighbours.profile_after(self._row(name).id, seconds, time.monotonic())

    def cancel(self, name: str) -> JobView:
        row = self._row(name)
        if row.state == "queued":
            self._journal.transition(row.id, ("queued",), "cancelled", ended=time.time(), outcome="cancelled")
            self._dequeue(row.id)
            self.events.tell("cancelled", row.id, "cancelled while it waited")
        elif row.state in ACTIVE:
            self._tell_to_end(row, "cancel", "cancelling", "told to stop")
        else:
            raise InputError(f"{row.id} has already ended ({row.state})")
        return self.job(row.id)

    def retry(self, name: str) -> JobView:
        """Runs a job that has ended once more: the same job, a new attempt, with all its retries before it again."""
        row = self._row(name)
        if row.state not in ENDED:
            raise InputError(f"{row.id} is {row.state}; only a job that has ended can be run again")
        job = admit(self._learner, self.beliefs, self._empty, request_of(row), row.submitted)
        text = f"asked to run again after {row.outcome or row.state}"
        queue_again(self._journal, row, ENDED, reason=text, forgiven=row.attempts)
        self._enqueue(replace(job, id=row.id))
        self.events.tell("retrying", row.id, text)
        return self.job(row.id)

    def why(self, name: str) -> dict[str, Any]:
        row = self._row(name)
        waiting = Waiting(self._learner.ranker, self._seats.cluster, self._queue)
        return {
            **explained(self._view(row, waiting), self._job(row), self._seats.placed.get(row.id), waiting),
            "policy": self._learner.policy.name,
            "company": self.neighbours.company(row.id),
        }

    def gpus(self) -> list[GpuView]:
        devices = self._devices
        return gpu_views(devices.machine, self._seats.cluster.at(0), devices.usage, devices.faults)

    def cordon(self, name: str, cordoned: bool) -> GpuView:
        index = self._gpu(name)
        self._devices.cordon(index, cordoned)
        self._machine_changed()
        view = self.gpus()[index]
        self.events.tell("cordoned" if cordoned else "uncordoned", None, f"GPU {index} ({view.uuid})")
        return view

    def drain(self, name: str, evict: bool) -> GpuView:
        """Takes no new jobs on a GPU; those on it run to their end, or are stopped and queued again."""
        view = self.cordon(name, True)
        for job in view.tenants if evict else ():
            row = self._journal.job(job)
            if row.state in ACTIVE and row.stop is None:
                self._tell_to_end(row, "evict", "evicting", f"told to leave GPU {view.index}")
        return view

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "policy": self._learner.policy.name,
            "devices": str(self._kind),
            "notice": self._notes[0],
            "gpus": len(self._devices.machine.gpus),
            "queued": len(self._queue),
            "running": len(self._seats.placed),
            "slo_violations": self.neighbours.violated,
            "notes": list(self._notes),
        }

    def progress(self, job: str) -> tuple[int, bool]:
        """Which attempt a job is at, and whether it has ended."""
        row = self._row(job)
        return row.attempts, row.state in ENDED

    def read_log(self, job: str, attempt: int, offset: int, most: int) -> tuple[int, bytes]:
        """A piece of the log and where it begins: later than asked where that much was rotated away."""
        return attempts.read_log(self._runs.folder(job, attempt), offset, most)

    def ask_to_stop(self) -> None:
        self.stopping.set()
        self._wake.set()
        self.events.close()

    # The loop

    def recover(self) -> None:
        """Finds everything again after a stop or a kill: running processes, ended ones, the queue in its order."""
        found = self._journal.jobs(ACTIVE, -1, None)
        for row in found:
            self._refuse_to_lose(row)
        for row in found:
            self._seats.take(self._placement(row), request_of(row))
        self._shares.sweep(self._seats.placed)
        if self._slices is not None:
            self._slices.sweep(self._seats.placed)
        for row in found:
            self._adopt(row)
        for row in self._journal.queued_in_order():
            self._enqueue(self._job(row))
        for job in (*(one.job for one in self._seats.placed.values()), *self._waiting.values()):
            self._learner.observe(job.demand)

    def _refuse_to_lose(self, row: JournalJob) -> None:
        """A job whose cards are gone could be neither watched nor accounted for."""
        gone = self._gone(row)
        if gone:
            there = len(self._devices.machine.gpus)
            raise CotenantError(
                f"{row.id} runs on GPU {gone[0]}, and there are only {there} GPUs now: start with as many as before "
                f"(for example --simulate {gone[0] + 1}), or wait until it has ended"
            )

    async def run(self) -> None:
        """Schedules whenever something changed, until asked to stop; jobs go on without us."""
        baseline = self._launcher.baseline
        watching = self._devices.watch(lambda: self._seats.running(baseline), self._devices_changed)
        priorities = [] if self._slices is None else [self._slices.watch()]
        helpers = [asyncio.create_task(helper) for helper in (self._tuning.run(), watching, *priorities)]
        for helper in helpers:
            helper.add_done_callback(lambda _: self.ask_to_stop())  # nobody is to believe that all is well
        try:
            while not self.stopping.is_set():
                self._wake.clear()
                try:
                    self.schedule()
                except JournalError as error:
                    complain(str(error))
                    asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._wake.set)
                # Waiting alone makes a job overdue, and nobody tells of that.
                patient = self._learner.policy.overdue is None or not len(self._queue)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), None if patient else PASS_EVERY_S)
        finally:
            ended = [helper for helper in helpers if helper.done()]
            for helper in helpers:
                helper.cancel()
            self._runs.close()
            self.beliefs.save(math.inf)
        for helper in ended:
            helper.result()

    def schedule(self) -> None:
        """One pass: whatever fits is started."""
        ranker, now = self._learner.ranker, Seconds(time.time())
        # What did not fit still does not while nothing has changed, so then only newcomers are tried. Not where a
        # gate also looks at how many wait, and each newcomer may change its mind, or where it counts how long.
        policy = ranker.policy
        steady = policy.gate is None and policy.overdue is None
        known = steady and self._tried == (self._seats.cluster, policy.known.belief.version)
        queue = self._untried.values() if known else self._queue
        decision = decide(policy, queue, self._seats.cluster, now, ranker=ranker, draw=self._draw)
        self._tried = None
        for placement in decision.placements:
            self._start(placement, None if placement.overdue else decision.crowding)
        self._tried = self._seats.cluster, policy.known.belief.version
        self._untried.clear()

    def _start(self, placement: Placement, crowding: float | None) -> None:
        """Durable first, then the process: a kill in between leaves a job that is started again, never twice."""
        job = placement.job.id
        row = self._journal.job(job)
        ranker = self._learner.ranker
        row = self._journal.transition(
            job,
            ("queued",),
            "starting",
            slot=slot_text(placement),
            attempts=row.attempts + 1,
            started=time.time(),
            stop=None,
            reason=placed_because(ranker.policy, ranker, placement, self._seats.cluster),
        )
        self._dequeue(job)
        self._seats.take(placement, request_of(row), crowding)
        self._begin(row)
        self.events.tell("started", job, f"on GPU {' '.join(map(str, placement.slot.gpus)) or 'none'}")

    def _begin(self, row: JournalJob) -> None:
        start = self._launcher.starter(
            self._folder(row), self._devices.machine, self._seats.placed[row.id], request_of(row)
        )
        self._runs.begin(row.id, row.attempts, start)

    def _adopt(self, row: JournalJob) -> None:
        """A job that was starting or running when the last daemon stopped."""
        if row.stop is not None:
            attempts.cancel(self._folder(row))  # the daemon that was asked may not have come so far
        if attempts.was_started(self._folder(row)):
            self._runs.look(row.id, row.attempts)
        else:  # killed between the journal and the process: nothing has run
            self._begin(row)
        if row.id in self._seats.placed:
            self.events.tell("found", row.id, "found again after a restart of the daemon")

    def _seen(self, job: str, attempt: int, status: attempts.Status) -> None:
        """A run is there, or has ended: then its slot is free, and it may be queued again."""
        row = self._journal.job(job)
        current = row.state in ACTIVE and row.attempts == attempt
        if status.state == "running":
            if current and row.state == "starting":
                self._journal.transition(job, ("starting",), "running")
            return
        again = current and book_end(self._journal, self.events, row, self._folder(row), status)
        self._seats.leave(job)
        if self._slices is not None:
            self._slices.leave(job, self._runs.of_job(job))
        if again:
            self._enqueue(self._job(row))
        else:
            self.neighbours.forget(job)
        self._wake.set()

    # Small things

    def _enqueue(self, job: Job) -> None:
        self._queue.add(job, job.submitted)
        self._waiting[job.id] = self._untried[job.id] = job
        self._wake.set()

    def _dequeue(self, job: str) -> None:
        self._queue.remove(self._waiting.pop(job))
        self._untried.pop(job, None)

    def _look_again(self, placement: Placement, crowding: float) -> str | None:
        """Why a job should not be where it is, with all that is known by now."""
        reason = judge_again(self._learner.policy, placement, self._seats.cluster, crowding).reason
        return None if reason is None else str(reason)

    def _revert(self, job: str, why: str) -> None:
        try:
            row = self._journal.job(job)
            if row.state in ACTIVE and row.stop is None:
                self._tell_to_end(row, "revert", "reverting", f"told to leave its neighbours: {why}")
        except CotenantError as error:  # it stays: nothing is lost but speed
            complain(f"{job} cannot be sent away: {error}")

    def _tell_to_end(self, row: JournalJob, stop: Stop, kind: str, text: str) -> None:
        """Durable first: a daemon that is killed now does it after its restart."""
        self._journal.transition(row.id, ACTIVE, _active(row), stop=stop)
        attempts.cancel(self._folder(row))
        self.events.tell(kind, row.id, text)

    def _row(self, name: str) -> JournalJob:
        row = self._journal.find(name)
        if row is None:
            raise UnknownError(f"no job {name[:100]!r} here; `cotenant jobs` lists them")
        return row

    def _job(self, row: JournalJob) -> Job:
        return self._waiting.get(row.id) or as_asked(
            self._learner, self.beliefs, row.id, request_of(row), row.submitted
        )

    def _view(self, row: JournalJob, waiting: Waiting) -> JobView:
        job = self._waiting.get(row.id)
        reason = self._runs.delayed.get(row.id)
        if job is not None:
            reason = f"{waiting.reason(job)} ({row.reason})" if row.reason else waiting.reason(job)
        return job_view(
            row,
            reason=reason,
            used=self._devices.used_by(row.id),
            batch=self._tuning.batch(row.id),
            speed=self.neighbours.speed(row.id),
            predicted=self.neighbours.predicted(row.id),
            slo_violations=self.neighbours.violations(row.id),
        )

    def _folder(self, row: JournalJob) -> Path:
        return self._runs.folder(row.id, row.attempts)

    def _enforcement(self, row: JournalJob, request: JobRequest) -> tuple[str, ...]:
        if row.slot is None or self._gone(row):  # not placed, or long ago on cards that are gone
            return ()
        held = self._launcher.enforcement(self._devices.machine, self._placement(row), request)
        policy = self._learner.policy
        if request.latency_s is None or predicts(policy):
            return held
        return *held, f"latency: neighbours are not chosen by it under {policy.name}; under --policy cotenant they are"

    def _found(self, row: JournalJob) -> Found:
        if self._slices is None:
            return NOTHING
        return self._slices.found(row.id, self._runs.of_job(row.id), self._devices.usage.values())

    def _gone(self, row: JournalJob) -> list[int]:
        """The cards of a job that are not there any more."""
        return [gpu for gpu in gpus_of(row) if gpu >= len(self._devices.machine.gpus)]

    def _placement(self, row: JournalJob) -> Placement:
        return Placement(chosen(self._job(row), row), Slot(self._devices.machine.name, gpus_of(row)))

    def _gpu(self, name: str) -> int:
        index = self._devices.index(name)
        if index is None:
            raise UnknownError(f"no GPU {name[:100]!r} here; `cotenant gpus` lists them")
        return index

    def _machine_changed(self) -> None:
        self._seats.change(self._devices.machine)
        self._empty = usable_and_empty(self._devices.machine)
        self._wake.set()

    def _devices_changed(self) -> None:
        self._machine_changed()
        self.events.tell("devices", None, "the devices have changed")

    def _supervisor_of(self, job: str) -> int | None:
        """The process that all processes of a running job descend from."""
        known = self._runs.supervisors.get(job)
        if known is None and job in self._seats.placed:  # a quick job may speak before we have looked
            intent = read_json(str(self._folder(self._journal.job(job)) / "intent"))
            known = None if intent is None else int(intent["pid"])
        return known


def _active(row: JournalJob) -> JobState:
    """The state of a job that is to keep it."""
    return "starting" if row.state == "starting" else "running"
