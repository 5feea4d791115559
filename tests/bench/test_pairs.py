# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of `make bench ONLY=tuner-pairs`, on a device that is an equation: the same every time."""

import statistics
from dataclasses import replace
from functools import cache

import pytest

from bench.comparison import Comparison, Outcome
from bench.pairs import NOISE, Start, starts, summary, usual
from cotenant.core.tuning.coordination import Joined
from cotenant.core.tuning.goodput import GradientNoise, LearningRate
from cotenant.core.units import Seconds
from cotenant.workloads.registry import TASKS
from tests.core.tuning.fifo_device import Work
from tests.core.tuning.virtual_device import Device

MILLISECONDS = {
    "neumf": (1.39, 0.09), "adgcl": (0.94, 4.21), "yolo": (0.98, 3.64), "squeezenet": (0.50, 4.49),
    "bert": (3.25, 6.30), "vgg16": (3.04, 4.72), "resnet50": (2.51, 6.41), "lstm": (2.92, 9.35),
}  # fmt: skip
"""of a step at the table's batch size: whatever its size, and for its samples; from docs/reference/workloads.md"""


def work(task: str) -> Work:
    fixed, samples = MILLISECONDS[task]
    return Work(fixed / 1e3, samples / 1e3 / usual(task), TASKS[task].at("tiny").wait_us / 1e6)


@cache
def compared(pair: tuple[Start, Start], *, error: float = 0.02, disturbed: bool = False) -> Outcome:
    comparison = Comparison()
    device = Device(decide=comparison.handle, error=error)
    for job, start in zip("ab", pair, strict=True):
        size = TASKS[start.task].at("tiny")
        device.gradients[job] = GradientNoise(sqr=1.0, var=NOISE[start.task] * usual(start.task))
        device.join(
            work(start.task),
            Joined(
                at=Seconds(0),
                job=job,
                batch=start.batch,
                bounds=(size.smallest, size.largest),
                learning_rate=LearningRate.SQRT,
                floor=start.floor,
            ),
        )
    while comparison.outcome is None:
        assert device.now < 1000
        device.tick()
        if disturbed and device.now % 7 == 0:
            device.disturb()
    return comparison.outcome


def test_what_is_promised_of_pairs_holds_on_an_equation() -> None:
    figures = list(summary([compared(pair) for pair in starts()]))
    assert [figure.name for figure in figures if figure.met is False] == []
    assert sum(figure.met is True for figure in figures) == 4


def test_targets_do_not_loosen_with_the_noise_of_a_run() -> None:
    quiet = [compared(pair) for pair in starts()]
    noisy = [
        replace(outcome, default=[value * (0.7 if i % 2 else 1.3) for i, value in enumerate(outcome.default)])
        for outcome in quiet
    ]
    assert max(outcome.error for outcome in quiet) < 0.01 < 0.1 < min(outcome.error for outcome in noisy)
    assert [figure.target for figure in summary(noisy)] == [figure.target for figure in summary(quiet)]


def test_pairs_begin_at_the_table_s_sizes_and_then_elsewhere() -> None:
    pairs = [[(start.task, start.batch / usual(start.task)) for start in pair] for pair in starts()]
    assert {task for pair in pairs[:4] for task, _ in pair} == NOISE.keys()
    assert all(factor == 1 for pair in pairs[:4] for _, factor in pair)
    assert all(sorted(factor for _, factor in pair) == [0.5, 2] for pair in pairs[4:])


def test_an_episode_is_short_enough_for_a_short_job() -> None:
    outcomes = [compared(pair) for pair in starts()]
    assert max(outcome.episode_s for outcome in outcomes) < 25
    assert statistics.mean(outcome.gain_within(60.0) for outcome in outcomes) > 1.05


def test_what_is_disturbed_is_measured_again_and_counted() -> None:
    pair = next(iter(starts()))
    disturbed = compared(pair, disturbed=True)
    assert disturbed.restarts > 0
    assert disturbed.disturbed == 0
    assert disturbed.gain == pytest.approx(compared(pair).gain, rel=0.05)


def test_goodputs_are_in_units_of_the_speed_alone() -> None:
    alone = compared((Start("neumf", 256), Start("neumf", 256)), error=0.0)
    assert statistics.mean(alone.default) == pytest.approx(2.0, rel=0.05), "both nearly always wait for input"
    busy = compared((Start("bert", 16), Start("bert", 16)), error=0.0)
    assert statistics.mean(busy.default) == pytest.approx(1.0, rel=0.05), "neither ever waits"
    assert busy.error == pytest.approx(0.0, abs=0.005)


def test_who_climbs_alone_moves_only_for_its_own_gain() -> None:
    outcome = compared((Start("bert", 16), Start("bert", 16)), error=0.0)
    assert outcome.sizes["default"] == {"a": 16, "b": 16}
    assert all(outcome.sizes["selfish"][job] > 16 for job in "ab")
