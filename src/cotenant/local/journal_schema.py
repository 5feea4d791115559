# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of the journal, and how they are migrated from earlier versions."""

from cotenant.errors import CotenantError
from cotenant.history.database import Kind
from cotenant.local.lifecycle import STATES


class JournalError(CotenantError):
    """The journal cannot be opened, read or written."""


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

KIND = Kind("journal", JournalError, MIGRATIONS, "no accepted job is lost")

COLUMNS = (
    "printf('j-%06d', number), state, submitted, started, ended, slot, "
    "outcome, code, signal, error, attempts, reason, forgiven, stop, "
    "uid, gid, user, user_group, "
    "(SELECT array FROM elements WHERE job = jobs.number), (SELECT item FROM elements WHERE job = jobs.number), "
    "CASE WHEN length(request) THEN request ELSE coalesce((SELECT arrays.request FROM elements "
    "JOIN arrays ON arrays.number = elements.array WHERE job = jobs.number), request) END"
)

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

DAMAGED = " OR ".join(
    [f"state NOT IN ({', '.join('?' * len(STATES))})"]
    + [f"typeof({column}) NOT IN ({types})" for column, types in _TYPES.items()]
)
