# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How wide an interval must be to contain nine values of ten, by cross-validation rather than by the model's variance.

The factor is conformal: each measured value is predicted without its pair, and the factor is a quantile of the errors
in standard deviations. A family with few measurements gets a factor near the one for families without any.
"""

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs
from cotenant.core.interference.observations import Observations

COVERED = 0.9
"""share of values that an interval should contain"""
FEW_ROWS = 20
"""with fewer rows, the factor is CAUTIOUS"""
CAUTIOUS = 3.0
KNOWN_PAIRS = 8
"""measured pairs from which on a family counts as known"""


class Calibration:
    """The factors, from the measurements at one moment."""

    def __init__(self, catalogue: Catalogue, seen: Observations, whitened: Floats) -> None:
        self._catalogue, self._posterior, self._whitened = catalogue, seen.posterior, whitened
        self._enough = len(seen) >= FEW_ROWS
        self._known_factor = (
            self._quantile(self._posterior.without_pair(seen.opposites(), whitened)) if self._enough else CAUTIOUS
        )
        victims, partners = self._posterior.pairs
        self._sides = catalogue.families[victims], catalogue.families[partners]
        self._novelty = self._novelty_by_family()
        self._unknown_factor: float | None = None

    def factors(self, pairs: Pairs) -> Floats:
        """Half the width of the interval of each pair, in standard deviations of the pair."""
        new = len(self._novelty) - 1
        families = [np.minimum(self._catalogue.families[side], new) for side in pairs]
        novelty = np.maximum(self._novelty[families[0]], self._novelty[families[1]])
        if not self._enough or not novelty.any():
            return np.full(len(novelty), self._known_factor)
        if self._unknown_factor is None:
            self._unknown_factor = self._without_family()
        factors: Floats = self._known_factor + novelty * max(0.0, self._unknown_factor - self._known_factor)
        return factors

    def _novelty_by_family(self) -> Floats:
        """How new each family is, from 1 (never measured) to 0 (known); the last entry is for families added later."""
        victims, partners = self._sides
        count = int(self._catalogue.families.max(initial=-1)) + 2
        rows = np.bincount(victims, minlength=count) + np.bincount(partners[partners != victims], minlength=count)
        novelty: Floats = np.maximum(0.0, 1.0 - rows / (2 * KNOWN_PAIRS))
        return novelty

    def _without_family(self) -> float:
        """The factor for jobs of a family that was never measured."""
        blocks: list[Indices] = [
            np.flatnonzero((self._sides[0] == family) | (self._sides[1] == family))
            for family in np.unique(np.concatenate(self._sides))
        ]
        # A family that is in every row cannot be left out.
        errors = [
            self._posterior.without(block, self._whitened) for block in blocks if len(block) < len(self._whitened)
        ]
        return self._quantile(np.concatenate(errors)) if errors else CAUTIOUS

    def _quantile(self, errors: Floats) -> float:
        return float(np.quantile(errors, min(1.0, COVERED * (1 + 1 / len(errors)))))
