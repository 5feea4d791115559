# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A held job does not start, whatever happens to the daemon, and its hold ends with it."""

from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.local.engine import Engine
from cotenant.local.holds import PREFIX
from cotenant.local.lifecycle import JobState
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from tests.local.engines import engine_on, in_loop


def submit(engine: Engine, name: str) -> JobView:
    return engine.submit(JobRequest(command=("true",), cwd="/", name=name, memory="100MiB"))


@in_loop
async def test_a_held_job_starts_only_after_its_release(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        held, other = submit(engine, "held"), submit(engine, "other")
        assert engine.hold("held").held
        assert engine.hold("held").held  # asked twice
        engine.schedule()
        assert engine.queries.job(held.id).state == JobState.QUEUED
        assert engine.queries.job(other.id).state == JobState.STARTING
        why = engine.why(held.id)
        assert why["held"]
        assert f"`cotenant release {held.id}`" in why["reason"]
        assert not engine.release("held").held
        engine.schedule()
        assert engine.queries.job(held.id).state == JobState.STARTING


@in_loop
async def test_a_hold_survives_a_restart(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        job = submit(engine, "held")
        engine.hold(job.id)
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        engine.schedule()
        assert engine.queries.job(job.id).held
        assert engine.queries.job(job.id).state == JobState.QUEUED
        engine.release(job.id)
        engine.schedule()
        assert engine.queries.job(job.id).state == JobState.STARTING


@in_loop
async def test_a_released_job_keeps_its_position(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        first, second = submit(engine, "first"), submit(engine, "second")
        engine.hold(first.id)
        assert engine.queries.queue_order() == [second.id]
        engine.release(first.id)
        assert engine.queries.queue_order() == [first.id, second.id]


@in_loop
async def test_the_end_of_a_job_ends_its_hold(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, journal):
        job = submit(engine, "held")
        engine.hold(job.id)
        assert engine.cancel(job.id).state == JobState.CANCELLED
        assert journal.recalled(PREFIX) == {}
        assert not engine.retry(job.id).held
        engine.schedule()
        assert engine.queries.job(job.id).state == JobState.STARTING


@in_loop
async def test_a_hold_that_was_left_behind_is_forgotten_at_the_start(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, journal):
        job = submit(engine, "gone")
        engine.cancel(job.id)
        journal.remember(PREFIX + job.id, "1")
    with engine_on(tmp_path) as (engine, journal):
        engine.recover()
        assert journal.recalled(PREFIX) == {}


@in_loop
async def test_only_a_queued_job_can_be_held_and_only_a_held_one_released(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        job = submit(engine, "runs")
        with pytest.raises(InputError, match="not held"):
            engine.release(job.id)
        engine.schedule()
        with pytest.raises(InputError, match="only a queued job can be held"):
            engine.hold(job.id)
