# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How wide an interval must be to contain nine values of ten, by cross-validation rather than by the model's variance.

Intervals are conformal: each measured value is predicted without its pair, and half the width is a quantile of these
errors; of few measurements, it is a quantile of the errors in standard deviations. A family with few measurements gets
an interval near the one for families without any.
"""

from collections.abc import Callable

import numpy as np

from cotenant.core.interference.catalogue import MOST_TYPES, Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs
from cotenant.core.interference.learned import Fit
from cotenant.core.interference.observations import Observations

COVERED = 0.9
"""share of values that an interval should contain"""
FEW_ROWS = 20
"""with fewer rows, the factor is CAUTIOUS"""
CAUTIOUS = 3.0
KNOWN_PAIRS = 8
"""measured pairs from which on a family counts as known"""


class Calibration:
    """How wide intervals are, from the measurements at one moment."""

    def __init__(self, catalogue: Catalogue, seen: Observations, fit: Fit | None = None) -> None:
        self._catalogue, self._seen, self._fit = catalogue, seen, fit
        self._enough = len(seen) >= FEW_ROWS
        self._known_factor: float | None = None
        self._unknown_factor: float | None = None
        self._novelty = self._novelty_by_family()
        rows = sum(np.bincount(side, minlength=MOST_TYPES) for side in seen.values.pairs)
        self._new_types: Floats = np.maximum(0.0, 1.0 - rows / (2 * KNOWN_PAIRS))

    def widths(self, pairs: Pairs, deviations: Callable[[], Floats]) -> Floats:
        """Half the width of the interval of each pair, as a root; `deviations` computes the standard deviations."""
        novelty = self.novelty(pairs)
        if self._fit is None:
            known: Floats = self._without_pair() * deviations()
        else:
            new = np.maximum(*(self._new_types[side] for side in pairs))
            known = self._fit.error + new * (self._fit.type_error - self._fit.error)
        if not self._enough or not novelty.any():
            return known
        if self._unknown_factor is None:
            self._unknown_factor = self._without_family()
        widths: Floats = known + novelty * np.maximum(0.0, self._unknown_factor * deviations() - known)
        return widths

    def novelty(self, pairs: Pairs) -> Floats:
        """How new the families of each pair are, from 1 (one of them was never measured) to 0 (both are known)."""
        new = len(self._novelty) - 1
        families = [np.minimum(self._catalogue.families[side], new) for side in pairs]
        novelty: Floats = np.maximum(self._novelty[families[0]], self._novelty[families[1]])
        return novelty

    def _without_pair(self) -> float:
        """The factor for jobs of known families."""
        if self._known_factor is None:
            posterior, opposites = self._seen.posterior, self._seen.opposites()
            errors = posterior.without_pair(opposites, self._whitened()) if self._enough else None
            self._known_factor = CAUTIOUS if errors is None else quantile(errors)
        return self._known_factor

    def _whitened(self) -> Floats:
        return self._seen.standardise().whitened

    def _novelty_by_family(self) -> Floats:
        """How new each family is, from 1 (never measured) to 0 (known); the last entry is for families added later."""
        victims, partners = (self._catalogue.families[side] for side in self._seen.values.pairs)
        count = int(self._catalogue.families.max(initial=-1)) + 2
        rows = np.bincount(victims, minlength=count) + np.bincount(partners[partners != victims], minlength=count)
        novelty: Floats = np.maximum(0.0, 1.0 - rows / (2 * KNOWN_PAIRS))
        return novelty

    def _without_family(self) -> float:
        """The factor for jobs of a family that was never measured."""
        whitened = self._whitened()
        sides = [self._catalogue.families[side] for side in self._seen.posterior.pairs]
        blocks: list[Indices] = [
            np.flatnonzero((sides[0] == family) | (sides[1] == family)) for family in np.unique(np.concatenate(sides))
        ]
        # A family that is in every row cannot be left out.
        errors = [self._seen.posterior.without(block, whitened) for block in blocks if len(block) < len(whitened)]
        return quantile(np.concatenate(errors)) if errors else CAUTIOUS


def quantile(errors: Floats) -> float:
    """The error that nine of ten do not exceed, with the correction for a finite number of them; 0 of none."""
    if len(errors) == 0:
        return 0.0
    return float(np.quantile(errors, min(1.0, COVERED * (1 + 1 / len(errors)))))
