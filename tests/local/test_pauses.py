# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A paused job does nothing until it is resumed, with real processes, whatever happens to the daemon."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.errors import InputError
from cotenant.local.containers import Runtime
from cotenant.local.engine import Engine
from cotenant.local.run_orders import PREFIX
from cotenant.wire.arrays import parse_array
from cotenant.wire.job_requests import JobChange, JobRequest
from cotenant.wire.job_views import JobView, described_state
from tests.local.daemon import Daemon, running_daemon, until
from tests.local.engines import engine_on, finish, in_loop, with_engine

STILL_S = 0.5


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


def act(daemon: Daemon, job: str, verb: str) -> JobView:
    return daemon.client.post(f"/v1/jobs/{job}/{verb}", JobView)


def counting(daemon: Daemon, folder: Path, **fields: object) -> str:
    """A job with two processes, one of them in a session of its own, that both write numbers."""
    loop = "n=0; while :; do n=$((n+1)); echo $n > $1; sleep 0.02; done"
    script = f"setsid sh -c '{loop}' sh {folder}/other & {loop.replace('$1', f'{folder}/own')}"
    job = daemon.submit("sh", "-c", script, cwd=str(folder), **fields).id
    until(lambda: all((folder / name).exists() for name in ("own", "other")))
    return job


def seen(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("own", "other")]


def stands_still(folder: Path) -> bool:
    before = seen(folder)
    time.sleep(STILL_S)
    return seen(folder) == before


def goes_on(folder: Path) -> None:
    before = seen(folder)
    until(lambda: all(now not in ("", old) for now, old in zip(seen(folder), before, strict=True)))


@pytest.mark.slow
def test_a_paused_job_stands_still_until_it_is_resumed(daemon: Daemon, tmp_path: Path) -> None:
    job = counting(daemon, tmp_path)
    view = act(daemon, job, "pause")
    assert (view.paused, view.state, described_state(view), view.gpus) == (True, "running", "paused", (0,))
    until(lambda: stands_still(tmp_path))
    assert act(daemon, job, "pause").paused, "asked twice"
    assert not act(daemon, job, "resume").paused
    goes_on(tmp_path)
    with pytest.raises(RefusedByDaemonError, match="running and not paused"):
        act(daemon, job, "resume")
    act(daemon, job, "pause")
    act(daemon, job, "cancel")
    assert daemon.ended(job).state == "cancelled", "a paused job can be cancelled"
    with pytest.raises(RefusedByDaemonError, match="only a job that runs can be paused"):
        act(daemon, job, "pause")


@pytest.mark.slow
def test_a_pause_survives_a_kill_of_the_daemon_and_ends_with_the_run(daemon: Daemon, tmp_path: Path) -> None:
    job = counting(daemon, tmp_path, time_s=3600.0)
    act(daemon, job, "pause")
    until(lambda: stands_still(tmp_path))
    daemon.kill()
    assert stands_still(tmp_path)
    daemon.up()
    assert daemon.job(job).paused
    assert stands_still(tmp_path)
    change = msgspec.json.encode(JobChange(time_s=0.5 + time.time() - (daemon.job(job).started or 0.0)))
    daemon.client.post(f"/v1/jobs/{job}/change", JobView, change)
    end = daemon.ended(job)
    assert (end.outcome, end.paused) == ("time-limit", False), "the clock of the time limit goes on"


@pytest.mark.slow
def test_the_memory_of_a_running_job_is_raised(daemon: Daemon, tmp_path: Path) -> None:
    """Without that, the job would be ended as out of memory."""
    code = (
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
        "block = bytearray(os.urandom(1 << 20) * 90)\ntime.sleep(1.5)"
    )
    job = daemon.submit("python3", "-c", code, cwd=str(tmp_path), memory="60MiB").id
    until(lambda: daemon.job(job).state == "running")
    daemon.client.post(f"/v1/jobs/{job}/change", JobView, msgspec.json.encode(JobChange(memory="110MiB")))
    (tmp_path / "go").touch()
    end = daemon.ended(job)
    assert (end.outcome, end.code) == ("exited", 0), end.error
    other = daemon.submit("sleep", "60", memory="60MiB").id
    until(lambda: daemon.job(other).state == "running")
    with pytest.raises(RefusedByDaemonError, match="while it runs on simulated GPUs"):
        daemon.client.post(f"/v1/jobs/{other}/change", JobView, msgspec.json.encode(JobChange(memory="800MiB")))
    act(daemon, other, "cancel")


@with_engine
def test_only_jobs_that_run_are_paused(engine: Engine) -> None:
    job = engine.submit(JobRequest(command=("train",), cwd="/")).id
    with pytest.raises(InputError, match=f"{job} is queued; `cotenant hold {job}`"):
        engine.pause(job, True)
    engine.schedule()
    engine.pause(job, True)
    assert engine.interference.company(job) == [], "nothing is measured meanwhile"
    engine.cancel(job)
    with pytest.raises(InputError, match="about to end"):
        engine.pause(job, False)


@with_engine
def test_the_running_elements_of_an_array_are_paused(engine: Engine) -> None:
    array = engine.submit(JobRequest(command=("train",), cwd="/", memory="100MiB", array=parse_array("0-3%2"))).id
    engine.schedule()
    engine.pause(array, True)
    paused = [job.paused for job in engine.queries.elements(array, (), 9)]
    assert paused == [True, True, False, False]
    with pytest.raises(InputError, match="no element of a-000001 runs"):
        engine.pause(array, True)
    engine.pause(array, False)
    with pytest.raises(InputError, match="no element of a-000001 is paused"):
        engine.pause(array, False)


@in_loop
async def test_a_container_of_docker_is_not_called_paused(tmp_path: Path) -> None:
    """SIGSTOP would stop its client only: the container would go on, beside jobs that are measured without it."""
    with engine_on(tmp_path, containers=Runtime("docker", "/usr/bin/docker")) as (engine, _):
        wanted = JobRequest(command=("train",), cwd="/", memory="100MiB", container="tiny")
        job = engine.submit(wanted).id
        array = engine.submit(msgspec.structs.replace(wanted, array=parse_array("0-1"))).id
        engine.schedule()
        with pytest.raises(InputError, match=f"`docker pause cotenant-{job}-1`"):
            engine.pause(job, True)
        with pytest.raises(InputError, match=f"no element of {array} runs"):
            engine.pause(array, True)


@in_loop
async def test_the_next_run_of_a_job_is_not_paused(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, journal):
        job = engine.submit(JobRequest(command=("train",), cwd="/", retries=1)).id
        engine.schedule()
        engine.pause(job, True)
        assert journal.recall(PREFIX + job)
        finish(engine, job, code=1)
        engine.schedule()
        assert not engine.queries.job(job).paused
        assert journal.recall(PREFIX + job) is None
        assert not (engine.queries.folder(engine.queries.find(job)) / "orders").exists()


@in_loop
async def test_a_run_of_an_earlier_version_is_not_signalled(tmp_path: Path) -> None:
    """SIGUSR1 would kill its supervisor, and with it the job."""
    with engine_on(tmp_path) as (engine, _):
        job = engine.submit(JobRequest(command=("train",), cwd="/")).id
        engine.schedule()
        folder = engine.queries.folder(engine.queries.find(job))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "intent").write_text(f'{{"version": 1, "boot": "x", "pid": {os.getpid()}, "start": 0, "token": "x"}}')
        with pytest.raises(InputError, match="was started by an earlier version"):
            engine.pause(job, True)
