# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient noise scale, which says how much a larger batch is worth (McCandlish et al. 2018; used by Pollux).

The gradient G_B of a batch of B samples has E|G_B|^2 = |G|^2 + V / B, where G is the true gradient and V the sum of
the variances of one sample's gradient. Two sizes give two equations, hence both unknowns without bias. Their quotient
V / |G|^2 is the gradient noise scale phi, in samples.
"""

from __future__ import annotations

DECAY = 0.95
"""weight of the earlier estimates, at each new one"""


def estimate(sqr_small: float, sqr_big: float, small: float, big: float) -> tuple[float, float]:
    """|G|^2 and V from the squared norms of the gradients of a small and a big batch; either may come out negative."""
    # |G|^2 = (b |G_b|^2 - s |G_s|^2) / (b - s)     V = (|G_s|^2 - |G_b|^2) / (1/s - 1/b)
    grad_sqr = (big * sqr_big - small * sqr_small) / (big - small)
    grad_var = (sqr_small - sqr_big) / (1 / small - 1 / big)
    return grad_sqr, grad_var


class Smoothed:
    """Moving averages of |G|^2 and V. Each has its own, because the mean of quotients would be biased."""

    __slots__ = ("_sqr", "_var", "_weight")

    def __init__(self) -> None:
        self._sqr = self._var = self._weight = 0.0

    def add(self, grad_sqr: float, grad_var: float) -> tuple[float, float]:
        self._sqr = DECAY * self._sqr + (1 - DECAY) * grad_sqr
        self._var = DECAY * self._var + (1 - DECAY) * grad_var
        self._weight = DECAY * self._weight + (1 - DECAY)  # below 1 at first; corrects for the start at zero
        return self._sqr / self._weight, self._var / self._weight
