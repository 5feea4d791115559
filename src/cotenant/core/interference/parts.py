# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The covariance of all pairs of some job types, as a sum of parts that are products of tables of types.

A part compares the victims, the partners, or both, by one kind of likeness each. A sum of such parts can be applied to
a table of all pairs by products of small matrices, so thousands of measured pairs need no matrix of that size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cotenant.core.interference.kernel import PROFILE_REACH, Floats, Indices, Pairs, Traits, alike, near

Role = Literal["victim", "partner", "both", "alike", "opposed", "load"]
FREQUENCIES = 48
"""of the features by which the sum of two profiles is compared"""
_SPREAD = np.random.default_rng(7).standard_normal((len(PROFILE_REACH), FREQUENCIES))
LOADS = {"L": 4.0, "M": 2.0}
"""how far the likeness of sums of profiles reaches, by kind"""


Range = tuple[int, int]
"""of types: from the first number up to the second, without it"""
MOST = 1 << 30
EVERY: Range = (0, MOST)


class Part(NamedTuple):
    """One part of the covariance, and the share of the variance that it explains before it is fitted."""

    role: Role
    """what is compared: the victims, the partners, or both; with `alike` and `opposed`, the two jobs of a pair may
    change their roles, and gain the same or the opposite by it; with `load`, the sums of both profiles"""
    first: str
    """the likeness of victims, or the only one"""
    second: str
    """the likeness of partners"""
    share: float


def _one(role: Role, kind: str, share: float) -> Part:
    return Part(role, kind, kind, share)


SPECIAL = Part("both", "I", "I", 0.01)
"""what is special about a pair in one direction, which includes the error of its measurement"""
FIXED = (
    *(_one("victim", kind, share) for kind, share in zip("FSITAP", (0.03, 0.05, 0.03, 0.18, 0.1, 0.05), strict=True)),
    *(_one("partner", kind, share) for kind, share in zip("FSITAP", (0.08, 0.06, 0.01, 0.15, 0.1, 0.05), strict=True)),
    *(_one("alike", kind, share) for kind, share in zip("FSIAP", (0.15, 0.04, 0.01, 0.1, 0.1), strict=True)),
    *(_one("opposed", kind, share) for kind, share in zip("FSAP", (0.07, 0.03, 0.05, 0.05), strict=True)),
    SPECIAL,
    Part("both", "S", "F", 0.04),
    Part("both", "S", "T", 0.04),
    *(Part("both", "I", kind, 0.02) for kind in "FSTAP"),
    *(Part("both", kind, "I", 0.02) for kind in "FSTAP"),
    _one("load", "L", 0.2),
    _one("load", "M", 0.1),
)
"""Kinds of likeness: F one family, S near in batch size within it, I one type, T near in step time, A near in one
number of a profile on average, P near in all of them."""
LEARNED = (Part("victim", "E", "E", 0.1), Part("partner", "G", "G", 0.1), Part("both", "E", "G", 0.3))
"""Kinds that are learned from the measurements: E victims that suffer alike, G partners that harm alike."""
ALL = FIXED + LEARNED
CONSTANT = 0.3


@dataclass(frozen=True, slots=True)
class Tables:
    """The likeness of any two types, by kind, and the features of their profiles."""

    kinds: Mapping[str, Floats]
    waves: Mapping[str, tuple[Floats, Floats]]
    """cosines and sines, one row per type, by kind"""

    def has(self, part: Part) -> bool:
        return part.first in self.waves if part.role == "load" else {part.first, part.second} <= self.kinds.keys()

    def learned(self, victims: Floats, partners: Floats) -> "Tables":
        """The same with the two kinds that are learned."""
        return Tables({**self.kinds, "E": victims, "G": partners}, self.waves)


def tables_of(traits: Traits) -> Tables:
    """The kinds of likeness that need no measurement."""
    like = alike(traits, traits)
    one = np.eye(len(traits.family))
    kinds = {"F": like.family, "S": like.batch, "I": one, "T": np.maximum(like.time, one)}
    if like.profile is None:
        return Tables(kinds, {})
    profiles = np.where(np.isnan(traits.profile), 0.0, traits.profile) / PROFILE_REACH
    together = [near(column, column, 2.0) for column in profiles.T]
    angles = {kind: profiles @ _SPREAD / reach for kind, reach in LOADS.items()}
    some = np.any(~np.isnan(traits.profile), axis=1, keepdims=True)
    known = some / math.sqrt(FREQUENCIES)
    waves = {kind: (known * np.cos(angle), known * np.sin(angle)) for kind, angle in angles.items()}
    return Tables({**kinds, "A": like.profile, "P": np.prod(together, axis=0)}, waves)


def near_rows(table: Floats) -> Floats:
    """The likeness of types by the rows of a table: half of all types are nearer than one standard deviation."""
    squares = (table**2).mean(axis=1)
    distance = np.maximum(squares[:, None] + squares - 2 * (table @ table.T) / table.shape[1], 0.0)
    middle = float(np.median(distance[np.triu_indices(len(table), 1)])) if len(table) > 1 else 1.0
    likeness: Floats = np.exp(-0.5 * distance / max(middle, 1e-6))
    return likeness


def _some(table: Floats, rows: Indices, columns: Indices) -> Floats:
    """These rows and columns, in a third of the time of one index with both."""
    return table.take(rows, axis=0).take(columns, axis=1)


def part_covariance(tables: Tables, part: Part, pairs: Pairs) -> Floats:
    """The covariance of some pairs with each other that one part alone would give, with a share of one."""
    victims, partners = pairs
    if part.role == "load":
        waves = _waves(tables, part.first, pairs)
        return waves @ waves.T
    first, second = tables.kinds[part.first], tables.kinds[part.second]
    if part.role == "victim":
        return _some(first, victims, victims)
    if part.role == "partner":
        return _some(first, partners, partners)
    straight = _some(first, victims, victims) * _some(second, partners, partners)
    if part.role == "both":
        return straight
    crossed = _some(first, victims, partners)
    crossed = crossed * crossed.T
    return 0.5 * (straight + crossed) if part.role == "alike" else 0.5 * (straight - crossed)


def _waves(tables: Tables, kind: str, pairs: Pairs) -> Floats:
    (one_cos, other_cos), (one_sin, other_sin) = ([wave[side] for side in pairs] for wave in tables.waves[kind])
    even, odd = one_cos * other_cos - one_sin * other_sin, one_sin * other_cos + one_cos * other_sin
    waves: Floats = math.sqrt(FREQUENCIES) * np.hstack([even, odd])
    return waves


class Covariance:
    """The sum of all parts, each times its share."""

    def __init__(self, tables: Tables, shares: Mapping[Part, float]) -> None:
        self._tables = tables
        some = next(iter(tables.kinds.values()))
        self._victims, self._partners = np.full_like(some, CONSTANT), np.zeros_like(some)
        self._products: dict[str, Floats] = {}
        self._crossed: dict[str, float] = {}
        self._loads: dict[str, float] = {}
        for part, share in shares.items():
            if tables.has(part) and share > LEAST_SHARE:
                self._add(part, share)

    def _add(self, part: Part, share: float) -> None:
        if part.role == "load":
            self._loads[part.first] = share
            return
        second = self._tables.kinds[part.second]
        if part.role == "victim":
            self._victims += share * second
        elif part.role == "partner":
            self._partners += share * second
        else:
            half = share if part.role == "both" else share / 2
            self._products[part.first] = self._products.get(part.first, 0.0) + half * second
            if part.role != "both":
                sign = 1 if part.role == "alike" else -1
                self._crossed[part.first] = self._crossed.get(part.first, 0.0) + sign * half

    def matrix(self, pairs: Pairs, others: Pairs) -> Floats:
        """Of some pairs with others."""
        ours, theirs = (pairs.victims, others.victims), (pairs.partners, others.partners)
        across, back = (pairs.victims, others.partners), (pairs.partners, others.victims)
        total = _some(self._victims, *ours) + _some(self._partners, *theirs)
        for kind, table in self._products.items():
            total += _some(self._tables.kinds[kind], *ours) * _some(table, *theirs)
        for kind, share in self._crossed.items():
            like = self._tables.kinds[kind]
            total += share * (_some(like, *across) * _some(like, *back))
        for kind, share in self._loads.items():
            total += share * (_waves(self._tables, kind, pairs) @ _waves(self._tables, kind, others).T)
        return total

    def variance(self, pairs: Pairs) -> Floats:
        """Of each of some pairs."""
        victims, partners = pairs
        total = self._victims[victims, victims] + self._partners[partners, partners]
        for kind, table in self._products.items():
            total += self._tables.kinds[kind][victims, victims] * table[partners, partners]
        for kind, share in self._crossed.items():
            total += share * self._tables.kinds[kind][victims, partners] ** 2
        for kind, share in self._loads.items():
            total += share * (_waves(self._tables, kind, pairs) ** 2).sum(axis=1)
        return total

    def apply(self, weights: Floats, victims: Range = EVERY, partners: Range = EVERY) -> Floats:
        """The covariance of pairs of types with all pairs, summed with their weights: a table, or a part of it."""
        kinds = self._tables.kinds
        ours, theirs = slice(*victims), slice(*partners)
        total: Floats = (self._victims[ours] @ weights.sum(axis=1))[:, None] + (
            self._partners[theirs] @ weights.sum(axis=0)
        )
        for kind, table in self._products.items():
            left = weights[ours] if kind == "I" else kinds[kind][ours] @ weights
            total += left @ table[:, theirs]
        for kind, share in self._crossed.items():
            across = (
                weights.T[ours][:, theirs] if kind == "I" else (kinds[kind][ours] @ weights.T) @ kinds[kind][:, theirs]
            )
            total += share * across
        for kind, share in self._loads.items():
            total += share * self._apply_load(kind, weights, victims, partners)
        return total

    def _apply_load(self, kind: str, weights: Floats, victims: Range, partners: Range) -> Floats:
        cos, sin = self._tables.waves[kind]
        ours, theirs = slice(*victims), slice(*partners)
        on_cos, on_sin = weights @ cos, weights @ sin
        even = (cos * on_cos - sin * on_sin).sum(axis=0)
        odd = (sin * on_cos + cos * on_sin).sum(axis=0)
        ours_cos, ours_sin = cos[ours], sin[ours]
        applied: Floats = FREQUENCIES * (
            (ours_cos * even + ours_sin * odd) @ cos[theirs].T + (ours_cos * odd - ours_sin * even) @ sin[theirs].T
        )
        return applied


LEAST_SHARE = 1e-4
"""a part with a smaller share is left out"""
