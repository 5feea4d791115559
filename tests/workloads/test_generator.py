# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The generator plans as IADeep's did: the same for the same seed, at the trace's times."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import InputError
from cotenant.workloads.generator import MIXES, arrivals_like_philly, draw, mix_named, plan
from cotenant.workloads.registry import TASKS


def test_jobs_arrive_at_a_thousandth_of_the_gaps_of_the_trace() -> None:
    jobs = plan(jobs=3, arrivals=[5000.0, 7000.0, 12000.0, 99000.0])
    assert [job.at for job in jobs] == pytest.approx([0.0, 2.0, 7.0])
    assert [job.at for job in plan(jobs=3, arrivals=[5000.0, 7000.0, 12000.0], scale=0.5)] == pytest.approx([0, 1, 3.5])


def test_a_trace_need_not_be_in_order() -> None:
    assert [job.at for job in plan(jobs=2, arrivals=[3000.0, 1000.0])] == [0.0, 2.0]


def test_a_job_says_what_it_needs() -> None:
    (job,) = plan(jobs=1, mix={"neumf": 1.0}, seed=3, work=0.5)
    size = TASKS["neumf"].sizes["tiny"]
    assert job.argv == (
        *("-P", "-m", "cotenant.workloads", "neumf", "--size", "tiny"),
        *("--samples", str(size.steps * size.batch // 2), "--seed", "3"),
    )
    assert (job.memory, job.compute, job.batch) == (size.memory_at(size.batch), TASKS["neumf"].busy, size.batch)
    assert job.batch_range == (size.smallest, size.largest)


def test_the_same_seed_draws_the_same_tasks() -> None:
    assert plan(jobs=50, seed=1) == plan(jobs=50, seed=1)
    assert plan(jobs=50, seed=1) != plan(jobs=50, seed=2)
    # the first numbers of Python's generator with seed 0 are .84, .76, .42, .26, .51; of a sum of .66 that is
    assert draw(MIXES["iadeep"], 5, 0) == ["lstm", "neumf", "resnet50", "resnet50", "squeezenet"]


def test_tasks_are_drawn_by_weight() -> None:
    drawn = draw(MIXES["iadeep"], 20_000, 0)
    for name, weight in MIXES["iadeep"].items():
        assert drawn.count(name) / len(drawn) == pytest.approx(weight / 0.66, abs=0.012)
    assert set(draw(MIXES["all"], 2000, 0)) == set(TASKS)


@given(st.integers(1, 60), st.integers(0, 2**32), st.sampled_from(sorted(MIXES)))
def test_a_plan_never_goes_back_in_time(jobs: int, seed: int, mix: str) -> None:
    planned = plan(jobs=jobs, seed=seed, mix=MIXES[mix])
    times = [job.at for job in planned]
    assert len(planned) == jobs
    assert times == sorted(times)
    assert times[0] == 0.0
    assert {job.task for job in planned} <= set(MIXES[mix])


def test_made_up_arrivals_come_in_bursts_as_often_as_those_of_philly() -> None:
    times = arrivals_like_philly(3000)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(46 * 86400 / 300, rel=0.15)
    assert sorted(gaps)[len(gaps) // 2] < 0.4 * sum(gaps) / len(gaps)
    assert times[:100] == arrivals_like_philly(100)


def test_a_mix_is_named_or_written_out() -> None:
    assert mix_named("iadeep") == MIXES["iadeep"]
    assert mix_named("vgg16=2, lstm") == {"vgg16": 2.0, "lstm": 1.0}


@pytest.mark.parametrize("text", ["vgg=1", "vgg16=much", "", "vgg16=1,,"])
def test_a_mix_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not task=weight; write one of iadeep"):
        mix_named(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 0}, "at least one job"),
        ({"jobs": 3, "arrivals": [1.0]}, "the trace has 1 arrival, fewer than the 3 requested"),
        ({"jobs": 1, "arrivals": [float("nan")]}, "not a finite number"),
        ({"jobs": 1, "scale": -1.0}, "scale must be"),
        ({"jobs": 1, "work": 0.0}, "work must be"),
        ({"jobs": 1, "mix": {"vgg16": 0.0}}, "one of them above 0"),
        ({"jobs": 1, "mix": {"vgg16": float("nan")}}, "one of them above 0"),
        ({"jobs": 1, "mix": {}}, "a mix needs tasks"),
        ({"jobs": 1, "mix": {"nobody": 1.0}}, "no task named 'nobody'"),
        ({"jobs": 1, "size": "huge"}, "no size named 'huge'"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**arguments)  # type: ignore[arg-type]
