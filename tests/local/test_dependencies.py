# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job that waits for others starts only after they have ended as it demands, whatever happens to the daemon."""

from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.local.dependencies import Kind, verdict
from cotenant.local.engine import Engine
from cotenant.local.lifecycle import JobState
from cotenant.local.refusals import UnknownError
from cotenant.wire.dependencies import Condition
from cotenant.wire.job_requests import JobRequest
from tests.local.engines import engine_on, finish, in_loop, with_engine


def submit(engine: Engine, name: str, *after: str) -> str:
    return engine.submit(JobRequest(command=("true",), cwd="/", name=name, memory="100MiB", after=after)).id


def state(engine: Engine, job: str) -> str:
    engine.schedule()
    return engine.queries.job(job).state


@pytest.mark.parametrize(
    ("condition", "kinds", "expected"),
    [
        (Condition.OK, {"ok"}, True),
        (Condition.OK, {"ok", "waiting"}, None),
        (Condition.OK, {"failed", "waiting"}, False),
        (Condition.OK, {"cancelled"}, False),
        (Condition.ANY, {"failed", "waiting"}, None),
        (Condition.ANY, {"ok", "failed", "cancelled"}, True),
        (Condition.FAILED, {"waiting"}, None),
        (Condition.FAILED, {"ok", "failed"}, True),
        (Condition.FAILED, {"ok"}, False),
        (Condition.FAILED, {"cancelled"}, False),
    ],
)
def test_each_condition_is_fulfilled_by_its_ends(condition: Condition, kinds: set[Kind], expected: bool | None) -> None:
    assert verdict(condition, kinds) is expected


@with_engine
def test_a_job_starts_when_all_jobs_before_it_have_ended(engine: Engine) -> None:
    first, second = submit(engine, "first"), submit(engine, "second")
    job = submit(engine, "last", "first", "second:any")
    assert engine.queries.job(job).request.after == (f"{first}:ok", f"{second}:any")  # type: ignore[union-attr]
    assert state(engine, job) == JobState.QUEUED
    assert engine.why(job)["reason"] == f"{first} must be done before it starts"
    finish(engine, first)
    assert state(engine, job) == JobState.QUEUED
    finish(engine, second, code=1)
    assert state(engine, job) == JobState.STARTING


@with_engine
def test_a_job_that_can_never_start_ends_and_so_do_those_after_it(engine: Engine) -> None:
    first = submit(engine, "first")
    second = submit(engine, "second", first)
    third, cleanup = submit(engine, "third", second), submit(engine, "cleanup", f"{second}:any")
    engine.schedule()
    finish(engine, first, code=3)
    assert state(engine, second) == JobState.CANCELLED
    ended = engine.queries.job(second)
    assert (ended.outcome, ended.attempts) == ("dependency-failed", 0)
    assert ended.error == f"{first} failed, but must be done before this job starts"
    assert engine.queries.job(third).error == f"{second} was cancelled, but must be done before this job starts"
    assert state(engine, cleanup) == JobState.STARTING


@with_engine
def test_a_job_for_failures_runs_only_after_one(engine: Engine) -> None:
    bad, good = submit(engine, "bad"), submit(engine, "good")
    after_bad, after_good = submit(engine, "a", f"{bad}:failed"), submit(engine, "b", f"{good}:failed")
    engine.schedule()
    finish(engine, bad, code=1)
    finish(engine, good)
    assert (state(engine, after_bad), state(engine, after_good)) == (JobState.STARTING, JobState.CANCELLED)


@in_loop
async def test_dependencies_survive_a_restart_at_any_moment(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        first, doomed = submit(engine, "first"), submit(engine, "doomed")
        ready, never = submit(engine, "ready", first), submit(engine, "never", doomed)
        engine.schedule()
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        assert (state(engine, ready), state(engine, never)) == (JobState.QUEUED, JobState.QUEUED)
        finish(engine, first)
        finish(engine, doomed, code=1)  # killed before the next pass
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        assert (state(engine, ready), state(engine, never)) == (JobState.STARTING, JobState.CANCELLED)


@with_engine
def test_a_waiting_job_can_be_cancelled_held_and_released(engine: Engine) -> None:
    first = submit(engine, "first")
    gone, held = submit(engine, "gone", first), submit(engine, "held", first)
    assert engine.cancel(gone).state == JobState.CANCELLED
    assert engine.hold(held).held
    engine.schedule()
    finish(engine, first)
    assert state(engine, held) == JobState.QUEUED
    engine.release(held)
    assert state(engine, held) == JobState.STARTING


@with_engine
def test_what_can_never_run_is_refused(engine: Engine) -> None:
    bad = submit(engine, "bad")
    doomed = submit(engine, "doomed", bad)
    engine.schedule()
    finish(engine, bad, code=1)
    engine.schedule()
    with pytest.raises(InputError, match=f"--after: {bad} failed, but must be done before this job starts"):
        submit(engine, "late", bad)
    with pytest.raises(InputError, match=f"{bad} failed"):
        engine.retry(doomed)
    with pytest.raises(UnknownError, match="no job 'nobody' here"):
        submit(engine, "late", "nobody")
    with pytest.raises(UnknownError, match="no job 'itself' here"):  # no cycle: it can wait only for what exists
        submit(engine, "itself", "itself")
    with pytest.raises(InputError, match="cannot both end well"):
        submit(engine, "late", f"{bad}:ok", f"{bad}:failed")
    with pytest.raises(InputError, match="--after bad:maybe: expected a job and ok or any or failed"):
        submit(engine, "late", "bad:maybe")
    engine.retry(bad)
    engine.retry(doomed)
    engine.schedule()
    finish(engine, bad)
    assert state(engine, doomed) == JobState.STARTING
