# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Opens SQLite files with a versioned schema, and turns SQLite's errors into messages that say what to do."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import CotenantError


@dataclass(frozen=True, slots=True)
class Kind:
    """What a database is called in messages, the error that they raise, and the steps that make its schema."""

    noun: str
    error: type[CotenantError]
    migrations: Sequence[str]
    """Step n migrates from schema version n to n + 1. Released steps never change."""
    consequence: str = ""
    """the end of a message about a failed read or write: what is lost, or not"""


def open_database(path: Path, kind: Kind, *, synchronous: str = "FULL") -> sqlite3.Connection:
    """Opens or creates a database, checks it, and migrates it to the current schema.

    One that is damaged or of a newer version is refused and not changed.
    """
    existed = path.exists() and path.stat().st_size > 0
    with plain_errors(path, kind, "open"):
        # Mode 0600, because contents may be secret. SQLite's other files copy it.
        with suppress(OSError):  # SQLite reports the problem with a better message
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        with plain_errors(path, kind, "open"):
            _check(path, kind, database)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA journal_size_limit = 16777216")
            database.execute(f"PRAGMA synchronous = {synchronous}")
            migrate(database, kind)
            if not existed:
                _sync_folder(path.parent)
    except BaseException:
        database.close()
        raise
    return database


def migrate(database: sqlite3.Connection, kind: Kind) -> None:
    """Runs the missing steps, each in a transaction."""
    for version in range(database.execute("PRAGMA user_version").fetchone()[0], len(kind.migrations)):
        step = kind.migrations[version]
        database.executescript(f"BEGIN IMMEDIATE; {step}; PRAGMA user_version = {version + 1}; COMMIT;")


@contextmanager
def plain_errors(path: Path, kind: Kind, doing: str) -> Iterator[None]:
    """Turns SQLite's errors into messages that say what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = error.sqlite_errorcode & 0xFF  # the upper bits are extended codes
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(path, kind, str(error)) from error
        if not isinstance(error, sqlite3.OperationalError):
            raise  # a mistake in our own SQL
        hint = _HINTS.get(code, "check the disk and the permissions of the folder")
        more = f"; {kind.consequence}" if kind.consequence else ""
        raise kind.error(f"cannot {doing} the {kind.noun} {path}: {error}; {hint}{more}") from error


def _check(path: Path, kind: Kind, database: sqlite3.Connection) -> None:
    """Refuses a database of a newer version or with damaged content."""
    version, known = database.execute("PRAGMA user_version").fetchone()[0], len(kind.migrations)
    if version > known:
        raise kind.error(
            f"the {kind.noun} {path} has schema version {version}, this cotenant knows versions up to {known}: "
            "it was written by a newer cotenant; use that version"
        )
    problem = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise _damaged(path, kind, problem)


def _damaged(path: Path, kind: Kind, problem: str) -> CotenantError:
    found = problem.splitlines()[0]
    return kind.error(
        f"the {kind.noun} {path} is damaged ({found}); it was left as it is: restore a copy of it, or move it away to "
        "start with an empty one"
    )


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


_HINTS = {
    sqlite3.SQLITE_FULL: "free some space on that disk",
    sqlite3.SQLITE_IOERR: "free some space on that disk, or check whether it works",
    sqlite3.SQLITE_READONLY: "the daemon must be allowed to write to the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "the daemon must be allowed to write to that folder",
    sqlite3.SQLITE_BUSY: "another program has it open; stop that program",
}
