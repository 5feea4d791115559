# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The model of the speeds of all tenants at all points: one Gaussian, which each measurement conditions.

The logarithm of a tenant's speed is its own curve over the batch size plus one effect of each partner, so that three or
more tenants are composed of pairs. Relative to the speed alone at the default size:

    log speed(i at x) = curve_i(x_i) + sum over j of effect(i, x_i beside j, x_j)
"""

import math
from collections.abc import Sequence

import numpy as np

from cotenant.core.interference.kernel import Floats, JobType, Pairs, covariance, likeness
from cotenant.core.tuning.candidates import Point, Tenant

# The prior, fitted to Gavel's pairs, in logarithms of speed.
SLOWDOWN = -0.57
"""mean effect of one partner"""
CROWDING = 0.08
"""the effect on the partner grows with this power of the batch size, and the effect on the job itself falls with it"""
SPREAD = 0.47
"""standard deviation of the effect of one partner"""
GROWTH = 0.3
"""speed alone grows with this power of the batch size"""
GROWTH_SPREAD = 0.2
"""standard deviation of that power"""
BEND_SPREAD = 0.1
"""standard deviation of the curve from a power law, for each factor of e in the batch size"""
MEASURED_VARIANCE = 1e-6
"""the least variance of a measurement, which keeps matrices regular"""

SAMPLES = 384
"""joint draws that represent the distribution"""


class SpeedModel:
    """Mean and joint draws of some speeds (logarithms), given the measurements so far."""

    def __init__(self, mean: Floats, parts: Floats, spread: Floats, chance: np.random.Generator) -> None:
        """Speed s is its mean plus the parts that row s of `parts` names; `spread` is the covariance of all parts."""
        self._prior_mean, self._parts, self._spread, self._chance = mean, parts, spread, chance
        factor = np.linalg.cholesky(spread) if len(spread) else spread
        self._prior_draws = mean + chance.standard_normal((SAMPLES, len(spread))) @ (parts @ factor).T
        self._rows: list[int] = []
        self._values = np.zeros(0)
        self._variances = np.zeros(0)
        self._errors = np.zeros((SAMPLES, 0))
        self.mean, self.draws = mean, self._prior_draws

    def condition(self, rows: Sequence[int], values: Floats, variances: Floats) -> None:
        """Conditions the model on measured speeds."""
        self._rows += rows
        self._values = np.append(self._values, values)
        self._variances = np.append(self._variances, variances)
        errors = self._chance.standard_normal((SAMPLES, len(rows))) * np.sqrt(variances)
        self._errors = np.hstack([self._errors, errors])
        # Each prior draw is corrected by what the measurements say it misses (Matheron's rule), which costs one small
        # system of equations, however many points there are.
        seen = self._parts[self._rows]
        shared = seen @ self._spread @ self._parts.T
        gain = np.linalg.solve(shared[:, self._rows] + np.diag(self._variances), shared)
        self.mean = self._prior_mean + (self._values - self._prior_mean[self._rows]) @ gain
        self.draws = self._prior_draws + (self._values - self._prior_draws[:, self._rows] - self._errors) @ gain


def prior(
    tenants: Sequence[Tenant], points: Sequence[Point], *, against_default: bool, chance: np.random.Generator
) -> SpeedModel:
    """The prior of the speed of every tenant at every point, tenant by tenant."""
    rows, pairs = _effects(tenants, points)
    bends = [(i, size) for i, tenant in enumerate(tenants) if tenant.alone is None for size in _other_sizes(tenant)]
    bend_place = {bend: len(pairs) + index for index, bend in enumerate(bends)}
    parts = np.zeros((len(tenants) * len(points), len(pairs) + len(bends)))
    mean = np.zeros(len(parts))
    for row, effects in enumerate(rows):
        tenant, point = divmod(row, len(points))
        size = points[point][tenant]
        for effect in effects:  # not all at once: two partners of one type have the same effect twice
            parts[row, effect] += 1.0
        if (tenant, size) in bend_place:
            parts[row, bend_place[tenant, size]] = 1.0
        mean[row] = SLOWDOWN * len(effects) + _crowding(tenants, points[point], tenant) + _curve(tenants[tenant], size)
    spread = np.zeros((parts.shape[1], parts.shape[1]))
    spread[: len(pairs), : len(pairs)] = _pair_spread(pairs)
    spread[len(pairs) :, len(pairs) :] = _bend_spread(tenants, bends)
    if against_default:
        start = np.repeat(np.arange(len(tenants)) * len(points), len(points))
        mean, parts = mean - mean[start], parts - parts[start]
    return SpeedModel(mean, parts, spread, chance)


def _effects(
    tenants: Sequence[Tenant], points: Sequence[Point]
) -> tuple[list[list[int]], list[tuple[JobType, JobType]]]:
    """For each tenant at each point the effects of its partners, as places in the list of all (victim, partner)."""
    pairs: dict[tuple[JobType, JobType], int] = {}
    rows = []
    for i in range(len(tenants)):
        for point in points:
            types = [_job_type(tenant, size) for tenant, size in zip(tenants, point, strict=True)]
            partners = [kind for j, kind in enumerate(types) if j != i]
            rows.append([pairs.setdefault((types[i], partner), len(pairs)) for partner in partners])
    return rows, list(pairs)


def _pair_spread(pairs: Sequence[tuple[JobType, JobType]]) -> Floats:
    if not pairs:
        return np.zeros((0, 0))
    place = {kind: index for index, kind in enumerate(dict.fromkeys(kind for pair in pairs for kind in pair))}
    indices = Pairs(
        np.array([place[victim] for victim, _ in pairs]), np.array([place[partner] for _, partner in pairs])
    )
    return SPREAD**2 * covariance(likeness(list(place)), indices, indices)


def _bend_spread(tenants: Sequence[Tenant], bends: Sequence[tuple[int, int]]) -> Floats:
    """The covariance of the curves: an uncertain power, and a random walk away from the default on either side."""
    owner = np.array([i for i, _ in bends])
    away = np.array([math.log(size / tenants[i].default) for i, size in bends])
    together = (owner[:, None] == owner) * 1.0
    same_side = np.sign(away)[:, None] == np.sign(away)
    walk = np.minimum(np.abs(away)[:, None], np.abs(away)) * same_side
    spread: Floats = together * (GROWTH_SPREAD**2 * np.outer(away, away) + BEND_SPREAD**2 * walk)
    return spread


def _other_sizes(tenant: Tenant) -> list[int]:
    return [size for size in tenant.sizes if size != tenant.default]


def _curve(tenant: Tenant, size: int) -> float:
    """Log speed alone, relative to the default size."""
    return math.log(tenant.alone[size]) if tenant.alone else GROWTH * math.log(size / tenant.default)


def _crowding(tenants: Sequence[Tenant], point: Point, victim: int) -> float:
    """The expected change of the effects of all partners if sizes differ from the defaults."""
    larger = [math.log(size / tenant.default) for size, tenant in zip(point, tenants, strict=True)]
    return CROWDING * sum(larger[victim] - partner for i, partner in enumerate(larger) if i != victim)


def _job_type(tenant: Tenant, size: int) -> JobType:
    seconds = tenant.step_seconds * size / tenant.default / math.exp(_curve(tenant, size))
    # In sixteenths of an octave: two equal jobs are then of one type even if their step times were measured.
    return JobType(tenant.family, size, 2.0 ** (round(16 * math.log2(seconds)) / 16))
