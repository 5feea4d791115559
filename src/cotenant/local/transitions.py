# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of the states of jobs: first in the journal, then where they take effect."""

import time

from cotenant.local import attempts
from cotenant.local.events import log_error
from cotenant.local.journal_schema import JournalError
from cotenant.local.lifecycle import ACTIVE, ENDED, Change, JobRecord, LifecycleEvent, Stop, StopRequested, step
from cotenant.local.parts import Parts

RETRY_JOURNAL_S = 5.0
"""until the journal is tried again that could not be written"""


class Transitions:
    """The only part that changes the state of a job."""

    def __init__(self, parts: Parts) -> None:
        self._journal, self._events, self._notifications = parts.journal, parts.events, parts.notifications
        self._dependencies, self._bounds = parts.dependencies, parts.bounds
        self._runs, self._grants, self._unrecorded = parts.runs, parts.grants, parts.unrecorded

    def apply(self, record: JobRecord, event: LifecycleEvent) -> tuple[JobRecord, Change]:
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

    def announce(self, job: str, change: Change) -> None:
        self._events.record(change.kind, job, change.text)

    def stop(self, record: JobRecord, request: StopRequested, *, reclaims: bool = False) -> None:
        """The journal is written before the signal is sent: a daemon killed in between sends it after its restart."""
        _, change = self.apply(record, request)
        self.signal(record, reclaims=reclaims)
        self.announce(record.id, change)

    def signal(self, record: JobRecord, *, reclaims: bool = False) -> None:
        attempts.cancel(self._runs.folder(record.id, record.attempts), reclaims=reclaims)
        self._grants.stop_waiting(record.id)

    def evict(self, job: str, why: str) -> None:
        """Stops a job that runs, and queues it again."""
        record = self._journal.job(job)
        if record.state in ACTIVE and record.stop is None:
            self.stop(record, StopRequested(Stop.EVICT, why))

    def record_cancel(self, record: JobRecord) -> None:
        why = "asked to stop with SIGTERM" if record.state in ACTIVE else ""
        _, change = self.apply(record, StopRequested(Stop.CANCEL, why))
        self.announce(record.id, change)

    def record_late_cancels(self) -> None:
        """Writes the cancellations to the journal that it could not record before; JournalError if it still cannot."""
        for job in self._unrecorded.jobs():
            record = self._journal.find(job)
            if record is not None and record.state not in ENDED:
                self.record_cancel(record)
            try:
                self._unrecorded.remove(job)
            except JournalError as error:  # other jobs must not wait for that; `retry` of this one does
                log_error(str(error))
