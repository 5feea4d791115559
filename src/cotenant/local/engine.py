# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The one-machine engine: observes the GPUs and the journal, asks the core, and acts by starting processes.

The journal owns the state: everything here can be rebuilt from it and from the job folders after a kill at any moment.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import msgspec
from msgspec.structs import replace as replaced

from cotenant.core.fragmentation.mix import inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job, Machine, Placement
from cotenant.core.placement.deciding import decide, judge_again
from cotenant.core.queueing.advance import restricted
from cotenant.core.queueing.backfill import why_overtook
from cotenant.core.units import Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.history.decisions import DecisionRecorder
from cotenant.history.store import History
from cotenant.local import attempts
from cotenant.local.account_settings import read_accounts
from cotenant.local.accounting import Accounting
from cotenant.local.admission import Admission
from cotenant.local.array_bounds import ArrayBounds
from cotenant.local.backoff import Backoff
from cotenant.local.cleaning import Cleaner, Selection
from cotenant.local.config import Resources, Settings
from cotenant.local.containers import check_container
from cotenant.local.decision_log import DecisionLog
from cotenant.local.dependencies import Dependencies
from cotenant.local.devices import Devices
from cotenant.local.events import Events, log_error
from cotenant.local.grants import JobGrants
from cotenant.local.holds import Holds
from cotenant.local.identity import Caller
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
    with_stored_compute,
)
from cotenant.local.live_changes import refuse_amounts, refuse_simulated, refuse_time
from cotenant.local.logins import Origin
from cotenant.local.metrics import DaemonMetrics
from cotenant.local.mig import MigChanges
from cotenant.local.mig_layouts import LayoutChanges
from cotenant.local.mps_watch import MpsWatch
from cotenant.local.notifications import Notifications
from cotenant.local.owners import Owner, own_account
from cotenant.local.pages import Pages
from cotenant.local.profiles import ProfileStore
from cotenant.local.pruning import EndedJob, Pruner
from cotenant.local.queries import OVERTOOK, Queries
from cotenant.local.recording import record_history
from cotenant.local.refusals import UnknownError
from cotenant.local.reservations import Reservations
from cotenant.local.run_orders import RunOrders
from cotenant.local.runs import Runs
from cotenant.local.supervisor import Exit, locked
from cotenant.local.tenants import Tenants
from cotenant.local.tokens import Tokens
from cotenant.local.tuner import TuningLoop, save_history
from cotenant.local.unmanaged import Unmanaged
from cotenant.local.unrecorded import UnrecordedCancels
from cotenant.local.views import placement_reason, unsubmitted_view
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.devices.vendors import Vendor
from cotenant.node.interference import InterferenceMonitor, Newcomer
from cotenant.node.mps import Crash
from cotenant.signals import Signal
from cotenant.wire.arrays import size_of
from cotenant.wire.cleaning import Cleaned
from cotenant.wire.local import (
    AccountView,
    GpuView,
    JobChange,
    JobRequest,
    JobView,
    Pruned,
    PruneRequest,
    change_text,
    changed_by,
    checked_request,
    element_of,
)
from cotenant.wire.reservations import ReservationRequest, ReservationView
from cotenant.wire.text import counted

PRUNE_EVERY_S = 3600.0
RETRY_JOURNAL_S = 5.0
"""until the next pass after the journal could not be written"""
PASS_EVERY_S = 60.0
"""while jobs wait that may start without any event"""
LONGEST_PAUSE_S = 3600.0
"""between two passes: the clock may have been set, and reservations start by it"""


class Accepted(NamedTuple):
    """What was stored for one request."""

    id: str
    """of the job, or of the array"""
    request: JobRequest
    job: Job
    """each of its jobs, without an ID"""
    note: str | None
    """if it gets another isolation than it wishes for"""


class ListedError(CotenantError):
    """One of several requests is refused, and so are all of them."""

    def __init__(self, number: int, problem: CotenantError) -> None:
        super().__init__(str(problem))
        self.number, self.problem = number, problem


class NotStored(Exception):  # noqa: N818 - it ends a transaction, and is no fault
    """Nothing of a transaction is stored."""


class Engine:
    """What the daemon does, without its sockets. Called from one event loop, never from two threads."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        # The parts, each after those that it uses.
        journal, backend = resources.journal, resources.backend
        self._resources, self._journal, self._draw = resources, journal, settings.draw
        self._keep, self._backfill = settings.keep, settings.backfill
        self._accounts_file = settings.accounts_file
        self.is_administrator: Callable[[Owner], bool] = lambda owner: True
        """whether a user is an administrator; a daemon for all users sets it"""
        self.events = Events(journal)
        self.tokens = Tokens(journal)
        self._devices = Devices(backend, journal, resources.isolation, settings.host)
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
        self.reservations = Reservations(journal)
        self._reserved_before = False
        self._launcher = Launcher(resources)
        self._notifications = Notifications(journal, resources, self.events)
        self._grants = JobGrants(resources.slices, self._devices)
        self._runs = Runs(resources.jobs)
        self._orders = RunOrders(journal, self._runs)
        self._tenants = Tenants(machine, self._runs)
        self._unmanaged = Unmanaged(self._devices, self._tenants)
        self.idle, self._idle_action = (
            IdleJobs(settings.idle, self._devices.usage_of, self._tenants, is_paused=self._orders.is_paused),
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
            self.reservations,
            self._orders,
        )
        self._wake = asyncio.Event()
        self.stopping = asyncio.Event()
        self._pruner = Pruner(
            resources.jobs,
            ended=lambda: [EndedJob(record.id, record.ended or 0.0) for record in journal.jobs(ENDED, -1, None)],
            can_be_pruned=self._can_be_pruned,
            stopping=self.stopping.is_set,
        )

        self._cleaner = Cleaner(journal, self._pruner)
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
        self._tenants.removed.subscribe(resources.host_memory.remove)
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
        try:
            return self.submit_all((request,), owner, origin)[0]
        except ListedError as error:
            raise error.problem from None

    def submit_all(
        self,
        requests: Sequence[JobRequest],
        owner: Owner | None = None,
        origin: Origin | None = None,
        *,
        dry_run: bool = False,
    ) -> list[JobView]:
        """The same for several jobs: all of them are accepted, or none. A job may wait for an earlier one of the list,
        by its name. ListedError says which job is refused. With `dry_run` nothing is stored, and the answers have no
        ID."""
        owner, submitted = owner or own_account().owner, time.time()
        accepted = list[Accepted]()
        try:
            with self._journal.transaction():
                for request in requests:
                    accepted.append(self._accept(request, owner, submitted, origin))
                if dry_run:
                    raise NotStored
        except NotStored:
            return [unsubmitted_view(one.request, owner, submitted) for one in accepted]
        except JournalError:
            raise
        except CotenantError as error:
            raise ListedError(len(accepted), error) from None
        return [self._enter(one) for one in accepted]

    def _accept(self, request: JobRequest, owner: Owner, submitted: float, origin: Origin | None) -> "Accepted":
        """Stores a job, or all elements of an array; nothing but the journal is changed."""
        self._check_priority(request.priority, owner)
        as_root = owner.uid == 0 or (not self.serves_all_users and os.geteuid() == 0)
        check_container(request, self._resources.containers, as_root=as_root)
        request = self.queries.with_dependencies(checked_request(request), owner.uid)
        request = self._admission.with_memory(request)
        if request.reservation is not None:
            self.reservations.check_job(request.reservation, owner, request.gpus)
        self._dependencies.refuse_hopeless(request)
        size = 1 if request.array is None else size_of(request.array)
        job, note = self._admission.admit("new", element_of(request, 0), submitted), self._admission.note(request)
        job = replace(job, account=self.accounting.account(owner))
        self.accounting.check_submission(job, self._tenants.cluster, size)
        content = msgspec.json.encode(request)
        if request.array is None:
            return Accepted(self._journal.submit(content, submitted, owner, origin), request, job, note)
        array, _ = self._journal.submit_array(content, submitted, size, owner, origin)
        return Accepted(array, request, job, note)

    def _enter(self, one: "Accepted") -> JobView:
        """Queues what was stored."""
        if one.request.array is None:
            records, text = [self._journal.job(one.id)], f"submitted: {' '.join(one.request.command)[:200]}"
        else:
            records = self._journal.elements(self.queries.array(one.id).number)
            text = f"{one.id} of {counted(len(records), 'element')} submitted"
        self.events.record("submitted", records[0].id, text)
        for record in records:
            self._learner.observe(one.job.demand)
            self._enqueue(replace(one.job, id=record.id), record)
        if one.note is not None:
            self.events.record("isolation", records[0].id, one.note)
        return self.queries.job(one.id)

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

    def pause(self, name: str, paused: bool) -> JobView:
        """Stops all processes of a job that runs, which keeps its slot, or lets them go on; or those of every element
        of an array."""
        verb = "paused" if paused else "resumed"
        if self.queries.is_array(name):
            array = self.queries.array(name)
            found = [one for one in self._journal.elements(array.number, ACTIVE) if self._can_change(one) is None]
            found = [one for one in found if self._orders.is_paused(one.id) is not paused]
            if not found:
                raise InputError(f"no element of {array.id} {'runs' if paused else 'is paused'}")
            for record in found:
                self._pause(record, paused)
            self.events.record(verb, found[0].id, f"{counted(len(found), 'element')} of {array.id} {verb}")
            return self.queries.job(array.id)
        record = self.queries.find(name)
        if paused and record.state is JobState.QUEUED:
            raise InputError(f"{record.id} is queued; `cotenant hold {record.id}` keeps it from starting")
        problem = self._can_change(record)
        if problem is not None:
            raise InputError(problem)
        if not paused and not self._orders.is_paused(record.id):
            raise InputError(f"{record.id} is {record.state} and not paused")
        if paused is not self._orders.is_paused(record.id):
            self._pause(record, paused)
            self.events.record(verb, record.id, "paused: it keeps its GPUs" if paused else "resumed")
        return self.queries.job(record.id)

    def _can_change(self, record: JobRecord) -> str | None:
        """Why a job that should run cannot be paused or changed; None: it can."""
        if record.state not in ACTIVE:
            return f"{record.id} is {record.state}; only a job that runs can be paused"
        if record.stop is not None:
            return f"{record.id} is about to end"
        if not attempts.obeys_orders(self.queries.folder(record)):
            return f"{record.id} was started by an earlier version, which can neither pause nor change it"
        return None

    def _pause(self, record: JobRecord, paused: bool) -> None:
        """While a job is paused, nothing is measured: its neighbours run as if it were not there."""
        self._orders.pause(record, paused)
        self._measure(record.id, not paused)

    def _measure(self, job: str, measured: bool) -> None:
        placed, now = self._tenants.placed[job], time.monotonic()
        for gpu in placed.gpus:
            self._tuner.disturb(gpu, now)
        if measured:
            self.interference.add(replace(placed, since=now))
        else:
            self.interference.remove(job)

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

    def _check_priority(self, priority: int, owner: Owner) -> None:
        """InputError if a user may not give a job this priority."""
        if not self.is_administrator(owner):
            self.accounting.check_priority(priority, owner)

    def reload_accounts(self) -> list[AccountView]:
        """Reads the file of accounts again; InputError, and nothing is changed, if there is none or it is not valid."""
        if self._accounts_file is None:
            raise InputError("this daemon has no file of accounts; start it with --accounts FILE")
        self.accounting.replace_rules(read_accounts(self._accounts_file))
        for job, placed in self._tenants.placed.items():
            core, owner = placed.placement.job, self._journal.job(job).owner
            changed = self._tenants.change(job, replace(core, account=self.accounting.account(owner)), placed.request)
            self.accounting.add(changed, self._tenants.cluster)
        owners = {record.id: record.owner for record in self._journal.queued_in_order()}
        waiting = [replace(job, account=self.accounting.account(owners[job.id])) for job in self._queue.jobs.values()]
        self._queue.rebuild(self._learner.policy, waiting, by_account=self.accounting.limited)
        self.events.record("accounts", None, f"{self._accounts_file} was read again")
        self._wake.set()
        return self.queries.accounts()

    def change(self, name: str, change: JobChange, by: Owner | None = None) -> JobView:
        """Gives a queued job other values at the request of a user (None: of the daemon's own); it keeps its place
        among jobs of equal priority."""
        record = self.queries.find(name)
        if change.priority is not None and by is not None:
            self._check_priority(change.priority, by)
        if record.state in ENDED or record.id in self.queries.set_aside:
            raise InputError(f"{record.id} is {record.state}; only a job that waits or runs can be changed")
        if change.name is not None and record.item is not None:
            raise InputError(f"--name: {record.id} is an element of an array, and is called like it")
        request = self._admission.with_memory(changed_by(stored_request(record), change))
        job = self._admission.admit(record.id, request, record.submitted)
        job = replace(job, account=self.accounting.account(record.owner))
        self.accounting.check_submission(job, self._tenants.cluster, 0)
        if record.state in ACTIVE:
            self._change_running(record, change, request, job)
        else:
            record = self._journal.change_request(record.id, msgspec.json.encode(request))
            if record.id in self._queue.jobs:  # one that waits outside the queue is read again when it comes in
                self._leave_queue(record.id)
                self._enqueue(job, record)
        self.events.record("changed", record.id, f"changed: {change_text(change)}")
        return self.queries.job(record.id)

    def _change_running(self, record: JobRecord, change: JobChange, request: JobRequest, job: Job) -> None:
        """The journal is written first: a daemon that is killed in between tells the supervisor after its restart."""
        placed, machine, now = self._tenants.placed[record.id], self._devices.machine, time.time()
        job = with_stored_compute(job, record) if request.latency_s is not None else job
        job = replace(job, demand=replace(job.demand, rung=placed.placement.job.demand.rung))
        problem = self._can_change(record)
        if problem is not None:
            raise InputError(problem)
        resized = (change.memory, change.compute) != (None, None)
        if resized and record.state is not JobState.RUNNING:
            raise InputError(f"{record.id} is being started; its limits can be changed when it runs")
        used, limits = self._devices.usage_of(record.id).memory_mib, self.accounting.limit_check()
        refuse_amounts(placed, job, self._tenants.cluster, used, self._learner.policy.checks, limits)
        orders = self._orders.of(record)
        if change.time_s is not None:
            refuse_time(placed, change.time_s, now)
            ends = placed.started + change.time_s + request.grace_s
            self.reservations.refuse_longer(job, [machine.gpus[gpu] for gpu in placed.gpus], ends)
            orders = replaced(orders, time_s=change.time_s)
        placement, own = replace(placed.placement, job=job), element_of(request, record.item or 0)
        launch = self._launcher.limits(machine, placement, own)
        if resized and launch.memory_mib is not None:
            refuse_simulated(record.id, self.queries.folder(record), launch)
            orders = replaced(orders, memory_mib=launch.memory_mib, share_percent=launch.share_percent)
        with self._journal.transaction():
            self._journal.change_request(record.id, msgspec.json.encode(request))
            self._orders.store(record.id, replaced(orders, changed=True))
        changed = self._tenants.change(record.id, job, own)
        self.accounting.change(changed, self._tenants.cluster)
        self._grants.change(changed)
        self._tuner.add(changed)
        self._obey_orders(record)
        self._wake.set()

    def _obey_orders(self, record: JobRecord) -> None:
        """Tells the supervisor of a job, and writes its limits once it runs, as they are in the journal."""
        placed = self._tenants.placed[record.id]
        if self._orders.of(record).changed and record.state is JobState.RUNNING:
            launch = self._launcher.limits(self._devices.machine, placed.placement, placed.request)
            self._launcher.change_limits(placed.placement, launch)
        self._orders.give(record.id)

    def rerun(self, name: str, change: JobChange) -> JobView:
        """Submits a copy of a job as a new job of the same owner; it waits for no others."""
        record = self.queries.find(name)
        _refuse_unreadable(record)
        request = changed_by(replaced(request_of(record), after=()), change)
        return self.submit(request, record.owner, self._journal.origin(record.id))

    def reserve(self, request: ReservationRequest, caller: Caller) -> ReservationView:
        """Reserves GPUs for a user or a group."""
        machine, placed = self._devices.machine, self._tenants.placed.values()
        limits = self.accounting.reservation_limits(caller.owner)
        view = self.reservations.make(request, caller, machine, placed, limits)
        self._record_reservation(view, "reserved")
        return view

    def cancel_reservation(self, name: str) -> ReservationView:
        """Removes a reservation; jobs that run in it continue, and those that were submitted for it wait as others."""
        view = self.reservations.cancel(name, self._devices.machine)
        self._record_reservation(view, "reservation cancelled")
        return view

    def _record_reservation(self, view: ReservationView, kind: str) -> None:
        gpus = " ".join(map(str, view.gpus))
        whom = view.user if view.user is not None else f"group {view.group}"
        self.events.record(kind, None, f"{view.id}: GPU {gpus} for {whom}")
        self._wake.set()

    def _evict_for_reservations(self) -> None:
        """Stops jobs on GPUs whose reservation has begun and was made with that wish."""
        for why, reservation in self.reservations.evicting():
            gpus = {i for i, gpu in enumerate(self._devices.machine.gpus) if gpu.uuid in reservation.gpus}
            for job, placed in list(self._tenants.placed.items()):
                if gpus & set(placed.gpus) and not self.reservations.admits(reservation, placed.placement.job):
                    self._evict(job, f"asked to leave its GPU: {why}")

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

    async def clean(self, selection: Selection, *, dry_run: bool) -> Cleaned:
        """Removes ended jobs with their files and events; never other jobs."""
        done = await self._cleaner.clean(selection, dry_run=dry_run)
        if done.jobs and not dry_run:
            self.events.record("cleaned", None, f"{counted(sum(one.jobs for one in done.jobs), 'job')} removed")
        return done

    def _can_be_pruned(self, job: str) -> bool:
        """Whether a job has ended, no process of it is left, and no notice about it is to be sent."""
        record = self._journal.job(job)
        is_free = not locked(str(self.queries.folder(record))) and not self._journal.has_notices(job)
        return record.state in ENDED and is_free

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
        self._resources.host_memory.sweep(self._tenants.placed)
        if self._resources.slices is not None:
            self._resources.slices.sweep(self._tenants.placed)
        self._orders.recover(active)
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
        self._notifications.send()
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
                    pause_s = PASS_EVERY_S if may_start_later and len(self._queue) else math.inf
                    change = self.reservations.next_change()
                    pause_s = min(pause_s, math.inf if change is None else max(0.0, change - time.time()))
                    await asyncio.wait_for(self._wake.wait(), min(pause_s, LONGEST_PAUSE_S))
        finally:
            ended = [helper for helper in helpers if helper.done()]
            for helper in helpers:
                helper.cancel()
            self._runs.close()
            self._notifications.close()
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
        self.reservations.expire()
        self._evict_for_reservations()
        advance = self.reservations.advance(self._devices.machine)
        timed, self._reserved_before = advance is not None or self._reserved_before, advance is not None
        jobs = self._queue.begin_pass(policy, cluster, timed=timed)
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
            advance=advance,
        )
        self._queue.reservation = reservation = decision.reservation
        for placement in decision.placements:
            job, allowed = placement.job, decision.overtaking.get(placement.job.id)
            waited = self._queue.jobs.get(job.id, job)
            waited = waited if advance is None else restricted(waited, advance.closed(waited, now))
            self._decisions.placed(policy, waited, placement, decision, self._tenants.cluster)
            overtook = "" if allowed is None or reservation is None else why_overtook(reservation, job, allowed, now)
            self._start(placement, None if placement.overdue else decision.crowding, overtook)
        self._queue.end_pass(policy, self._tenants.cluster)
        waiting = self._queue.some()
        if advance is not None:
            waiting = [restricted(job, advance.closed(job, now)) for job in waiting]
        self._decisions.refused(ranker, waiting, decision, now)
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
        try:
            self._obey_orders(record)
        except CotenantError as error:
            log_error(f"{record.id}: {error}")
        if self._orders.is_paused(record.id):
            self._measure(record.id, False)
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
                record, _ = self._apply(record, Started())
                self._obey_orders(record)
            return
        self.accounting.end(job, _end_of(status))
        self._orders.forget(job)
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
            ran_out = end.outcome == "out-of-memory"
            more = self._admission.more_memory(request_of(record), of_host=end.of_host) if ran_out else None
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
        if self._idle_action is IdleAction.REQUEUE:
            self._stop(record, StopRequested(Stop.EVICT, text))
        else:
            why = f"it {text}, and this daemon ends such jobs (--idle-action end)"
            self._stop(record, StopRequested(Stop.CANCEL, why, by_daemon=True))

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
                self._stop(record, StopRequested(Stop.CANCEL if caused else Stop.EVICT, why, by_daemon=True))

    def _save_tuning_history(self, job: str) -> None:
        save_history(self._runs.of_job(job), self._tuner.history(job))

    # State changes

    def _apply(self, record: JobRecord, event: LifecycleEvent) -> tuple[JobRecord, Change]:
        """Stores the change that an event causes; the new record, and the change."""
        change = step(record, event, time.time())
        before = record.state
        with self._journal.transaction():
            record = self._journal.transition(record.id, (before,), change.state, **change.columns)
            if change.state is not before:
                self._notifications.note(record)
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
