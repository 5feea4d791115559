# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Queued jobs that wait for the end of others: they stay in the journal as queued, and out of the queue until then.

What a job waits for is a part of its stored request, and how the others ended is in the journal. So nothing here is
stored: a daemon that is killed at any moment finds out again which jobs are ready and which can never run.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.local.journal import Journal
from cotenant.local.journal_rows import array_id
from cotenant.local.lifecycle import ENDED, JobRecord, JobState
from cotenant.wire.arrays import ARRAY_ID
from cotenant.wire.dependencies import Condition, Dependency, parse_dependencies
from cotenant.wire.job_requests import JobRequest

Kind = Literal["waiting", "ok", "failed", "cancelled", "removed"]
HOW: dict[Kind, str] = {"ok": "ended well", "cancelled": "was cancelled", "removed": "was removed"}
WORDS = {Condition.OK: "be done", Condition.ANY: "have ended", Condition.FAILED: "have failed"}


def kind_of(record: JobRecord) -> Kind:
    """How a job ended, as far as dependencies are concerned."""
    return _kind(record.state, record.outcome == "exited" and record.code == 0)


def _kind(state: JobState, done: bool) -> Kind:
    if state not in ENDED:
        return "waiting"
    if state is JobState.CANCELLED:
        return "cancelled"
    return "ok" if done else "failed"


def verdict(condition: Condition, kinds: set[Kind]) -> bool | None:
    """Whether jobs that ended like this fulfil a condition; None: that is not known yet."""
    if condition is Condition.OK and kinds & {"failed", "cancelled", "removed"}:
        return False
    if "waiting" in kinds:
        return None
    return condition is not Condition.FAILED or "failed" in kinds


class _Waiting(msgspec.Struct):
    """The part of a request that this module reads."""

    after: tuple[str, ...] = ()


def needed_in(requests: Iterable[bytes]) -> set[str]:
    """The IDs of the jobs and arrays that these requests wait for."""
    found = set[str]()
    for request in requests:
        with suppress(msgspec.MsgspecError, CotenantError):  # such a job never starts
            found |= {one.job for one in parse_dependencies(msgspec.json.decode(request, type=_Waiting).after)}
    return found


class Dependencies:
    """The jobs that wait for others."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: dict[str, tuple[Dependency, ...]] = {}
        self._dependents: dict[str, set[str]] = {}
        self._affected: dict[str, None] = {}
        """waiting jobs for which something may have changed"""

    def __contains__(self, job: str) -> bool:
        return job in self._waiting

    def reason(self, job: str) -> str | None:
        """Why a job does not start; None: it does not wait for others."""
        for one in self._waiting.get(job, ()):
            if self._verdict(one) is None:
                return f"{one.job} must {WORDS[one.condition]} before it starts"
        return None

    def refuse_hopeless(self, request: JobRequest) -> None:
        """InputError if a job could never start, because another one has ended in the wrong way."""
        problem = self._problem(parse_dependencies(request.after))
        if problem is not None:
            raise InputError(f"--after: {problem}")

    def add(self, job: str, request: JobRequest) -> bool:
        """Whether a queued job has to wait for others; then it is returned by `settled` when it need not any more."""
        needed = parse_dependencies(request.after)
        if all(self._verdict(one) for one in needed):
            return False
        self._waiting[job] = needed
        for one in needed:
            self._dependents.setdefault(one.job, set()).add(job)
        self._affected[job] = None
        return True

    def forget(self, job: str) -> bool:
        """Whether a job was waiting for others, which it no longer does."""
        self._affected.pop(job, None)
        needed = self._waiting.pop(job, None)
        for one in needed or ():
            dependents = self._dependents.get(one.job, set())
            dependents.discard(job)
            if not dependents:
                self._dependents.pop(one.job, None)
        return needed is not None

    def ended(self, record: JobRecord) -> None:
        """A job has ended: those that wait for it, or for its array, may be ready, or can never run."""
        names = (record.id, *(() if record.array is None else (array_id(record.array),)))
        self._affected |= dict.fromkeys(sorted(job for name in names for job in self._dependents.get(name, ())))

    def settled(self) -> Iterator[tuple[str, str | None]]:
        """The jobs that need not wait any more, each with None, or with the reason for which it can never run.

        The caller takes each away by `forget`; if it cannot, the job is returned again next time.
        """
        while self._affected:
            job = next(iter(self._affected))
            needed = self._waiting[job]
            problem = self._problem(needed)
            if problem is not None or all(self._verdict(one) for one in needed):
                yield job, problem
            self._affected.pop(job, None)

    def _problem(self, needed: tuple[Dependency, ...]) -> str | None:
        """Why a condition can never be fulfilled."""
        for one in needed:
            if self._verdict(one) is False:
                ended = {kind for kind in self._kinds(one.job) if kind != "waiting"}
                how = HOW.get(next(iter(ended)), "failed") if len(ended) == 1 else "failed"
                return f"{one.job} {how}, but must {WORDS[one.condition]} before this job starts"
        return None

    def _verdict(self, one: Dependency) -> bool | None:
        return verdict(one.condition, self._kinds(one.job))

    def _kinds(self, job: str) -> set[Kind]:
        array = self._journal.find_array(job) if ARRAY_ID.fullmatch(job) else None
        if array is not None:
            return {_kind(one.state, one.done) for one in self._journal.counts_of_elements(array.number)}
        record = self._journal.find(job)
        # A job that is no longer in the journal has ended, and how is not known.
        return {"removed" if record is None else kind_of(record)}
