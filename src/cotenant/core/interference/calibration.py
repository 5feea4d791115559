# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How wide an interval must be to hold nine values of ten: judged by leaving out what was measured, not by the model.

The factor is a conformal one: the quantile of how many standard deviations each measured value lies from what is
predicted without its pair. A family of which little was measured is judged as if none of it had been.
"""

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs
from cotenant.core.interference.observations import Observations

COVERED = 0.9
FEW_ROWS = 20
"""with fewer, the factor is the cautious one"""
CAUTIOUS = 3.0
WELL_MET = 8
"""measured pairs of a family from which on it counts as known"""


class Calibration:
    """Factors for the measurements of one moment."""

    def __init__(self, catalogue: Catalogue, seen: Observations, whitened: Floats) -> None:
        self._catalogue, self._posterior, self._whitened = catalogue, seen.posterior, whitened
        self._enough = len(seen) >= FEW_ROWS
        self._usual = self._quantile(self._posterior.without_pair(seen.mates(), whitened)) if self._enough else CAUTIOUS
        victims, partners = self._posterior.pairs
        self._sides = catalogue.families[victims], catalogue.families[partners]
        self._unmet = self._how_unmet()
        self._unknown: float | None = None

    def factors(self, pairs: Pairs) -> Floats:
        """Half the width of the interval of each pair, in its standard deviations."""
        new = len(self._unmet) - 1
        families = [np.minimum(self._catalogue.families[side], new) for side in pairs]
        unmet = np.maximum(self._unmet[families[0]], self._unmet[families[1]])
        if not self._enough or not unmet.any():
            return np.full(len(unmet), self._usual)
        if self._unknown is None:
            self._unknown = self._without_family()
        usual: Floats = self._usual + unmet * max(0.0, self._unknown - self._usual)
        return usual

    def _how_unmet(self) -> Floats:
        """Of each family, from 1 (never measured) to 0; the last entry is for families learned later."""
        victims, partners = self._sides
        count = int(self._catalogue.families.max(initial=-1)) + 2
        rows = np.bincount(victims, minlength=count) + np.bincount(partners[partners != victims], minlength=count)
        unmet: Floats = np.maximum(0.0, 1.0 - rows / (2 * WELL_MET))
        return unmet

    def _without_family(self) -> float:
        blocks: list[Indices] = [
            np.flatnonzero((self._sides[0] == family) | (self._sides[1] == family))
            for family in np.unique(np.concatenate(self._sides))
        ]
        # A family that takes part in everything cannot be left out.
        told = [self._posterior.without(block, self._whitened) for block in blocks if len(block) < len(self._whitened)]
        return self._quantile(np.concatenate(told)) if told else CAUTIOUS

    def _quantile(self, off: Floats) -> float:
        return float(np.quantile(off, min(1.0, COVERED * (1 + 1 / len(off)))))
