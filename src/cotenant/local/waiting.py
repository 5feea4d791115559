# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where a job waits: in the queue, or outside of it for a release, other jobs or a pause."""

import asyncio

from cotenant.core.model import Job
from cotenant.local.lifecycle import JobRecord, Unsatisfiable, request_of, unreadable
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.transitions import Transitions
from cotenant.wire.job_views import shown_name


class Waiting:
    """Lets jobs enter the queue and leave it."""

    def __init__(self, parts: Parts, queries: Queries, transitions: Transitions) -> None:
        self._queries, self._transitions = queries, transitions
        self._journal, self._events, self._wake = parts.journal, parts.events, parts.wake
        self._queue, self._backoff, self._holds = parts.queue, parts.backoff, parts.holds
        self._dependencies, self._bounds = parts.dependencies, parts.bounds
        self._decisions, self._unrecorded = parts.decisions, parts.unrecorded

    def enqueue(self, job: Job, record: JobRecord) -> None:
        """Queues a job, unless it waits for others."""
        request = request_of(record)
        if self._dependencies.add(job.id, request) or self._bounds.add(record):
            return
        self._queue.add(job)
        self._decisions.queued(job, shown_name(request.name, request.command[0]), record.owner)
        self._wake.set()

    def enqueue_after(self, pause_s: float, record: JobRecord) -> None:
        """Queues a job again, after a pause if it was stopped for others repeatedly."""

        def enqueue() -> None:
            if self._backoff.end(record.id):  # it may have been cancelled
                self.enqueue_record(self._journal.job(record.id))

        if pause_s:
            self._events.record("backing off", record.id, self._backoff.waiting[record.id])
            asyncio.get_running_loop().call_later(pause_s, enqueue)
        else:
            self.enqueue_record(self._journal.job(record.id))

    def enqueue_record(self, record: JobRecord) -> None:
        """Without the fields that this version cannot read, a job might run with too few limits: it is set aside."""
        problem = unreadable(record)
        if record.id in self._unrecorded or record.id in self._holds:
            return
        if problem is None:
            self.enqueue(self._queries.core_job(record), record)
        else:
            self._queries.set_aside[record.id] = problem

    def leave(self, job: str) -> None:
        self._backoff.end(job)
        self._dependencies.forget(job)
        self._bounds.leave(job)
        if job in self._queue.jobs:
            self._queue.remove(job)
            self._decisions.left(job)
        self._wake.set()  # other jobs may have waited for it

    def settle(self) -> None:
        """Queues jobs whose dependencies are fulfilled, and ends those that can never run."""
        for job, problem in self._dependencies.settled():
            record = self._journal.job(job)
            if problem is not None:
                _, change = self._transitions.apply(record, Unsatisfiable(problem))
                self._transitions.announce(job, change)
            self._dependencies.forget(job)
            if problem is None:
                self.enqueue_record(record)
