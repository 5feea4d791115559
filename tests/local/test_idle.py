# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that do not use their GPU are reported, and stopped only if that was configured."""

import asyncio
from pathlib import Path

import pytest

from cotenant.local.idle import IdleAction, IdleJobs, IdleSettings
from cotenant.local.lifecycle import Exited, JobState, Stop, step
from cotenant.local.run_files import Exit
from cotenant.local.runs import Runs
from cotenant.local.tenants import Tenants
from cotenant.node.measurement import UNKNOWN_USAGE, JobUsage
from cotenant.wire.job_requests import JobRequest
from tests.local.engines import TWO_CARDS, engine_on, placed

TRAIN = JobRequest(command=("train",), cwd="/")


class Watched:
    """An idle watch on one job, with the time and the use in the hands of the test."""

    def __init__(self, folder: Path) -> None:
        self.now, self.used, self.found, self.paused = 0.0, UNKNOWN_USAGE, list[str](), False
        self.tenants = Tenants(TWO_CARDS, Runs(folder))
        settings = IdleSettings(after_s=600.0)
        self.idle = IdleJobs(
            settings, lambda job: self.used, self.tenants, lambda: self.now, is_paused=lambda job: self.paused
        )
        self.idle.found.subscribe(lambda job, text: self.found.append(f"{job} {text}"))
        self.tenants.add(placed("j", TRAIN).placement, TRAIN, 1)

    def look(self, later: float, busy: float | None) -> float | None:
        """For how long the job is idle."""
        self.now += later
        self.used = UNKNOWN_USAGE if busy is None else JobUsage(100, busy, None, None)
        self.idle.look([])
        return self.idle.idle_s("j")


def test_an_idle_job_is_reported_once_until_it_works_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert [watched.look(300.0, 0.0) for _ in range(4)] == [None, None, 600.0, 900.0]
    assert watched.found == ["j has not used its GPU for 10 min"]
    assert watched.look(1.0, 3.0) is None
    assert [watched.look(300.0, 0.0) for _ in range(2)] == [None, 600.0]
    assert len(watched.found) == 2


def test_a_job_of_unknown_use_is_not_idle(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert [watched.look(600.0, None) for _ in range(3)] == [None, None, None]
    watched.tenants.remove("j")
    assert watched.look(600.0, 0.0) is None


def test_a_pause_does_not_keep_a_gpu_from_being_reported_as_unused(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.look(1.0, 50.0) is None
    watched.paused = True
    assert [watched.look(300.0, busy) for busy in (0.0, None)] == [None, 600.0]
    assert watched.found == ["j has not used its GPU for 10 min, because it is paused"]


@pytest.mark.parametrize(
    ("action", "stop"), [(IdleAction.REPORT, None), (IdleAction.REQUEUE, Stop.EVICT), (IdleAction.END, Stop.CANCEL)]
)
def test_an_idle_job_is_stopped_only_if_the_daemon_was_told_so(
    tmp_path: Path, action: IdleAction, stop: Stop | None
) -> None:
    async def test() -> None:
        with engine_on(tmp_path, idle=IdleSettings(action=action)) as (engine, journal):
            job = engine.submit(TRAIN).id
            engine.schedule()
            engine.idle.found.send(job, "has not used its GPU for 30 min")
            assert "has not used its GPU for 30 min" in [one.text for one in journal.events_of(job, 100)]
            record = journal.job(job)
            assert (record.state, record.stop) == (JobState.STARTING, stop)

    asyncio.run(test())


def test_the_owner_of_a_job_that_was_ended_because_it_was_idle_is_told_why(tmp_path: Path) -> None:
    async def test() -> None:
        with engine_on(tmp_path, idle=IdleSettings(action=IdleAction.END)) as (engine, journal):
            job = engine.submit(TRAIN).id
            engine.schedule()
            engine.idle.found.send(job, "has not used its GPU for 30 min")
            record = journal.job(job)
            change = step(record, Exited(Exit("cancelled", None, None, None, 1.0, 2.0, 0)), 3.0)
            assert change.columns["error"] == (
                "it has not used its GPU for 30 min, and this daemon ends such jobs (--idle-action end)"
            )

    asyncio.run(test())


def test_why_says_that_a_job_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with engine_on(tmp_path) as (engine, _):
            job = engine.submit(TRAIN).id
            engine.schedule()
            before = engine.why(job)["notes"]
            monkeypatch.setattr(engine.idle, "idle_s", lambda job: 2400.0)
            assert engine.why(job)["notes"] == [*before, "idle: it has not used its GPUs for 00:40:00"]

    asyncio.run(test())
