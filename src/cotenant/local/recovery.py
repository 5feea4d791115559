# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The start of a daemon: everything is rebuilt from the journal and the folders of runs, after a stop or a kill."""

from contextlib import suppress

from cotenant.errors import CotenantError
from cotenant.local import attempts
from cotenant.local.changing import Changer
from cotenant.local.events import log_error
from cotenant.local.journal_schema import JournalError
from cotenant.local.lifecycle import ACTIVE, JobRecord, request_of, unreadable
from cotenant.local.mig import MigChanges
from cotenant.local.parts import Parts
from cotenant.local.passes import Passes
from cotenant.local.queries import Queries
from cotenant.local.transitions import Transitions
from cotenant.local.waiting import Waiting


class Recovery:
    """Finds running processes, ended ones, and the queue in its order."""

    def __init__(
        self,
        parts: Parts,
        queries: Queries,
        transitions: Transitions,
        waiting: Waiting,
        changer: Changer,
        passes: Passes,
        mig: MigChanges | None,
    ) -> None:
        self._queries, self._transitions, self._waiting = queries, transitions, waiting
        self._changer, self._passes, self._mig = changer, passes, mig
        self._resources, self._journal, self._events = parts.resources, parts.journal, parts.events
        self._devices, self._tenants, self._learner = parts.devices, parts.tenants, parts.learner
        self._queue, self._holds, self._bounds = parts.queue, parts.holds, parts.bounds
        self._runs, self._orders, self._grants = parts.runs, parts.orders, parts.grants
        self._decisions, self._notifications, self._unrecorded = parts.decisions, parts.notifications, parts.unrecorded

    def recover(self) -> None:
        """Rebuilds everything after a stop or a kill: running processes, ended ones, the queue in its order."""
        # Check all jobs before changing anything, so that a refused start leaves everything as it was. Add all tenants
        # before the sweeps, which remove the groups and slices of every other job, and before `_adopt`, which may find
        # that a run has ended and remove its tenant again.
        if self._mig is not None:
            self._mig.recover()
        with suppress(JournalError):
            self._transitions.record_late_cancels()
        active = self._journal.jobs(ACTIVE, -1, None)
        for record in active:
            self._refuse_missing_gpus(record)
        for record in active:
            self._tenants.add(
                self._queries.placement(record), request_of(record), record.attempts, started=record.started
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
                self._waiting.enqueue_record(record)
        self._report_unreadable(active)
        self._notifications.try_to_send()
        placed = (one.placement.job for one in self._tenants.placed.values())
        for job in (*placed, *self._queue.jobs.values()):
            self._learner.observe(job.demand)

    def _adopt(self, record: JobRecord) -> None:
        """A job that was starting or running when the last daemon stopped."""
        if record.stop is not None or record.id in self._unrecorded:
            attempts.cancel(
                self._queries.folder(record)
            )  # the last daemon may have been killed before it sent the signal
        try:
            self._changer.obey(record)
        except CotenantError as error:
            log_error(f"{record.id}: {error}")
        if self._orders.is_paused(record.id):
            self._changer.measure(record.id, False)
        if attempts.was_started(self._queries.folder(record)):
            self._grants.found(record.id)
            self._runs.look(record.id, record.attempts)
        else:  # the last daemon was killed between the journal and the process: nothing has run
            self._passes.begin(record)
        if record.id in self._tenants.placed:
            self._events.record("found", record.id, "found again after a restart of the daemon")

    def _report_unreadable(self, active: list[JobRecord]) -> None:
        """One event and one line in the log for each job that this version cannot read."""
        texts = {job: f"set aside: its request cannot be read: {why}" for job, why in self._queries.set_aside.items()}
        texts |= {
            record.id: f"runs with GPUs of its own until it ends: its request or slot cannot be read: {why}"
            for record in active
            if (why := unreadable(record)) is not None
        }
        texts |= dict.fromkeys(self._journal.damaged(), "left out of all answers: its row in the journal is damaged")
        for job, text in texts.items():
            log_error(f"{job} is {text}" if job in self._queries.set_aside else f"{job} {text}")
            self._events.record("unreadable", job, text)

    def _refuse_missing_gpus(self, record: JobRecord) -> None:
        """A job on a GPU that no longer exists could be neither watched nor accounted for."""
        missing = self._queries.missing_gpus(record)
        if missing:
            count = len(self._devices.machine.gpus)
            raise CotenantError(
                f"{record.id} runs on GPU {missing[0]}, but this machine has only {count} GPU{'s' * (count != 1)} now: "
                f"start with as many as before (for example --simulate {missing[0] + 1}), or wait until it has ended"
            )
