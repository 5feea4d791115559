# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The whole daemon with real processes: jobs run, are limited, told apart by how they end, and survive its death."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.cli.client import Client, NotFoundError, RefusedByDaemonError
from cotenant.wire.local import GpuView, JobView
from tests.local.daemon import Daemon, running_daemon, until


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


def log_of(client: Client, job: str) -> str:
    return b"".join(client.lines(f"/v1/jobs/{job}/log")).decode()


def test_jobs_run_on_their_gpu_and_keep_their_exit_codes_and_logs(daemon: Daemon) -> None:
    good = daemon.submit("sh", "-c", "echo $COTENANT_JOB on $CUDA_VISIBLE_DEVICES")
    bad = daemon.submit("sh", "-c", "exit 3", name="bad")
    missing = daemon.submit("/no/such/program")
    assert (daemon.ended(good.id).outcome, daemon.job(good.id).code) == ("exited", 0)
    assert (daemon.ended("bad").outcome, daemon.job("bad").code) == ("exited", 3)
    assert daemon.ended(missing.id).outcome == "exec-failed"
    assert log_of(daemon.client, good.id) == f"{good.id} on 0\n"
    assert daemon.job(bad.id).enforcement


def test_a_job_that_takes_more_memory_than_its_slice_ends_alone_as_out_of_memory(daemon: Daemon) -> None:
    quiet = daemon.submit("sleep", "60")
    hog = daemon.submit("python3", "-c", "import mmap, time\nblocks = []\nwhile True:\n  m = mmap.mmap(-1, 1 << 24)\n"
                        "  m.write(bytes(1 << 24))\n  blocks.append(m)\n  time.sleep(0.02)")  # fmt: skip
    assert daemon.ended(hog.id).outcome == "out-of-memory"
    assert daemon.job(quiet.id).state == "running"


def test_what_can_never_fit_is_refused_at_once_with_the_numbers(daemon: Daemon) -> None:
    with pytest.raises(RefusedByDaemonError, match=r"needs 2048 MiB on one GPU, the freest has 1024"):
        daemon.submit("true", memory="2GiB")
    with pytest.raises(RefusedByDaemonError, match=r"needs 3 GPUs on one node, it has 2"):
        daemon.submit("true", gpus=3)
    with pytest.raises(RefusedByDaemonError, match="give a unit"):
        daemon.submit("true", memory="4")
    with pytest.raises(NotFoundError):
        daemon.job("j-999999")


def test_full_gpus_make_a_job_wait_with_a_reason_until_one_is_free(daemon: Daemon) -> None:
    first = daemon.submit("sleep", "60", memory="100%")
    second = daemon.submit("sleep", "60", memory="100%")
    third = daemon.submit("true", memory="600MiB")
    until(lambda: daemon.job(second.id).state == "running")
    waiting = daemon.job(third.id)
    assert (waiting.state, waiting.reason) == ("queued", "needs 600 MiB on one GPU, the freest has 0")
    daemon.client.post(f"/v1/jobs/{first.id}/cancel", JobView)
    assert daemon.ended(third.id).code == 0
    assert daemon.job(first.id).state == "cancelled"


def test_a_cordoned_gpu_takes_no_job_even_after_a_restart(daemon: Daemon) -> None:
    daemon.client.post("/v1/gpus/0/cordon", GpuView)
    daemon.kill()
    daemon.up()
    job = daemon.submit("true")
    assert daemon.ended(job.id).gpus == (1,)


def test_a_failing_job_is_tried_again_as_often_as_asked(daemon: Daemon) -> None:
    job = daemon.submit("false", retries=2)
    assert daemon.ended(job.id).attempts == 3


def test_every_job_runs_exactly_once_however_often_the_daemon_is_killed(daemon: Daemon, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    words = random.Random(7)
    jobs = []
    for i in range(24):
        text = f"echo {i} >> {ran}; sleep {words.choice(['0', '0.3', '1'])}; exit {i % 3}"
        jobs.append(daemon.submit("sh", "-c", text))
        if i % 3 == 2:
            daemon.kill()
            daemon.up()
    for _ in range(4):
        daemon.kill()
        daemon.up()
    views = [daemon.ended(job.id) for job in jobs]
    assert [view.code for view in views] == [i % 3 for i in range(24)]
    assert sorted(ran.read_text().split(), key=int) == [str(i) for i in range(24)]


def test_a_second_daemon_on_the_same_state_is_refused(daemon: Daemon) -> None:
    other = Daemon(daemon.state)
    with pytest.raises(AssertionError, match="journal"):
        other.up()
    assert daemon.job(daemon.submit("true").id).id


def test_the_interface_describes_itself(daemon: Daemon) -> None:
    described = daemon.client.get("/openapi.json", dict[str, object])
    paths = described["paths"]
    assert isinstance(paths, dict)
    assert {"/v1/jobs", "/v1/jobs/{job}", "/v1/gpus", "/v1/events"} <= set(paths)
