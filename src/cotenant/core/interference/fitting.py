# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fits the shares of the kernel to measured pairs: how much of the variance each part explains.

The likelihood of the measurements is increased by a majorise-minimise step for variance components: each share is
multiplied by a ratio of two sums, so that it stays positive and the likelihood never falls. There is no step size.

    share <- share * sqrt( sum of z' K^-1 C K^-1 z / sum of trace(K^-1 C) )      over all tables; C: the part's matrix

Tables of several types of GPU are fitted together, each with its own mean and scale, so that the shares hold for all of
them. Shares that the tables cannot determine stay as they are: that of the mean, which is subtracted first, and those
of profiles if no job has one. A table in which all speeds are equal determines nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.catalogue import Catalogue, Signature
from cotenant.core.interference.kernel import SHARES, Floats, Pairs, Shares, covariance
from cotenant.core.interference.learned import NOISE
from cotenant.core.interference.posterior import JITTER

ROUNDS = 30
NAMES = tuple(part.name for part in fields(Shares))
ZERO = Shares(**dict.fromkeys(NAMES, 0.0))
UNDETERMINED = {
    "constant": SHARES.constant,
    "victim_profile": SHARES.victim_profile,
    "partner_profile": SHARES.partner_profile,
}
START = Shares(**dict.fromkeys(NAMES, 0.06) | UNDETERMINED)
"""where the fit starts: equal shares, apart from those that tables may not determine, which have their defaults"""


class Measured(NamedTuple):
    """One direction of a pair."""

    victim: Signature
    partner: Signature
    speed: float
    """relative to the speed alone"""


class _Table(NamedTuple):
    """One type of GPU: standardised values, and the covariance that each part alone would give them."""

    values: Floats
    parts: dict[str, Floats]


def fit_shares(tables: Sequence[Sequence[Measured]], start: Shares = START, rounds: int = ROUNDS) -> Shares:
    """The shares under which the measurements of all tables are most likely, from distinct directions of pairs."""
    prepared = [_prepare(table) for table in tables if len({row.speed for row in table}) > 1]
    shares = asdict(start)
    fitted = [name for name in NAMES if name != "constant" and any(table.parts[name].any() for table in prepared)]
    for _ in range(rounds):
        sums = [_sums(table, shares, fitted) for table in prepared]
        for name in fitted:
            explained, expected = (sum(each[name][side] for each in sums) for side in (0, 1))
            shares[name] *= float(np.sqrt(explained / max(expected, 1e-12)))
    return Shares(**shares)


def _prepare(table: Sequence[Measured]) -> _Table:
    catalogue = Catalogue()
    pairs = Pairs(
        np.array([catalogue.number(row.victim) for row in table]),
        np.array([catalogue.number(row.partner) for row in table]),
    )
    roots = np.sqrt([row.speed for row in table])
    parts = {name: covariance(catalogue.likeness, pairs, pairs, replace(ZERO, **{name: 1.0})) for name in NAMES}
    return _Table((roots - roots.mean()) / roots.std(), parts)


def _sums(table: _Table, shares: dict[str, float], fitted: Sequence[str]) -> dict[str, tuple[float, float]]:
    """For each part: the variance of the values that it explains, and the variance that the model expects of it."""
    count = len(table.values)
    total = (NOISE + JITTER) * np.eye(count)
    for name, part in table.parts.items():
        total += shares[name] * part
    inverse = np.linalg.inv(total)
    pull = inverse @ table.values
    return {
        name: (float(pull @ table.parts[name] @ pull), float(np.vdot(inverse, table.parts[name]))) for name in fitted
    }
