# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps what the rows of a Gaussian process explain of each pair: after a measurement only the new rows are added."""

import numpy as np

from cotenant.core.interference.kernel import Floats, Pairs
from cotenant.core.interference.posterior import Posterior

MOST_KEPT = 6144
"""pairs; of more, all are forgotten"""


class Explained:
    """What a posterior explained of the pairs that were requested, by (victim, partner)."""

    def __init__(self, room: int) -> None:
        self._place = np.full((room, room), -1, np.int64)
        self._pool = np.zeros((0, 0))
        self._filled = np.zeros(0, np.int64)
        """number of rows of the posterior that are taken into account, by place"""
        self._count = 0
        self._dropped = -1

    def of(self, posterior: Posterior, pairs: Pairs) -> Floats:
        """What the rows explain of some distinct pairs."""
        if posterior.dropped != self._dropped or self._count + len(pairs.victims) > MOST_KEPT:
            self._place[:] = -1
            self._count, self._dropped = 0, posterior.dropped
        if len(pairs.victims) > MOST_KEPT:
            return posterior.explained(pairs)
        self._make_room(posterior, self._count + len(pairs.victims))
        places = self._place[pairs]
        new = places < 0
        if new.any():
            places[new] = np.arange(self._count, self._count + int(new.sum()))
            self._count += int(new.sum())
            missing = Pairs(pairs.victims[new], pairs.partners[new])
            self._place[missing] = places[new]
            self._pool[places[new], : posterior.rows] = posterior.explained(missing)
            self._filled[places[new]] = posterior.rows
        for filled in np.unique(self._filled[places]):
            if filled < posterior.rows:
                old = self._filled[places] == filled
                late = Pairs(pairs.victims[old], pairs.partners[old])
                since = posterior.explained_since(late, self._pool[places[old], :filled])
                self._pool[places[old], filled : posterior.rows] = since
                self._filled[places[old]] = posterior.rows
        return self._pool[places, : posterior.rows]

    def _make_room(self, posterior: Posterior, pairs: int) -> None:
        pool = self._pool
        if pairs > len(pool) or posterior.rows > pool.shape[1]:
            size = max(512, len(pool), 1 << (pairs - 1).bit_length())
            grown = np.zeros((size, max(pool.shape[1], 128, 1 << (posterior.rows - 1).bit_length())))
            grown[: len(pool), : pool.shape[1]] = pool
            filled = np.zeros(size, np.int64)
            filled[: len(pool)] = self._filled
            self._pool, self._filled = grown, filled
