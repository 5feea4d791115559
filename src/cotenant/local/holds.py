# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Queued jobs that their owner holds: they stay in the journal as queued, and out of the queue until they are released.

A hold is stored under a key of its own before the job leaves the queue, so a daemon that is killed at any moment finds
it again.
"""

from collections.abc import Sequence
from contextlib import suppress

from cotenant.errors import InputError
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.local.lifecycle import JobRecord, JobState

PREFIX = "held/"


class Holds:
    """The held jobs."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._jobs = {key.removeprefix(PREFIX) for key in journal.recalled(PREFIX)}

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def reason(self, job: str) -> str | None:
        """Why a job does not start; None: it is not held."""
        return f"held by its owner; `cotenant release {job}` lets it start" if job in self._jobs else None

    def add(self, record: JobRecord) -> None:
        """Stores a hold durably; InputError if the job does not wait."""
        if record.state is not JobState.QUEUED:
            raise InputError(f"{record.id} is {record.state}; only a queued job can be held")
        self._journal.remember(PREFIX + record.id, "1")
        self._jobs.add(record.id)

    def remove(self, record: JobRecord) -> None:
        """Removes a hold durably; InputError if there is none."""
        if record.id not in self._jobs:
            raise InputError(f"{record.id} is {record.state} and not held")
        self._journal.remember(PREFIX + record.id, None)
        self._jobs.remove(record.id)

    def add_all(self, records: Sequence[JobRecord]) -> None:
        """Stores the holds of queued jobs in one write; InputError if there is none to hold."""
        if not records:
            raise InputError("no element is queued; only a queued job can be held")
        with self._journal.transaction():
            for record in records:
                self._journal.remember(PREFIX + record.id, "1")
        self._jobs |= {record.id for record in records}

    def remove_all(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        """Removes the holds of those that are held in one write; InputError if none is."""
        held = [record for record in records if record.id in self._jobs]
        if not held:
            raise InputError("no element is held")
        with self._journal.transaction():
            for record in held:
                self._journal.remember(PREFIX + record.id, None)
        self._jobs -= {record.id for record in held}
        return held

    def forget(self, job: str) -> bool:
        """Whether a job was held, which has ended now. `recover` removes what a full disk leaves in the journal."""
        if job not in self._jobs:
            return False
        self._jobs.remove(job)
        with suppress(JournalError):
            self._journal.remember(PREFIX + job, None)
        return True

    def recover(self) -> None:
        """Forgets the holds of jobs that are no longer queued."""
        queued = {record.id for record in self._journal.queued_in_order()} if self._jobs else set()
        for job in self._jobs - queued:
            self.forget(job)
