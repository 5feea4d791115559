# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of GPUs, tenants and queues over time, in one SQLite file of bounded size.

Samples are kept as they were taken for an hour, then as means and maxima of a minute, later of five minutes, and for a
day in all. A kill at any moment loses at most the newest samples. If the clock jumps, nothing is deleted because of its
age until the clock has been steady for some minutes.
"""

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from cotenant.errors import CotenantError
from cotenant.history.database import Kind, migrate, open_database, plain_errors
from cotenant.history.quantities import Entity, Sample, index_of, pack, unpack
from cotenant.history.thinning import Tier, thin
from cotenant.node.ownership import problem_of_file

DAY_S = 86_400.0
STEADY_S = 600.0
"""the clock must have been steady for so long before samples are deleted because of their age"""
JUMP_S = 30.0
"""difference between the wall clock and the monotonic clock that counts as a jump"""
TIDY_EVERY_S = 60.0
MOST_POINTS = 2_000
"""in one series that is read"""
MOST_GAP_S = 120.0
"""for how long a sample counts at most if none follows"""
MOST_ENTITIES = 20_000
MOST_NAME = 300
"""characters of a name that are stored"""

MIGRATIONS = (
    # A sample is valid for `span` seconds from `at` on; 0: it was taken at that moment.
    """
    CREATE TABLE entities (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL, owner TEXT NOT NULL,
        first INTEGER NOT NULL, last INTEGER NOT NULL, UNIQUE (kind, name));
    CREATE TABLE samples (
        entity INTEGER NOT NULL, at INTEGER NOT NULL, span INTEGER NOT NULL, mean BLOB NOT NULL, high BLOB,
        PRIMARY KEY (entity, at)) WITHOUT ROWID;
    CREATE INDEX samples_by_time ON samples (at);
    """,
)


class HistoryError(CotenantError):
    """The history cannot be opened, read or written."""


KIND = Kind("history", HistoryError, MIGRATIONS, "only old samples are in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is kept, and for how long."""

    keep_s: float = DAY_S
    tiers: tuple[Tier, ...] = (Tier(3_600.0, 60), Tier(6 * 3_600.0, 300))
    """from which age on samples are merged, and into how many seconds"""
    rows: int = 1_000_000
    bytes: int = 128 * 1024 * 1024
    """of the file, without its write-ahead log (16 MiB at most)"""


class Point(NamedTuple):
    """A quantity over a short period."""

    at: float
    """the middle of the period, in seconds since 1970"""
    mean: float
    high: float


class Seen(NamedTuple):
    """An entity, and when its first and its last sample were taken."""

    entity: Entity
    first: float
    last: float


class History:
    """The open store. Any thread may call it."""

    def __init__(
        self,
        path: Path,
        database: sqlite3.Connection,
        limits: Limits,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._database, self._limits, self._monotonic = path, database, limits, monotonic
        self._turn = threading.Lock()
        self._ids: dict[tuple[str, str], int] = {}
        self._offset: float | None = None
        self._steady_since = monotonic()
        self._tidied = -math.inf
        self._rows = int(database.execute("SELECT count(*) FROM samples").fetchone()[0])

    @classmethod
    def open(
        cls, path: Path | None, limits: Limits | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> Self:
        """Opens or creates a store; without a path it is in memory. One that other users could have changed, that is
        damaged or that a newer version wrote is refused and not changed."""
        limits = limits or Limits()
        if path is None:
            database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            migrate(database, KIND)
            return cls(Path(":memory:"), database, limits, monotonic)
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            try:
                problem = problem_of_file(name)
            except FileNotFoundError:
                continue
            if problem is not None:
                raise HistoryError(f"the history {name} {problem}; move it away to start with an empty one")
        database = open_database(path, KIND, synchronous="NORMAL")
        with plain_errors(path, KIND, "open"):
            size = int(database.execute("PRAGMA page_size").fetchone()[0])
            database.execute(f"PRAGMA max_page_count = {max(16, limits.bytes // size)}")
            return cls(path, database, limits, monotonic)

    def close(self) -> None:
        with self._turn:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, at: float, samples: Iterable[Sample]) -> None:
        """Stores samples that were taken at that time; HistoryError if the disk is full."""
        moment = _whole(at)
        with self._turn, plain_errors(self._path, KIND, "write"):
            self._note_clock(at)
            try:
                self._insert(moment, samples)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL or self._rows == 0:
                    raise
                # The file has reached its largest size, or the disk is full: either way the oldest samples go, so
                # that the next call has room. What was taken now is lost.
                with self._writing():
                    self._drop_oldest(max(1, self._rows // 10))
            if self._monotonic() - self._tidied >= TIDY_EVERY_S:
                self._tidied = self._monotonic()
                self._tidy(moment)

    def series(self, entity: Entity, quantity: str, since: float, until: float, points: int = 300) -> list[Point]:
        """A quantity of an entity between two times, as at most so many points; periods without samples are left out.

        ValueError if its kind has no such quantity.
        """
        place, count = index_of(entity.kind, quantity), min(max(1, points), MOST_POINTS)
        begin, end = _whole(since), _whole(until)
        if end <= begin:
            return []
        width = max(1.0, (end - begin) / count)
        with self._turn, plain_errors(self._path, KIND, "read"):
            rows = self._database.execute(
                "SELECT at, span, mean, high FROM samples JOIN entities ON id = entity "
                "WHERE kind = ? AND name = ? AND at >= ? AND at < ? ORDER BY at",
                (entity.kind, entity.name[:MOST_NAME], begin, end),
            )
            buckets: dict[int, list[float]] = {}
            for at, span, mean, high in rows:
                values = unpack(mean)
                if place >= len(values) or math.isnan(value := values[place]):
                    continue
                top = value if high is None else unpack(high)[place]
                bucket = buckets.setdefault(min(count - 1, int((at - begin) / width)), [0.0, 0.0, 0.0, -math.inf])
                weight = max(1.0, float(span))
                bucket[0] += weight
                bucket[1] += weight * (at + span / 2)
                bucket[2] += weight * value
                bucket[3] = max(bucket[3], top)
        return [Point(time / weight, value / weight, top) for _, (weight, time, value, top) in sorted(buckets.items())]

    def integral(
        self, entity: Entity, quantity: str, since: float, until: float, most_gap_s: float = MOST_GAP_S
    ) -> float:
        """A quantity times the time for which it was recorded, in seconds. A sample counts until the next one, but no
        longer than `most_gap_s`: while nothing was recorded, nothing is known.

        ValueError if its kind has no such quantity.
        """
        place, total = index_of(entity.kind, quantity), 0.0
        begin, end = _whole(since), _whole(until)
        with self._turn, plain_errors(self._path, KIND, "read"):
            rows = self._database.execute(
                "SELECT at, span, mean FROM samples JOIN entities ON id = entity "
                "WHERE kind = ? AND name = ? AND at >= ? AND at < ? ORDER BY at DESC",
                (entity.kind, entity.name[:MOST_NAME], begin, end),
            )
            following = end
            for at, span, mean in rows:
                values = unpack(mean)
                if place < len(values) and not math.isnan(value := values[place]):
                    total += value * max(0.0, min(following - at, span + most_gap_s))
                following = at
        return total

    def entities(self, kind: str | None = None, since: float = 0.0) -> list[Seen]:
        """The entities (of a kind) with samples after that time, in the order of their kinds and names."""
        with self._turn, plain_errors(self._path, KIND, "read"):
            rows = self._database.execute(
                "SELECT kind, name, node, owner, first, last FROM entities "
                "WHERE last >= ? AND (? IS NULL OR kind = ?) ORDER BY kind, name",
                (_whole(since), kind, kind),
            ).fetchall()
        return [Seen(Entity(*row[:4]), float(row[4]), float(row[5])) for row in rows]

    @property
    def rows(self) -> int:
        """The number of stored samples."""
        return self._rows

    def _insert(self, moment: int, samples: Iterable[Sample]) -> None:
        with self._writing():
            for sample in samples:
                entity = self._id_of(sample.entity, moment)
                if entity is None:
                    continue
                content = pack(sample.entity.kind, sample.values)
                # If the clock was set back, the newer sample replaces the one of the same time.
                replaced = self._database.execute(
                    "SELECT 1 FROM samples WHERE entity = ? AND at = ?", (entity, moment)
                ).fetchone()
                self._database.execute(
                    "INSERT OR REPLACE INTO samples VALUES (?, ?, 0, ?, NULL)", (entity, moment, content)
                )
                self._database.execute("UPDATE entities SET last = ? WHERE id = ?", (moment, entity))
                self._rows += replaced is None

    def _id_of(self, entity: Entity, moment: int) -> int | None:
        """The row of an entity, which is made if it has none; None: there are too many."""
        key = (entity.kind, entity.name[:MOST_NAME])
        known = self._ids.get(key)
        if known is not None:
            return known
        row = self._database.execute("SELECT id FROM entities WHERE kind = ? AND name = ?", key).fetchone()
        if row is None:
            count = self._database.execute("SELECT count(*) FROM entities").fetchone()[0]
            if count >= MOST_ENTITIES:
                return None
            values = (*key, entity.node[:MOST_NAME], entity.owner[:MOST_NAME], moment, moment)
            insert = (
                "INSERT INTO entities (kind, name, node, owner, first, last) VALUES (?, ?, ?, ?, ?, ?) RETURNING id"
            )
            row = self._database.execute(insert, values).fetchone()
        self._ids[key] = int(row[0])
        return self._ids[key]

    def _note_clock(self, at: float) -> None:
        """Notices a jump of the wall clock by the monotonic one."""
        offset = at - self._monotonic()
        if self._offset is not None and abs(offset - self._offset) > JUMP_S:
            self._steady_since = self._monotonic()
        self._offset = offset

    def _tidy(self, now: int) -> None:
        """Merges old samples, and deletes those that are too old, too many, or of the future."""
        with self._writing():
            if self._monotonic() - self._steady_since >= STEADY_S:
                delete = "DELETE FROM samples WHERE at < ? OR at > ?"
                self._database.execute(delete, (now - int(self._limits.keep_s), now + int(JUMP_S)))
                thin(self._database, now, self._limits.tiers)
                self._database.execute("UPDATE entities SET last = ? WHERE last > ?", (now, now))
            self._rows = int(self._database.execute("SELECT count(*) FROM samples").fetchone()[0])
            if self._rows > self._limits.rows:
                self._drop_oldest(self._rows - self._limits.rows * 9 // 10)
            stale = "DELETE FROM entities WHERE id NOT IN (SELECT DISTINCT entity FROM samples)"
            if self._database.execute(stale).rowcount:
                self._ids.clear()

    def _drop_oldest(self, count: int) -> None:
        delete = "DELETE FROM samples WHERE (entity, at) IN (SELECT entity, at FROM samples ORDER BY at LIMIT ?)"
        self._rows -= self._database.execute(delete, (count,)).rowcount

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        rows, ids = self._rows, dict(self._ids)
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            self._rows, self._ids = rows, ids
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


def _whole(at: float) -> int:
    """A time as whole seconds that SQLite can store."""
    return int(min(max(at, 0.0), 1e11)) if at == at else 0
