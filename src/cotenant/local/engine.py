# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The one-machine engine: observes the GPUs and the journal, asks the core, and acts by starting processes.

The journal owns the state: everything here can be rebuilt from it and from the job folders after a kill at any moment.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
from msgspec.structs import replace as replaced

from cotenant.core.fragmentation.mix import inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job, Machine, Placement
from cotenant.core.placement.deciding import decide, judge_again
from cotenant.core.queueing.backfill import why_overtook
from cotenant.core.units import Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.history.decisions import DecisionRecorder
from cotenant.history.store import History
from cotenant.local import attempts
from cotenant.local.accounting import Accounting
from cotenant.local.admission import Admission
from cotenant.local.array_bounds import ArrayBounds
from cotenant.local.backoff import Backoff
from cotenant.local.config import Resources, Settings
from cotenant.local.decision_log import DecisionLog
from cotenant.local.dependencies import Dependencies
from cotenant.local.devices import Devices
from cotenant.local.events import Events, log_error
from cotenant.local.grants import JobGrants
from cotenant.local.holds import Holds
from cotenant.local.idle import IdleAction, IdleJobs
from cotenant.local.job_queue import JobQueue
from cotenant.local.journal import JournalError
from cotenant.local.launching import Launcher
from cotenant.local.lifecycle import (
    ACTIVE,
    ENDED,
    Change,
    Disappeared,
    Exited,
    JobRecord,
    JobState,
    LifecycleEvent,
    Placed,
    RetryRequested,
    Started,
    Stop,
    StopRequested,
    Unsatisfiable,
    failed,
    request_of,
    step,
    stored_request,
    unreadable,
)
from cotenant.local.logins import Origin
from cotenant.local.metrics import DaemonMetrics
from cotenant.local.mig import MigChanges
from cotenant.local.mig_layouts import LayoutChanges
from cotenant.local.mps_watch import MpsWatch
from cotenant.local.owners import Owner, own_account
from cotenant.local.pages import Pages
from cotenant.local.profiles import ProfileStore
from cotenant.local.pruning import EndedJob, Pruner
from cotenant.local.queries import OVERTOOK, Queries, UnknownError
from cotenant.local.recording import record_history
from cotenant.local.runs import Runs
from cotenant.local.supervisor import Exit, locked
from cotenant.local.tenants import Tenants
from cotenant.local.tokens import Tokens
from cotenant.local.tuner import TuningLoop, save_history
from cotenant.local.unmanaged import Unmanaged
from cotenant.local.unrecorded import UnrecordedCancels
from cotenant.local.views import placement_reason
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.devices.vendors import Vendor
from cotenant.node.interference import InterferenceMonitor, Newcomer
from cotenant.node.mps import Crash
from cotenant.signals import Signal
from cotenant.wire.arrays import size_of
from cotenant.wire.local import (
    GpuView,
    JobChange,
    JobRequest,
    JobView,
    Pruned,
    PruneRequest,
    change_text,
    changed_by,
    element_of,
)
from cotenant.wire.text import counted

PRUNE_EVERY_S = 3600.0
RETRY_JOURNAL_S = 5.0
"""until the next pass after the journal could not be written"""
PASS_EVERY_S = 60.0
"""while jobs wait that may start without any event"""


class Engine:
    """What the daemon does, without its sockets. Called from one event loop, never from two threads."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        # The parts, each after those that it uses.
        journal, backend = resources.journal, resources.backend
        self._resources, self._journal, self._draw = resources, journal, settings.draw
        self._keep, self._backfill = settings.keep, settings.backfill
        self.events = Events(journal)
        self.tokens = Tokens(journal)
        self._devices = Devices(backend, journal, resources.isolation)
        machine = self._devices.machine
        self.profiles = ProfileStore(journal, machine, settings.belief)
        self._learner = Learner(settings.policy, inventory_of([machine]), settings.queue, belief=self.profiles.belief)
        self._admission = Admission(self._learner, self.profiles, machine, resources.isolation)
        self.accounting = Accounting(journal, settings.accounts, len(machine.gpus))
        self._queue = JobQueue(self._learner.policy, by_account=self.accounting.limited)
        self._backoff = Backoff()
        self._holds = Holds(journal)
        self._dependencies = Dependencies(journal)
        self._bounds = ArrayBounds()
        self._launcher = Launcher(resources)
        self._grants = JobGrants(resources.slices, self._devices)
        self._runs = Runs(resources.jobs)
        self._tenants = Tenants(machine, self._runs)
        self._unmanaged = Unmanaged(self._devices, self._tenants)
        self.idle, self._idle_action = (
            IdleJobs(settings.idle, self._devices.usage_of, self._tenants),
            settings.idle.action,
        )
        self._tuning = TuningLoop(resources.paths, self._tenants.supervisor_of, backend.cores, settings.tuning)
        self._tuner = self._tuning.tuner
        self.interference = InterferenceMonitor(
            self.profiles,
            self._tuner,
            self._devices.usage_of,
            exclusive_steps=backend.vendor is Vendor.SIMULATED,
            observe=settings.observe,
        )
        self.metrics = DaemonMetrics(
            backend.vendor,
            self._devices,
            self._tenants,
            self._queue,
            self._tuner,
            self.interference,
            resources.slices,
            resources.shares,
        )
        self._decisions = DecisionLog(resources.decisions, resources.history)
        self._unrecorded = UnrecordedCancels(resources.state / "unrecorded")
        self.queries = Queries(
            resources,
            self._devices,
            self._learner,
            self._admission,
            self._queue,
            self._backoff,
            self._holds,
            self._dependencies,
            self._bounds,
            self._launcher,
            self._runs,
            self._tenants,
            self._tuner,
            self.interference,
            self._unrecorded,
            self._grants,
            self.accounting,
            self._unmanaged,
            self.idle,
        )
        self._wake = asyncio.Event()
        self.stopping = asyncio.Event()
        self._pruner = Pruner(
            resources.jobs,
            ended=lambda: [EndedJob(record.id, record.ended or 0.0) for record in journal.jobs(ENDED, -1, None)],
            can_be_pruned=self._can_be_pruned,
            stopping=self.stopping.is_set,
        )

        self.pages: Pages | None = None
        """set by the daemon if it serves them"""
        self.mps = None
        if resources.isolation is not None:
            self.mps = MpsWatch(resources.isolation.mps, self._devices, self._tenants, self._launcher)
        self.mig = None
        if resources.mig is not None:
            changes = LayoutChanges(resources.state, resources.mig)
            ending = frozenset if resources.isolation is None else resources.isolation.mps.ending
            self.mig = MigChanges(
                resources.mig, changes, self._devices, self._tenants, self._evict, self.events.record, ending
            )
        self._subscribe()

    def _subscribe(self) -> None:
        """Connects the parts. A signal calls its listeners at once, in the order of these lines."""
        resources = self._resources
        self._devices.changed.subscribe(self._tenants.replace_machine)
        self._devices.changed.subscribe(self._admission.replace_machine)
        self._devices.changed.subscribe(lambda machine: self._learner.machines_changed(inventory_of([machine])))
        self._devices.changed.subscribe(self._on_machine_change)
        self._devices.inventory_changed.subscribe(self._on_inventory_change)
        if resources.slices is not None:
            self._devices.looked.subscribe(resources.slices.list_processes)
        self._devices.looked.subscribe(self._unmanaged.look)
        self._devices.looked.subscribe(self.idle.look)
        self._unmanaged.changed.subscribe(self._wake.set)
        self._unmanaged.noted.subscribe(self.events.record)
        self.idle.found.subscribe(self._on_idle)
        self._runs.changed.subscribe(self._on_run_change)
        if self.mps is not None:
            self.mps.crashed.subscribe(self._on_mps_crash)
            self.mps.noted.subscribe(self.events.record)
        self._tenants.added.subscribe(lambda job: self.accounting.add(job, self._tenants.cluster))
        self._tenants.added.subscribe(self._tuner.add)
        self._tenants.added.subscribe(self.interference.add)
        self._tenants.added.subscribe(self._grants.add)
        self._tenants.removed.subscribe(self._grants.remove)
        # The tuner forgets a job last: saving its history and measuring it read from the tuner.
        self._tenants.removed.subscribe(resources.containment.remove)
        if resources.isolation is not None:
            self._tenants.removed.subscribe(resources.isolation.forget)
        self._tenants.removed.subscribe(resources.shares.remove)
        self._tenants.removed.subscribe(self._launcher.forget)
        self._tenants.removed.subscribe(self._save_tuning_history)
        self._tenants.removed.subscribe(self.interference.remove)
        self._tenants.removed.subscribe(self._tuning.remove)
        self._tenants.removed.subscribe(self.metrics.steps.remove)
        self._tuner.received.subscribe(self.interference.handle)
        self._tuner.received.subscribe(self.metrics.steps.handle)
        self._tuner.disturbed.subscribe(self.interference.disturbed)
        self._tuning.ticked.subscribe(self.interference.tick)
        self._tuner.noted.subscribe(self._on_tuner_note)
        self.interference.learned.subscribe(self._wake.set)
        self.interference.newcomer_measured.subscribe(self._on_newcomer_measured)
        self.interference.harmful.subscribe(self._revert)
        self.interference.noted.subscribe(self.events.record)
        self._grants.noted.subscribe(self.events.record)
        self._grants.evicted.subscribe(self._reclaim)

    @property
    def serves_all_users(self) -> bool:
        """Whether jobs run as their owners."""
        return self._resources.runtime is not None

    @property
    def history(self) -> History | None:
        """Samples of the last day."""
        return self._resources.history

    @property
    def recorded_decisions(self) -> DecisionRecorder | None:
        """What records the decisions of this engine."""
        return self._resources.decisions

    @property
    def looked(self) -> Signal[[Sequence[GpuUsage]]]:
        """Sent when the use of the GPUs was read, about once a second."""
        return self._devices.looked

    # Commands

    def submit(self, request: JobRequest, owner: Owner | None = None, origin: Origin | None = None) -> JobView:
        """Accepts a job of a user durably (None: of the daemon's own), or refuses it at once if it could never run
        here. `origin` describes the process that submits it."""
        owner, submitted = owner or own_account().owner, time.time()
        request = self._admission.with_memory(self.queries.with_dependencies(request, owner.uid))
        self._dependencies.refuse_hopeless(request)
        if request.array is not None:
            return self._submit_array(request, size_of(request.array), owner, submitted, origin)
        job, note = self._admission.admit("new", request, submitted), self._admission.note(request)
        job = replace(job, account=self.accounting.account(owner))
        self.accounting.check_submission(job, self._tenants.cluster)
        job_id = self._journal.submit(msgspec.json.encode(request), submitted, owner, origin)
        self._enqueue(replace(job, id=job_id), self._journal.job(job_id))
        self._learner.observe(job.demand)
        self.events.record("submitted", job_id, f"submitted: {' '.join(request.command)[:200]}")
        if note is not None:
            self.events.record("isolation", job_id, note)
        return self.queries.job(job_id)

    def _submit_array(
        self, request: JobRequest, size: int, owner: Owner, submitted: float, origin: Origin | None
    ) -> JobView:
        """Accepts all elements of an array durably, or none of them."""
        job = self._admission.admit("new", element_of(request, 0), submitted)
        job = replace(job, account=self.accounting.account(owner))
        self.accounting.check_submission(job, self._tenants.cluster, size)
        array, jobs = self._journal.submit_array(msgspec.json.encode(request), submitted, size, owner, origin)
        self.events.record("submitted", jobs[0], f"{array} of {counted(size, 'element')} submitted")
        for record in self._journal.elements(self.queries.array(array).number):
            self._learner.observe(job.demand)
            self._enqueue(replace(job, id=record.id), record)
        return self.queries.job(array)

    def cancel(self, name: str) -> JobView:
        """Stops a job, or removes it from the queue; or every element of an array."""
        if not self.queries.is_array(name):
            return self._cancel(self.queries.find(name))
        array = self.queries.array(name)
        left = self._journal.elements(array.number, (JobState.QUEUED, *ACTIVE))
        if not left:
            raise InputError(f"{array.id} has already ended")
        try:
            with self._journal.transaction():
                for record in left:
                    self._apply(record, StopRequested(Stop.CANCEL))
            for record in left:
                self._obey_cancel(record)
            self.events.record("cancelled", left[0].id, f"{counted(len(left), 'element')} of {array.id} cancelled")
        except JournalError:
            for record in left:
                self._cancel(record)
        return self.queries.job(array.id)

    def _cancel(self, record: JobRecord) -> JobView:
        """Stops a job, or removes it from the queue. It does not wait for space in the journal: the job may be what
        fills the disk."""
        if record.state in ENDED:
            raise InputError(f"{record.id} has already ended ({record.state})")
        try:
            self._record_cancel(record)
        except JournalError as error:
            if not self._unrecorded.store(record.id):
                if record.state not in ACTIVE:
                    raise  # after a kill of the daemon, the job would run
                self._unrecorded.remember(record.id)
            log_error(f"{record.id} is cancelled, which the journal cannot record yet: {error}")
            asyncio.get_running_loop().call_later(RETRY_JOURNAL_S, self._wake.set)
        self._obey_cancel(record)
        return self.queries.job(record.id)

    def _obey_cancel(self, record: JobRecord) -> None:
        """Signals a job whose cancellation is recorded, or removes it from the queue."""
        if record.state in ACTIVE:
            self._signal(record)
        elif self.queries.set_aside.pop(record.id, None) is None and not self._holds.forget(record.id):
            self._leave_queue(record.id)

    def hold(self, name: str) -> JobView:
        """Keeps a queued job from starting until it is released, also after a restart of the daemon; or every queued
        element of an array."""
        if self.queries.is_array(name):
            array = self.queries.array(name)
            records = self._journal.elements(array.number, (JobState.QUEUED,))
            self._holds.add_all(records)
            for record in records:
                self._leave_queue(record.id)
            self.events.record("held", records[0].id, f"{counted(len(records), 'element')} of {array.id} held")
            return self.queries.job(array.id)
        record = self.queries.find(name)
        if record.id not in self._holds:
            if record.id in self.queries.set_aside:
                raise InputError(f"{record.id} does not start in any case: {self.queries.job(record.id).reason}")
            self._holds.add(record)
            self._leave_queue(record.id)
            self.events.record("held", record.id, "held in the queue until it is released")
        return self.queries.job(record.id)

    def release(self, name: str) -> JobView:
        """Lets a held job start again, in its old position of the queue; or every held element of an array."""
        if self.queries.is_array(name):
            array = self.queries.array(name)
            for record in self._holds.remove_all(self._journal.elements(array.number, (JobState.QUEUED,))):
                self._enqueue_record(record)
            return self.queries.job(array.id)
        record = self.queries.find(name)
        self._holds.remove(record)
        self._enqueue_record(record)
        self.events.record("released", record.id, "released: it can start again")
        return self.queries.job(record.id)

    def _leave_queue(self, job: str) -> None:
        self._backoff.end(job)
        self._dependencies.forget(job)
        self._bounds.leave(job)
        if job in self._queue.jobs:
            self._queue.remove(job)
            self._decisions.left(job)
        self._wake.set()  # other jobs may have waited for it

    def retry(self, name: str) -> JobView:
        """Runs a job that has ended once more: the same job and a new attempt, with all of its retries again."""
        record = self.queries.find(name)
        if record.state not in ENDED:
            raise InputError(f"{record.id} is {record.state}; only a job that has ended can be run again")
        self._record_late_cancels()
        self._unrecorded.remove(record.id)
        self._holds.forget(record.id)
        _refuse_unreadable(record)
        self._dependencies.refuse_hopeless(request_of(record))
        job = self._admission.admit(record.id, request_of(record), record.submitted)
        job = replace(job, account=self.accounting.account(record.owner))
        self.accounting.check_submission(job, self._tenants.cluster)
        record, change = self._apply(record, RetryRequested())
        self._enqueue(job, record)
        self._record(record.id, change)
        return self.queries.job(record.id)

    def change(self, name: str, change: JobChange) -> JobView:
        """Gives a queued job other values; it keeps its place among jobs of equal priority."""
        record = self.queries.find(name)
        if record.state is not JobState.QUEUED or record.id in self.queries.set_aside:
            raise InputError(f"{record.id} is {record.state}; only a queued job can be changed")
        if change.name is not None and record.item is not None:
            raise InputError(f"--name: {record.id} is an element of an array, and is called like it")
        request = self._admission.with_memory(changed_by(stored_request(record), change))
        job = self._admission.admit(record.id, request, record.submitted)
        job = replace(job, account=self.accounting.account(record.owner))
        self.accounting.check_submission(job, self._tenants.cluster, 0)
        record = self._journal.change_request(record.id, msgspec.json.encode(request))
        if record.id in self._queue.jobs:  # one that waits outside the queue is read again when it comes in
            self._leave_queue(record.id)
            self._enqueue(job, record)
        self.events.record("changed", record.id, f"changed: {change_text(change)}")
        return self.queries.job(record.id)

    def rerun(self, name: str, change: JobChange) -> JobView:
        """Submits a copy of a job as a new job of the same owner; it waits for no others."""
        record = self.queries.find(name)
        _refuse_unreadable(record)
        request = changed_by(replaced(request_of(record), after=()), change)
        return self.submit(request, record.owner, self._journal.origin(record.id))

    def cordon(self, name: str, cordoned: bool) -> GpuView:
        index = self._gpu(name)
        self._devices.cordon(index, cordoned)
        view = self.queries.gpus()[index]
        self.events.record("cordoned" if cordoned else "uncordoned", None, f"GPU {index} ({view.uuid})")
        return view

    def drain(self, name: str, evict: bool) -> GpuView:
        """Places no new jobs on a GPU; its tenants run to their end, or are stopped and queued again."""
        view = self.cordon(name, True)
        for job in view.tenants if evict else ():
            self._evict(job, f"asked to leave GPU {view.index}, which is drained")
        return view

    def _evict(self, job: str, why: str) -> None:
        """Stops a job that runs, and queues it again."""
        record = self._journal.job(job)
        if record.state in ACTIVE and record.stop is None:
            self._stop(record, StopRequested(Stop.EVICT, why))

    async def prune(self, request: PruneRequest) -> Pruned:
        """Removes the folders of ended jobs that are too old or use too much space; never those of other jobs."""
        done = await self._pruner.prune(request)
        if done.jobs and not done.dry_run:
            self.events.record("pruned", None, f"removed the files of {counted(len(done.jobs), 'job')}")
        return done

    def _can_be_pruned(self, job: str) -> bool:
        """Whether a job has ended and no process of it is left."""
        record = self._journal.job(job)
        return record.state in ENDED and not locked(str(self.queries.folder(record)))

    async def _prune_regularly(self) -> None:
        """Removes folders by the settings of the daemon, if there are any, and what was left to remove."""
        keep = self._keep
        await self._pruner.remove_leftovers()
        while keep.older_than_s is not None or keep.keep_bytes is not None:
            try:
                await self.prune(keep)
            except (CotenantError, OSError) as error:
                log_error(f"old job folders cannot be removed: {error}")
            await asyncio.sleep(PRUNE_EVERY_S)
        await self.stopping.wait()

    def ask_to_stop(self) -> None:
        self.stopping.set()
        self._wake.set()
        self.events.close()

    # The loop

    def recover(self) -> None:
        """Rebuilds everything after a stop or a kill: running processes, ended ones, the queue in its order."""
        # Check all jobs before changing anything, so that a refused start leaves everything as it was. Add all tenants
        # before the sweeps, which remove the groups and slices of every other job, and before `_adopt`, which may find
        # that a run has ended and remove its tenant again.
        if self.mig is not None:
            self.mig.recover()
        with suppress(JournalError):
            self._record_late_cancels()
        active = self._journal.jobs(ACTIVE, -1, None)
        for record in active:
            self._refuse_missing_gpus(record)
        for record in active:
            self._tenants.add(
                self.queries.placement(record), request_of(record), record.attempts, started=record.started
            )
        self._resources.containment.sweep(self._tenants.placed)
        if self._resources.isolation is not None:
            self._resources.isolation.sweep(self._tenants.placed)
        self._resources.shares.sweep(self._tenants.placed)
        if self._resources.slices is not None:
            self._resources.slices.sweep(self._tenants.placed)
        for record in active:
            self._bounds.runs(record)
        for record in active:
            self._adopt(record)
        self._decisions.began(self._tenants.cluster)
        self._holds.recover()
        for record in self._journal.queued_in_order():
            if record.id not in self._queue.jobs:  # `_adopt` has queued those again whose run ended meanwhile
                self._enqueue_record(record)
        self._report_unreadable(active)
        placed = (one.placement.job for one in self._tenants.placed.values())
        for job in (*placed, *self._queue.jobs.values()):
            self._learner.observe(job.demand)

    def _report_unreadable(self, active: list[JobRecord]) -> None:
        """One event and one line in the log for each job that this version cannot read."""
        texts = {job: f"set aside: its request cannot be read: {why}" for job, why in self.queries.set_aside.items()}
        texts |= {
            record.id: f"runs with GPUs of its own until it ends: its request or slot cannot be read: {why}"
            for record in active
            if (why := unreadable(record)) is not None
        }
        texts |= dict.fromkeys(self._journal.damaged(), "left out of all answers: its row in the journal is damaged")
        for job, text in texts.items():
            log_error(f"{job} is {text}" if job in self.queries.set_aside else f"{job} {text}")
            self.events.record("unreadable", job, text)

    def _refuse_missing_gpus(self, record: JobRecord) -> None:
        """A job on a GPU that no longer exists could be neither watched nor accounted for."""
        missing = self.queries.missing_gpus(record)
        if missing:
            count = len(self._devices.machine.gpus)
            raise CotenantError(
                f"{record.id} runs on GPU {missing[0]}, but this machine has only {count} GPU{'s' * (count != 1)} now: "
                f"start with as many as before (for example --simulate {missing[0] + 1}), or wait until it has ended"
            )

    async def run(self) -> None:
        """Schedules after every change until it is asked to stop; the jobs keep running without it."""
        baseline, slices = self._launcher.baseline, self._resources.slices
        watching = self._devices.watch(lambda: self._tenants.running(baseline))
        more = [] if slices is None else [slices.watch(), self._grants.watch()]
        more += [] if self.mps is None else [self.mps.run()]
        if self._resources.history is not None:
            more.append(record_history(self._resources.history, self.queries, self._tenants))
        helpers = [
            asyncio.create_task(helper)
            for helper in (
                self._tuning.run(),
                watching,
                self._runs.continue_stopped(),
                self._prune_regularly(),
                *more,
            )
        ]
        for helper in helpers:
            # A daemon without one of its helpers would look healthy and be wrong, so it stops.
            helper.add_done_callback(lambda _: self.ask_to_stop())
        try:
            while not self.stopping.is_set():
                self._wake.clear()
                try:
                    self.schedule()
                except JournalError as error:
                    log_error(str(error))
                    asyncio.get_running_loop().call_later(RETRY_JOURNAL_S, self._wake.set)
                # No event announces that a job becomes overdue, or its owner has GPU-hours again.
                may_start_later = self._learner.policy.overdue is not None or self.accounting.limited
                with suppress(TimeoutError):
                    pause_s = PASS_EVERY_S if may_start_later and len(self._queue) else None
                    await asyncio.wait_for(self._wake.wait(), pause_s)
        finally:
            ended = [helper for helper in helpers if helper.done()]
            for helper in helpers:
                helper.cancel()
            self._runs.close()
            self.profiles.save(math.inf)
        for helper in ended:
            helper.result()

    def schedule(self) -> None:
        """One scheduling pass: starts every waiting job that fits, in queue order."""
        began = time.perf_counter()
        self._record_late_cancels()
        self._settle_dependencies()
        for element in self._bounds.ready():
            self._enqueue_record(self._journal.job(element))
        ranker, now = self._learner.ranker, Seconds(time.time())
        policy, cluster = ranker.policy, self._tenants.cluster
        jobs = self._queue.begin_pass(policy, cluster)
        decision = decide(
            policy,
            jobs,
            cluster,
            now,
            ranker=ranker,
            draw=self._draw,
            ends=self._tenants.ends if self._backfill else None,
            reservation=self._queue.reservation,
            shares=self.accounting.shares,
            limits=self.accounting.limit_check(),
        )
        self._queue.reservation = reservation = decision.reservation
        for placement in decision.placements:
            job, allowed = placement.job, decision.overtaking.get(placement.job.id)
            waited = self._queue.jobs.get(job.id, job)
            self._decisions.placed(policy, waited, placement, decision, self._tenants.cluster)
            overtook = "" if allowed is None or reservation is None else why_overtook(reservation, job, allowed, now)
            self._start(placement, None if placement.overdue else decision.crowding, overtook)
        self._queue.end_pass(policy, self._tenants.cluster)
        self._decisions.refused(ranker, self._queue.some(), decision, now)
        self.metrics.passed(began, ranker)

    def _start(self, placement: Placement, crowding: float | None, overtook: str) -> None:
        """The journal is written before the process starts: after a kill in between, the job is started once."""
        job, ranker = placement.job.id, self._learner.ranker
        reason = placement_reason(ranker.policy, ranker, placement, self._tenants.cluster)
        reason += OVERTOOK + overtook if overtook else ""
        record, change = self._apply(self._journal.job(job), Placed(placement, reason))
        self._queue.remove(job)
        self._tenants.add(placement, request_of(record), record.attempts, crowding)
        self._begin(record)
        self.metrics.placed(placement.job)
        self._record(job, change)

    def _begin(self, record: JobRecord) -> None:
        placement = self._tenants.placed[record.id].placement
        folder, machine = self.queries.folder(record), self._devices.machine
        start = self._launcher.starter(folder, machine, placement, record, self._journal.origin(record.id))
        self._grants.begin(record.id, lambda: self._runs.begin(record.id, record.attempts, start))

    def _adopt(self, record: JobRecord) -> None:
        """A job that was starting or running when the last daemon stopped."""
        if record.stop is not None or record.id in self._unrecorded:
            attempts.cancel(
                self.queries.folder(record)
            )  # the last daemon may have been killed before it sent the signal
        if attempts.was_started(self.queries.folder(record)):
            self._grants.found(record.id)
            self._runs.look(record.id, record.attempts)
        else:  # the last daemon was killed between the journal and the process: nothing has run
            self._begin(record)
        if record.id in self._tenants.placed:
            self.events.record("found", record.id, "found again after a restart of the daemon")

    # Listeners

    def _on_run_change(self, job: str, attempt: int, status: attempts.Status) -> None:
        """A run is found to run, or to have ended: then its slot is free, and the job may be queued again."""
        self._record_late_cancels()
        record = self._journal.job(job)
        current = record.state in ACTIVE and record.attempts == attempt
        if status.state == "running":
            if current and record.state is JobState.STARTING:
                self._apply(record, Started())
            return
        self.accounting.end(job, _end_of(status))
        queued = current and self._end(record, status)
        self._tenants.remove(job)
        if self._resources.slices is not None:
            self._resources.slices.remove(job, self._runs.of_job(job))
        if queued:
            self._enqueue_after(self._backoff.begin(job), record)
        else:
            self.interference.forget(job)
            self._backoff.forget(job)
        self._wake.set()

    def _end(self, record: JobRecord, status: attempts.Status) -> bool:
        """Stores the end of a run; whether the job is queued again."""
        if status.exit is not None:
            record, end = self._as_victim(record, status.exit)
            more = self._admission.more_memory(request_of(record)) if end.outcome == "out-of-memory" else None
            _, change = self._apply(record, Exited(end, more))
        else:
            attempts.kill_leftovers(self.queries.folder(record))
            _, change = self._apply(record, Disappeared(rebooted=status.state == "interrupted"))
        self._record(record.id, change)
        self._decisions.ended(record, change.state, _outcome(change))
        return change.state is JobState.QUEUED

    def _on_machine_change(self, machine: Machine) -> None:
        self.accounting.shares.gpus = len(machine.gpus)
        self._wake.set()

    def _on_inventory_change(self) -> None:
        self.events.record("devices", None, "the GPUs of this machine have changed")

    def _on_idle(self, job: str, text: str) -> None:
        """Reports a job that does not use its GPU; it is stopped only if the daemon was started with that option."""
        self.events.record("idle", job, text)
        record = self._journal.job(job)
        if self._idle_action is IdleAction.REPORT or record.state not in ACTIVE or record.stop is not None:
            return
        stop = Stop.EVICT if self._idle_action is IdleAction.REQUEUE else Stop.CANCEL
        self._stop(record, StopRequested(stop, text))

    def _on_tuner_note(self, job: str, text: str) -> None:
        self.events.record("tuning", job, text)

    def _on_newcomer_measured(self, newcomer: Newcomer) -> None:
        """Asks the policy again about the newest tenant of a GPU, now that its effect is measured."""
        policy, cluster = self._learner.policy, self._tenants.cluster
        placement = self._tenants.placed[newcomer.job].placement
        reason = judge_again(policy, placement, cluster, newcomer.crowding).reason
        if reason is not None:
            self.interference.separate(newcomer)
            self._revert(newcomer.job, f"{newcomer.text}; {reason}")

    def _revert(self, job: str, why: str) -> None:
        """If that fails the job stays: only speed is lost."""
        self._ask_to_leave(job, Stop.REVERT, why)

    def _reclaim(self, job: str, why: str) -> None:
        """If that fails the job stays for now: it is asked again as long as another job waits for its memory."""
        self._backoff.stopped(job)
        self._ask_to_leave(job, Stop.EVICT, why, reclaims=True)

    def _ask_to_leave(self, job: str, stop: Stop, why: str, *, reclaims: bool = False) -> None:
        """Stops a job and queues it again."""
        try:
            record = self._journal.job(job)
            if record.state in ACTIVE and record.stop is None:
                self._stop(record, StopRequested(stop, f"asked to leave its GPU: {why}"), reclaims=reclaims)
        except CotenantError as error:
            log_error(f"{job} cannot be asked to leave its GPU: {error}")

    def _as_victim(self, record: JobRecord, end: Exit) -> tuple[JobRecord, Exit]:
        """A job that failed because of another MPS client's fault is queued again, as if it had been evicted."""
        crash = None if self.mps is None or not failed(end) or record.stop is not None else self.mps.fault_of(record.id)
        if crash is None or not crash.culprits or record.id in crash.culprits:
            return record, end
        record, change = self._apply(record, StopRequested(Stop.EVICT, crash.why))
        self._record(record.id, change)
        return record, end._replace(outcome="cancelled")

    def _on_mps_crash(self, crash: Crash, jobs: tuple[str, ...]) -> None:
        """Stops the tenants of a GPU whose MPS has failed: it must be empty to recover.

        They are queued again, but for a job whose own fault ended the others: it would do so again.
        """
        for job in jobs:
            record = self._journal.job(job)
            if record.state in ACTIVE and record.stop is None:
                caused = job in crash.culprits
                why = f"its own fault ended the other MPS clients: {crash.why}" if caused else crash.why
                self._stop(record, StopRequested(Stop.CANCEL if caused else Stop.EVICT, why))

    def _save_tuning_history(self, job: str) -> None:
        save_history(self._runs.of_job(job), self._tuner.history(job))

    # State changes

    def _apply(self, record: JobRecord, event: LifecycleEvent) -> tuple[JobRecord, Change]:
        """Stores the change that an event causes; the new record, and the change."""
        change = step(record, event, time.time())
        record = self._journal.transition(record.id, (record.state,), change.state, **change.columns)
        if change.state in ENDED:
            self._dependencies.ended(record)
            self._bounds.leave(record.id)
        return record, change

    def _settle_dependencies(self) -> None:
        """Queues jobs whose dependencies are fulfilled, and ends those that can never run."""
        for job, problem in self._dependencies.settled():
            record = self._journal.job(job)
            if problem is not None:
                _, change = self._apply(record, Unsatisfiable(problem))
                self._record(job, change)
            self._dependencies.forget(job)
            if problem is None:
                self._enqueue_record(record)

    def _record(self, job: str, change: Change) -> None:
        self.events.record(change.kind, job, change.text)

    def _stop(self, record: JobRecord, request: StopRequested, *, reclaims: bool = False) -> None:
        """The journal is written before the signal is sent: a daemon killed in between sends it after its restart."""
        _, change = self._apply(record, request)
        self._signal(record, reclaims=reclaims)
        self._record(record.id, change)

    def _signal(self, record: JobRecord, *, reclaims: bool = False) -> None:
        attempts.cancel(self.queries.folder(record), reclaims=reclaims)
        self._grants.stop_waiting(record.id)

    def _record_cancel(self, record: JobRecord) -> None:
        why = "asked to stop with SIGTERM" if record.state in ACTIVE else ""
        _, change = self._apply(record, StopRequested(Stop.CANCEL, why))
        self._record(record.id, change)

    def _record_late_cancels(self) -> None:
        """Writes the cancellations to the journal that it could not record before; JournalError if it still cannot."""
        for job in self._unrecorded.jobs():
            record = self._journal.find(job)
            if record is not None and record.state not in ENDED:
                self._record_cancel(record)
            try:
                self._unrecorded.remove(job)
            except JournalError as error:  # other jobs must not wait for that; `retry` of this one does
                log_error(str(error))

    def _enqueue(self, job: Job, record: JobRecord) -> None:
        """Queues a job, unless it waits for others."""
        request = request_of(record)
        if self._dependencies.add(job.id, request) or self._bounds.add(record):
            return
        self._queue.add(job)
        self._decisions.queued(job, request.name or request.command[0].rpartition("/")[2], record.owner)
        self._wake.set()

    def _enqueue_after(self, pause_s: float, record: JobRecord) -> None:
        """Queues a job again, after a pause if it was stopped for others repeatedly."""

        def enqueue() -> None:
            if self._backoff.end(record.id):  # it may have been cancelled
                self._enqueue_record(self._journal.job(record.id))

        if pause_s:
            self.events.record("backing off", record.id, self._backoff.waiting[record.id])
            asyncio.get_running_loop().call_later(pause_s, enqueue)
        else:
            self._enqueue_record(self._journal.job(record.id))

    def _enqueue_record(self, record: JobRecord) -> None:
        """Without the fields that this version cannot read, a job might run with too few limits: it is set aside."""
        problem = unreadable(record)
        if record.id in self._unrecorded or record.id in self._holds:
            return
        if problem is None:
            self._enqueue(self.queries.core_job(record), record)
        else:
            self.queries.set_aside[record.id] = problem

    def _gpu(self, name: str) -> int:
        index = self._devices.index(name)
        if index is None:
            raise UnknownError(f"no GPU {name[:100]!r} here; `cotenant gpus` lists them")
        return index


def _refuse_unreadable(record: JobRecord) -> None:
    """InputError if a job cannot be run again, because this version does not know all that was requested."""
    problem = unreadable(record._replace(slot=None))
    if problem is not None:
        raise InputError(f"{record.id} cannot be run again, because its stored request cannot be read: {problem}")


def _end_of(status: attempts.Status) -> float | None:
    """When a run ended; 0: not known, because the machine was restarted since; None: now."""
    if status.exit is not None:
        return status.exit.ended
    return 0.0 if status.state == "interrupted" else None


def _outcome(change: Change) -> str:
    """How a run ended, in the words of a recording."""
    if change.state is JobState.FINISHED:
        return "finished" if change.columns.get("code") == 0 else "failed"
    return "cancelled" if change.state is JobState.CANCELLED else "lost"
