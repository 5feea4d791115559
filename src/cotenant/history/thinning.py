# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Merges old samples into means and maxima of longer periods."""

import math
import sqlite3
import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from cotenant.history.quantities import unpack


class Tier(NamedTuple):
    """Samples older than `after_s` are merged into periods of `span` seconds."""

    after_s: float
    span: int


class _Row(NamedTuple):
    at: int
    span: int
    mean: bytes
    high: bytes | None


def thin(database: sqlite3.Connection, now: int, tiers: Iterable[Tier]) -> None:
    """Merges every complete period that has become old enough; within the caller's transaction."""
    for tier in tiers:
        before = (now - int(tier.after_s)) // tier.span * tier.span
        due = database.execute("SELECT DISTINCT entity FROM samples WHERE at < ? AND span < ?", (before, tier.span))
        for (entity,) in due.fetchall():
            _thin_one(database, entity, before, tier.span)


def _thin_one(database: sqlite3.Connection, entity: int, before: int, span: int) -> None:
    select = "SELECT at, span, mean, high FROM samples WHERE entity = ? AND at < ? AND span < ? ORDER BY at"
    rows = [_Row(*row) for row in database.execute(select, (entity, before, span))]
    for period, group in groupby(rows, key=lambda row: row.at // span):
        merged = list(group)
        mean, high = merge(merged)
        database.executemany("DELETE FROM samples WHERE entity = ? AND at = ?", ((entity, row.at) for row in merged))
        insert = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)"
        database.execute(insert, (entity, period * span, span, mean, high))


def merge(rows: Sequence[_Row]) -> tuple[bytes, bytes]:
    """The mean, weighted by the length of each period, and the maximum of each quantity; NaN is not counted."""
    means = [unpack(row.mean) for row in rows]
    highs = [unpack(row.mean if row.high is None else row.high) for row in rows]
    weights = [max(1, row.span) for row in rows]
    count = max(map(len, means))
    mean, high = [], []
    for place in range(count):
        known = [
            (weight, one[place])
            for weight, one in zip(weights, means, strict=True)
            if place < len(one) and not math.isnan(one[place])
        ]
        total = sum(weight for weight, _ in known)
        mean.append(sum(weight * value for weight, value in known) / total if total else math.nan)
        tops = [one[place] for one in highs if place < len(one) and not math.isnan(one[place])]
        high.append(max(tops, default=math.nan))
    return struct.pack(f"<{count}f", *mean), struct.pack(f"<{count}f", *high)
