# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gradient noise: the estimate is unbiased, and smoothing does not pull it anywhere."""

import random

import pytest

from cotenant.job import Session
from cotenant.job.noise import Smoothed, estimate


def test_exact_expectations_give_the_exact_answer() -> None:
    true_sqr, true_var = 4.0, 100.0
    small, big = true_sqr + true_var / 8, true_sqr + true_var / 32
    assert estimate(small, big, 8, 32) == pytest.approx((true_sqr, true_var))


def test_halves_of_random_batches_average_to_the_truth() -> None:
    # One parameter: a sample's gradient is 2 ± 3, so |G|^2 is 4 and V is 9.
    chance = random.Random(0)
    sqr = var = 0.0
    rounds = 20_000
    for _ in range(rounds):
        halves = [sum(chance.gauss(2, 3) for _ in range(4)) / 4 for _ in range(2)]
        small = sum(half * half for half in halves) / 2
        big = (sum(halves) / 2) ** 2
        one_sqr, one_var = estimate(small, big, 4, 8)
        sqr += one_sqr / rounds
        var += one_var / rounds
    assert sqr == pytest.approx(4, rel=0.05)
    assert var == pytest.approx(9, rel=0.05)


def test_smoothing_keeps_a_constant_from_the_first_value_on() -> None:
    smoothed = Smoothed()
    for _ in range(3):
        assert smoothed.add(2.0, 8.0) == pytest.approx((2.0, 8.0))


@pytest.mark.parametrize(
    ("sqr_small", "sqr_big", "small", "big"),
    [(1, 1, 8, 8), (1, 1, 16, 8), (1, 1, 0, 8), (float("nan"), 1, 8, 16), (1, float("inf"), 8, 16), ("x", 1, 8, 16)],
)
def test_numbers_that_allow_no_estimate_give_none(sqr_small: float, sqr_big: float, small: int, big: int) -> None:
    assert Session().gradient_norms(sqr_small, sqr_big, small, big) is None
