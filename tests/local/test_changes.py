# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job gets other values, durably and all of them or none; a copy of a job is a new job."""

import json
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.local.admission import RefusedError
from cotenant.local.attempts import Status
from cotenant.local.engine import Engine
from cotenant.local.identity import Caller
from cotenant.local.lifecycle import JobState
from cotenant.local.owners import Owner, own_account
from cotenant.wire.arrays import parse_array
from cotenant.wire.job_requests import JobChange, JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.reservations import ReservationRequest
from tests.local.daemon import until
from tests.local.engines import engine_on, finish, in_loop, with_engine


def submit(engine: Engine, name: str, **more: object) -> str:
    fields = {"memory": "100MiB", **more}
    return engine.submit(JobRequest(command=("train", "{}"), cwd="/", name=name, **fields)).id  # type: ignore[arg-type]


def request(job: JobView) -> JobRequest:
    assert job.request is not None
    return job.request


@in_loop
async def test_a_queued_job_gets_other_values_which_survive_a_restart(tmp_path: Path) -> None:
    change = JobChange(priority=7, memory="200MiB", time_s=60.0, name="better")
    with engine_on(tmp_path) as (engine, _):
        first, second = submit(engine, "first"), submit(engine, "second")
        engine.change(second, change)
        assert engine.queries.queue_order() == [second, first]
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        assert engine.queries.queue_order() == [second, first]
        found = engine.queries.job("better")
        assert found.id == second
        assert (request(found).priority, request(found).memory, request(found).time_s) == (7, "200MiB", 60.0)
        said = engine.queries.events_of(second)[-1].text
        assert said == "changed: --priority 7 --memory 200MiB --name better --time 60s"


@with_engine
def test_what_cannot_be_changed_stays_as_it_was(engine: Engine) -> None:
    job = submit(engine, "job")
    with pytest.raises(RefusedError, match="never run here"):
        engine.change(job, JobChange(memory="2GiB", priority=3))
    with pytest.raises(InputError, match="form of a job ID"):
        engine.change(job, JobChange(name="j-000009"))
    assert (request(engine.queries.job(job)).memory, request(engine.queries.job(job)).priority) == ("100MiB", 0)
    engine.schedule()
    with pytest.raises(InputError, match=f"{job} is being started; its limits can be changed when it runs"):
        engine.change(job, JobChange(memory="200MiB"))
    finish(engine, job)
    with pytest.raises(InputError, match=f"{job} is finished; only a job that waits or runs can be changed"):
        engine.change(job, JobChange(priority=3))


@with_engine
def test_jobs_outside_the_queue_are_changed_too(engine: Engine) -> None:
    first = submit(engine, "first")
    held, after = submit(engine, "held"), submit(engine, "after", after=(first,))
    submit(engine, "sweep", array=parse_array("0-1%1"))
    engine.hold(held)
    for job in (held, after, "a-000001_1"):
        engine.change(job, JobChange(memory="300MiB"))
        assert request(engine.queries.job(job)).memory == "300MiB"
    assert engine.queries.queue_order() == [first, engine.queries.job("a-000001_0").id]
    element = engine.queries.job("a-000001_1")
    assert (request(element).command, element.index) == (("train", "1"), 1)
    assert engine.queries.job("sweep").id == "a-000001"
    with pytest.raises(InputError, match="is an element of an array"):
        engine.change("a-000001_1", JobChange(name="other"))
    engine.schedule()
    finish(engine, first)
    engine.schedule()
    assert engine.queries.placed[after].placement.job.demand.memory == 300


@with_engine
def test_a_copy_is_a_new_job_with_the_same_request(engine: Engine) -> None:
    first = submit(engine, "first", env={"KEY": "secret"}, priority=2)
    job = submit(engine, "job", env={"KEY": "secret"}, after=(first,), retries=3)
    copy = engine.rerun(job, JobChange(priority=9))
    old, new = engine.queries.find(job), engine.queries.find(copy.id)
    assert new.id != old.id
    assert (request(copy).priority, request(copy).retries, request(copy).after) == (9, 3, ())
    assert b"secret" in new.request
    assert old.state is new.state is JobState.QUEUED


@with_engine
def test_a_copy_of_an_element_is_no_array(engine: Engine) -> None:
    submit(engine, "sweep", array=parse_array("4-5"))
    copy = engine.rerun("a-000001_5", JobChange())
    assert (copy.array, request(copy).command) == (None, ("train", "5"))


@in_loop
async def test_what_this_version_cannot_read_is_not_copied(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        job = submit(engine, "job")
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("UPDATE jobs SET request = json_insert(request, '$.invented_later', 1)")
        database.execute("UPDATE jobs SET request = CAST(request AS BLOB)")
    database.close()
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        with pytest.raises(InputError, match=f"{job} cannot be run again.*invented_later"):
            engine.rerun(job, JobChange())
        assert [one.id for one in engine.queries.jobs((), 9, None)] == [job]


def runs(engine: Engine, job: str) -> None:
    """As if its supervisor had been found to run; its files are written by another thread."""
    folder = engine.queries.folder(engine.queries.find(job))
    until(lambda: (folder.parent / "limits").exists())
    engine.run_changes.on_change(job, engine.queries.find(job).attempts, Status("running"))


@with_engine
def test_a_running_job_gets_another_priority_name_and_time_limit(engine: Engine) -> None:
    job = submit(engine, "job", time_s=600.0)
    engine.schedule()
    engine.change(job, JobChange(priority=-3, name="other", time_s=1200.0))
    found = engine.queries.job("other")
    assert (found.id, request(found).priority, request(found).time_s) == (job, -3, 1200.0)
    core = engine.queries.placed[job].placement.job
    assert (core.demand.priority, core.limit) == (-3, 1210.0)
    orders = json.loads((engine.queries.folder(engine.queries.find(job)) / "orders").read_text())
    assert (orders["time_s"], orders.get("paused", False)) == (1200.0, False)
    engine.parts.tenants.placed[job] = replace(engine.queries.placed[job], started=time.time() - 3600)
    with pytest.raises(InputError, match="has run for 01:00:00 already"):
        engine.change(job, JobChange(time_s=1800.0))


@with_engine
def test_a_running_job_gets_only_what_is_free_on_its_gpu(engine: Engine) -> None:
    job, neighbour = submit(engine, "job"), submit(engine, "neighbour", memory="600MiB")
    engine.schedule()
    runs(engine, job)
    assert engine.queries.placed[job].gpus == engine.queries.placed[neighbour].gpus == (0,)
    with pytest.raises(InputError, match=f"{job} cannot have that on GPU 0, where it runs"):
        engine.change(job, JobChange(memory="500MiB"))
    engine.change(job, JobChange(memory="400MiB"))
    assert engine.parts.tenants.cluster.at(0).memory[0] == 1024 - 600 - 400
    assert str(400 << 20) in limits_of(engine, job)
    with pytest.raises(InputError, match="its present use is not known, so it cannot be lowered to 100 MiB"):
        engine.change(job, JobChange(memory="100MiB"))
    with pytest.raises(InputError, match="limit above its request"):
        engine.change(job, JobChange(memory="400MiB:410MiB"))
    finish(engine, neighbour)
    finish(engine, job)
    assert engine.parts.tenants.cluster.at(0).memory == (1024, 1024)


def limits_of(engine: Engine, job: str) -> str:
    return (engine.queries.folder(engine.queries.find(job)).parent / "limits").read_text()


@in_loop
async def test_changed_limits_are_given_again_after_a_kill(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        job = submit(engine, "job")
        engine.schedule()
        runs(engine, job)
        engine.change(job, JobChange(memory="300MiB", time_s=900.0))
        record = engine.queries.find(job)
        folder = engine.queries.folder(record)
        (folder.parent / "limits").unlink()
        (folder / "orders").unlink()
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        assert str(300 << 20) in limits_of(engine, job)
        assert json.loads((folder / "orders").read_text())["time_s"] == 900.0
        assert engine.queries.placed[job].placement.job.demand.memory == 300


@with_engine
def test_a_running_job_does_not_reach_into_a_reservation(engine: Engine) -> None:
    ada, mine = Owner(4_000_001, 4_000_002, "ada", "staff"), own_account()
    job = engine.submit(JobRequest(command=("train",), cwd="/", time_s=600.0), ada).id
    engine.schedule()
    admin = Caller(owner=mine.owner, groups=mine.groups, administrator=True)
    engine.reserve(ReservationRequest(start=time.time() + 3600, length_s=600.0, on=("0",)), admin)
    with pytest.raises(InputError, match="its GPU is reserved for"):
        engine.change(job, JobChange(time_s=3600.0))
    engine.change(job, JobChange(time_s=1800.0))
