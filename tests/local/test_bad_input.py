# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a daemon: each a clear sentence and an exit code, and nothing is lost."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.errors import CotenantError, InputError
from cotenant.local.daemon import DEVICES
from cotenant.local.journal import Journal
from cotenant.local.unrecorded import SIZE
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.job_checks import decode_list
from cotenant.wire.job_views import JobView
from tests.cli.command import environment, run
from tests.local.daemon import Daemon, running_daemon, until


@contextmanager
def full_disk(pid: int, reserved: bool = True) -> Iterator[None]:
    """No file of that process can grow, as if its disk were full; the space for cancellations can be overwritten, and
    everything else of the daemon is larger than that."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (SIZE if reserved else 0, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # the test killed it
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_a_full_disk_refuses_new_jobs_loses_no_old_ones_and_is_over_when_it_is_over(
    daemon: Daemon, tmp_path: Path
) -> None:
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 4"
    first = daemon.submit("sh", "-c", waits, gpus=2, memory="100%").id
    second = daemon.submit("true").id
    until(lambda: daemon.job(first).state == "running")
    with full_disk(daemon.client.get("/v1/status", dict[str, Any])["pid"]):
        with pytest.raises(CotenantError, match=r"cannot write the journal.*free some space.*no accepted job is lost"):
            daemon.submit("true")
        done = run("submit", "--memory", "1MiB", "--", "true", env=environment(COTENANT_STATE=str(daemon.state)))
        assert (done.returncode, done.stdout) == (1, "")
        assert "free some space on that disk" in done.stderr
        (tmp_path / "go").touch()  # the first one ends, which cannot be written down
        until(lambda: (daemon.state / "jobs" / first / "1" / "exit").exists())
        assert [daemon.job(job).state for job in (first, second)] == ["running", "queued"]
    assert (daemon.ended(first).code, daemon.job(first).attempts) == (4, 1)
    assert (daemon.ended(second).code, daemon.job(second).attempts) == (0, 1)


def test_a_job_that_cannot_be_started_for_want_of_space_is_started_later(daemon: Daemon, tmp_path: Path) -> None:
    jobs = daemon.state / "jobs"
    first = daemon.submit("true").id
    daemon.ended(first)
    jobs.rename(jobs.with_name("away"))
    jobs.touch()  # where a folder should be made
    job = daemon.submit("true").id
    view = until(lambda: found if "cannot be started yet" in ((found := daemon.job(job)).reason or "") else None)
    assert view.state == "starting"
    jobs.unlink()
    jobs.with_name("away").rename(jobs)
    assert (daemon.ended(job).code, daemon.job(job).attempts) == (0, 1)


@pytest.mark.parametrize(
    ("state", "code", "sentence"),
    [
        ("/proc/cotenant", 2, "/proc/cotenant: the state folder cannot be created"),
        ("/proc/self", 1, "the daemon needs a folder that it can write to"),
        ("/dev/null/x", 2, "/dev/null/x: the state folder cannot be created: Not a directory"),
        (f"/var/{'x' * 100}", 2, "this path is too long for a socket; set COTENANT_STATE to a shorter one"),
    ],
)
def test_a_state_folder_that_cannot_be_used_is_one_sentence(state: str, code: int, sentence: str) -> None:
    done = run("up", "--simulate", "1", env=environment(COTENANT_STATE=state))
    (line,) = done.stderr.splitlines()
    assert (done.returncode, sentence in line) == (code, True), line


def test_a_second_daemon_is_told_who_has_the_journal(daemon: Daemon) -> None:
    done = run("up", env=environment(COTENANT_STATE=str(daemon.state)))
    (line,) = done.stderr.splitlines()
    pid = daemon.client.get("/v1/status", dict[str, Any])["pid"]
    assert (done.returncode, f"in use by another daemon, process {pid}" in line) == (1, True), line
    assert daemon.ended(daemon.submit("true").id).code == 0


def test_a_command_that_does_not_exist_ends_as_such(daemon: Daemon) -> None:
    view = daemon.ended(daemon.submit("no-such-command").id)
    assert (view.state, view.outcome, view.code) == ("finished", "exec-failed", 127)
    assert view.error == "cannot run the command 'no-such-command': No such file or directory (ENOENT)"
    words = ("submit", "--memory", "1MiB", "--wait", "--", "no-such-command")
    assert run(*words, env=environment(COTENANT_STATE=str(daemon.state))).returncode == 127


def test_a_job_that_forks_a_thousand_children_is_ended_with_all_of_them(daemon: Daemon) -> None:
    quiet = daemon.submit("sleep", "60").id
    code = "import os, time\nfor _ in range(1000):\n  if os.fork() == 0:\n    time.sleep(100)\ntime.sleep(100)"
    view = daemon.ended(daemon.submit("python3", "-S", "-c", code, memory="800MiB").id)
    assert (view.state, view.outcome, view.signal) == ("finished", "signalled", 9)
    assert "its limit is 512: killed with all of them" in (view.error or "")
    assert daemon.job(quiet).state == "running"


def test_a_job_can_be_cancelled_in_the_very_moment_it_starts(daemon: Daemon) -> None:
    for _ in range(20):
        job = daemon.submit("sleep", "60").id
        daemon.client.post(f"/v1/jobs/{job}/cancel", JobView)
        assert daemon.ended(job).state == "cancelled"


@pytest.mark.slow
def test_a_daemon_with_fewer_gpus_than_a_job_runs_on_does_not_start_and_loses_nothing() -> None:
    with running_daemon() as daemon:
        jobs = [daemon.submit("sleep", "60", memory="60%").id for _ in range(2)]
        until(lambda: all(daemon.job(job).state == "running" for job in jobs))
        daemon.kill()
        done = run("up", "--simulate", "1", env=environment(COTENANT_STATE=str(daemon.state)))
        assert done.returncode == 1
        assert "runs on GPU 1, but this machine has only 1 GPU now" in done.stderr
        daemon.up()
        assert [daemon.job(job).state for job in jobs] == ["running", "running"]


def test_a_job_that_ended_on_a_gpu_that_is_gone_can_still_be_shown_but_not_run_again() -> None:
    with running_daemon() as daemon:
        job = daemon.submit("echo", "hello", gpus=2).id
        daemon.ended(job)
        daemon.stop()
        daemon.up("--simulate", "1", "--gpu-memory", "1GiB")
        assert (daemon.job(job).outcome, daemon.job(job).enforcement) == ("exited", ())
        with pytest.raises(CotenantError, match="never run here"):
            daemon.client.post(f"/v1/jobs/{job}/retry", JobView)


@pytest.mark.slow
def test_a_daemon_without_its_helpers_does_not_pretend_to_be_well() -> None:
    with running_daemon() as daemon:
        daemon.stop()
        (daemon.state / "agent.sock").mkdir()
        done = run("up", "--simulate", "1", env=environment(COTENANT_STATE=str(daemon.state)))
        assert done.returncode != 0
        assert "agent.sock" in done.stderr
        (daemon.state / "agent.sock").rmdir()
        daemon.up()


def test_a_daemon_that_lost_its_real_gpus_does_not_run_the_queue_on_simulated_ones(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.remember(DEVICES, Vendor.NVIDIA)
    done = run("up", env=environment(COTENANT_STATE=str(tmp_path)))
    assert (done.returncode, "no NVIDIA GPU was found" in done.stderr) == (1, True), done


@pytest.mark.slow
def test_sigterm_is_a_clean_end() -> None:
    with running_daemon() as daemon:
        daemon.stop()
        assert not (daemon.state / "journal.db-wal").exists()
        daemon.up()


def test_the_journal_is_for_its_owner_alone(daemon: Daemon) -> None:
    found = [
        path for path in daemon.state.glob("journal.db*") if path.stat().st_mode & 0o077 and path.suffix != ".lock"
    ]
    assert [path.name for path in found] == []


@pytest.mark.parametrize("memory", ["0MiB", "0.4MiB", "0%"])
def test_memory_that_is_none_is_refused(daemon: Daemon, memory: str) -> None:
    with pytest.raises(CotenantError, match="less than 1 MiB or 1%"):
        daemon.submit("true", memory=memory)


def test_variables_of_a_list_are_bounded_because_each_job_stores_them() -> None:
    jobs = [{"command": ["true"], "cwd": "/"}] * 1000
    assert len(decode_list(msgspec.json.encode({"jobs": jobs, "env": {"A": "x" * 30_000}}))) == 1000
    with pytest.raises(InputError, match="1000 jobs would be 38 MiB, and may be 32 MiB"):
        decode_list(msgspec.json.encode({"jobs": jobs, "env": {"A": "x" * 40_000}}))


def test_a_job_without_a_gpu_runs(daemon: Daemon) -> None:
    assert daemon.ended(daemon.submit("true", gpus=0, memory=None).id).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("up", "--listen", "99999", "--token-file", "x"), "expected PORT or HOST:PORT"),
        (("up", "--queue", "nosuch"), "choose one of fifo"),
        (("submit", "--env", "X=\udcff", "--", "true"), "not valid UTF-8"),
    ],
)
def test_odd_options_are_one_sentence(daemon: Daemon, words: tuple[str, ...], sentence: str) -> None:
    done = run(*words, env=environment(COTENANT_STATE=str(daemon.state)))
    (line,) = done.stderr.splitlines()
    assert (done.returncode, sentence in line) == (2, True), line
