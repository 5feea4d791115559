# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Predicts pairs from other pairs alone: a mean, two biases and a few factors, fitted by alternating least squares.

    value(i beside j) = mean + sensitivity_i + aggressiveness_j + u_i . v_j

It needs no knowledge about a job, but several measurements of it. The predictor must not be behind this baseline.
"""

from typing import NamedTuple

import numpy as np

from cotenant.core.interference.kernel import Floats, Pairs

RANK = 2
RIDGE = 0.3
"""regularisation of the factors"""
BIAS_RIDGE = 0.9
ROUNDS = 20


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
