# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics over seeds: means, 95 % confidence intervals, and curves of several runs resampled onto one axis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotenant.sim.results import Results, RunResult

Array = NDArray[np.float64]

_T_975 = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)
_Z_975 = 1.959963985


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % confidence interval; one seed has no interval."""

    mean: float
    half: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean curve and, for two seeds or more, half the width of its interval at each point."""

    x: Array
    mean: Array
    half: Array | None


def by_policy(results: Results) -> dict[str, list[RunResult]]:
    """The runs of each policy, in the order in which the policies were given."""
    grouped: dict[str, list[RunResult]] = {}
    for run in results.runs:
        grouped.setdefault(run.policy, []).append(run)
    return grouped


def student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    # Cornish-Fisher in 1/n: t = z + (z^3 + z)/4n + (5z^5 + 16z^3 + 3z)/96n^2 + (3z^7 + 19z^5 + 17z^3 - 15z)/384n^3
    z, n = _Z_975, degrees
    first = (z**3 + z) / (4 * n)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + first + second + third


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and interval of one quantity; None if no run has it."""
    if not values:
        return None
    mean, half = _over_seeds(np.array([[value] for value in values], dtype=np.float64))
    return Estimate(float(mean[0]), None if half is None else float(half[0]))


def quantile_curve(runs: Iterable[RunResult], name: str) -> Curve | None:
    """Percentiles (x: 0 to 100) averaged over seeds."""
    samples = [run.quantiles[name] for run in runs if run.quantiles.get(name)]
    if not samples:
        return None
    mean, half = _over_seeds(np.array(samples, dtype=np.float64))
    return Curve(np.linspace(0.0, 100.0, len(mean)), mean, half)


def level_curve(runs: Iterable[RunResult], x: str, y: str, points: int = 261) -> Curve | None:
    """A quantity against one that never decreases, interpolated on the range that all runs cover."""
    pairs = _pairs(runs, x, y)
    if not pairs:
        return None
    grid = np.linspace(max(xs[0] for xs, _ in pairs), min(xs[-1] for xs, _ in pairs), points)
    mean, half = _over_seeds(np.array([np.interp(grid, xs, ys) for xs, ys in pairs]))
    return Curve(grid, mean, half)


def time_curve(runs: Iterable[RunResult], x: str, y: str, end: float, bins: int = 240) -> Curve | None:
    """A quantity that keeps its value until the next change, averaged over equal spans of time up to `end`.

    Averaging preserves the area below the curve; sampling at points would show or miss bursts by chance.
    """
    pairs = _pairs(runs, x, y)
    if not pairs or end <= 0:
        return None
    edges = np.linspace(0.0, end, bins + 1)
    mean, half = _over_seeds(np.array([_span_means(xs, ys, edges) for xs, ys in pairs]))
    centres = (edges[:-1] + edges[1:]) / 2
    last = max(float(xs[-1]) for xs, _ in pairs)
    shown = max(2, int(np.searchsorted(centres, last, side="right")))
    return Curve(centres[:shown], mean[:shown], None if half is None else half[:shown])


def longest(runs: Iterable[RunResult], x: str) -> float:
    """The end of the longest run; 0 if there is none."""
    return max((run.series[x][-1] for run in runs if run.series.get(x)), default=0.0)


def _over_seeds(samples: Array) -> tuple[Array, Array | None]:
    count = len(samples)
    mean = samples.mean(axis=0)
    if count < 2:
        return mean, None
    return mean, student_t(count - 1) * samples.std(axis=0, ddof=1) / np.sqrt(count)


def _pairs(runs: Iterable[RunResult], x: str, y: str) -> list[tuple[Array, Array]]:
    return [
        (np.array(run.series[x]), np.array(run.series[y])) for run in runs if run.series.get(x) and run.series.get(y)
    ]


def _span_means(times: Array, values: Array, edges: Array) -> Array:
    # area(t) is the integral up to t. Between changes it is linear, so interpolation is exact.
    # Before the first change the cluster is empty (0); after the last change its value stays.
    stop = max(float(edges[-1]), float(times[-1]))
    knots = np.concatenate(([0.0], times, [stop]))
    held = np.concatenate(([0.0], values))
    area = np.concatenate(([0.0], np.cumsum(held * np.diff(knots))))
    means: Array = np.diff(np.interp(edges, knots, area)) / np.diff(edges)
    return means
