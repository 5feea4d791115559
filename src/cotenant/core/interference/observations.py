# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements, one row per victim and partner: repetitions are averaged, and of too many the oldest is forgotten.

Values are square roots of speeds: differences matter most if jobs are slow, and a root is nearer to a Gaussian.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Mask, Pairs, Shares
from cotenant.core.interference.learned import NOISE, Values
from cotenant.core.interference.left_out import Counts
from cotenant.core.interference.posterior import JITTER, Posterior

SLOWEST, FASTEST = 0.05, 1.5
"""slower speeds are raised to this, faster ones are rejected: sharing does not make a job that much faster"""
MOST_ROWS = 4096
"""if there are more, the oldest is forgotten"""
MOST_ACTIVE = 256
"""rows of the Gaussian process after a fit; the pairs that the others predict best are left to the fit"""
SPARE_ROWS = 128
"""rows that it takes beyond these until the next fit"""
MOST_COUNTED = 8
"""a new measurement has at least the weight of one in so many, so that an average follows a change"""
REPEATED = 4
"""measurements from which on an average has less noise, that of an average of so many"""
MOST_DEVIATION = 6.0
"""a repetition is clipped to so many standard deviations of one measurement"""
LEAST_CHANGE = 1e-3
"""change of an average, as a root, after which predictions are computed anew"""

PRIOR_MEAN = 0.76
"""of the root of a speed: Gavel's pairs have 0.79 on V100, 0.77 on P100 and 0.73 on K80"""
PRIOR_SPREAD = 0.12
"""its standard deviation: 0.16, 0.09 and 0.08"""
PRIOR_ROWS = 4
"""weight of these two, in measurements"""


class Row(NamedTuple):
    """One measured direction."""

    victim: int
    partner: int
    root: float
    """of its speed, averaged"""
    times: int
    """number of measurements, counted up to `MOST_COUNTED`"""


class Standardised(NamedTuple):
    """The active roots in the form that the Gaussian process needs."""

    mean: float
    spread: float
    """standard deviation"""
    whitened: Floats
    """in standard deviations from what was expected, made independent of each other"""


class Observations:
    """All rows, and the Gaussian process over the active ones."""

    def __init__(self, catalogue: Catalogue, shares: Shares) -> None:
        self._catalogue, self._shares = catalogue, shares
        self.posterior = Posterior(catalogue, shares, MOST_ACTIVE + SPARE_ROWS)
        self.changed = True
        """whether measurements since `use` make predictions outdated"""
        self._rows: dict[tuple[int, int], Row] = {}
        self._place: dict[tuple[int, int], int] = {}
        """the active rows, by their place in the posterior"""
        self.counts = Counts.none()
        self._before: dict[tuple[int, int], float] = {}
        """averages at the last `use`, of the rows that were measured again since"""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, direction: tuple[int, int]) -> bool:
        return direction in self._rows

    @property
    def roots(self) -> Floats:
        """Of the active rows."""
        return np.array([self._rows[direction].root for direction in self._place])

    @property
    def values(self) -> Values:
        """Of all rows."""
        victims, partners = np.array(list(self._rows), np.int64).reshape(-1, 2).T
        return Values(Pairs(victims, partners), np.array([row.root for row in self._rows.values()]))

    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        return list(self._rows.values())

    def measured(self, pairs: Pairs) -> Mask:
        """Which of some pairs were measured themselves."""
        victims, partners = pairs.victims.tolist(), pairs.partners.tolist()
        return np.array([direction in self._rows for direction in zip(victims, partners, strict=True)], np.bool_)

    def opposites(self) -> Indices:
        """For each active row the row of the opposite direction, or itself if that is not active."""
        return np.array([self._place.get((p, v), row) for (v, p), row in self._place.items()], np.int64)

    def standardise(self, expected: Floats | None = None) -> Standardised:
        """The values from which predictions are computed; `expected` is a table of roots."""
        roots = self.roots
        mean, spread = _scale(roots)
        away = roots - (mean if expected is None else expected[self.posterior.pairs])
        return Standardised(mean, spread, self.posterior.whitening @ (away / spread))

    def use(self) -> None:
        """Notes that predictions are computed from the present values: `changed` is unset until they differ."""
        self._before.clear()
        self.changed = False

    def add(self, speeds: dict[tuple[int, int], float]) -> None:
        """Adds one measurement of one or both directions of a pair."""
        new = [Row(*direction, math.sqrt(speed), 1) for direction, speed in speeds.items() if direction not in self]
        for direction, speed in speeds.items():
            if direction in self and self._repeat(direction, math.sqrt(speed)) and direction in self._place:
                self._deactivate(direction)
                self._activate([self._rows[direction]])
        while len(self) + len(new) > MOST_ROWS:
            self._forget(next(iter(self._rows)))
        self.extend(new)

    def extend(self, rows: Sequence[Row]) -> None:
        """Adds rows that are new."""
        if not rows:
            return
        self._rows |= {(row.victim, row.partner): row for row in rows}
        self.counts.add(_pairs_of(rows), self._catalogue.families)
        self.changed = True
        if self.posterior.rows + len(rows) > MOST_ACTIVE + SPARE_ROWS:
            self.trim()
        self._activate(rows[-MOST_ACTIVE:])

    def trim(self) -> None:
        """Removes the rows beyond `MOST_ACTIVE` from the posterior: those that the others predict best."""
        if self.posterior.rows <= MOST_ACTIVE:
            return
        precision = self.posterior.precision()
        pairs = np.maximum(precision, precision[self.opposites()])
        kept = np.sort(np.argsort(pairs, kind="stable")[:MOST_ACTIVE])
        active = list(self._place)
        self.posterior = Posterior(self._catalogue, self._shares, MOST_ACTIVE + SPARE_ROWS)
        self._place = {}
        self._activate([self._rows[active[place]] for place in kept])

    def _activate(self, rows: Sequence[Row]) -> None:
        start = self.posterior.rows
        self.posterior.append(_pairs_of(rows), np.array([_noise(row.times) for row in rows]))
        self._place |= {(row.victim, row.partner): start + index for index, row in enumerate(rows)}

    def _deactivate(self, direction: tuple[int, int]) -> None:
        self.posterior.drop(self._place.pop(direction))
        self._place = {one: place for place, one in enumerate(self._place)}
        self.changed = True

    def _forget(self, direction: tuple[int, int]) -> None:
        self.counts.add(_pairs_of([self._rows.pop(direction)]), self._catalogue.families, -1.0)
        if direction in self._place:
            self._deactivate(direction)

    def _repeat(self, direction: tuple[int, int], root: float) -> bool:
        """Averages a repetition; returns whether the row now has less noise."""
        row = self._rows[direction]
        if row.times > 1:
            most = MOST_DEVIATION * math.sqrt(NOISE + JITTER) * _scale(self.roots)[1]
            root = min(max(root, row.root - most), row.root + most)
        times = min(row.times + 1, MOST_COUNTED)
        average = row.root + (root - row.root) / times
        self._rows[direction] = row._replace(root=average, times=times)
        self.changed |= abs(average - self._before.setdefault(direction, row.root)) > LEAST_CHANGE
        return _noise(times) < _noise(row.times)


def _pairs_of(rows: Sequence[Row]) -> Pairs:
    return Pairs(np.array([row.victim for row in rows]), np.array([row.partner for row in rows]))


def _scale(roots: Floats) -> tuple[float, float]:
    weight = PRIOR_ROWS + len(roots)
    mean = float(PRIOR_ROWS * PRIOR_MEAN + roots.sum()) / weight
    squares = float(((roots - mean) ** 2).sum())
    return mean, math.sqrt((PRIOR_ROWS * PRIOR_SPREAD**2 + squares) / weight)


def _noise(times: int) -> float:
    """The noise of an average. It falls only once, because a row whose noise changes is removed and added again."""
    return NOISE / REPEATED if times >= REPEATED else NOISE
