# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The value of free room on a GPU, from the cutting-stock problem.

Filling GPUs with shares is cutting stock: GPUs are rolls of 1000, shares are the pieces. The dual prices of its linear
relaxation say how much of a GPU each size of share is worth when everything is packed as well as possible; the value of
a remainder is the best price of what still fits into it. A remainder that no share fits into is worth nothing.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

STEP = 10
"""resolution in milli-GPU"""
WHOLE = 1000 // STEP

_MOST_PIVOTS = 2000
_TOLERANCE = 1e-9


def remainder_values(wanted: Mapping[int, int]) -> tuple[float, ...]:
    """`values[r // STEP]`: what r milli-GPU of free room are worth, as a share of a whole GPU.

    `wanted` counts GPUs by the size of share asked on them (1000: a whole one).
    """
    steps: dict[int, int] = {}
    for size, count in wanted.items():
        if 0 < size <= 1000:
            steps[-(-size // STEP)] = steps.get(-(-size // STEP), 0) + count
    return _values(tuple(sorted(steps.items())))


@lru_cache(maxsize=256)
def _values(wanted: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
    if not wanted:
        return tuple(r / WHOLE for r in range(WHOLE + 1))
    sizes = [size for size, _ in wanted]
    best, _ = _best_fill(sizes, _dual_prices(sizes, [count for _, count in wanted]))
    return (*[min(1.0, value) for value in best[:WHOLE]], 1.0)


def _dual_prices(sizes: list[int], counts: list[int]) -> list[float]:
    """Gilmore and Gomory's column generation: price, find the most valuable pattern, pivot it in, until none pays."""
    copies = [WHOLE // size for size in sizes]
    basis = np.diag(np.array(copies, dtype=np.float64))
    amounts = np.array(counts, dtype=np.float64) / copies
    prices = [1.0 / each for each in copies]
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
        prices = np.linalg.solve(basis.T, np.ones(len(sizes))).tolist()
    return prices


def _best_fill(sizes: list[int], prices: list[float]) -> tuple[list[float], list[int]]:
    """The best total price for every length up to a whole GPU, and the pattern that reaches it for a whole one."""
    best = [0.0] * (WHOLE + 1)
    choice: list[int | None] = [None] * (WHOLE + 1)
    paying = [(size, price, item) for item, (size, price) in enumerate(zip(sizes, prices, strict=True)) if price > 0]
    for length in range(1, WHOLE + 1):
        most = best[length - 1]
        for size, price, item in paying:
            if size > length:
                break
            total = best[length - size] + price
            if total > most + _TOLERANCE:
                most, choice[length] = total, item
        best[length] = most
    pattern = [0] * len(sizes)
    length = WHOLE
    while length > 0:
        item_here = choice[length]
        if item_here is None:
            length -= 1
        else:
            pattern[item_here] += 1
            length -= sizes[item_here]
    return best, pattern
