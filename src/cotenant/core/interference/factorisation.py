# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pairs told by nothing but other pairs: a mean, two biases and a few factors, fitted by alternating least squares.

    value(i beside j) = mean + sensitivity_i + aggressiveness_j + u_i . v_j

It needs no knowledge of a job, but several measurements of each. It serves jobs whose program has no name, and as the
baseline that the structured model must beat.
"""

from typing import NamedTuple

import numpy as np

from cotenant.core.interference.calibration import COVERED
from cotenant.core.interference.catalogue import MOST_TYPES, Catalogue
from cotenant.core.interference.kernel import Floats, Pairs
from cotenant.core.interference.observations import SLOWEST, Observations

RANK = 2
RIDGE = 0.3
"""strength of the pull of factors towards zero"""
BIAS_RIDGE = 0.9
ROUNDS = 20
FOLDS = 5


class Factors(NamedTuple):
    """What was fitted, per type."""

    mean: float
    sensitivity: Floats
    aggressiveness: Floats
    victims: Floats
    """one row of factors per type"""
    partners: Floats

    def predict(self, pairs: Pairs) -> Floats:
        """The value of each pair."""
        special = np.einsum("ij,ij->i", self.victims[pairs.victims], self.partners[pairs.partners])
        value: Floats = self.mean + self.sensitivity[pairs.victims] + self.aggressiveness[pairs.partners] + special
        return value


def factorise(pairs: Pairs, values: Floats, types: int, rank: int = RANK) -> Factors:
    """Fits the values of distinct pairs of some types."""
    seen = np.zeros((types, types))
    seen[pairs.victims, pairs.partners] = 1.0
    table = np.zeros((types, types))
    mean = float(values.mean())
    table[pairs.victims, pairs.partners] = values - mean
    sensitivity, aggressiveness = np.zeros(types), np.zeros(types)
    victims, partners = np.zeros((types, rank)), np.zeros((types, rank))
    for turn in range(ROUNDS):
        special = victims @ partners.T
        sensitivity = _bias(seen, table - aggressiveness - special)
        aggressiveness = _bias(seen.T, (table - sensitivity[:, None] - special).T)
        rest = seen * (table - sensitivity[:, None] - aggressiveness)
        if turn == 0:
            partners = np.linalg.svd(rest)[2][:rank].T
        victims = _factors(seen, rest, partners)
        partners = _factors(seen.T, rest.T, victims)
    return Factors(mean, sensitivity, aggressiveness, victims, partners)


def _bias(seen: Floats, rest: Floats) -> Floats:
    bias: Floats = (seen * rest).sum(axis=1) / (seen.sum(axis=1) + BIAS_RIDGE)
    return bias


def _factors(seen: Floats, rest: Floats, others: Floats) -> Floats:
    """Least squares for each row; one with fewer values than factors has none."""
    rank = others.shape[1]
    squares = (seen @ (others[:, :, None] * others[:, None, :]).reshape(len(others), -1)).reshape(-1, rank, rank)
    solved = np.linalg.solve(squares + RIDGE * np.eye(rank), (rest @ others)[:, :, None])[:, :, 0]
    factors: Floats = solved * (seen.sum(axis=1) > rank)[:, None]
    return factors


def left_out_errors(pairs: Pairs, values: Floats, types: int) -> Floats:
    """The absolute error of each value, predicted from the other folds; both directions of a pair share a fold."""
    low, high = np.minimum(*pairs), np.maximum(*pairs)
    fold = (low * types + high) % FOLDS
    errors = np.zeros(len(values))
    for number in range(FOLDS):
        inside = fold == number
        outside = Pairs(pairs.victims[~inside], pairs.partners[~inside])
        if inside.any() and len(outside.victims):
            factors = factorise(outside, values[~inside], types)
            asked = Pairs(pairs.victims[inside], pairs.partners[inside])
            errors[inside] = np.abs(values[inside] - factors.predict(asked))
    return errors


WELL_MET = 4
"""measured directions of each type, as victim and as partner, from which on its factors are worth something"""


class Unrelated:
    """Factors of the measurements of one moment, fitted when they are first needed."""

    def __init__(self, catalogue: Catalogue, seen: Observations) -> None:
        self._pairs, self._speeds = seen.posterior.pairs, seen.roots**2
        as_victim, as_partner = (np.bincount(side, minlength=MOST_TYPES) for side in self._pairs)
        met = np.flatnonzero(as_victim + as_partner)
        relatives = np.bincount(catalogue.families[met], minlength=1)
        self._told = np.minimum(as_victim, as_partner) >= WELL_MET
        self._told[met] &= relatives[catalogue.families[met]] == 1
        self._measured = np.zeros((MOST_TYPES, MOST_TYPES), np.bool_)
        self._measured[self._pairs.victims, self._pairs.partners] = True
        self._types = int(met.max(initial=-1)) + 1
        self._fitted: tuple[Factors, float] | None = None

    def correct(self, asked: Pairs, mean: Floats, width: Floats) -> None:
        """Puts what factors say, as roots of speeds, in place of mean and half width of the pairs they tell better."""
        told = self._told[asked.victims] & self._told[asked.partners] & ~self._measured[asked.victims, asked.partners]
        if told.any():
            factors, error = self._fit()
            mean[told] = np.sqrt(np.maximum(factors.predict(Pairs(asked.victims[told], asked.partners[told])), SLOWEST))
            width[told] = error / (2 * mean[told])  # d root = d speed / (2 root)

    def _fit(self) -> tuple[Factors, float]:
        """The factors, and the error that nine of ten predictions keep below."""
        if self._fitted is None:
            factors = factorise(self._pairs, self._speeds, self._types)
            errors = left_out_errors(self._pairs, self._speeds, self._types)
            self._fitted = factors, float(np.quantile(errors, COVERED))
        return self._fitted
