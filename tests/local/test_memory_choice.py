# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that is not a guess: from the profile of a workload, or more after a job ran out of it."""

from pathlib import Path

import pytest

from cotenant.core.footprint import with_margin
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.local.engine import Engine
from cotenant.local.lifecycle import JobState
from cotenant.local.memory_choice import more
from cotenant.wire.arrays import parse_array
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.profile import JobProfile
from tests.local.engines import engine_on, finish, in_loop, with_engine


def submit(engine: Engine, **fields: object) -> JobView:
    return engine.submit(JobRequest(command=("train",), cwd="/", workload="bert", **fields))  # type: ignore[arg-type]


def measured(engine: Engine, peak: float) -> None:
    profile = JobProfile(family="bert", card="V100", digest="0" * 64, memory_mib=peak, measured_s=60.0, at=1.0)
    engine.profiles.add(profile)


def memory(engine: Engine, job: str) -> str | None:
    request = engine.queries.job(job).request
    assert request is not None
    return request.memory


@pytest.mark.parametrize(("peak", "margin", "expected"), [(1000, 20, 1200), (0.1, 20, 1), (1001, 0, 1001)])
def test_the_margin_is_rounded_up(peak: float, margin: int, expected: int) -> None:
    assert with_margin(peak, margin) == expected


@with_engine
def test_auto_is_the_measured_peak_with_a_margin(engine: Engine) -> None:
    measured(engine, 500.0)
    job = submit(engine, memory="auto").id
    assert memory(engine, job) == "600MiB"
    assert "memory: 600 MiB: bert used 500 MiB at its peak, and 20 % more" in engine.why(job)["notes"]


@with_engine
def test_auto_is_at_most_the_largest_gpu(engine: Engine) -> None:
    measured(engine, 1000.0)
    assert memory(engine, submit(engine, memory="auto").id) == "1024MiB"


@with_engine
def test_auto_without_a_measurement_is_a_whole_gpu(engine: Engine) -> None:
    job = submit(engine, memory="auto", memory_why="says the client")
    assert memory(engine, job.id) is None
    (note,) = engine.why(job.id)["notes"]
    assert note == ("memory: a whole GPU, because the peak of bert was not measured; `cotenant profile` measures it")
    with pytest.raises(InputError, match="--memory auto: needs --gpus 1"):
        submit(engine, memory="auto", gpus=2)


@in_loop
async def test_a_job_that_ran_out_of_memory_gets_more_until_no_gpu_has_more(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        job = submit(engine, memory="300MiB", retry_oom=True).id
        for wanted in ("450MiB", "675MiB", "1013MiB", "1024MiB"):
            engine.schedule()
            finish(engine, job, outcome="out-of-memory")
            assert (engine.queries.job(job).state, memory(engine, job)) == (JobState.QUEUED, wanted)
        assert "1024MiB, because it ran out of 1013 MiB (--retry-oom)" in engine.why(job)["notes"][0]
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        engine.schedule()
        finish(engine, job, outcome="out-of-memory")
        ended = engine.queries.job(job)
        assert (ended.state, ended.outcome, ended.attempts) == (JobState.FINISHED, "out-of-memory", 5)


@with_engine
def test_only_jobs_that_ask_for_it_are_retried_with_more(engine: Engine) -> None:
    plain, failing = submit(engine, memory="100MiB").id, submit(engine, memory="100MiB", retry_oom=True).id
    engine.schedule()
    finish(engine, plain, outcome="out-of-memory")
    finish(engine, failing, code=1)
    assert [engine.queries.job(job).state for job in (plain, failing)] == [JobState.FINISHED] * 2


@with_engine
def test_an_element_of_an_array_gets_more_memory_alone(engine: Engine) -> None:
    submit(engine, memory="100MiB", retry_oom=True, array=parse_array("5-6%1"), name="sweep")
    engine.schedule()
    finish(engine, "a-000001_5", outcome="out-of-memory")
    engine.schedule()
    assert (memory(engine, "a-000001_5"), memory(engine, "a-000001_6")) == ("150MiB", "100MiB")
    assert (engine.queries.job("a-000001_5").name, engine.queries.job("sweep").elements) == (
        "sweep[5]", {"starting": 1, "queued": 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("had", "wanted"),
    [("10%", "15%"), ("80%", "100%"), ("100%", None), (None, None), ("1GiB:2GiB", "3072MiB"), ("4GiB", None)],
)
def test_more_is_half_as_much_again(had: str | None, wanted: str | None) -> None:
    request = JobRequest(command=("x",), cwd="/", memory=had, retry_oom=True)
    found = more(request, MiB(4096))
    assert (None if found is None else found.memory) == wanted
