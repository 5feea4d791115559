# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pairs told by nothing but other pairs: a mean, two biases and a few factors, fitted by alternating least squares.

    value(i beside j) = mean + sensitivity_i + aggressiveness_j + u_i . v_j

It needs no knowledge of a job, but several measurements of each. It serves jobs whose program has no name, and as the
baseline that the structured model must beat.
"""

from typing import NamedTuple

import numpy as np

from cotenant.core.interference.kernel import Floats, Pairs

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
