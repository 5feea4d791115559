# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What users ask of their jobs and arrays: cancel, hold and release."""

import asyncio

from cotenant.errors import InputError
from cotenant.local.events import log_error
from cotenant.local.journal_schema import JournalError
from cotenant.local.lifecycle import ACTIVE, ENDED, JobRecord, JobState, Stop, StopRequested
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.transitions import RETRY_JOURNAL_S, Transitions
from cotenant.local.waiting import Waiting
from cotenant.wire.job_views import JobView
from cotenant.wire.text import counted


class JobCommands:
    """Each command takes the ID or name of a job, or of an array and so of its elements."""

    def __init__(self, parts: Parts, queries: Queries, transitions: Transitions, waiting: Waiting) -> None:
        self._queries, self._transitions, self._waiting = queries, transitions, waiting
        self._journal, self._events, self._wake = parts.journal, parts.events, parts.wake
        self._holds, self._unrecorded = parts.holds, parts.unrecorded

    def cancel(self, name: str) -> JobView:
        """Stops a job, or removes it from the queue; or every element of an array."""
        if not self._queries.is_array(name):
            return self._cancel(self._queries.find(name))
        array = self._queries.array(name)
        left = self._journal.elements(array.number, (JobState.QUEUED, *ACTIVE))
        if not left:
            raise InputError(f"{array.id} has already ended")
        try:
            with self._journal.transaction():
                for record in left:
                    self._transitions.apply(record, StopRequested(Stop.CANCEL))
            for record in left:
                self._obey_cancel(record)
            self._events.record("cancelled", left[0].id, f"{counted(len(left), 'element')} of {array.id} cancelled")
        except JournalError:
            for record in left:
                self._cancel(record)
        return self._queries.job(array.id)

    def _cancel(self, record: JobRecord) -> JobView:
        """Stops a job, or removes it from the queue. It does not wait for space in the journal: the job may be what
        fills the disk."""
        if record.state in ENDED:
            raise InputError(f"{record.id} has already ended ({record.state})")
        try:
            self._transitions.record_cancel(record)
        except JournalError as error:
            if not self._unrecorded.store(record.id):
                if record.state not in ACTIVE:
                    raise  # after a kill of the daemon, the job would run
                self._unrecorded.remember(record.id)
            log_error(f"{record.id} is cancelled, which the journal cannot record yet: {error}")
            asyncio.get_running_loop().call_later(RETRY_JOURNAL_S, self._wake.set)
        self._obey_cancel(record)
        return self._queries.job(record.id)

    def _obey_cancel(self, record: JobRecord) -> None:
        """Signals a job whose cancellation is recorded, or removes it from the queue."""
        if record.state in ACTIVE:
            self._transitions.signal(record)
        elif self._queries.set_aside.pop(record.id, None) is None and not self._holds.forget(record.id):
            self._waiting.leave(record.id)

    def hold(self, name: str) -> JobView:
        """Keeps a queued job from starting until it is released, also after a restart of the daemon; or every queued
        element of an array."""
        if self._queries.is_array(name):
            array = self._queries.array(name)
            records = self._journal.elements(array.number, (JobState.QUEUED,))
            self._holds.add_all(records)
            for record in records:
                self._waiting.leave(record.id)
            self._events.record("held", records[0].id, f"{counted(len(records), 'element')} of {array.id} held")
            return self._queries.job(array.id)
        record = self._queries.find(name)
        if record.id not in self._holds:
            if record.id in self._queries.set_aside:
                raise InputError(f"{record.id} does not start in any case: {self._queries.job(record.id).reason}")
            self._holds.add(record)
            self._waiting.leave(record.id)
            self._events.record("held", record.id, "held in the queue until it is released")
        return self._queries.job(record.id)

    def release(self, name: str) -> JobView:
        """Lets a held job start again, in its old position of the queue; or every held element of an array."""
        if self._queries.is_array(name):
            array = self._queries.array(name)
            for record in self._holds.remove_all(self._journal.elements(array.number, (JobState.QUEUED,))):
                self._waiting.enqueue_record(record)
            return self._queries.job(array.id)
        record = self._queries.find(name)
        self._holds.remove(record)
        self._waiting.enqueue_record(record)
        self._events.record("released", record.id, "released: it can start again")
        return self._queries.job(record.id)
