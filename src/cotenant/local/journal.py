# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's durable state: every accepted job and its state, in one SQLite file with one writer.

A job is accepted when `submit` returns: it is on disk by then, and survives a kill or a power failure. Of the events,
the last few thousand are kept, and a power failure may lose the newest.
"""

import fcntl
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

import msgspec

from cotenant.errors import CotenantError
from cotenant.history.database import Kind, open_database, plain_errors
from cotenant.local.lifecycle import ACTIVE, ENDED, STATES, TRANSITIONS, Columns, JobRecord, JobState, WrongStateError
from cotenant.local.logins import Origin
from cotenant.local.owners import Owner, own_account
from cotenant.local.processes import look_at
from cotenant.node.ownership import problem_of_file
from cotenant.wire.arrays import ARRAY_ID

EVENTS_KEPT = 10_000
EVENTS_BETWEEN_SWEEPS = 500
DYING_S = 5.0
"""how long a child process that a killed daemon was starting may still hold the lock"""

MIGRATIONS: tuple[str, ...] = (
    # `request` is the last column: a long request lies in pages of its own, which queries of other columns never read.
    """
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT, state TEXT NOT NULL, submitted REAL NOT NULL, started REAL, ended REAL, slot TEXT,
        outcome TEXT, code INTEGER, signal INTEGER, error TEXT, attempts INTEGER NOT NULL DEFAULT 0, reason TEXT,
        request BLOB NOT NULL);
    CREATE INDEX jobs_by_state ON jobs (state, number);
    CREATE INDEX jobs_by_name ON jobs (name, number) WHERE name IS NOT NULL;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, job INTEGER, text TEXT NOT NULL);
    CREATE TABLE remembered (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    """,
    # The table is rebuilt rather than altered: an added column would come after `request`.
    """
    CREATE TABLE newer (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT, state TEXT NOT NULL, submitted REAL NOT NULL, started REAL, ended REAL, slot TEXT,
        outcome TEXT, code INTEGER, signal INTEGER, error TEXT, attempts INTEGER NOT NULL DEFAULT 0, reason TEXT,
        forgiven INTEGER NOT NULL DEFAULT 0, stop TEXT,
        request BLOB NOT NULL);
    INSERT INTO newer SELECT number, name, state, submitted, started, ended, slot,
        outcome, code, signal, error, attempts, reason, 0, NULL, request FROM jobs;
    DROP TABLE jobs;
    ALTER TABLE newer RENAME TO jobs;
    CREATE INDEX jobs_by_state ON jobs (state, number);
    CREATE INDEX jobs_by_name ON jobs (name, number) WHERE name IS NOT NULL;
    """,
    # Jobs belong to users. `open` fills in the owner of older jobs: the user of the daemon that accepted them.
    """
    CREATE TABLE newer (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT, state TEXT NOT NULL, submitted REAL NOT NULL, started REAL, ended REAL, slot TEXT,
        outcome TEXT, code INTEGER, signal INTEGER, error TEXT, attempts INTEGER NOT NULL DEFAULT 0, reason TEXT,
        forgiven INTEGER NOT NULL DEFAULT 0, stop TEXT,
        uid INTEGER, gid INTEGER, user TEXT, user_group TEXT,
        request BLOB NOT NULL);
    INSERT INTO newer SELECT number, name, state, submitted, started, ended, slot,
        outcome, code, signal, error, attempts, reason, forgiven, stop, NULL, NULL, NULL, NULL, request FROM jobs;
    DROP TABLE jobs;
    ALTER TABLE newer RENAME TO jobs;
    CREATE INDEX jobs_by_state ON jobs (state, number);
    CREATE INDEX jobs_by_name ON jobs (name, number) WHERE name IS NOT NULL;
    CREATE INDEX jobs_by_user ON jobs (uid, number);
    """,
    # The elements of an array are jobs with an empty request: that of the array counts.
    """
    CREATE TABLE arrays (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, submitted REAL NOT NULL, request BLOB NOT NULL);
    CREATE INDEX arrays_by_name ON arrays (name, number) WHERE name IS NOT NULL;
    CREATE TABLE elements (job INTEGER PRIMARY KEY, array INTEGER NOT NULL, item INTEGER NOT NULL);
    CREATE UNIQUE INDEX elements_by_array ON elements (array, item);
    """,
    # The process that submitted a job, or an array (stored with its first element): its umask and limits, as JSON.
    """
    CREATE TABLE origins (job INTEGER PRIMARY KEY, content BLOB NOT NULL);
    """,
    # Notices about jobs that are not known to have been sent.
    """
    CREATE TABLE notices (
        number INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, job INTEGER NOT NULL, content BLOB NOT NULL);
    CREATE INDEX notices_by_user ON notices (uid, number);
    CREATE INDEX notices_by_job ON notices (job);
    """,
)
"""Step n migrates from schema version n to n + 1. Released steps never change."""

COLUMNS = (
    "printf('j-%06d', number), state, submitted, started, ended, slot, "
    "outcome, code, signal, error, attempts, reason, forgiven, stop, "
    "uid, gid, user, user_group, "
    "(SELECT array FROM elements WHERE job = jobs.number), (SELECT item FROM elements WHERE job = jobs.number), "
    "CASE WHEN length(request) THEN request ELSE coalesce((SELECT arrays.request FROM elements "
    "JOIN arrays ON arrays.number = elements.array WHERE job = jobs.number), request) END"
)


_LISTED = "(SELECT value FROM json_each(?))"
"""the numbers in a parameter, which are more than a query may have parameters"""
CHANGEABLE = (JobState.QUEUED, *ACTIVE)
"""states in which the request of a job may be replaced"""


class JournalError(CotenantError):
    """The journal cannot be opened, read or written."""


KIND = Kind("journal", JournalError, MIGRATIONS, "no accepted job is lost")


class JournalEvent(NamedTuple):
    """An event; ids increase."""

    id: int
    at: float
    kind: str
    job: str | None
    text: str


class ArrayRecord(NamedTuple):
    """An array of jobs; its elements have a state each."""

    number: int
    submitted: float
    request: bytes

    @property
    def id(self) -> str:
        return array_id(self.number)


class EndedJobs(NamedTuple):
    """A job that has ended, or an array all of whose elements have."""

    id: str
    jobs: tuple[str, ...]
    """itself, or the elements"""
    user: str
    ended: float
    """the end of the last one"""


class ElementCount(NamedTuple):
    """The elements of an array in one state; those that are finished apart by whether they exited with code 0."""

    state: JobState
    done: bool
    number: int
    started: float | None
    ended: float | None


class StoredNotice(NamedTuple):
    """A notice that is to be sent to the owner of a job."""

    number: int
    job: str
    uid: int
    content: bytes


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
        lock = _take_lock(path)
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
                number = self._database.execute(insert, (_name_in(request), submitted, *whose, request)).lastrowid
                self._store_origin(number or 0, origin)
                ids.append(_id_of(number or 0))
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
            values = (_name_in(request), submitted, request)
            array = self._database.execute("INSERT INTO arrays (name, submitted, request) VALUES (?, ?, ?)", values)
            self._database.executemany(insert, [(submitted, *owner)] * size)
            last = int(self._database.execute("SELECT max(number) FROM jobs").fetchone()[0])
            numbers = range(last - size + 1, last + 1)  # there is one writer, so they follow each other
            rows = [(number, array.lastrowid, item) for item, number in enumerate(numbers)]
            self._database.executemany("INSERT INTO elements VALUES (?, ?, ?)", rows)
            self._store_origin(numbers[0], origin)
        return array_id(array.lastrowid or 0), list(map(_id_of, numbers))

    def change_request(self, job: str, request: bytes) -> JobRecord:
        """Stores another request of a job that waits or runs durably; WrongStateError if it has ended."""
        with self._writing(durable=True):
            # An element is found by the name of its array, not by one of its own.
            own = "CASE WHEN EXISTS (SELECT 1 FROM elements WHERE job = jobs.number) THEN NULL ELSE ? END"
            update = f"UPDATE jobs SET request = ?, name = {own} WHERE number = ? AND state IN ({_marks(CHANGEABLE)})"
            values = (request, _name_in(request), _number_of(job), *CHANGEABLE)
            changed = self._database.execute(update, values).rowcount
            found = self.job(job)
            if changed:
                return found
        raise WrongStateError(f"{job} is {found.state}; only a job that waits or runs can be changed")

    def find_array(self, name: str, uid: int | None = None) -> ArrayRecord | None:
        """An array by its id, or the newest array of that name: of this user, else of any."""
        found = self.arrays("WHERE number = ?", (_array_number(name),))
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
        where, chosen = ("TRUE", ()) if states is None else _in_states(tuple(states))
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
        where = f"array = ? AND state NOT IN ({_marks(ENDED)})"
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
            update = f"UPDATE jobs SET state = ?{sets} WHERE number = ? AND state IN ({_marks(expected)})"
            values = (to_state, *columns.values(), _number_of(job), *expected)
            changed = self._database.execute(update, values).rowcount
            found = self.job(job)
            if changed:
                return found
        raise WrongStateError(f"{job} is {found.state}, not {' or '.join(expected)}: it cannot become {to_state}")

    def job(self, job: str) -> JobRecord:
        """A job by its id."""
        found = self._jobs("WHERE number = ?", (_number_of(job),))
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
        found = self._rows(query, (_number_of(job), _number_of(job)))
        try:
            return msgspec.json.decode(found[0][0], type=Origin) if found else None
        except (msgspec.MsgspecError, TypeError):  # damaged
            return None

    def find(self, name: str, uid: int | None = None) -> JobRecord | None:
        """A job by its id, or the newest job of that name: of this user, else of any."""
        found = self._jobs("WHERE number = ?", (_number_of(name),))
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
        where, chosen = ("TRUE", ()) if states is None else _in_states(tuple(states))
        where = f"number > ? AND ({where}) AND uid = coalesce(?, uid)"
        values = (_number_of(after) if after else 0, *chosen, uid, limit)
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
        where, chosen = ("TRUE", ()) if not states else _in_states(states)
        where = f"state IN ({_marks(ENDED)}) AND ({where}) AND ended <= ? AND uid = coalesce(?, uid)"
        where += " AND user = coalesce(?, user)"
        values = (*ENDED, *chosen, before, uid, user)
        if ids is not None:
            where += f" AND (number IN {_LISTED} OR array IN {_LISTED})"
            values += (json.dumps(list(map(_number_of, ids))), json.dumps(list(map(_array_number, ids))))
        rows = self._rows(
            f"SELECT number, array, user, ended FROM jobs LEFT JOIN elements ON job = number WHERE {where} "
            "ORDER BY number",
            values,
        )
        found = dict[str, list[tuple[Any, ...]]]()
        for row in rows:
            found.setdefault(_id_of(row[0]) if row[1] is None else array_id(row[1]), []).append(row)
        arrays = json.dumps(sorted({row[1] for row in rows if row[1] is not None}))
        count = f"SELECT array, count(*) FROM elements WHERE array IN {_LISTED} GROUP BY array"
        sizes = {array_id(array): size for array, size in self._rows(count, (arrays,))}
        return [
            EndedJobs(name, tuple(_id_of(row[0]) for row in rows), rows[0][2], max(row[3] for row in rows))
            for name, rows in found.items()
            if len(rows) == sizes.get(name, 1)
        ]

    def remove(self, ended: Sequence[EndedJobs]) -> None:
        """Deletes jobs and arrays that have ended, with their events, durably; their numbers are not used again."""
        jobs = json.dumps([_number_of(job) for one in ended for job in one.jobs])
        arrays = json.dumps([_array_number(one.id) for one in ended])
        with self._writing(durable=True):
            for table, column in (("jobs", "number"), ("elements", "job"), ("origins", "job"), ("events", "job")):
                self._database.execute(f"DELETE FROM {table} WHERE {column} IN {_LISTED}", (jobs,))
            self._database.execute(f"DELETE FROM arrays WHERE number IN {_LISTED}", (arrays,))

    def requests_with_dependencies(self) -> list[bytes]:
        """The requests of all jobs that have not ended and were submitted to run after others."""
        left, after = f"state NOT IN ({_marks(ENDED)})", "instr(request, CAST('\"after\":' AS BLOB))"
        of_array = "SELECT 1 FROM elements JOIN jobs ON jobs.number = job WHERE array = arrays.number"
        query = f"SELECT request FROM jobs WHERE {left} AND {after} "
        query += f"UNION SELECT request FROM arrays WHERE {after} AND EXISTS ({of_array} AND {left})"
        return [row[0] for row in self._rows(query, (*ENDED, *ENDED))]

    def damaged(self) -> list[str]:
        """The jobs whose row this version cannot read: a column is damaged, or a newer version stored another state.

        Such rows are left as they are, for the version that wrote them, and are in no other answer.
        """
        return [_id_of(row[0]) for row in self._rows(f"SELECT number FROM jobs WHERE {_DAMAGED}", tuple(STATES))]

    # Notices

    def add_notice(self, record: JobRecord, content: bytes) -> None:
        """Stores a notice about a job durably."""
        with self._writing(durable=True):
            insert = "INSERT INTO notices (uid, job, content) VALUES (?, ?, ?)"
            self._database.execute(insert, (record.uid, _number_of(record.id), content))

    def oldest_notices(self, most: int) -> list[StoredNotice]:
        """The oldest of each user, at most so many of one user, oldest first."""
        query = "SELECT number, job, uid, content FROM notices WHERE uid = ? ORDER BY number LIMIT ?"
        users = self._rows("SELECT DISTINCT uid FROM notices", ())
        rows = sorted(row for (uid,) in users for row in self._rows(query, (uid, most)))
        return [StoredNotice(number, _id_of(job), uid, content) for number, job, uid, content in rows]

    def has_notices(self, job: str) -> bool:
        """Whether a notice about a job is stored."""
        return bool(self._rows("SELECT 1 FROM notices WHERE job = ? LIMIT 1", (_number_of(job),)))

    def jobs_with_notices(self) -> set[str]:
        """All jobs about which a notice is stored."""
        return {_id_of(job) for (job,) in self._rows("SELECT DISTINCT job FROM notices", ())}

    def remove_notice(self, number: int) -> None:
        with self._writing(durable=True):
            self._database.execute("DELETE FROM notices WHERE number = ?", (number,))

    # Events and settings

    def record_event(self, at: float, kind: str, job: str | None, text: str) -> int:
        """Stores an event and deletes the oldest; does not wait for the disk."""
        with self._writing(durable=False):
            number = None if job is None else _number_of(job)
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
        return [JournalEvent(row[0], row[1], row[2], row[3] and _id_of(row[3]), row[4]) for row in rows]

    def events_of(self, job: str, limit: int) -> list[JournalEvent]:
        """The newest events of a job, oldest first."""
        rows = self._rows("SELECT * FROM events WHERE job = ? ORDER BY id DESC LIMIT ?", (_number_of(job), limit))
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
        return [record for row in rows if (record := _record(row)) is not None]

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


def _take_lock(path: Path) -> int:
    """Locks the journal for this process, whose ID is written to the lock file."""
    try:
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise JournalError(
            f"cannot open the journal {path}: {error.strerror}; the daemon needs a folder that it can write to"
        ) from error
    problem = problem_of_file(lock)
    if problem is not None:
        os.close(lock)
        raise JournalError(f"cannot use the journal {path}: its file {path}.lock {problem}; remove it")
    try:
        _wait_for_lock(lock)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = _holder(lock)
        os.close(lock)
        raise JournalError(
            f"the journal {path} is in use by another daemon, process {holder}: stop that one, or use another folder"
        ) from None
    except OSError:
        pass  # a full disk: only the process ID in the lock file is missing
    return lock


def _wait_for_lock(lock: int) -> None:
    """Takes the lock, or raises BlockingIOError at once if a living process holds it.

    A child that a killed daemon was just starting inherits the lock until it executes its program, so the lock of a
    dead process is waited for.
    """
    deadline = time.monotonic() + DYING_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if _lives(_holder(lock)) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _lives(pid: str) -> bool:
    """Whether a process exists and is not a zombie."""
    seen = look_at(int(pid)) if pid.isdecimal() else None
    return seen is not None and seen.state not in "ZX"


def _holder(lock: int) -> str:
    return os.pread(lock, 20, 0).decode(errors="replace") or "unknown"


def _name_in(request: bytes) -> str | None:
    """The name in a request, by which the job can be found."""
    content = json.loads(request)
    name = content.get("name") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


_ENDINGS = {
    "done": "outcome = 'exited' AND code = 0",
    "failed": "outcome = 'exited' AND code <> 0",
    "signal": "outcome = 'signalled'",
}
"""which finished jobs a word means; any other word is an outcome"""


def _in_states(words: Sequence[str]) -> tuple[str, tuple[object, ...]]:
    """The condition that a job is in one of these states, or ended in one of these ways; and its values."""
    states = [word for word in words if word in STATES]
    clauses, values = [f"state IN ({_marks(states)})"], list[object](states)
    for word in (word for word in words if word not in STATES):
        name, _, number = word.rstrip(")").replace("(", "").partition(" ")
        clause = f"state = 'finished' AND {_ENDINGS.get(name, 'outcome = ?')}"
        values += [] if name in _ENDINGS else [name]
        if number:
            clause += f" AND {'code' if name == 'failed' else 'signal'} = ?"
            values.append(int(number))
        clauses.append(f"({clause})")
    return " OR ".join(clauses), tuple(values)


_TYPES = {
    "submitted": "'real'",
    "started": "'real', 'null'",
    "ended": "'real', 'null'",
    "slot": "'text', 'null'",
    "outcome": "'text', 'null'",
    "code": "'integer', 'null'",
    "signal": "'integer', 'null'",
    "error": "'text', 'null'",
    "attempts": "'integer'",
    "reason": "'text', 'null'",
    "forgiven": "'integer'",
    "stop": "'text', 'null'",
    "uid": "'integer'",
    "gid": "'integer'",
    "user": "'text'",
    "user_group": "'text'",
    "request": "'blob'",
}
"""of the values in each column: SQLite itself stores any type in any column"""
_DAMAGED = " OR ".join(
    [f"state NOT IN ({', '.join('?' * len(STATES))})"]
    + [f"typeof({column}) NOT IN ({types})" for column, types in _TYPES.items()]
)


def _record(row: tuple[Any, ...]) -> JobRecord | None:
    """A row as a record; None: it is damaged."""
    try:
        # A text would be converted to bytes, from base64.
        return msgspec.convert(row, JobRecord) if isinstance(row[-1], bytes) else None
    except msgspec.ValidationError:
        return None


def _id_of(number: int) -> str:
    return f"j-{number:06d}"


def array_id(number: int) -> str:
    return f"a-{number:06d}"


def _array_number(name: str) -> int:
    """The number in the id of an array; 0, which no array has, for any other text."""
    return int(name[2:]) if ARRAY_ID.fullmatch(name) else 0


def _number_of(job: str) -> int:
    """The number in a job id; 0, which no job has, for any other text."""
    digits = job[2:] if job.startswith("j-") else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else 0


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
