# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates predictions: some measured pairs are hidden, and predicted from the others."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.catalogue import Signature
from cotenant.core.interference.factorisation import factorise
from cotenant.core.interference.fitting import Measured
from cotenant.core.interference.kernel import Floats, Pairs, Shares
from cotenant.core.interference.observations import SLOWEST
from cotenant.core.interference.predictor import Predictor


class Pair(NamedTuple):
    """Two jobs that ran together, and the speed of each relative to running alone."""

    jobs: tuple[Signature, Signature]
    speeds: tuple[float, float]

    def directions(self) -> list[Measured]:
        """Two directions, or one if both jobs are of one type."""
        one, other = self.jobs
        there = Measured(one, other, self.speeds[0])
        return [there] if one == other else [there, Measured(other, one, self.speeds[1])]


class Score(NamedTuple):
    """How good predictions of unseen directions were."""

    error: float
    """mean absolute"""
    covered: float
    """share within the interval"""


def trained(pairs: Sequence[Pair], shares: Shares) -> Predictor:
    """A predictor that has observed these pairs."""
    predictor = Predictor(shares)
    for pair in pairs:
        predictor.observe(*pair.jobs, *pair.speeds)
    return predictor


def score(predictor: Predictor, unseen: Sequence[Pair]) -> Score:
    """The score on both directions of some pairs."""
    errors, covered = [], []
    for pair in unseen:
        for speed, true in zip(predictor.pair(*pair.jobs), pair.speeds, strict=True):
            errors.append(abs(speed.mean - true))
            covered.append(speed.low <= true <= speed.high)
    return Score(statistics.mean(errors), statistics.mean(covered))


def split(pairs: Sequence[Pair], observed: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """A share of the pairs that is seen, in a random order, and the others; neither is empty."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    cut = min(max(1, round(observed * len(pairs))), len(pairs) - 1)
    return [pairs[i] for i in order[:cut]], [pairs[i] for i in order[cut:]]


def factorisation_error(seen: Sequence[Pair], unseen: Sequence[Pair], rank: int) -> float:
    """Mean absolute error of plain matrix factorisation, which knows nothing of the jobs; no prediction is above the
    largest speed that was seen."""
    types = {job: place for place, job in enumerate(dict.fromkeys(job for p in (*seen, *unseen) for job in p.jobs))}

    def table(some: Sequence[Pair]) -> tuple[Pairs, Floats]:
        rows = [row for pair in some for row in pair.directions()]
        pairs = Pairs(np.array([types[row.victim] for row in rows]), np.array([types[row.partner] for row in rows]))
        return pairs, np.array([row.speed for row in rows])

    (known, values), (hidden, speeds) = table(seen), table(unseen)
    predicted = np.clip(factorise(known, values, len(types), rank).predict(hidden), SLOWEST, values.max())
    return float(np.abs(predicted - speeds).mean())
