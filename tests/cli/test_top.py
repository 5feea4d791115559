# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant top` in a terminal of the usual size."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios

import pytest

from cotenant.cli.top import Snapshot, in_place, screen
from cotenant.wire.local import GpuView, JobView
from tests.cli.command import START, environment
from tests.local.daemon import Daemon

STATUS = {"gpus": 8, "devices": "simulated", "policy": "fragmentation", "running": 40, "queued": 10_000}


def busy(jobs: int = 40) -> Snapshot:
    """Large cards, long names, every number known."""
    gpus = [
        GpuView(index=i, uuid=f"GPU-{i}", type="NVIDIA-H100-80GB-HBM3", memory_mib=81_559, free_memory_mib=1024 * i,
                free_compute=0, used_mib=81_559, utilisation=100.0, cordoned=True, tenants=("a", "b"))
        for i in range(8)
    ]  # fmt: skip
    running = [
        JobView(id=f"j-{i:06}", name="a-training-run-with-a-very-long-name", state="running", submitted=0.0,
                started=0.0, gpus=(i % 8,), batch=1024, speed=0.83, memory_used_mib=40_960, utilisation=100.0)
        for i in range(jobs)
    ]  # fmt: skip
    return Snapshot(status=STATUS, gpus=gpus, jobs=running)


def test_the_busiest_machine_fits_80_columns() -> None:
    lines = screen(busy(), wide=False).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("8 simulated GPUs, policy fragmentation: 40 running, 10000 queued, ")
    assert lines[2].split() == ["GPU", "TYPE", "ALLOCATED", "USED", "COMPUTE", "BUSY", "STATE", "JOBS"]
    assert lines[12].split() == ["GPU", "JOB", "NAME", "MEMORY", "BUSY", "SPEED", "BATCH", "RAN"]
    assert "83%" in lines[13]


def test_what_is_too_large_for_the_terminal_is_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")
    drawn = in_place(screen(busy(), wide=True))
    lines = drawn.removeprefix("\033[H").removesuffix("\033[J").split("\n\033[K")
    assert len(lines) == 20
    assert lines[-1] == f"… and {len(screen(busy(), wide=True).splitlines()) - 19} more lines"
    assert len(lines[3]) == 40
    assert lines[3].endswith("…")


def test_a_machine_without_jobs_says_so() -> None:
    assert screen(busy(jobs=0), wide=False).endswith("\n\nno job is running")


def test_live_table_is_drawn_in_place_and_ends_cleanly_with_ctrl_c(daemon: Daemon) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = environment(COTENANT_STATE=str(daemon.state), TERM="xterm")
    with subprocess.Popen(
        [*START, "top", "--every", "0.2"], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as command:
        os.close(theirs)
        seen = b""
        while seen.count(b"no job is running") < 3:
            seen += os.read(ours, 65_536)
        command.send_signal(signal.SIGINT)
        command.wait(30)
    os.close(ours)
    assert command.returncode == 0
    assert seen.count(b"\033[2J") == 1  # cleared once, then drawn over
    assert seen.count(b"\033[H") >= 3
    assert b"Traceback" not in seen


def test_into_a_file_goes_no_escape_and_without_end_only_what_was_asked(daemon: Daemon) -> None:
    env = environment(COTENANT_STATE=str(daemon.state))
    with subprocess.Popen([*START, "top", "--every", "0.2"], env=env, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        lines = [command.stdout.readline() for _ in range(20)]
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=30)
    assert command.returncode == 0
    assert sum("simulated GPUs" in line for line in lines) >= 2
    assert "\x1b" not in "".join(lines)
