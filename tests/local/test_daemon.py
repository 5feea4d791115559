# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The whole daemon with real processes: jobs run, are limited, told apart by how they end, and survive its death."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from cotenant.client.client import Client
from cotenant.client.problems import NotFoundError, RefusedByDaemonError
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import JobState, Stop
from cotenant.local.processes import look_at, send
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from tests.local.daemon import Daemon, until

WAITS = "echo ran >> {}; while [ ! -e {} ]; do sleep 0.05; done"


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
    with pytest.raises(RefusedByDaemonError, match=r"needs 2048 MiB on one GPU; the freest has 1024 MiB free"):
        daemon.submit("true", memory="2GiB")
    with pytest.raises(RefusedByDaemonError, match=r"needs 3 GPUs on one node; the node has 2"):
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
    waiting = until(lambda: view if "reserved" in ((view := daemon.job(third.id)).reason or "") else None)
    refused, _, reserved = (waiting.reason or "").partition("; GPU")
    assert (waiting.state, refused) == ("queued", "needs 600 MiB on one GPU; the freest has 0 MiB free")
    assert reserved.endswith(f"is reserved for it, and it can start when {first.id} has ended")
    daemon.client.post(f"/v1/jobs/{first.id}/cancel", JobView)
    assert daemon.ended(third.id).code == 0
    assert daemon.job(first.id).state == "cancelled"


@pytest.mark.slow
def test_a_cordoned_gpu_takes_no_job_even_after_a_restart(daemon: Daemon) -> None:
    daemon.client.post("/v1/gpus/0/cordon", GpuView)
    daemon.kill()
    daemon.up()
    job = daemon.submit("true")
    assert daemon.ended(job.id).gpus == (1,)


def test_a_failing_job_is_tried_again_as_often_as_asked(daemon: Daemon) -> None:
    job = daemon.submit("false", retries=2)
    assert daemon.ended(job.id).attempts == 3


@pytest.mark.slow
def test_a_second_daemon_on_the_same_state_is_refused(daemon: Daemon) -> None:
    other = Daemon(daemon.state)
    with pytest.raises(AssertionError, match="journal"):
        other.up()
    assert daemon.job(daemon.submit("true").id).id


# Running again


def retry(daemon: Daemon, job: str) -> JobView:
    return daemon.client.post(f"/v1/jobs/{job}/retry", JobView)


def test_a_job_that_ended_can_be_run_again_with_all_its_retries(daemon: Daemon) -> None:
    job = daemon.submit("false", retries=1, priority=5).id
    assert daemon.ended(job).attempts == 2
    again = retry(daemon, job)
    assert (again.id, again.ended, again.outcome, again.code) == (job, None, None, None)
    view = daemon.ended(job)
    assert (view.attempts, view.outcome, view.code) == (4, "exited", 1)
    assert view.request is not None
    assert view.request.priority == 5
    stream = iter(daemon.client.lines("/v1/events?after=0"))
    told = b""
    while f'"job":"{job}","text":"retry requested after exited"'.encode() not in told:
        told += next(stream)
    assert b"event: retrying" in told


def test_only_a_job_that_ended_is_run_again(daemon: Daemon) -> None:
    running = daemon.submit("sleep", "60", gpus=2, memory="100%").id
    waiting = daemon.submit("true", memory="600MiB").id
    until(lambda: daemon.job(running).state == "running")
    for job in (running, waiting):
        with pytest.raises(RefusedByDaemonError, match="only a job that has ended can be run again"):
            retry(daemon, job)
    daemon.client.post(f"/v1/jobs/{waiting}/cancel", JobView)
    assert retry(daemon, waiting).state == "queued"
    daemon.client.post(f"/v1/jobs/{running}/cancel", JobView)
    assert (daemon.ended(waiting).code, daemon.job(waiting).attempts) == (0, 1)


@pytest.mark.slow
def test_after_a_restart_of_the_machine_a_job_is_interrupted_and_runs_again_only_if_asked(
    daemon: Daemon, tmp_path: Path
) -> None:
    job = daemon.submit("sh", "-c", WAITS.format(tmp_path / "ran", tmp_path / "go")).id
    until(lambda: (tmp_path / "ran").exists())
    daemon.kill()
    intent = daemon.state / "jobs" / job / "1" / "intent"
    record: dict[str, Any] = json.loads(intent.read_bytes())
    kill_and_wait(record["pid"], record["start"])
    intent.write_text(json.dumps({**record, "boot": "another"}))
    daemon.up()
    view = daemon.ended(job)
    assert (view.state, view.error) == ("interrupted", "the machine was restarted")
    assert (tmp_path / "ran").read_text() == "ran\n"
    (tmp_path / "go").touch()
    retry(daemon, job)
    view = daemon.ended(job)
    assert (view.state, view.code, view.attempts) == ("finished", 0, 2)
    assert (tmp_path / "ran").read_text() == "ran\nran\n"


def test_a_job_whose_supervisor_was_killed_is_lost_with_all_its_processes_and_can_run_again(
    daemon: Daemon, tmp_path: Path
) -> None:
    job = daemon.submit("sh", "-c", WAITS.format(tmp_path / "ran", tmp_path / "go")).id
    until(lambda: (tmp_path / "ran").exists())
    record = json.loads((daemon.state / "jobs" / job / "1" / "intent").read_bytes())
    kill_and_wait(record["pid"], record["start"])
    assert (daemon.ended(job).state, daemon.job(job).error) == ("lost", "its supervisor was killed")
    (tmp_path / "go").touch()
    retry(daemon, job)
    assert daemon.ended(job).code == 0


def kill_and_wait(pid: int, start: int) -> None:
    send(pid, start, signal.SIGKILL)
    until(lambda: (seen := look_at(pid)) is None or seen.start != start or seen.state == "Z")


# Draining


def test_a_drained_gpu_lets_its_jobs_end_and_takes_no_others(daemon: Daemon, tmp_path: Path) -> None:
    job = daemon.submit("sh", "-c", WAITS.format(tmp_path / "ran", tmp_path / "go")).id
    until(lambda: daemon.job(job).state == "running")
    view = daemon.client.post("/v1/gpus/0/drain", GpuView)
    assert (view.cordoned, view.tenants) == (True, (job,))
    assert daemon.ended(daemon.submit("true").id).gpus == (1,)
    (tmp_path / "go").touch()
    assert (daemon.ended(job).code, daemon.job(job).attempts, daemon.job(job).gpus) == (0, 1, (0,))


def test_evicted_jobs_go_on_elsewhere_and_keep_their_retries(daemon: Daemon, tmp_path: Path) -> None:
    fails_at_the_end = WAITS.format(tmp_path / "ran", tmp_path / "go") + "; exit 1"
    job = daemon.submit("sh", "-c", fails_at_the_end, retries=1).id
    other = daemon.submit("sleep", "60", memory="1000MiB").id
    until(lambda: daemon.job(job).state == daemon.job(other).state == "running" and (tmp_path / "ran").exists())
    assert (daemon.job(job).gpus, daemon.job(other).gpus) == ((0,), (1,))
    daemon.client.post("/v1/gpus/0/drain", GpuView, b'{"evict": true}')
    waiting = until(lambda: view if (view := daemon.job(job)).state == "queued" else None)
    assert waiting.reason is not None
    assert "(evicted from GPU 0: asked to leave GPU 0, which is drained)" in waiting.reason
    daemon.kill()  # what was evicted stays in the queue
    daemon.up()
    daemon.client.post(f"/v1/jobs/{other}/cancel", JobView)
    until(lambda: (view := daemon.job(job)).state == "running" and view.gpus == (1,))
    (tmp_path / "go").touch()
    assert (daemon.ended(job).attempts, daemon.job(job).code) == (3, 1)  # evicted, failed, tried again
    assert daemon.job(other).state == "cancelled"


def test_a_job_that_is_being_evicted_can_be_cancelled(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "trap '' TERM; sleep 60 & wait; wait", grace_s=3.0).id
    until(lambda: daemon.job(job).state == "running")
    daemon.client.post("/v1/gpus/0/drain", GpuView, b'{"evict": true}')
    daemon.client.post(f"/v1/jobs/{job}/cancel", JobView)
    assert (daemon.ended(job).state, daemon.job(job).attempts) == ("cancelled", 1)


# What is seen


@pytest.mark.slow
def test_used_memory_and_utilisation_of_jobs_and_gpus_are_shown(daemon: Daemon) -> None:
    code = "held = b'x' * (500 << 20)\nwhile True: pass"
    job = daemon.submit("python3", "-c", code, memory="600MiB").id
    idle = daemon.submit("sleep", "60", memory="600MiB").id

    def seen() -> JobView | None:
        view = daemon.job(job)
        return view if (view.memory_used_mib or 0) > 50 and (view.utilisation or 0) > 5 else None

    busy = until(seen)
    assert 50 < (busy.memory_used_mib or 0) < 200  # above what the runtime itself may use
    assert (daemon.job(idle).memory_used_mib, daemon.job(idle).gpus) == (0, (1,))
    first, second = daemon.client.get("/v1/gpus", list[GpuView])
    assert (first.used_mib or 0) > 50
    assert (first.utilisation or 0) > 5
    assert second.used_mib == 0


def test_why_a_job_was_put_there_is_said_in_numbers(daemon: Daemon) -> None:
    job = daemon.submit("sleep", "60").id
    reason = until(lambda: view.reason if (view := daemon.job(job)).state == "running" else None)
    assert reason.startswith("least-loaded: 2 of 2 GPUs fit, best score ")
    assert reason.endswith("; GPU 0 had 1024 MiB and 100 % free")
    assert daemon.client.get(f"/v1/jobs/{job}/why", dict[str, Any])["reason"] == reason


def test_simulated_cards_are_the_same_after_a_restart(daemon: Daemon) -> None:
    daemon.stop()
    daemon.up("--simulate", "2")
    assert [gpu.memory_mib for gpu in daemon.client.get("/v1/gpus", list[GpuView])] == [1024, 1024]


@pytest.mark.parametrize(("stop", "state", "attempts"), [(Stop.CANCEL, "cancelled", 1), (Stop.EVICT, "running", 2)])
def test_a_stop_that_a_killed_daemon_recorded_and_did_not_send_is_sent_after_the_restart(
    daemon: Daemon, stop: Stop, state: str, attempts: int
) -> None:
    job = daemon.submit("sleep", "600").id
    until(lambda: daemon.job(job).state == "running")
    daemon.kill()
    with Journal.open(daemon.state / "journal.db") as journal:
        journal.transition(job, (JobState.RUNNING,), JobState.RUNNING, stop=stop)
    daemon.up()
    until(lambda: (view := daemon.job(job)).state == state and view.attempts == attempts)


@pytest.mark.slow
def test_a_job_that_failed_while_no_daemon_ran_is_queued_again_only_once(daemon: Daemon, tmp_path: Path) -> None:
    code = f"echo ran >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; test -e {tmp_path}/good"
    job = daemon.submit("sh", "-c", code, retries=5).id
    until(lambda: daemon.job(job).state == "running")
    daemon.kill()
    (tmp_path / "go").touch()
    until(lambda: (daemon.state / "jobs" / job / "1" / "exit").exists())
    (tmp_path / "good").touch()
    daemon.up()
    assert daemon.ended(job).code == 0
    other = daemon.submit("true").id
    assert daemon.ended(other).code == 0
    assert (tmp_path / "ran").read_text() == "ran\nran\n"
