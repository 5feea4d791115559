# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Predicts pairs from other pairs alone: a mean, two biases and a few factors, fitted by alternating least squares.

    value(i beside j) = mean + sensitivity_i + aggressiveness_j + u_i . v_j

It needs no knowledge about a job, but several measurements of it. The predictor uses it for jobs without relatives: no
other batch size of the same program is known, or the program has no name. The structured model relies on families and
is less accurate for such jobs. The method is also the baseline that the structured model must beat.
"""

from typing import NamedTuple

import numpy as np

from cotenant.core.interference.calibration import COVERED
from cotenant.core.interference.catalogue import MOST_TYPES, Catalogue
from cotenant.core.interference.kernel import Floats, Pairs
from cotenant.core.interference.observations import SLOWEST, Observations

RANK = 2
RIDGE = 0.3
"""regularisation of the factors"""
BIAS_RIDGE = 0.9
ROUNDS = 20
FOLDS = 5


class Factors(NamedTuple):
    """The fitted values of each type."""

    mean: float
    sensitivity: Floats
    aggressiveness: Floats
    victims: Floats
    """one row of factors per type"""
    partners: Floats

    def predict(self, pairs: Pairs) -> Floats:
        """The predicted value of each pair."""
        interaction = np.einsum("ij,ij->i", self.victims[pairs.victims], self.partners[pairs.partners])
        value: Floats = self.mean + self.sensitivity[pairs.victims] + self.aggressiveness[pairs.partners] + interaction
        return value


def factorise(pairs: Pairs, values: Floats, types: int, rank: int = RANK) -> Factors:
    """Fits the values of distinct pairs of `types` types."""
    seen = np.zeros((types, types))
    seen[pairs.victims, pairs.partners] = 1.0
    table = np.zeros((types, types))
    mean = float(values.mean())
    table[pairs.victims, pairs.partners] = values - mean
    sensitivity, aggressiveness = np.zeros(types), np.zeros(types)
    victims, partners = np.zeros((types, rank)), np.zeros((types, rank))
    for turn in range(ROUNDS):
        interaction = victims @ partners.T
        sensitivity = _bias(seen, table - aggressiveness - interaction)
        aggressiveness = _bias(seen.T, (table - sensitivity[:, None] - interaction).T)
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
    """Least squares for each row; a row with no more values than factors gets zeros."""
    rank = others.shape[1]
    squares = (seen @ (others[:, :, None] * others[:, None, :]).reshape(len(others), -1)).reshape(-1, rank, rank)
    solved = np.linalg.solve(squares + RIDGE * np.eye(rank), (rest @ others)[:, :, None])[:, :, 0]
    factors: Floats = solved * (seen.sum(axis=1) > rank)[:, None]
    return factors


def cross_validation_errors(pairs: Pairs, values: Floats, types: int) -> Floats:
    """The absolute error of each value, predicted from the other folds; both directions of a pair share a fold."""
    low, high = np.minimum(*pairs), np.maximum(*pairs)
    fold = (low * types + high) % FOLDS
    errors = np.zeros(len(values))
    for number in range(FOLDS):
        inside = fold == number
        outside = Pairs(pairs.victims[~inside], pairs.partners[~inside])
        if inside.any() and len(outside.victims):
            factors = factorise(outside, values[~inside], types)
            hidden = Pairs(pairs.victims[inside], pairs.partners[inside])
            errors[inside] = np.abs(values[inside] - factors.predict(hidden))
    return errors


LEAST_MEASURED = 4
"""measurements of a type, as victim and as partner, from which on its factors are used"""


class Unrelated:
    """Predictions for pairs of jobs without relatives, from the measurements at one moment; fitted on first use."""

    def __init__(self, catalogue: Catalogue, seen: Observations) -> None:
        self._pairs, self._speeds = seen.posterior.pairs, seen.roots**2
        as_victim, as_partner = (np.bincount(side, minlength=MOST_TYPES) for side in self._pairs)
        measured = np.flatnonzero(as_victim + as_partner)
        relatives = np.bincount(catalogue.families[measured], minlength=1)
        self._eligible = np.minimum(as_victim, as_partner) >= LEAST_MEASURED
        self._eligible[measured] &= relatives[catalogue.families[measured]] == 1
        self._measured = np.zeros((MOST_TYPES, MOST_TYPES), np.bool_)
        self._measured[self._pairs.victims, self._pairs.partners] = True
        self._types = int(measured.max(initial=-1)) + 1
        self._fitted: tuple[Factors, float] | None = None

    def correct(self, pairs: Pairs, mean: Floats, width: Floats) -> None:
        """Replaces mean and half width (of roots of speeds) of the pairs that factors predict better.

        A pair that was measured itself is left alone: its measurement says more.
        """
        victims, partners = pairs
        better = self._eligible[victims] & self._eligible[partners] & ~self._measured[victims, partners]
        if better.any():
            factors, error = self._fit()
            mean[better] = np.sqrt(np.maximum(factors.predict(Pairs(victims[better], partners[better])), SLOWEST))
            width[better] = error / (2 * mean[better])  # d root = d speed / (2 root)

    def _fit(self) -> tuple[Factors, float]:
        """The factors, and the error that nine of ten predictions do not exceed."""
        if self._fitted is None:
            factors = factorise(self._pairs, self._speeds, self._types)
            errors = cross_validation_errors(self._pairs, self._speeds, self._types)
            self._fitted = factors, float(np.quantile(errors, COVERED))
        return self._fitted
