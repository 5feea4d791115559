# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What was measured, one row per victim and partner: repeated measurements are averaged and old news makes room.

Values are square roots of speeds: differences matter most where jobs are slow, and a root is nearer to a Gaussian.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs, Shares
from cotenant.core.interference.posterior import JITTER, Posterior

SLOWEST, FASTEST = 0.05, 1.2
"""a speed beyond is taken for this"""
MOST_ROWS = 600
"""kept at most; then the pair that others tell best makes room"""
NOISE = 0.003
"""variance of one measurement in units of the overall variance: about 2 % of a speed"""
MOST_COUNTED = 8
"""a measurement never weighs less than one of so many, so that an average follows a change"""
OFTEN = 4
"""measurements from which on an average counts for as many"""
OUTLYING = 6.0
"""standard deviations of one measurement by which a repetition may stray"""
MOVED = 1e-3
"""change of an average, as a root, that is worth a recalculation"""

PRIOR_MEAN = 0.76
"""of the root of a speed: Gavel's pairs have 0.79 on V100, 0.77 on P100 and 0.73 on K80"""
PRIOR_SPREAD = 0.12
"""its standard deviation: 0.16, 0.09 and 0.08"""
PRIOR_ROWS = 4
"""measurements that these two weigh as much as"""


class Row(NamedTuple):
    """One measured direction."""

    victim: int
    partner: int
    root: float
    """of its speed, averaged"""
    times: int
    """measured so often, counted up to `MOST_COUNTED`"""


class Settled(NamedTuple):
    """All roots as the Gaussian process takes them."""

    mean: float
    spread: float
    """standard deviation"""
    whitened: Floats
    """in standard deviations from the mean, made independent of each other"""


class Observations:
    """All rows, and the Gaussian process over them."""

    def __init__(self, catalogue: Catalogue, shares: Shares) -> None:
        self.posterior = Posterior(catalogue, shares, MOST_ROWS)
        self.moved = True
        """whether anything worth a recalculation happened since `settle`"""
        self._place: dict[tuple[int, int], int] = {}
        self._roots, self._times = np.zeros(MOST_ROWS), np.zeros(MOST_ROWS, np.int64)
        self._settled = np.zeros(MOST_ROWS)

    def __len__(self) -> int:
        return self.posterior.rows

    def __contains__(self, direction: tuple[int, int]) -> bool:
        return direction in self._place

    @property
    def roots(self) -> Floats:
        return self._roots[: len(self)]

    def rows(self) -> list[Row]:
        """All of them, oldest first."""
        victims, partners = self.posterior.pairs
        columns = (victims.tolist(), partners.tolist(), self.roots.tolist(), self._times[: len(self)].tolist())
        return [Row(*row) for row in zip(*columns, strict=True)]

    def mates(self) -> Indices:
        """For each row the row of the other direction, or itself."""
        return np.array([self._place.get((p, v), row) for (v, p), row in self._place.items()], np.int64)

    def settle(self) -> Settled:
        """The values that predictions are made from until something worth a recalculation happens."""
        self._settled[:] = self._roots
        self.moved = False
        mean, spread = self._scale()
        return Settled(mean, spread, self.posterior.whitening @ ((self.roots - mean) / spread))

    def _scale(self) -> tuple[float, float]:
        weight = PRIOR_ROWS + len(self)
        mean = float(PRIOR_ROWS * PRIOR_MEAN + self.roots.sum()) / weight
        squares = float(((self.roots - mean) ** 2).sum())
        return mean, math.sqrt((PRIOR_ROWS * PRIOR_SPREAD**2 + squares) / weight)

    def add(self, speeds: dict[tuple[int, int], float]) -> None:
        """One measurement of each of one or two directions of a pair."""
        new = [Row(*direction, math.sqrt(speed), 1) for direction, speed in speeds.items() if direction not in self]
        renewed = []
        for direction, speed in speeds.items():
            if direction in self and self._repeat(self._place[direction], math.sqrt(speed)):
                renewed.append(direction)
        again = [self._take_out(direction) for direction in renewed]
        while len(self) + len(new) + len(again) > MOST_ROWS:
            self._make_room()
        self.extend(new + again)

    def extend(self, rows: Sequence[Row]) -> None:
        """Rows that are not there yet, and for which there is room."""
        if not rows:
            return
        start, end = len(self), len(self) + len(rows)
        pairs = Pairs(np.array([row.victim for row in rows]), np.array([row.partner for row in rows]))
        self.posterior.append(pairs, np.array([_noise(row.times) for row in rows]))
        self._roots[start:end] = [row.root for row in rows]
        self._times[start:end] = [row.times for row in rows]
        self._place |= {(row.victim, row.partner): start + index for index, row in enumerate(rows)}
        self.moved = True

    def _repeat(self, row: int, root: float) -> bool:
        """Averages a repetition; whether it counts for less noise now."""
        count, old = int(self._times[row]), float(self._roots[row])
        if count > 1:
            stray = OUTLYING * math.sqrt(NOISE + JITTER) * self._scale()[1]
            root = min(max(root, old - stray), old + stray)
        count = min(count + 1, MOST_COUNTED)
        self._roots[row] += (root - old) / count
        self.moved |= abs(self._roots[row] - self._settled[row]) > MOVED
        less_noise = _noise(count) < _noise(int(self._times[row]))
        self._times[row] = count
        return less_noise

    def _make_room(self) -> None:
        victims, partners = self.posterior.pairs
        row = int(np.argmax(self.posterior.precision()))
        victim, partner = int(victims[row]), int(partners[row])
        for direction in {(victim, partner), (partner, victim)}:
            if direction in self:
                self._take_out(direction)

    def _take_out(self, direction: tuple[int, int]) -> Row:
        row = self._place[direction]
        taken = Row(*direction, float(self._roots[row]), int(self._times[row]))
        last = len(self) - 1
        self.posterior.drop(row)
        for kept in (self._roots, self._times, self._settled):
            kept[row:last] = kept[row + 1 : last + 1]
        victims, partners = self.posterior.pairs
        self._place = {both: place for place, both in enumerate(zip(victims.tolist(), partners.tolist(), strict=True))}
        self.moved = True
        return taken


def _noise(times: int) -> float:
    """Of an average; it falls once and not with every measurement, since less noise means a new row."""
    return NOISE / OFTEN if times >= OFTEN else NOISE
