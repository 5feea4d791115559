# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a piece of free room is worth, from the cutting-stock problem.

Filling GPUs with shares is cutting stock: GPUs are rolls of 1000, shares are the pieces. The dual prices of its linear
relaxation say how much of a GPU each size of share is worth when everything is packed as well as possible; the value of
a remainder is the best price of what still fits into it. A remainder that no share fits into is worth nothing.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

STEP = 10
"""resolution in milli-GPU"""
WHOLE = 1000 // STEP

_MOST_PIVOTS = 2000
_TOLERANCE = 1e-9


def remainder_values(wanted: Mapping[int, int]) -> tuple[float, ...]:
    """`values[r // STEP]`: what r milli-GPU of free room are worth, as a share of a whole GPU.

    `wanted` counts GPUs by the size of share asked on them (1000: a whole one).
    """
    sizes = np.array(sorted({-(-size // STEP) for size in wanted if 0 < size <= 1000}), dtype=np.int64)
    if len(sizes) == 0:
        return tuple(r / WHOLE for r in range(WHOLE + 1))
    counts = np.zeros(len(sizes))
    for size, count in wanted.items():
        if 0 < size <= 1000:
            counts[np.searchsorted(sizes, -(-size // STEP))] += count
    best, _ = _best_fill(sizes, _dual_prices(sizes, counts))
    values = [min(1.0, float(value)) for value in best]
    values[WHOLE] = 1.0
    return tuple(values)


def _dual_prices(sizes: NDArray[np.int64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gilmore and Gomory's column generation: price, find the most valuable pattern, pivot it in, until none pays."""
    basis: NDArray[np.float64] = np.diag((WHOLE // sizes).astype(np.float64))
    amounts = counts / np.diag(basis)
    prices: NDArray[np.float64] = np.asarray(1.0 / np.diag(basis), dtype=np.float64)
    for _ in range(_MOST_PIVOTS):
        best, pattern = _best_fill(sizes, prices)
        if best[WHOLE] <= 1 + _TOLERANCE:
            break
        direction = np.linalg.solve(basis, pattern)
        blocking = np.flatnonzero(direction > _TOLERANCE)
        ratios = amounts[blocking] / direction[blocking]
        leaving = int(blocking[int(ratios.argmin())])
        step = amounts[leaving] / direction[leaving]
        amounts -= step * direction
        amounts[leaving] = step
        basis[:, leaving] = pattern
        prices = np.asarray(np.linalg.solve(basis.T, np.ones(len(sizes))), dtype=np.float64)
    return prices


def _best_fill(
    sizes: NDArray[np.int64], prices: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The best total price for every length up to a whole GPU, and the pattern that reaches it for a whole one."""
    best = np.zeros(WHOLE + 1)
    choice = np.full(WHOLE + 1, -1)
    for length in range(1, WHOLE + 1):
        best[length] = best[length - 1]
        fits = np.flatnonzero(sizes <= length)
        if len(fits) == 0:
            continue
        totals = best[length - sizes[fits]] + prices[fits]
        top = int(totals.argmax())
        if totals[top] > best[length] + _TOLERANCE:
            best[length] = totals[top]
            choice[length] = fits[top]
    pattern = np.zeros(len(sizes))
    length = WHOLE
    while length > 0:
        if choice[length] < 0:
            length -= 1
            continue
        pattern[choice[length]] += 1
        length -= int(sizes[choice[length]])
    return best, pattern
