# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Boosted trees and a forest, as baselines of the predictor: they know each job by its numbers alone."""

from typing import NamedTuple

import numpy as np

from cotenant.core.interference.kernel import Floats, Indices

BINS = 32
"""values of a feature that are told apart"""
LEAST_ROWS = 4
"""in a leaf"""


class Tree(NamedTuple):
    """A complete binary tree, level by level; a node that is not divided sends all rows to its left child."""

    features: Indices
    thresholds: Indices
    """rows with a larger bin go to the right"""
    leaves: Floats
    depth: int

    def predict(self, binned: Indices) -> Floats:
        place = np.zeros(len(binned), np.int64)
        for level in range(self.depth):
            node = place + (1 << level) - 1
            right = binned[np.arange(len(binned)), self.features[node]] > self.thresholds[node]
            place = 2 * place + right
        predicted: Floats = self.leaves[place]
        return predicted


def _grow(binned: Indices, values: Floats, weights: Floats, depth: int, allowed: Indices) -> Tree:
    """Divides level by level where the squared error falls most; rows with a weight of zero do not count."""
    features, thresholds = np.zeros(1 << depth, np.int64), np.full(1 << depth, BINS)
    place = np.zeros(len(values), np.int64)
    for level in range(depth):
        nodes = 1 << level
        best = np.full(nodes, 1e-9)
        for feature in allowed:
            cells = place * BINS + binned[:, feature]
            sums = np.bincount(cells, weights * values, nodes * BINS).reshape(nodes, BINS).cumsum(axis=1)
            counts = np.bincount(cells, weights, nodes * BINS).reshape(nodes, BINS).cumsum(axis=1)
            sum_all, count_all = sums[:, -1:], counts[:, -1:]
            enough = (counts >= LEAST_ROWS) & (count_all - counts >= LEAST_ROWS)
            gain = sums**2 / np.maximum(counts, 1) + (sum_all - sums) ** 2 / np.maximum(count_all - counts, 1)
            gain = np.where(enough, gain - sum_all**2 / np.maximum(count_all, 1), 0.0)
            where = gain.argmax(axis=1)
            found = gain[np.arange(nodes), where]
            better = found > best
            best[better] = found[better]
            features[nodes - 1 : 2 * nodes - 1][better] = feature
            thresholds[nodes - 1 : 2 * nodes - 1][better] = where[better]
        node = place + nodes - 1
        place = 2 * place + (binned[np.arange(len(binned)), features[node]] > thresholds[node])
    sums, counts = np.bincount(place, weights * values, 1 << depth), np.bincount(place, weights, 1 << depth)
    return Tree(features, thresholds, sums / (counts + 1.0), depth)


def _bin(known: Floats, asked: Floats) -> tuple[Indices, Indices]:
    """Both tables in bins with about equally many of the known rows."""
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, BINS)[1:-1])) for column in known.T]

    def binned(table: Floats) -> Indices:
        return np.column_stack([np.searchsorted(edge, column) for edge, column in zip(edges, table.T, strict=True)])

    return binned(known), binned(asked)


TREES, RATE, DEPTH = 150, 0.1, 4
"""of boosted trees"""


def boosted(known: Floats, values: Floats, asked: Floats) -> Floats:
    """Predicts by boosted trees: each corrects the error of those before it."""
    binned, wanted = _bin(known, asked)
    mean = float(values.mean())
    rest, predicted = values - mean, np.full(len(asked), mean)
    every, weights = np.arange(known.shape[1]), np.ones(len(values))
    for _ in range(TREES):
        tree = _grow(binned, rest, weights, DEPTH, every)
        rest = rest - RATE * tree.predict(binned)
        predicted += RATE * tree.predict(wanted)
    return predicted


FOREST_TREES, FOREST_DEPTH = 60, 9


def forest(seed: int, known: Floats, values: Floats, asked: Floats) -> Floats:
    """Predicts by the mean of deep trees, each of which sees a random part of the rows and of the features."""
    binned, wanted = _bin(known, asked)
    mean, chance = float(values.mean()), np.random.default_rng(seed)
    count, features = known.shape
    total = np.zeros(len(asked))
    for _ in range(FOREST_TREES):
        weights = np.bincount(chance.integers(0, count, count), minlength=count).astype(np.float64)
        allowed = chance.permutation(features)[: max(1, 2 * features // 3)]
        total += _grow(binned, values - mean, weights, FOREST_DEPTH, allowed).predict(wanted)
    predicted: Floats = mean + total / FOREST_TREES
    return predicted
