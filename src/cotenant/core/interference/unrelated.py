# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pairs of jobs of which neither has a relative: no other batch size of the program, or no name for the program at all.

The structured model relies on families and is worse than plain factors without them, once each of the two was
measured a few times. Of a pair that was measured itself, the measurement still says more.
"""

import numpy as np

from cotenant.core.interference.calibration import COVERED
from cotenant.core.interference.catalogue import MOST_TYPES, Catalogue
from cotenant.core.interference.factorisation import Factors, factorise, left_out_errors
from cotenant.core.interference.kernel import Floats, Pairs
from cotenant.core.interference.observations import SLOWEST, Observations

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
