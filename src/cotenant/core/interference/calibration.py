# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How wide an interval must be to contain nine values of ten, by cross-validation rather than by the model's variance.

Intervals are conformal: measured values are predicted without the measurement, and half the width is a quantile of
these errors. The model for all rows has its errors with it (`left_out`). Before there is one, each value is predicted
without its pair, and the quantile is that of the errors in standard deviations; a family with few measurements then
gets an interval near the one for families without any.
"""

from collections.abc import Callable

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs
from cotenant.core.interference.left_out import Errors, novelty_of, quantile
from cotenant.core.interference.observations import Observations

FEW_ROWS = 20
"""with fewer rows, the factor is CAUTIOUS"""
CAUTIOUS = 3.0
KNOWN_PAIRS = 8
"""measured pairs from which on a family counts as known"""


class Calibration:
    """How wide intervals are, from the measurements at one moment."""

    def __init__(self, catalogue: Catalogue, seen: Observations, errors: Errors | None = None) -> None:
        self._catalogue, self._seen, self._errors = catalogue, seen, errors
        self._enough = len(seen) >= FEW_ROWS
        self._known_factor: float | None = None
        self._unknown_factor: float | None = None

    def widths(self, pairs: Pairs, deviations: Callable[[], Floats]) -> Floats:
        """Half the width of the interval of each pair, as a root; `deviations` computes the standard deviations."""
        if self._errors is not None:
            return self._errors.widths(novelty_of(pairs, self._seen.counts, self._catalogue.families))
        known: Floats = self._without_pair() * deviations()
        novelty = self._novelty(pairs)
        if not self._enough or not novelty.any():
            return known
        if self._unknown_factor is None:
            self._unknown_factor = self._without_family()
        widths: Floats = known + novelty * np.maximum(0.0, self._unknown_factor * deviations() - known)
        return widths

    def _novelty(self, pairs: Pairs) -> Floats:
        """How new the families of each pair are, from 1 (one of them was never measured) to 0 (both are known)."""
        measured = np.minimum(*(self._seen.counts.families[self._catalogue.families[side]] for side in pairs))
        novelty: Floats = np.maximum(0.0, 1.0 - measured / KNOWN_PAIRS)
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
