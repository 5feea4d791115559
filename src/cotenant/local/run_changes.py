# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What follows when a run is found to run, or to have ended."""

from cotenant.local import attempts
from cotenant.local.changing import Changer
from cotenant.local.lifecycle import (
    ACTIVE,
    Change,
    Disappeared,
    Exited,
    JobRecord,
    JobState,
    Started,
    Stop,
    StopRequested,
    failed,
    request_of,
)
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.run_files import Exit
from cotenant.local.transitions import Transitions
from cotenant.local.waiting import Waiting


class RunChanges:
    """Frees the slot of a run that has ended, and queues its job again if it may run once more."""

    def __init__(
        self, parts: Parts, queries: Queries, transitions: Transitions, waiting: Waiting, changer: Changer
    ) -> None:
        self._queries, self._transitions, self._waiting, self._changer = queries, transitions, waiting, changer
        self._resources, self._journal, self._wake = parts.resources, parts.journal, parts.wake
        self._admission, self._accounting, self._tenants = parts.admission, parts.accounting, parts.tenants
        self._runs, self._orders, self._backoff = parts.runs, parts.orders, parts.backoff
        self._interference, self._decisions, self._mps = parts.interference, parts.decisions, parts.mps

    def on_change(self, job: str, attempt: int, status: attempts.Status) -> None:
        """A run is found to run, or to have ended: then its slot is free, and the job may be queued again."""
        self._transitions.record_late_cancels()
        record = self._journal.job(job)
        current = record.state in ACTIVE and record.attempts == attempt
        if status.state == "running":
            if current and record.state is JobState.STARTING:
                record, _ = self._transitions.apply(record, Started())
                self._changer.obey(record)
            return
        self._accounting.end(job, _end_of(status))
        self._orders.forget(job)
        queued = current and self._end(record, status)
        self._tenants.remove(job)
        if self._resources.slices is not None:
            self._resources.slices.remove(job, self._runs.of_job(job))
        if queued:
            self._waiting.enqueue_after(self._backoff.begin(job), record)
        else:
            self._interference.forget(job)
            self._backoff.forget(job)
        self._wake.set()

    def _end(self, record: JobRecord, status: attempts.Status) -> bool:
        """Stores the end of a run; whether the job is queued again."""
        if status.exit is not None:
            if record.state is JobState.STARTING and record.stop is None and status.exit.outcome != "exec-failed":
                record, _ = self._transitions.apply(record, Started())  # it ended before it was seen to run
            record, end = self._as_victim(record, status.exit)
            ran_out = end.outcome == "out-of-memory"
            more = self._admission.more_memory(request_of(record), of_host=end.of_host) if ran_out else None
            _, change = self._transitions.apply(record, Exited(end, more))
        else:
            _, change = self._transitions.apply(record, Disappeared(rebooted=status.state == "interrupted"))
        self._transitions.announce(record.id, change)
        self._decisions.ended(record, change.state, _outcome(change))
        return change.state is JobState.QUEUED

    def _as_victim(self, record: JobRecord, end: Exit) -> tuple[JobRecord, Exit]:
        """A job that failed because of another MPS client's fault is queued again, as if it had been evicted."""
        if self._mps is None or not failed(end) or record.stop is not None:
            return record, end
        crash = self._mps.fault_of(record.id)
        if crash is None or not crash.culprits or record.id in crash.culprits:
            return record, end
        record, change = self._transitions.apply(record, StopRequested(Stop.EVICT, crash.why))
        self._transitions.announce(record.id, change)
        return record, end._replace(outcome="cancelled")


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
