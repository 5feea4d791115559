# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements, one row per victim and partner: repetitions are averaged, and if there is no room, a row is removed.

Values are square roots of speeds: differences matter most if jobs are slow, and a root is nearer to a Gaussian.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs, Shares
from cotenant.core.interference.posterior import JITTER, Posterior

SLOWEST, FASTEST = 0.05, 1.2
"""speeds are clipped to this range"""
MOST_ROWS = 600
"""if there are more, the pair that the others predict best is removed"""
NOISE = 0.003
"""variance of one measurement in units of the overall variance: about 2 % of a speed"""
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
    """All roots in the form that the Gaussian process needs."""

    mean: float
    spread: float
    """standard deviation"""
    whitened: Floats
    """in standard deviations from the mean, made independent of each other"""


class Observations:
    """All rows, and the Gaussian process over them."""

    def __init__(self, catalogue: Catalogue, shares: Shares) -> None:
        self.posterior = Posterior(catalogue, shares, MOST_ROWS)
        self.changed = True
        """whether measurements since `standardise` make predictions outdated"""
        self._place: dict[tuple[int, int], int] = {}
        self._roots, self._times = np.zeros(MOST_ROWS), np.zeros(MOST_ROWS, np.int64)
        self._used = np.zeros(MOST_ROWS)

    def __len__(self) -> int:
        return self.posterior.rows

    def __contains__(self, direction: tuple[int, int]) -> bool:
        return direction in self._place

    @property
    def roots(self) -> Floats:
        return self._roots[: len(self)]

    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        victims, partners = self.posterior.pairs
        columns = (victims.tolist(), partners.tolist(), self.roots.tolist(), self._times[: len(self)].tolist())
        return [Row(*row) for row in zip(*columns, strict=True)]

    def opposites(self) -> Indices:
        """For each row the row of the opposite direction, or itself if that was not measured."""
        return np.array([self._place.get((p, v), row) for (v, p), row in self._place.items()], np.int64)

    def standardise(self) -> Standardised:
        """The values from which predictions are computed until `changed` is set."""
        self._used[:] = self._roots
        self.changed = False
        mean, spread = self._scale()
        return Standardised(mean, spread, self.posterior.whitening @ ((self.roots - mean) / spread))

    def _scale(self) -> tuple[float, float]:
        weight = PRIOR_ROWS + len(self)
        mean = float(PRIOR_ROWS * PRIOR_MEAN + self.roots.sum()) / weight
        squares = float(((self.roots - mean) ** 2).sum())
        return mean, math.sqrt((PRIOR_ROWS * PRIOR_SPREAD**2 + squares) / weight)

    def add(self, speeds: dict[tuple[int, int], float]) -> None:
        """Adds one measurement of one or both directions of a pair."""
        new = [Row(*direction, math.sqrt(speed), 1) for direction, speed in speeds.items() if direction not in self]
        renewed = []
        for direction, speed in speeds.items():
            if direction in self and self._repeat(self._place[direction], math.sqrt(speed)):
                renewed.append(direction)
        again = [self._remove(direction) for direction in renewed]
        while len(self) + len(new) + len(again) > MOST_ROWS:
            self._make_room()
        self.extend(new + again)

    def extend(self, rows: Sequence[Row]) -> None:
        """Adds rows that are new and for which there is room."""
        if not rows:
            return
        start, end = len(self), len(self) + len(rows)
        pairs = Pairs(np.array([row.victim for row in rows]), np.array([row.partner for row in rows]))
        self.posterior.append(pairs, np.array([_noise(row.times) for row in rows]))
        self._roots[start:end] = [row.root for row in rows]
        self._times[start:end] = [row.times for row in rows]
        self._place |= {(row.victim, row.partner): start + index for index, row in enumerate(rows)}
        self.changed = True

    def _repeat(self, row: int, root: float) -> bool:
        """Averages a repetition; returns whether the row now has less noise."""
        count, old = int(self._times[row]), float(self._roots[row])
        if count > 1:
            most = MOST_DEVIATION * math.sqrt(NOISE + JITTER) * self._scale()[1]
            root = min(max(root, old - most), old + most)
        count = min(count + 1, MOST_COUNTED)
        self._roots[row] += (root - old) / count
        self.changed |= abs(self._roots[row] - self._used[row]) > LEAST_CHANGE
        less_noise = _noise(count) < _noise(int(self._times[row]))
        self._times[row] = count
        return less_noise

    def _make_room(self) -> None:
        """Removes both directions of the pair that the other rows predict best."""
        victims, partners = self.posterior.pairs
        row = int(np.argmax(self.posterior.precision()))
        victim, partner = int(victims[row]), int(partners[row])
        for direction in {(victim, partner), (partner, victim)}:
            if direction in self:
                self._remove(direction)

    def _remove(self, direction: tuple[int, int]) -> Row:
        row = self._place[direction]
        removed = Row(*direction, float(self._roots[row]), int(self._times[row]))
        last = len(self) - 1
        self.posterior.drop(row)
        for kept in (self._roots, self._times, self._used):
            kept[row:last] = kept[row + 1 : last + 1]
        victims, partners = self.posterior.pairs
        self._place = {both: place for place, both in enumerate(zip(victims.tolist(), partners.tolist(), strict=True))}
        self.changed = True
        return removed


def _noise(times: int) -> float:
    """The noise of an average. It falls only once, because a row whose noise changes is removed and added again."""
    return NOISE / REPEATED if times >= REPEATED else NOISE
