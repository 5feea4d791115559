# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which batch sizes to try next, for all tenants of a GPU at once, and which to keep.

A tenant's batch size slows its neighbours, so sizes are chosen jointly: the goal is the least sum of slowdowns, each a
goodput lost against a reference. The model of all speeds is one Gaussian; each measurement conditions it, and
the next point to try is the one with the largest expected improvement. The choice is always a point that was measured.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cotenant.core.interference.kernel import Floats
from cotenant.core.tuning.candidates import Point, Tenant
from cotenant.core.tuning.goodput import efficiency
from cotenant.core.tuning.model import MEASURED_VARIANCE, prior


class Tuner:
    """Call `suggest` for a point, `observe` with its speeds, and in the end `choose`."""

    def __init__(
        self, tenants: Sequence[Tenant], points: Sequence[Point], *, against_default: bool = True, seed: int = 0
    ) -> None:
        """Speeds are relative to each tenant's at the first point (its default), or to its speed alone there."""
        self.tenants = tuple(tenants)
        self.points = tuple(points)
        self._place = {point: index for index, point in enumerate(self.points)}
        chance = np.random.default_rng(seed)
        self._belief = prior(self.tenants, self.points, against_default=against_default, chance=chance)
        self.value([tenant.noise for tenant in self.tenants])
        self._floors = np.array([tenant.floor for tenant in self.tenants])
        self._measured: dict[int, list[Floats]] = {0: [np.zeros(len(self.tenants))]} if against_default else {}

    def value(self, noise: Sequence[float | None]) -> None:
        """Sets the efficiency of samples at each point, by each tenant's present gradient noise scale."""
        self._worth = np.array(
            [
                [efficiency(point[i], tenant.default, noise[i]) for point in self.points]
                for i, tenant in enumerate(self.tenants)
            ]
        )

    @property
    def default(self) -> Point:
        return self.points[0]

    def times_measured(self, point: Point) -> int:
        return len(self._measured.get(self._place[point], ()))

    def measured_speeds(self, point: Point) -> tuple[float, ...]:
        """Each tenant's speed at a measured point, relative to the reference."""
        return tuple(math.exp(log) for log in np.mean(self._measured[self._place[point]], axis=0))

    def observe(self, point: Point, speeds: Sequence[float], deviations: Sequence[float] | None = None) -> None:
        """Each tenant's samples per second at a point, against the reference, and the deviation of its logarithm."""
        index = self._place[point]
        logs = np.log(np.array(speeds, dtype=np.float64))
        spread = np.zeros(len(logs)) if deviations is None else np.array(deviations, dtype=np.float64)
        self._measured.setdefault(index, []).append(logs)
        rows = [tenant * len(self.points) + index for tenant in range(len(self.tenants))]
        self._belief.condition(rows, logs, np.maximum(spread**2, MEASURED_VARIANCE))

    def suggest(self, least: float = 0.0) -> Point | None:
        """The unmeasured point with the largest expected improvement; None when all have been measured, or when none is
        expected to improve on the best by this share."""
        rest = [index for index in range(len(self.points)) if index not in self._measured]
        if not rest:
            return None
        drawn = self._belief.draws.reshape(-1, len(self.tenants), len(self.points))
        believed = self._mean_costs()
        best = min((float(believed[index]) for index in self._keepable()), default=math.inf)
        gains = np.maximum(best - self._cost(drawn), 0.0)
        if self._floors.any():
            gains *= self._allowed(drawn)
        expected = gains.mean(axis=0)
        suggestion = min(rest, key=lambda index: (-expected[index], believed[index]))
        return self.points[suggestion] if expected[suggestion] >= least * best or math.isinf(best) else None

    def choose(self, margin: float = 0.03) -> Point:
        """The best measured point, if it beats the default as measured and, by a margin, as predicted."""
        believed = self._mean_costs()
        best = min(self._keepable(), key=lambda index: float(believed[index]), default=0)
        better = self._measured_cost(best) <= self._measured_cost(0) and believed[best] <= (1 - margin) * believed[0]
        return self.points[best] if better else self.default

    def cost(self, point: Point) -> float:
        """The predicted sum of slowdowns at a point."""
        return float(self._mean_costs()[self._place[point]])

    def speeds(self, point: Point) -> tuple[float, ...]:
        """The predicted speed of each tenant at a point, relative to the reference."""
        logs = self._belief.mean.reshape(len(self.tenants), -1)[:, self._place[point]]
        return tuple(math.exp(log) for log in logs)

    def _keepable(self) -> list[int]:
        """Measured points at which no tenant is below its floor, neither as measured nor as predicted."""
        believed = self._allowed(self._belief.mean.reshape(1, len(self.tenants), -1))[0]
        return [
            index
            for index, logs in self._measured.items()
            if index == 0 or (believed[index] and self._above_floors(np.mean(logs, axis=0), self._worth[:, index]))
        ]

    def _above_floors(self, logs: Floats, worth: Floats) -> bool:
        return bool(np.all(np.exp(logs) * np.minimum(worth, 1.0) >= self._floors))

    def _allowed(self, logs: Floats) -> npt.NDArray[np.bool_]:
        slower = np.exp(logs) * np.minimum(self._worth, 1.0)
        allowed: npt.NDArray[np.bool_] = (slower >= self._floors[:, None]).all(axis=1)
        return allowed

    def _cost(self, logs: Floats) -> Floats:
        cost: Floats = (np.exp(-logs) / self._worth).sum(axis=1)
        return cost

    def _mean_costs(self) -> Floats:
        costs: Floats = self._cost(self._belief.mean.reshape(1, len(self.tenants), -1))[0]
        return costs

    def _measured_cost(self, index: int) -> float:
        logs = np.mean(self._measured[index], axis=0)
        return float((np.exp(-logs) / self._worth[:, index]).sum())
