# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's durable state: every accepted job and its state, in one SQLite file with one writer.

A job is accepted when `submit` returns: it is on disk by then, and survives a kill or a power failure. Of the events,
the last few thousand are kept, and a power failure may lose the newest.
"""

import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec

from cotenant.errors import CotenantError
from cotenant.history.database import open_database, plain_errors
from cotenant.local.journal_lock import take_lock
from cotenant.local.journal_rows import (
    LISTED,
    ArrayRecord,
    ElementCount,
    EndedJobs,
    JournalEvent,
    StoredNotice,
    array_id,
    array_number,
    id_of,
    in_states,
    marks,
    name_in,
    number_of,
    record_of,
)
from cotenant.local.journal_schema import COLUMNS, DAMAGED, KIND
from cotenant.local.lifecycle import ACTIVE, ENDED, STATES, TRANSITIONS, Columns, JobRecord, JobState, WrongStateError
from cotenant.local.logins import Origin
from cotenant.local.owners import Owner, own_account

EVENTS_KEPT = 10_000
EVENTS_BETWEEN_SWEEPS = 500
CHANGEABLE = (JobState.QUEUED, *ACTIVE)
"""states in which the request of a job may be replaced"""


class Journal:
    """The open journal. Any thread may call it; each call is one transaction, unless grouped by `transaction`."""

    def __init__(self, path: Path, lock: int, database: sqlite3.Connection) -> None:
        self._path, self._lock, self._database = path, lock, database
        self._turn = threading.RLock()
        self._depth = 0
        self._events_until_sweep = 0

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens or creates a journal; one that is in use, damaged or of a newer version is refused and not changed."""
        lock = take_lock(path)
        try:
            journal = cls(path, lock, open_database(path, KIND))
            journal._adopt_jobs_without_owner()
            return journal
        except BaseException:
            os.close(lock)
            raise

    def _adopt_jobs_without_owner(self) -> None:
        """Earlier versions served one user only and stored no owner."""
        if self._rows("SELECT 1 FROM jobs WHERE uid IS NULL LIMIT 1", ()):
            with self._writing(durable=True):
                update = "UPDATE jobs SET uid = ?, gid = ?, user = ?, user_group = ? WHERE uid IS NULL"
                self._database.execute(update, own_account().owner)

    def close(self) -> None:
        """Closes it, so that another process can open it."""
        with self._turn:
            self._database.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Groups several changes: all of them are stored or none, with one wait for the disk."""
        with self._writing(durable=True):
            yield

    # Jobs

    def submit(self, request: bytes, submitted: float, owner: Owner | None = None, origin: Origin | None = None) -> str:
        """Stores a new job of a user durably (None: of the daemon's own); its id."""
        return self.submit_many([(request, submitted)], owner, origin)[0]

    def submit_many(
        self, requests: Sequence[tuple[bytes, float]], owner: Owner | None = None, origin: Origin | None = None
    ) -> list[str]:
        """Stores all of them or none, in this order."""
        insert = (
            "INSERT INTO jobs (name, state, submitted, uid, gid, user, user_group, request) "
            "VALUES (?, 'queued', ?, ?, ?, ?, ?, ?)"
        )
        whose = own_account().owner if owner is None else owner
        ids = []
        with self._writing(durable=True):
            for request, submitted in requests:
                number = self._database.execute(insert, (name_in(request), submitted, *whose, request)).lastrowid
                self._store_origin(number or 0, origin)
                ids.append(id_of(number or 0))
        return ids

    def submit_array(
        self, request: bytes, submitted: float, size: int, owner: Owner, origin: Origin | None = None
    ) -> tuple[str, list[str]]:
        """Stores all elements of an array or none, in one write; the id of the array, and those of its elements."""
        insert = (
            "INSERT INTO jobs (state, submitted, uid, gid, user, user_group, request) "
            "VALUES ('queued', ?, ?, ?, ?, ?, x'')"
        )
        with self._writing(durable=True):
            values = (name_in(request), submitted, request)
            array = self._database.execute("INSERT INTO arrays (name, submitted, request) VALUES (?, ?, ?)", values)
            self._database.executemany(insert, [(submitted, *owner)] * size)
            last = int(self._database.execute("SELECT max(number) FROM jobs").fetchone()[0])
            numbers = range(last - size + 1, last + 1)  # there is one writer, so they follow each other
            rows = [(number, array.lastrowid, item) for item, number in enumerate(numbers)]
            self._database.executemany("INSERT INTO elements VALUES (?, ?, ?)", rows)
            self._store_origin(numbers[0], origin)
        return array_id(array.lastrowid or 0), list(map(id_of, numbers))

    def change_request(self, job: str, request: bytes) -> JobRecord:
        """Stores another request of a job that waits or runs durably; WrongStateError if it has ended."""
        with self._writing(durable=True):
            # An element is found by the name of its array, not by one of its own.
            own = "CASE WHEN EXISTS (SELECT 1 FROM elements WHERE job = jobs.number) THEN NULL ELSE ? END"
            update = f"UPDATE jobs SET request = ?, name = {own} WHERE number = ? AND state IN ({marks(CHANGEABLE)})"
            values = (request, name_in(request), number_of(job), *CHANGEABLE)
            changed = self._database.execute(update, values).rowcount
            found = self.job(job)
            if changed:
                return found
        raise WrongStateError(f"{job} is {found.state}; only a job that waits or runs can be changed")

    def find_array(self, name: str, uid: int | None = None) -> ArrayRecord | None:
        """An array by its id, or the newest array of that name: of this user, else of any."""
        found = self.arrays("WHERE number = ?", (array_number(name),))
        whose = "SELECT uid FROM jobs JOIN elements ON jobs.number = job WHERE array = arrays.number AND item = 0"
        clause = f"WHERE name = ? ORDER BY ({whose}) IS ? DESC, number DESC LIMIT 1"
        found = found or self.arrays(clause, (name, uid))
        return found[0] if found else None

    def newest_arrays(self, limit: int) -> list[ArrayRecord]:
        """The newest arrays, oldest first."""
        return self.arrays("ORDER BY number DESC LIMIT ?", (limit,))[::-1]

    def arrays(self, clause: str, values: tuple[object, ...]) -> list[ArrayRecord]:
        rows = self._rows(f"SELECT number, submitted, request FROM arrays {clause}", values)
        return [ArrayRecord(*row) for row in rows]

    def elements(self, array: int, states: Iterable[str] | None = None, limit: int = -1) -> list[JobRecord]:
        """The elements of an array in these states (all if none is given), in their order."""
        where, chosen = ("TRUE", ()) if states is None else in_states(tuple(states))
        where = f"number IN (SELECT job FROM elements WHERE array = ?) AND ({where})"
        return self._jobs(f"WHERE {where} ORDER BY number LIMIT ?", (array, *chosen, limit))

    def element(self, array: int, item: int) -> JobRecord | None:
        """One element of an array."""
        clause = "WHERE number = (SELECT job FROM elements WHERE array = ? AND item = ?)"
        found = self._jobs(clause, (array, item))
        return found[0] if found else None

    def counts_of_elements(self, array: int) -> list[ElementCount]:
        """How many elements of an array are in which state, and between which times they ran."""
        query = (
            "SELECT state, state = 'finished' AND outcome = 'exited' AND code = 0, count(*), min(started), max(ended) "
            "FROM elements JOIN jobs ON number = job WHERE array = ? GROUP BY 1, 2"
        )
        rows = self._rows(query, (array,))
        return [ElementCount(JobState(row[0]), bool(row[1]), *row[2:]) for row in rows if row[0] in STATES]

    def has_ended(self, array: int) -> bool:
        """Whether all elements of an array have ended. The last ones are read first, because they end last."""
        where = f"array = ? AND state NOT IN ({marks(ENDED)})"
        query = f"SELECT 1 FROM elements JOIN jobs ON number = job WHERE {where} ORDER BY item DESC LIMIT 1"
        return not self._rows(query, (array, *ENDED))

    def transition(
        self, job: str, from_states: Iterable[str], to_state: JobState, **columns: Unpack[Columns]
    ) -> JobRecord:
        """Moves a job to another state if it is in one of `from_states`; WrongStateError if it is not."""
        expected = tuple(JobState(state) for state in from_states)
        if not columns.keys() <= Columns.__annotations__.keys():
            raise ValueError(f"unknown columns: {', '.join(columns)}")
        if any(to_state not in TRANSITIONS[state] for state in expected):
            raise ValueError(f"no transition leads from {' and '.join(expected)} to {to_state}")
        sets = "".join(f", {column} = ?" for column in columns)
        with self._writing(durable=True):
            update = f"UPDATE jobs SET state = ?{sets} WHERE number = ? AND state IN ({marks(expected)})"
            values = (to_state, *columns.values(), number_of(job), *expected)
            changed = self._database.execute(update, values).rowcount
            found = self.job(job)
            if changed:
                return found
        raise WrongStateError(f"{job} is {found.state}, not {' or '.join(expected)}: it cannot become {to_state}")

    def job(self, job: str) -> JobRecord:
        """A job by its id."""
        found = self._jobs("WHERE number = ?", (number_of(job),))
        if not found:
            raise CotenantError(f"no job {job[:100]!r} in {self._path}")
        return found[0]

    def _store_origin(self, number: int, origin: Origin | None) -> None:
        if origin is not None:
            self._database.execute("INSERT INTO origins VALUES (?, ?)", (number, msgspec.json.encode(origin)))

    def origin(self, job: str) -> Origin | None:
        """The process that submitted a job; None: it is not known."""
        first = "SELECT job FROM elements WHERE item = 0 AND array = (SELECT array FROM elements WHERE job = ?)"
        query = f"SELECT content FROM origins WHERE job = ? OR job = ({first})"
        found = self._rows(query, (number_of(job), number_of(job)))
        try:
            return msgspec.json.decode(found[0][0], type=Origin) if found else None
        except (msgspec.MsgspecError, TypeError):  # damaged
            return None

    def find(self, name: str, uid: int | None = None) -> JobRecord | None:
        """A job by its id, or the newest job of that name: of this user, else of any."""
        found = self._jobs("WHERE number = ?", (number_of(name),))
        found = found or self._jobs("WHERE name = ? ORDER BY uid IS ? DESC, number DESC LIMIT 1", (name, uid))
        return found[0] if found else None

    def jobs(
        self,
        states: Iterable[str] | None = None,
        limit: int = 1000,
        after: str | None = None,
        *,
        elements: bool = True,
        uid: int | None = None,
    ) -> list[JobRecord]:
        """Jobs in the order of their ids: those after `after`, or else the newest; `states` as in `decode_states`.
        Without `elements`, those of arrays are left out; with `uid`, those of other users."""
        where, chosen = ("TRUE", ()) if states is None else in_states(tuple(states))
        where = f"number > ? AND ({where}) AND uid = coalesce(?, uid)"
        values = (number_of(after) if after else 0, *chosen, uid, limit)
        where += "" if elements else " AND number NOT IN (SELECT job FROM elements)"
        if after:
            return self._jobs(f"WHERE {where} ORDER BY number LIMIT ?", values)
        return self._jobs(f"WHERE {where} ORDER BY number DESC LIMIT ?", values)[::-1]

    def queued_in_order(self) -> list[JobRecord]:
        """All queued jobs, in the order of their submission."""
        return self.jobs(("queued",), limit=-1)

    def queued_by_user(self) -> dict[str, int]:
        """The number of queued jobs of each user."""
        return dict(self._rows("SELECT user, count(*) FROM jobs WHERE state = 'queued' GROUP BY user", ()))

    def started_since(self, time: float, limit: int) -> list[JobRecord]:
        """Jobs that were placed after that time, the last first."""
        return self._jobs("WHERE started > ? ORDER BY started DESC LIMIT ?", (time, limit))

    def ended(
        self,
        states: Sequence[str] = (),
        *,
        before: float = math.inf,
        ids: Sequence[str] | None = None,
        uid: int | None = None,
        user: str | None = None,
    ) -> list[EndedJobs]:
        """Jobs, and arrays with all of their elements, that have ended in one of these states (all if none is given)
        and before a time, in the order of their ids. With `ids`, `uid` or `user` only those."""
        where, chosen = ("TRUE", ()) if not states else in_states(states)
        where = f"state IN ({marks(ENDED)}) AND ({where}) AND ended <= ? AND uid = coalesce(?, uid)"
        where += " AND user = coalesce(?, user)"
        values = (*ENDED, *chosen, before, uid, user)
        if ids is not None:
            where += f" AND (number IN {LISTED} OR array IN {LISTED})"
            values += (json.dumps(list(map(number_of, ids))), json.dumps(list(map(array_number, ids))))
        rows = self._rows(
            f"SELECT number, array, user, ended FROM jobs LEFT JOIN elements ON job = number WHERE {where} "
            "ORDER BY number",
            values,
        )
        found = dict[str, list[tuple[Any, ...]]]()
        for row in rows:
            found.setdefault(id_of(row[0]) if row[1] is None else array_id(row[1]), []).append(row)
        arrays = json.dumps(sorted({row[1] for row in rows if row[1] is not None}))
        count = f"SELECT array, count(*) FROM elements WHERE array IN {LISTED} GROUP BY array"
        sizes = {array_id(array): size for array, size in self._rows(count, (arrays,))}
        return [
            EndedJobs(name, tuple(id_of(row[0]) for row in rows), rows[0][2], max(row[3] for row in rows))
            for name, rows in found.items()
            if len(rows) == sizes.get(name, 1)
        ]

    def remove(self, ended: Sequence[EndedJobs]) -> None:
        """Deletes jobs and arrays that have ended, with their events, durably; their numbers are not used again."""
        jobs = json.dumps([number_of(job) for one in ended for job in one.jobs])
        arrays = json.dumps([array_number(one.id) for one in ended])
        with self._writing(durable=True):
            for table, column in (("jobs", "number"), ("elements", "job"), ("origins", "job"), ("events", "job")):
                self._database.execute(f"DELETE FROM {table} WHERE {column} IN {LISTED}", (jobs,))
            self._database.execute(f"DELETE FROM arrays WHERE number IN {LISTED}", (arrays,))

    def requests_with_dependencies(self, user: str | None = None) -> list[bytes]:
        """The requests of all jobs that have not ended and were submitted to run after others; of one user, or of
        all."""
        left = f"state NOT IN ({marks(ENDED)}) AND user = coalesce(?, user)"
        after = "instr(request, CAST('\"after\":' AS BLOB))"
        of_array = "SELECT 1 FROM elements JOIN jobs ON jobs.number = job WHERE array = arrays.number"
        query = f"SELECT request FROM jobs WHERE {left} AND {after} "
        query += f"UNION SELECT request FROM arrays WHERE {after} AND EXISTS ({of_array} AND {left})"
        return [row[0] for row in self._rows(query, (*ENDED, user, *ENDED, user))]

    def damaged(self) -> list[str]:
        """The jobs whose row this version cannot read: a column is damaged, or a newer version stored another state.

        Such rows are left as they are, for the version that wrote them, and are in no other answer.
        """
        return [id_of(row[0]) for row in self._rows(f"SELECT number FROM jobs WHERE {DAMAGED}", tuple(STATES))]

    # Notices

    def add_notice(self, record: JobRecord, content: bytes) -> None:
        """Stores a notice about a job durably."""
        with self._writing(durable=True):
            insert = "INSERT INTO notices (uid, job, content) VALUES (?, ?, ?)"
            self._database.execute(insert, (record.uid, number_of(record.id), content))

    def oldest_notices(self, most: int) -> list[StoredNotice]:
        """The oldest of each user, at most so many of one user, oldest first."""
        query = "SELECT number, job, uid, content FROM notices WHERE uid = ? ORDER BY number LIMIT ?"
        users = self._rows("SELECT DISTINCT uid FROM notices", ())
        rows = sorted(row for (uid,) in users for row in self._rows(query, (uid, most)))
        return [StoredNotice(number, id_of(job), uid, content) for number, job, uid, content in rows]

    def has_notices(self, job: str) -> bool:
        """Whether a notice about a job is stored."""
        return bool(self._rows("SELECT 1 FROM notices WHERE job = ? LIMIT 1", (number_of(job),)))

    def jobs_with_notices(self) -> set[str]:
        """All jobs about which a notice is stored."""
        return {id_of(job) for (job,) in self._rows("SELECT DISTINCT job FROM notices", ())}

    def remove_notice(self, number: int) -> None:
        with self._writing(durable=True):
            self._database.execute("DELETE FROM notices WHERE number = ?", (number,))

    # Events and settings

    def record_event(self, at: float, kind: str, job: str | None, text: str) -> int:
        """Stores an event and deletes the oldest; does not wait for the disk."""
        with self._writing(durable=False):
            number = None if job is None else number_of(job)
            insert = "INSERT INTO events (at, kind, job, text) VALUES (?, ?, ?, ?)"
            event = self._database.execute(insert, (at, kind, number, text)).lastrowid or 0
            self._events_until_sweep -= 1
            if self._events_until_sweep < 0:
                self._events_until_sweep = EVENTS_BETWEEN_SWEEPS
                self._database.execute("DELETE FROM events WHERE id <= ?", (event - EVENTS_KEPT,))
        return event

    def events(self, after: int = 0, limit: int = 1000) -> list[JournalEvent]:
        """The events after an event, oldest first."""
        rows = self._rows("SELECT * FROM events WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
        return [JournalEvent(row[0], row[1], row[2], row[3] and id_of(row[3]), row[4]) for row in rows]

    def events_of(self, job: str, limit: int) -> list[JournalEvent]:
        """The newest events of a job, oldest first."""
        rows = self._rows("SELECT * FROM events WHERE job = ? ORDER BY id DESC LIMIT ?", (number_of(job), limit))
        return [JournalEvent(row[0], row[1], row[2], job, row[4]) for row in reversed(rows)]

    def last_event(self) -> int:
        """The id of the newest event; 0: there is none."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM events", ())[0][0])

    def remember(self, key: str, value: str | None) -> None:
        """Stores a value under a key durably; None deletes it."""
        with self._writing(durable=True):
            if value is None:
                self._database.execute("DELETE FROM remembered WHERE key = ?", (key,))
            else:
                self._database.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?)", (key, value))

    def note(self, key: str, value: str) -> None:
        """Stores a value as `remember` does, without waiting for the disk: a power failure may lose it."""
        with self._writing(durable=False):
            self._database.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?)", (key, value))

    def recall(self, key: str) -> str | None:
        """The value stored under a key."""
        found = self._rows("SELECT value FROM remembered WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def recalled(self, prefix: str) -> dict[str, str]:
        """All values whose keys begin with a prefix, by key."""
        return dict(self._rows("SELECT * FROM remembered WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)))

    # SQLite

    def _jobs(self, clause: str, values: tuple[object, ...]) -> list[JobRecord]:
        rows = self._rows(f"SELECT {COLUMNS} FROM jobs {clause}", values)
        return [record for row in rows if (record := record_of(row)) is not None]

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._turn, plain_errors(self._path, KIND, "read"):
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _writing(self, durable: bool) -> Iterator[None]:
        """Opens a transaction, or joins the open one."""
        with self._turn:
            if self._depth:
                yield
                return
            with plain_errors(self._path, KIND, "write"):
                self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._database.execute("BEGIN IMMEDIATE")
                self._depth = 1
                try:
                    yield
                    self._database.execute("COMMIT")
                finally:
                    self._depth = 0
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
