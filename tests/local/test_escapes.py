# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that fill the disk, stop or kill their supervisor, or hide their processes: each can be ended whole."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cotenant.local.supervisor import look_at
from cotenant.node.containment import find_containment, kill_group
from cotenant.wire.local import GpuView, JobView
from tests.local.daemon import Daemon, until
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


def test_a_job_that_stops_its_supervisor_can_be_cancelled(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "while kill -STOP $PPID; do :; done", grace_s=0.2).id
    until(lambda: daemon.job(job).state == "running")
    cancel(daemon, job)
    assert daemon.ended(job).state == "cancelled"


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


@needs_cgroups
def test_a_group_is_killed_with_all_groups_in_it() -> None:
    containment = find_containment("test")
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


@needs_cgroups
def test_a_fork_bomb_meets_the_limit_of_its_group() -> None:
    containment = find_containment("test")
    group = containment.create("bomb", 8)
    assert group is not None
    if not (group / "pids.max").exists():
        pytest.skip("the kernel offers no pids controller here")
    code = f"echo $$ > {group}/cgroup.procs; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 600 & done; wait"
    bomb = subprocess.Popen(["sh", "-c", code], stderr=subprocess.PIPE)
    assert bomb.stderr is not None
    assert b"fork" in bomb.stderr.readline()
    assert 1 <= kill_group(group) <= 8
    bomb.stderr.close()
    bomb.wait()
    assert os.path.exists(group) is False
