# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that fill the disk, stop or kill their supervisor, or hide their processes: each can be ended whole."""

import asyncio
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.errors import CotenantError
from cotenant.local import attempts
from cotenant.local.journal_schema import JournalError
from cotenant.local.processes import look_at
from cotenant.local.run_files import Spec
from cotenant.local.unrecorded import UnrecordedCancels
from cotenant.node.containment import Containment, find_containment, kill_group
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from tests.local.daemon import Daemon, until
from tests.local.engines import engine_on
from tests.local.test_bad_input import full_disk

needs_cgroups = pytest.mark.skipif(find_containment("test").folder is None, reason="no cgroup can be created here")


def cancel(daemon: Daemon, job: str) -> JobView:
    return daemon.client.post(f"/v1/jobs/{job}/cancel", JobView)


def test_a_job_can_be_cancelled_while_the_disk_is_full(daemon: Daemon, tmp_path: Path) -> None:
    job = daemon.submit("sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600").id
    pid = int(until(lambda: (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else None))
    with full_disk(daemon.client.get("/v1/status", dict[str, Any])["pid"]):
        cancel(daemon, job)
        until(lambda: look_at(pid) is None)
    assert daemon.ended(job).state == "cancelled"


def test_a_queued_job_can_be_cancelled_while_the_disk_is_full_and_never_runs(daemon: Daemon, tmp_path: Path) -> None:
    first = daemon.submit("sleep", "600", gpus=2, memory="100%", grace_s=0.1).id
    until(lambda: daemon.job(first).state == "running")
    job, other = (daemon.submit("touch", str(tmp_path / name)).id for name in ("ran", "other"))
    with full_disk(daemon.client.get("/v1/status", dict[str, Any])["pid"]):
        assert cancel(daemon, job).state == "cancelled"
        assert daemon.job(job).state == "cancelled"
        with pytest.raises(RefusedByDaemonError, match=r"has already ended \(cancelled\)"):
            cancel(daemon, job)
        daemon.kill()  # the journal does not know of the cancellation
    daemon.up()
    assert daemon.job(job).state == "cancelled"
    cancel(daemon, first)
    assert daemon.ended(other).code == 0
    assert not (tmp_path / "ran").exists()
    assert UnrecordedCancels(daemon.state / "unrecorded").jobs() == []
    assert daemon.client.post(f"/v1/jobs/{job}/retry", JobView).state == "queued"
    assert daemon.ended(job).code == 0


def test_a_cancelled_job_is_not_evicted_instead_if_the_disk_was_full(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.05; done", grace_s=2).id
    until(lambda: b"".join(daemon.client.lines(f"/v1/jobs/{job}/log")))
    (gpu,) = daemon.job(job).gpus
    daemon.client.post(f"/v1/gpus/{gpu}/drain", GpuView, b'{"evict": true}')
    with full_disk(daemon.client.get("/v1/status", dict[str, Any])["pid"]):
        cancel(daemon, job)
    assert daemon.ended(job).state == "cancelled"
    assert UnrecordedCancels(daemon.state / "unrecorded").jobs() == []


def test_cancellations_survive_in_reserved_space_and_are_bounded(tmp_path: Path) -> None:
    kept = UnrecordedCancels(tmp_path / "unrecorded")
    size = (tmp_path / "unrecorded").stat().st_size
    jobs = [f"j-{number:06d}" for number in range(1, 1000)]
    stored = [job for job in jobs if kept.store(job)]
    assert len(stored) == 256
    assert kept.store(stored[0])
    assert UnrecordedCancels(tmp_path / "unrecorded").jobs() == stored
    kept.remove(stored[0])
    assert kept.store(jobs[-1])
    again = UnrecordedCancels(tmp_path / "unrecorded")
    assert sorted(again.jobs()) == sorted([*stored[1:], jobs[-1]])
    assert (tmp_path / "unrecorded").stat().st_size == size
    assert not UnrecordedCancels(tmp_path / "no" / "folder").store("j-000001")


def test_a_cancellation_that_cannot_be_removed_from_the_file_is_reported_and_removed_later(tmp_path: Path) -> None:
    kept = UnrecordedCancels(tmp_path / "unrecorded")
    assert kept.store("j-000001")
    kept.remember("j-000002")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        assert not kept.store("j-000003")
        with pytest.raises(
            JournalError, match="the recorded cancellation of j-000001 cannot be removed: File too large"
        ):
            kept.remove("j-000001")
        kept.remove("j-000002")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert kept.jobs() == []
    assert UnrecordedCancels(tmp_path / "unrecorded").jobs() == ["j-000001"]
    kept.remove("j-000001")
    assert UnrecordedCancels(tmp_path / "unrecorded").jobs() == []


def test_a_place_of_a_recorded_cancellation_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "unrecorded"
    kept = UnrecordedCancels(path)
    assert kept.store("j-000009")
    assert kept.store("j-000001")
    with read_only(path), pytest.raises(JournalError):
        kept.remove("j-000001")
    kept.remove("j-000009")
    assert kept.store("j-000001")
    assert UnrecordedCancels(path).jobs() == ["j-000001"]
    kept.remove("j-000001")
    assert UnrecordedCancels(path).jobs() == []
    assert kept.store("j-000001")
    assert kept.jobs() == UnrecordedCancels(path).jobs() == ["j-000001"]
    with read_only(path), pytest.raises(JournalError):
        kept.remove("j-000001")
    assert kept.store("j-000002")
    kept.remove("j-000001")
    assert kept.jobs() == UnrecordedCancels(path).jobs() == ["j-000002"]


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Lets writes to a file fail that this process has open, and to no other file."""
    every = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(path)]
    writable, unwritable = os.dup(every[0]), os.open(path, os.O_RDONLY)
    for fd in every:
        os.dup2(unwritable, fd)
    try:
        yield
    finally:
        for fd in every:
            os.dup2(writable, fd)
        os.close(writable)
        os.close(unwritable)


def test_jobs_start_although_a_recorded_cancellation_cannot_be_removed(tmp_path: Path) -> None:
    request = JobRequest(command=("true",), cwd="/", memory="100MiB")

    async def story() -> None:
        path = tmp_path / "unrecorded"
        with engine_on(tmp_path) as (engine, _):
            first, second, third = (engine.submit(request).id for _ in range(3))
        kept = UnrecordedCancels(path)
        assert kept.store(first)  # as a daemon does that is killed then
        assert kept.store(second)
        with engine_on(tmp_path) as (engine, journal):
            with read_only(path):
                engine.recover()
                engine.schedule()
                states = [journal.job(job).state for job in (first, second, third)]
                assert states == ["cancelled", "cancelled", "starting"]
                with pytest.raises(JournalError, match=f"the recorded cancellation of {first} cannot be removed"):
                    engine.retry(first)  # a restart would cancel the new attempt
            assert engine.retry(first).state == "queued"
            assert UnrecordedCancels(path).jobs() == [second]

    asyncio.run(story())


def test_a_truncated_file_of_cancellations_does_not_end_the_daemon(daemon: Daemon) -> None:
    job = daemon.submit("sleep", "600", grace_s=0.1).id
    until(lambda: daemon.job(job).state == "running")
    os.truncate(daemon.state / "unrecorded", 0)  # as somebody does who looks for space
    with full_disk(daemon.client.get("/v1/status", dict[str, Any])["pid"]):
        cancel(daemon, job)
    assert daemon.ended(job).state == "cancelled"


def test_a_running_job_is_stopped_even_if_its_cancellation_can_be_stored_nowhere(daemon: Daemon) -> None:
    first = daemon.submit("sh", "-c", "exec sleep 600", memory="1GiB", gpus=2, grace_s=0.1).id
    until(lambda: daemon.job(first).state == "running")
    waiting = daemon.submit("sleep", "600").id
    daemon.client.post(f"/v1/gpus/{daemon.job(first).gpus[0]}/cordon", GpuView)
    with full_disk(daemon.client.get("/v1/status", dict[str, Any])["pid"], reserved=False):
        with pytest.raises(CotenantError, match="cannot write the journal"):
            cancel(daemon, waiting)  # a kill of the daemon could lose the cancellation, and the job would run
        assert cancel(daemon, first).state == "running"
        until(lambda: (daemon.state / "jobs" / first / "1" / "exit").exists())
        assert daemon.job(waiting).state == "queued"
    assert daemon.ended(first).state == "cancelled"


@pytest.mark.slow
def test_a_job_that_stops_its_supervisor_can_be_cancelled(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "while kill -STOP $PPID; do :; done", grace_s=0.2).id
    until(lambda: daemon.job(job).state == "running")
    cancel(daemon, job)
    assert daemon.ended(job).state == "cancelled"


@pytest.mark.slow
def test_a_stopped_supervisor_is_continued_so_that_limits_hold(daemon: Daemon) -> None:
    hog = "import os, mmap, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(0.2)\n"
    hog += "m = mmap.mmap(-1, 40 << 24)\nfor _ in range(40):\n  m.write(bytes(1 << 24))\ntime.sleep(600)"
    assert daemon.ended(daemon.submit("python3", "-S", "-c", hog).id).outcome == "out-of-memory"


@needs_cgroups
def test_what_a_job_hides_before_it_kills_its_supervisor_is_killed_before_its_slot_is_free(
    daemon: Daemon, tmp_path: Path
) -> None:
    hidden = f"env -i setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' &"
    wait = f"while [ ! -s {tmp_path}/pid ]; do sleep 0.02; done"
    job = daemon.submit("sh", "-c", f"{hidden} {wait}; kill -KILL $PPID; sleep 600").id
    assert daemon.ended(job).state == "lost"
    assert all(job not in gpu.tenants for gpu in daemon.client.get("/v1/gpus", list[GpuView]))
    seen = look_at(int((tmp_path / "pid").read_text()))
    assert seen is None or seen.state in "ZX"


@pytest.fixture(params=["cgroup", "cgroup2"])
def containment(request: pytest.FixtureRequest, tmp_path: Path) -> Containment:
    """The cgroups of a machine that mounts only this version."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if line.split()[2] == request.param]
    (tmp_path / "mounts").write_text("".join(f"{line}\n" for line in mounts))
    found = find_containment("test", mounts=tmp_path / "mounts")
    if found.folder is None:
        pytest.skip(f"no {request.param} can be created here")
    return found


def test_what_a_run_hides_is_killed_by_its_group(containment: Containment, tmp_path: Path) -> None:
    group = containment.create("run", 20)
    assert group is not None
    folder = tmp_path / "run"
    both = "kill -KILL $(awk '{print $4}' /proc/$PPID/stat) $PPID; sleep 600"  # the keeper too
    attempts.prepare(folder, hiding(tmp_path, both)._replace(contain=str(group)))
    attempts.launch(folder)
    until(lambda: attempts.status(folder).state == "lost")
    hidden = int((tmp_path / "pid").read_text())
    assert look_at(hidden) is not None
    assert attempts.kill_leftovers(folder) >= 1
    seen = look_at(hidden)
    assert seen is None or seen.state in "ZX"
    until(lambda: kill_group(group) == 0 and not group.exists())


def test_a_group_is_killed_with_all_groups_in_it(containment: Containment) -> None:
    group = containment.create("job", 20)
    assert group is not None
    inner = group / "inner"
    inner.mkdir()
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    for process, place in zip(processes, (group, inner), strict=True):
        (place / "cgroup.procs").write_text(str(process.pid))
    assert kill_group(group) == 2
    assert [process.wait() for process in processes] == [-9, -9]
    until(lambda: kill_group(group) == 0 and not group.exists())
    assert containment.remove("never-made") == 0


def test_a_fork_bomb_meets_the_limit_of_its_group(containment: Containment) -> None:
    group = containment.create("bomb", 8)
    assert group is not None
    if not (group / "pids.max").exists():
        kill_group(group)
        pytest.skip("the kernel offers no pids controller here")
    code = f"echo $$ > {group}/cgroup.procs; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 600 & done; wait"
    bomb = subprocess.Popen(["sh", "-c", code], stderr=subprocess.PIPE)
    assert bomb.stderr is not None
    assert b"fork" in bomb.stderr.readline()
    assert 1 <= kill_group(group) <= 8
    bomb.stderr.close()
    bomb.wait()
    assert os.path.exists(group) is False


# Without cgroups


def hiding(folder: Path, then: str) -> Spec:
    """A run that hides a process (new session, empty environment), writes its ID to a file, and goes on with `then`."""
    hidden = f"env -i setsid sh -c 'echo $$ > {folder}/pid; exec sleep 600' &"
    wait = f"while [ ! -s {folder}/pid ]; do sleep 0.02; done"
    return Spec(argv=["sh", "-c", f"{hidden} {wait}; {then}"], cwd="/", env={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    "then",
    [
        "kill -KILL $PPID; sleep 600",
        "keeper=$(awk '{print $4}' /proc/$PPID/stat); kill -STOP $keeper; kill -KILL $PPID; sleep 600",
    ],
    ids=["kills its supervisor", "stops its keeper too"],
)
def test_a_hidden_process_is_killed_before_its_run_is_lost(tmp_path: Path, then: str) -> None:
    folder = tmp_path / "run"
    attempts.prepare(folder, hiding(tmp_path, then))
    attempts.launch(folder)

    def status() -> attempts.Status:
        found = attempts.status(folder)
        if found.pidfd is not None:
            os.close(found.pidfd)
        return found

    until(lambda: status().state == "lost")
    seen = look_at(int((tmp_path / "pid").read_text()))
    assert seen is None or seen.state in "ZX"


@pytest.mark.slow
def test_a_run_that_ends_by_itself_leaves_no_keeper(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    attempts.prepare(folder, hiding(tmp_path, "exit 3"))
    attempts.launch(folder)
    until(lambda: attempts.status(folder).state == "ended")
    keeper = json.loads((folder / "intent").read_text())["keeper"]
    until(lambda: look_at(keeper) is None)
    assert look_at(int((tmp_path / "pid").read_text())) is None
