# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The model that is fitted to all measurements from time to time: it learns which jobs are alike from how they fared.

It is a Gaussian process that is solved twice. The first solution compares jobs by what is known before they share a
GPU, and predicts a table of all pairs. Two victims with similar rows in that table are alike, and so are two partners
with similar columns, whatever their names are. The second solution has these two kinds of likeness in addition.

The shares of the parts are fitted to a sample of the measurements, starting from those of `parts`. The fewer
measurements there are, the fewer steps are made. Few steps cannot raise a share that is much too small. So the share of
what is special about a pair, which includes errors of measurement, starts where the measurements are most likely.

For up to `MOST_TABLED` types the solution is found by conjugate gradients on the table of all pairs, which need no
matrix of the size of the measurements. For more types that table is too large, and the last `MOST_DIRECT` measurements
are solved directly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.kernel import Floats, Indices, Mask, Pairs, Traits, alike
from cotenant.core.interference.parts import (
    ALL,
    CONSTANT,
    EVERY,
    FIXED,
    SPECIAL,
    Covariance,
    Part,
    Tables,
    near_rows,
    part_covariance,
    tables_of,
)

NOISE = 0.003
"""variance of one measurement in units of the overall variance: about 2 % of a speed"""
SAMPLE = 300
"""measurements to which the shares are fitted"""
ROWS_PER_STEP = 50
"""so many measurements allow one more step of the fit"""
MOST_STEPS = (8, 6)
"""of the first and the second solution"""
SPECIAL_SHARES = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
"""of what is special about a pair, which are compared before the first step"""
MOST_TABLED, MOST_DIRECT = 128, 1024
LANDMARKS = 256
"""measurements for which the start of the gradients is exact"""
MOST_TURNS, CLOSE = 40, 1e-2
"""turns of the conjugate gradients, and the relative error at which they end"""
MOST = 1e9
"""bound of all stored numbers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was fitted, as plain values: to be stored, so that loading takes no fit."""

    first: tuple[float, ...]
    """the shares of the parts of the first solution"""
    second: tuple[float, ...]
    rows: int
    """number of measurements when the shares were fitted"""
    solved: int
    """number of measurements when it was solved last"""
    scale: tuple[float, float] = (0.0, 1.0)
    """mean and standard deviation of the values"""
    weights: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """of both solutions, one for each row"""


Shares = tuple[tuple[float, ...], tuple[float, ...]]
"""of the parts of both solutions"""
START: Shares = tuple(part.share for part in FIXED), tuple(part.share for part in ALL)


class Values(NamedTuple):
    """Measured roots of speeds."""

    pairs: Pairs
    roots: Floats

    def some(self, chosen: Indices | Mask) -> "Values":
        return Values(Pairs(self.pairs.victims[chosen], self.pairs.partners[chosen]), self.roots[chosen])


class Learned:
    """The solved model: the predicted root of the speed of every pair of types."""

    table: Floats
    accounted: Floats
    """The same, with the measured values themselves for the pairs it was solved for. What it predicts for these differs
    by what it took for noise, which says nothing about other pairs."""

    def __init__(self, traits: Traits, values: Values, first: Sequence[float], second: Sequence[float]) -> None:
        traits = _types(traits, 0, int(np.max(values.pairs)) + 1)  # `grow` takes in those without a measurement
        self.scale = float(values.roots.mean()), max(float(values.roots.std()), 0.01)
        standard = Values(values.pairs, (values.roots - self.scale[0]) / self.scale[1])
        self._shares = dict(zip(FIXED, first, strict=True)), dict(zip(ALL, second, strict=True))
        tables, types = tables_of(traits), len(traits.family)
        self._first, self.table = np.zeros((0, 0)), np.zeros((0, 0))
        self._weights = [_solve(Covariance(tables, self._shares[0]), standard, types)]
        covariance = Covariance(self.with_learned(tables), self._shares[1])
        self._weights.append(_solve(covariance, standard, types))
        self._predict(covariance)

    @classmethod
    def stored(cls, traits: Traits, pairs: Pairs, fit: Fit) -> "Learned":
        """The model that was stored, without solving it again."""
        learned = cls.__new__(cls)
        learned.scale = fit.scale
        learned._shares = dict(zip(FIXED, fit.first, strict=True)), dict(zip(ALL, fit.second, strict=True))
        measured = _types(traits, 0, int(np.max(pairs)) + 1)
        learned._weights = [_table(pairs, np.array(weights), len(measured.family)) for weights in fit.weights]
        learned._first, learned.table = np.zeros((0, 0)), np.zeros((0, 0))
        learned.grow(measured)
        return learned

    def weights_of(self, pairs: Pairs) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The weights of some pairs in both solutions."""
        known = np.maximum(*pairs) < len(self._weights[0])
        within = Pairs(np.where(known, pairs.victims, 0), np.where(known, pairs.partners, 0))
        first, second = (np.where(known, weights[within], 0.0).tolist() for weights in self._weights)
        return tuple(first), tuple(second)

    def with_learned(self, tables: Tables) -> Tables:
        """The likeness of types, with the two kinds that the first solution tells."""
        self._first = _filled(self._first, Covariance(tables, self._shares[0]), self._weights[0])
        return tables.learned(near_rows(self._first), near_rows(self._first.T))

    def grow(self, traits: Traits) -> None:
        """Predicts for types that came after the fit, from what is known of them."""
        types = len(traits.family)
        if types > MOST_TABLED and len(self.table):
            self._copy_relatives(traits)
            return
        self._weights = [np.pad(weights, (0, types - len(weights))) for weights in self._weights]
        self._predict(Covariance(self.with_learned(tables_of(traits)), self._shares[1]))

    def _copy_relatives(self, traits: Traits) -> None:
        """The same for very many types, and cheaper: a new type fares as those that are most like it, on average."""
        for new in range(len(self.table), len(traits.family)):
            like = alike(_types(traits, new, new + 1), _types(traits, 0, new))
            known = 4 * like.family[0] + 2 * like.batch[0] + like.time[0] + 1e-3
            if like.profile is not None:
                known += like.profile[0]
            weights = known**4 / (known**4).sum()
            row, column = weights @ self.table, self.table @ weights
            self.table = np.block([[self.table, column[:, None]], [row, np.array([weights @ column])]])
        self._account()

    def _predict(self, covariance: Covariance) -> None:
        mean, spread = self.scale
        self.table = mean + spread * _filled((self.table - mean) / spread, covariance, self._weights[1])
        self._account()

    def _account(self) -> None:
        known = len(self._weights[1])
        self.accounted = self.table.copy()
        self.accounted[:known, :known] += self.scale[1] * NOISE * self._weights[1]


def _filled(table: Floats, covariance: Covariance, weights: Floats) -> Floats:
    """A table of what a solution predicts. `table` has the entries of the first types."""
    old, types = len(table), len(weights)
    filled, late = np.pad(table, (0, types - old)), (old, types)
    for victims, partners in ((late, EVERY), (EVERY, late))[: 2 if old else 1]:
        filled[slice(*victims), slice(*partners)] = covariance.apply(weights, victims, partners)
    return filled


def _types(traits: Traits, first: int, end: int) -> Traits:
    family, batch, time, profile = traits
    return Traits(family[first:end], batch[first:end], time[first:end], profile[first:end])


def _table(pairs: Pairs, weights: Floats, types: int) -> Floats:
    table = np.zeros((types, types))
    table[pairs] = weights
    return table


def _solve(covariance: Covariance, values: Values, types: int) -> Floats:
    """The weights of the measurements, as a table of all pairs: covariance and noise times weights are the values."""
    if types > MOST_TABLED:
        last = values.some(np.arange(max(0, len(values.roots) - MOST_DIRECT), len(values.roots)))
        total = covariance.matrix(last.pairs, last.pairs) + NOISE * np.eye(len(last.roots))
        return _table(last.pairs, np.asarray(np.linalg.solve(total, last.roots), np.float64), types)
    pairs, rest = values.pairs, values.roots.copy()
    weights, found = np.zeros((types, types)), np.zeros(len(rest))
    near_solution = _preconditioner(covariance, pairs)
    direction = better = near_solution(rest)
    square, enough = float(rest @ better), CLOSE * float(np.linalg.norm(rest))
    for _ in range(MOST_TURNS):
        if np.linalg.norm(rest) <= enough:
            break
        weights[pairs] = direction
        applied = covariance.apply(weights)[pairs] + NOISE * direction
        step = square / float(direction @ applied)
        found += step * direction
        rest -= step * applied
        better = near_solution(rest)
        square, before = float(rest @ better), square
        direction = better + square / before * direction
    weights[pairs] = found
    return weights


def _preconditioner(covariance: Covariance, pairs: Pairs) -> Callable[[Floats], Floats]:
    """Solves for a covariance that has the same values for a sample of the pairs, and is the same between these and
    all others: the gradients then need few turns."""
    count = len(pairs.victims)
    chosen = _evenly(count, LANDMARKS)
    some = Pairs(pairs.victims[chosen], pairs.partners[chosen])
    factor = np.linalg.cholesky(covariance.matrix(some, some) + NOISE / 10 * np.eye(len(chosen)))
    shared = np.linalg.solve(factor, covariance.matrix(some, pairs))
    left = NOISE + max(0.0, float((covariance.variance(pairs) - (shared**2).sum(axis=0)).mean()))
    inner = np.linalg.inv(left * np.eye(len(chosen)) + shared @ shared.T)

    def solve(values: Floats) -> Floats:
        solved: Floats = (values - (inner @ (shared @ values)) @ shared) / left
        return solved

    return solve


def _evenly(count: int, most: int) -> Indices:
    """At most so many of the numbers below `count`, at equal distances."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def fit_shares_of(traits: Traits, values: Values) -> Shares:
    """Fits the shares of both solutions to a sample of the measurements."""
    count = len(values.roots)
    sample = values.some(_evenly(count, SAMPLE))
    steps = [min(most, count // ROWS_PER_STEP) for most in MOST_STEPS]
    first = _fit(tables_of(traits), sample, dict(zip(FIXED, START[0], strict=True)), steps[0])
    traits = _types(traits, 0, int(np.max(values.pairs)) + 1)
    tables = Learned(traits, values, tuple(first.values()), START[1]).with_learned(tables_of(traits))
    start = dict(zip(ALL, START[1], strict=True)) | first
    second = _fit(tables, sample, start, steps[1])
    return tuple(first.values()), tuple(second.values())


def _fit(tables: Tables, sample: Values, shares: Mapping[Part, float], steps: int) -> dict[Part, float]:
    """Makes the measurements more likely: a majorise-minimise step for each share, as in `fitting`."""
    fitted = dict(shares)
    parts = [part for part in shares if tables.has(part)]
    count = len(sample.roots)
    values = (sample.roots - sample.roots.mean()) / max(float(sample.roots.std()), 0.01)
    each = np.array([part_covariance(tables, part, sample.pairs) for part in parts]).reshape(len(parts), -1)
    now, special = np.array([shares[part] for part in parts]), parts.index(SPECIAL)
    rest = CONSTANT + NOISE * np.eye(count)
    now[special] = 0.0
    others = (now @ each).reshape(count, count) + rest
    alone = each[special].reshape(count, count)
    now[special] = max(SPECIAL_SHARES, key=lambda share: _likelihood(others + share * alone, values))
    for _ in range(steps):
        inverse = np.linalg.inv((now @ each).reshape(count, count) + rest)
        pull = inverse @ values
        explained, expected = each @ np.outer(pull, pull).ravel(), each @ inverse.ravel()
        now = now * np.sqrt(np.maximum(explained, 1e-12) / np.maximum(expected, 1e-12))
    return fitted | dict(zip(parts, now.tolist(), strict=True))


def _likelihood(covariance: Floats, values: Floats) -> float:
    """The logarithm of how likely some values are, up to a constant."""
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, values)
    return -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())


def is_sound(fit: Fit, rows: int) -> bool:
    """Whether a stored fit can be one of so many rows."""
    shares = len(fit.first) == len(FIXED) and len(fit.second) == len(ALL)
    weights = all(len(each) == rows for each in fit.weights)
    positive = (fit.scale[1], fit.rows, fit.solved)
    numbers = (*fit.first, *fit.second, *fit.scale, *positive, *(one for each in fit.weights for one in each))
    bounded = all(abs(number) < MOST for number in numbers) and min((*fit.first, *fit.second), default=0.0) >= 0
    return shares and weights and bounded and min(positive) > 0
