# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Speed is not progress: what larger batches are worth, and what they do to the learning rate."""

import math

import pytest

from cotenant.core.tuning.goodput import (
    LEAST_STEPS,
    PRIOR_NOISE,
    GradientNoise,
    LearningRate,
    NoiseAverage,
    efficiency,
    goodput,
    learning_rate_scale,
)


def test_a_sample_is_worth_less_in_a_larger_batch_and_as_much_where_noise_dominates() -> None:
    assert efficiency(64, 64, noise=100) == 1
    assert efficiency(128, 64, noise=64) == pytest.approx(2 / 3)
    assert efficiency(32, 64, noise=64) == pytest.approx(4 / 3)
    assert efficiency(1 << 20, 64, noise=math.inf) == 1


def test_twice_the_speed_by_twice_the_batch_gains_nothing_without_gradient_noise() -> None:
    assert goodput(200.0, 128, 64, noise=1e-9) == pytest.approx(goodput(100.0, 64, 64, noise=1e-9))


def test_learning_rate_follows_the_rule_the_job_chose() -> None:
    assert learning_rate_scale(LearningRate.SQRT, 256, 64, noise=10) == 2
    assert learning_rate_scale(None, 256, 64, noise=10) == 1
    adascale = [learning_rate_scale(LearningRate.ADASCALE, 256, 64, noise) for noise in (1e-6, 64, 1e9)]
    assert adascale == pytest.approx([1, 1.6, 4], rel=1e-5)


def test_without_a_noise_scale_larger_batches_cost_by_the_prior_and_smaller_ones_gain_nothing() -> None:
    assert efficiency(128, 32, None) == efficiency(128, 32, PRIOR_NOISE * 32) < 1
    assert efficiency(8, 32, None) == 1


def test_noise_scale_is_unknown_until_enough_gradients_were_seen() -> None:
    noise = NoiseAverage()
    noise.add(GradientNoise(sqr=1.0, var=100.0), LEAST_STEPS - 1)
    assert noise.scale(32) is None
    noise.add(GradientNoise(sqr=1.0, var=100.0), 1)
    assert noise.scale(32) == pytest.approx(100)


def test_noise_scale_is_a_ratio_of_averages_so_that_negative_estimates_do_no_harm() -> None:
    noise = NoiseAverage()
    for sqr, var in [(3.0, 90.0), (-1.0, 110.0)] * 60:
        noise.add(GradientNoise(sqr, var), steps=1)
    assert noise.scale(32) == pytest.approx(100, rel=0.1)


def test_noise_scale_stays_within_bounds_and_ignores_what_is_no_number() -> None:
    vanished, clean = NoiseAverage(), NoiseAverage()
    vanished.add(GradientNoise(sqr=-0.1, var=1.0), 100)
    clean.add(GradientNoise(sqr=1.0, var=-5.0), 100)
    clean.add(GradientNoise(sqr=math.nan, var=math.inf), 100)
    assert vanished.scale(32) == 32_000
    assert clean.scale(32) == pytest.approx(0.32)


def test_noise_scale_follows_a_job_whose_gradients_become_noisier() -> None:
    noise = NoiseAverage()
    noise.add(GradientNoise(1.0, 10.0), 10_000)
    for _ in range(20):
        noise.add(GradientNoise(1.0, 1000.0), 100)
    assert noise.scale(64) == pytest.approx(1000, rel=0.01)
