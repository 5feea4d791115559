# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a job learns, rather than how fast it steps: samples per second, weighted by what a sample is worth.

Goodput and the gradient noise scale are those of Pollux (OSDI 2021) and McCandlish et al. (2018). Speed alone would
always ask for the largest batch; efficiency alone for the smallest.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

PRIOR_NOISE = 8.0
"""noise scale of a job that reports none, in multiples of its default batch: at twice that it is 90 % as efficient"""

NOISE_BOUNDS = (0.01, 1000.0)
"""the least and the most a noise scale is taken to be, in multiples of the default batch"""

TRUSTED_STEPS = 100
"""steps that must have been seen before their gradients outweigh the prior: one in 20 is usually measured"""

MEMORY_STEPS = 200
"""gradient moments are averaged over about this many steps: the noise scale grows while a job trains"""


class LearningRate(StrEnum):
    """How a job's learning rate follows its batch size."""

    SQRT = "sqrt"
    """by the square root of the batch, as adaptive optimisers want it"""
    ADASCALE = "adascale"
    """by how much further a step of the larger batch really goes, as plain SGD wants it"""


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Two moments of a job's gradients, each an unbiased estimate; one estimate may well be negative."""

    sqr: float
    """squared length of the true gradient"""
    var: float
    """variance of one sample's gradient, summed over all parameters"""


class NoiseAverage:
    """The noise scale of one job over its recent steps: a ratio of averages, since an average of ratios is biased."""

    def __init__(self) -> None:
        self.steps = 0
        self._sqr = 0.0
        self._var = 0.0

    def add(self, noise: GradientNoise, steps: int) -> None:
        if steps <= 0 or not (math.isfinite(noise.sqr) and math.isfinite(noise.var)):
            return
        self.steps += steps
        weight = max(steps / self.steps, 1 - math.exp(-steps / MEMORY_STEPS))
        self._sqr += weight * (noise.sqr - self._sqr)
        self._var += weight * (noise.var - self._var)

    def scale(self, default_batch: int) -> float | None:
        """The batch size at which noise and signal of a step are equal; None: not known yet."""
        if self.steps < TRUSTED_STEPS:
            return None
        least, most = (bound * default_batch for bound in NOISE_BOUNDS)
        return most if self._sqr <= 0 else min(max(self._var / self._sqr, least), most)


def efficiency(batch: float, default_batch: float, noise: float | None) -> float:
    """What a sample in a batch of this size is worth, against one in the default batch.

    If the noise scale is not known, a larger batch costs what the prior says, and a smaller one gains nothing: no job
    is slowed down for a benefit that is only assumed.
    """
    if noise is None:
        return min(efficiency(batch, default_batch, PRIOR_NOISE * default_batch), 1.0)
    # (phi + m0) / (phi + m)
    return 1.0 if math.isinf(noise) else (noise + default_batch) / (noise + batch)


def goodput(speed: float, batch: float, default_batch: float, noise: float | None) -> float:
    """Samples per second, counted in samples of the default batch."""
    return speed * efficiency(batch, default_batch, noise)


def learning_rate_scale(rule: LearningRate | None, batch: int, default_batch: int, noise: float | None) -> float:
    """By what the learning rate of the default batch is multiplied; a job without a rule looks after itself."""
    match rule:
        case LearningRate.SQRT:
            return math.sqrt(batch / default_batch)
        case LearningRate.ADASCALE:
            # r = (var/m0 + |g|^2) / (var/m + |g|^2), which is m/m0 times the efficiency
            return batch / default_batch * efficiency(batch, default_batch, noise)
        case None:
            return 1.0
