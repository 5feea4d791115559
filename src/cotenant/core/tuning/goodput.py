# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Goodput: how fast a job trains, as samples per second times the efficiency of a sample.

Goodput and the gradient noise scale are defined as in Pollux (OSDI 2021) and McCandlish et al. (2018). Speed alone
would always favour the largest batch, efficiency alone the smallest.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

PRIOR_NOISE = 8.0
"""noise scale of a job that reports none, in multiples of its default batch: twice the batch is 90 % as efficient"""

NOISE_BOUNDS = (0.01, 1000.0)
"""noise scales are clipped to this range, in multiples of the default batch"""

LEAST_STEPS = 100
"""steps after which the measured noise scale replaces the prior; usually one step in 20 is measured"""

AVERAGED_STEPS = 200
"""gradient moments are averaged over about this many steps, because the noise scale grows while a job trains"""


class LearningRate(StrEnum):
    """The rule by which a job's learning rate depends on its batch size."""

    SQRT = "sqrt"
    """proportional to the square root of the batch size, for adaptive optimisers"""
    ADASCALE = "adascale"
    """by AdaScale's gain ratio, for plain SGD"""


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Unbiased estimates of two moments of a job's gradients; a single estimate can be negative."""

    sqr: float
    """squared norm of the true gradient"""
    var: float
    """variance of one sample's gradient, summed over all parameters"""


class NoiseAverage:
    """The noise scale of one job over its recent steps, as a ratio of averages: an average of ratios would be
    biased."""

    def __init__(self) -> None:
        self.steps = 0
        self._sqr = 0.0
        self._var = 0.0

    def add(self, noise: GradientNoise, steps: int) -> None:
        if steps <= 0 or not (math.isfinite(noise.sqr) and math.isfinite(noise.var)):
            return
        self.steps += steps
        weight = max(steps / self.steps, 1 - math.exp(-steps / AVERAGED_STEPS))
        self._sqr += weight * (noise.sqr - self._sqr)
        self._var += weight * (noise.var - self._var)

    def scale(self, default_batch: int) -> float | None:
        """The batch size at which the noise of a step equals its signal; None: not known yet."""
        if self.steps < LEAST_STEPS:
            return None
        least, most = (bound * default_batch for bound in NOISE_BOUNDS)
        return most if self._sqr <= 0 else min(max(self._var / self._sqr, least), most)


def efficiency(batch: float, default_batch: float, noise: float | None) -> float:
    """How much a sample in a batch of this size contributes to training, relative to one in the default batch.

    If the noise scale is not known, a larger batch is as efficient as the prior says, and a smaller one is not more
    efficient than the default: no job is slowed down for a benefit that is only assumed.
    """
    if noise is None:
        return min(efficiency(batch, default_batch, PRIOR_NOISE * default_batch), 1.0)
    # (phi + m0) / (phi + m)
    return 1.0 if math.isinf(noise) else (noise + default_batch) / (noise + batch)


def goodput(speed: float, batch: float, default_batch: float, noise: float | None) -> float:
    """Samples per second times their efficiency."""
    return speed * efficiency(batch, default_batch, noise)


def learning_rate_scale(rule: LearningRate | None, batch: int, default_batch: int, noise: float | None) -> float:
    """The factor for the learning rate of the default batch; 1 if the job has no rule."""
    match rule:
        case LearningRate.SQRT:
            return math.sqrt(batch / default_batch)
        case LearningRate.ADASCALE:
            # r = (var/m0 + |g|^2) / (var/m + |g|^2), which is m/m0 times the efficiency
            return batch / default_batch * efficiency(batch, default_batch, noise)
        case None:
            return 1.0
