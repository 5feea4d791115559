# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that users submit, run again or copy: checked, stored and queued."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
from msgspec.structs import replace as replaced

from cotenant.core.model import Job
from cotenant.errors import CotenantError, InputError
from cotenant.local.containers import check_container
from cotenant.local.journal_schema import JournalError
from cotenant.local.lifecycle import ENDED, JobRecord, RetryRequested, request_of, unreadable
from cotenant.local.logins import Origin
from cotenant.local.owners import Owner, own_account
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.transitions import Transitions
from cotenant.local.views import unsubmitted_view
from cotenant.local.waiting import Waiting
from cotenant.wire.arrays import size_of
from cotenant.wire.dependencies import parse_dependencies
from cotenant.wire.job_checks import changed_by, checked_request
from cotenant.wire.job_requests import JobChange, JobRequest, element_of
from cotenant.wire.job_views import JobView
from cotenant.wire.text import counted


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


class Submissions:
    """Accepts jobs durably, or refuses them."""

    def __init__(self, parts: Parts, queries: Queries, transitions: Transitions, waiting: Waiting) -> None:
        self._queries, self._transitions, self._waiting = queries, transitions, waiting
        self._resources, self._journal, self._events = parts.resources, parts.journal, parts.events
        self._is_administrator = parts.settings.is_administrator
        self._learner, self._admission, self._accounting = parts.learner, parts.admission, parts.accounting
        self._tenants, self._reservations = parts.tenants, parts.reservations
        self._holds, self._dependencies, self._unrecorded = parts.holds, parts.dependencies, parts.unrecorded

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
        _refuse_later(requests)
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

    def _accept(self, request: JobRequest, owner: Owner, submitted: float, origin: Origin | None) -> Accepted:
        """Stores a job, or all elements of an array; nothing but the journal is changed."""
        self.check_priority(request.priority, owner)
        as_root = owner.uid == 0 or (self._resources.runtime is None and os.geteuid() == 0)
        check_container(request, self._resources.containers, as_root=as_root)
        request = self._queries.with_dependencies(checked_request(request), owner.uid)
        request = self._admission.with_memory(request)
        if request.reservation is not None:
            self._reservations.check_job(request.reservation, owner, request.gpus)
        self._dependencies.refuse_hopeless(request)
        size = 1 if request.array is None else size_of(request.array)
        job, note = self._admission.admit("new", element_of(request, 0), submitted), self._admission.note(request)
        job = replace(job, account=self._accounting.account(owner))
        self._accounting.check_submission(job, self._tenants.cluster, size)
        content = msgspec.json.encode(request)
        if request.array is None:
            return Accepted(self._journal.submit(content, submitted, owner, origin), request, job, note)
        array, _ = self._journal.submit_array(content, submitted, size, owner, origin)
        return Accepted(array, request, job, note)

    def _enter(self, one: Accepted) -> JobView:
        """Queues what was stored."""
        if one.request.array is None:
            records, text = [self._journal.job(one.id)], f"submitted: {' '.join(one.request.command)[:200]}"
        else:
            records = self._journal.elements(self._queries.array(one.id).number)
            text = f"{one.id} of {counted(len(records), 'element')} submitted"
        self._events.record("submitted", records[0].id, text)
        for record in records:
            self._learner.observe(one.job.demand)
            self._waiting.enqueue(replace(one.job, id=record.id), record)
        if one.note is not None:
            self._events.record("isolation", records[0].id, one.note)
        return self._queries.job(one.id)

    def retry(self, name: str) -> JobView:
        """Runs a job that has ended once more: the same job and a new attempt, with all of its retries again."""
        record = self._queries.find(name)
        if record.state not in ENDED:
            raise InputError(f"{record.id} is {record.state}; only a job that has ended can be run again")
        self._transitions.record_late_cancels()
        self._unrecorded.remove(record.id)
        self._holds.forget(record.id)
        refuse_unreadable(record)
        self._dependencies.refuse_hopeless(request_of(record))
        job = self._admission.admit(record.id, request_of(record), record.submitted)
        job = replace(job, account=self._accounting.account(record.owner))
        self._accounting.check_submission(job, self._tenants.cluster)
        record, change = self._transitions.apply(record, RetryRequested())
        self._waiting.enqueue(job, record)
        self._transitions.announce(record.id, change)
        return self._queries.job(record.id)

    def rerun(self, name: str, change: JobChange) -> JobView:
        """Submits a copy of a job as a new job of the same owner; it waits for no others."""
        record = self._queries.find(name)
        refuse_unreadable(record)
        request = changed_by(replaced(request_of(record), after=()), change)
        return self.submit(request, record.owner, self._journal.origin(record.id))

    def check_priority(self, priority: int, owner: Owner) -> None:
        """InputError if a user may not give a job this priority."""
        if not self._is_administrator(owner):
            self._accounting.check_priority(priority, owner)


def _refuse_later(requests: Sequence[JobRequest]) -> None:
    """ListedError if a job of a list waits for one that comes later, as in a circle of jobs that wait for each other.

    An older job of that name may exist, which is hardly the one that was meant.
    """
    first = {request.name: number for number, request in reversed(list(enumerate(requests))) if request.name}
    for number, request in enumerate(requests):
        for one in parse_dependencies(request.after):
            if first.get(one.job, 0) > number:
                text = f"--after {one.job}: this job comes later in the list, and jobs can only wait for earlier ones"
                raise ListedError(number, InputError(text))


def refuse_unreadable(record: JobRecord) -> None:
    """InputError if a job cannot be run again, because this version does not know all that was requested."""
    problem = unreadable(record._replace(slot=None))
    if problem is not None:
        raise InputError(f"{record.id} cannot be run again, because its stored request cannot be read: {problem}")
