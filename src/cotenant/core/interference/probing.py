# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the partners to measure a new job beside, so that few measurements tell most about all others."""

import numpy as np

from cotenant.core.interference.kernel import Indices, Pairs
from cotenant.core.interference.observations import NOISE
from cotenant.core.interference.posterior import JITTER, Posterior

MOST_WEIGHED = 128
"""partners that are weighed against each other; more would tell little more"""
NOTHING_NEW = 1e-3
"""gain, in variances of a pair, below which a measurement is not worth making"""


def most_telling(posterior: Posterior, new: int, partners: Indices, most: int) -> list[int]:
    """Greedily the partner whose measurement takes most of what is uncertain of the new type beside all partners."""
    partners = partners[:MOST_WEIGHED]
    count = len(partners)
    own = np.full(count, new)
    left = posterior.covariance(Pairs(np.append(own, partners), np.append(partners, own)))
    noise = (NOISE + JITTER) * np.eye(2)
    places = np.stack([np.arange(count), count + np.arange(count)], axis=1)
    chosen: list[int] = []
    while len(chosen) < min(most, count):
        # The two directions of each pair, and what they share with everything that is uncertain.
        both = left[places[:, :, None], places[:, None, :]] + noise
        shared = left[places]
        gains = np.einsum("pit,pit->p", shared, np.linalg.solve(both, shared))
        best = int(np.argmax(gains))
        if gains[best] < NOTHING_NEW:
            break
        chosen.append(int(partners[best]))
        left = left - shared[best].T @ np.linalg.solve(both[best], shared[best])
    return chosen
