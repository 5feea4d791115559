# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant top` in a terminal of the usual size."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import tty
from pathlib import Path

import msgspec
import pytest

from cotenant.cli.top import in_place, screen
from cotenant.cli.top_keys import GREEN, RED, YELLOW, in_colour, keys, updated
from cotenant.cli.top_screen import SORTS, Action, Snapshot, View, bar, draw, press, shown_jobs
from cotenant.client.client import Client
from cotenant.client.problems import NoDaemonError
from cotenant.errors import CotenantError
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView, UnmanagedProcess
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


def test_the_table_shows_the_first_jobs_of_the_queue_and_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = screen(full(jobs=1, waiting=60), wide=False).splitlines()
    assert lines[-12].split() == ["JOB", "USER", "NAME", "WAITED", "WAITS", "BECAUSE"]
    assert lines[-11].startswith("j-900000  carol  next")
    assert lines[-11].endswith("needs 2 whole GPUs; the node has 0 free")
    assert lines[-1] == "… and 9,990 more jobs"
    assert max(map(len, lines)) <= 80


def test_a_machine_without_jobs_says_so() -> None:
    assert screen(busy(jobs=0), wide=False).endswith("\n\nno job is running")


@pytest.mark.parametrize("end", ["q", "Ctrl-C"])
def test_the_screen_is_drawn_in_place_reads_keys_and_ends_cleanly(daemon: Daemon, end: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = environment(COTENANT_STATE=str(daemon.state), TERM="xterm")
    with subprocess.Popen(
        [*START, "top", "--every", "0.2"], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as command:
        os.close(theirs)
        seen = b""
        while seen.count(b"RUNNING by gpu (0)") < 3:
            seen += os.read(ours, 65_536)
        os.write(ours, b"s")
        while b"RUNNING by user" not in seen:
            seen += os.read(ours, 65_536)
        if end == "q":
            os.write(ours, b"q")
        else:
            command.send_signal(signal.SIGINT)
        command.wait(30)
        seen += os.read(ours, 65_536)
    os.close(ours)
    assert command.returncode == 0
    assert (seen.count(b"\033[?1049h"), seen.count(b"\033[?1049l")) == (1, 1)  # what was there before comes back
    assert seen.count(b"\033[H") >= 3
    assert b"Traceback" not in seen


def test_into_a_file_goes_no_escape_and_without_end_only_what_was_asked(daemon: Daemon) -> None:
    env = environment(COTENANT_STATE=str(daemon.state))
    with subprocess.Popen([*START, "top", "--every", "0.2"], env=env, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        lines = [command.stdout.readline() for _ in range(20)]
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=300)
    assert command.returncode == 0
    assert sum("simulated GPUs" in line for line in lines) >= 2
    assert "\x1b" not in "".join(lines)


# The whole screen


def queued(count: int) -> list[JobView]:
    reason = "needs 2 whole GPUs; the node has 0 free"
    return [
        JobView(id=f"j-9{i:05}", name="next", user="carol", state="queued", submitted=0.0, reason=reason)
        for i in range(count)
    ]


def full(jobs: int = 40, waiting: int = 60) -> Snapshot:
    shown = busy(jobs)
    return msgspec.structs.replace(shown, queue=queued(waiting))


@pytest.mark.parametrize("width", [60, 80, 120, 250])
@pytest.mark.parametrize("height", [10, 24, 80])
def test_every_line_fits_the_terminal_and_the_screen_is_full(width: int, height: int) -> None:
    lines = draw(full(), View(), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q quit")


def test_a_narrow_terminal_drops_the_least_important_columns() -> None:
    wide, narrow = (draw(full(2, 2), View(), width, 40) for width in (160, 60))
    assert wide[1].split() == ["GPU", "MEMORY", "BUSY", "TEMP", "POWER", "GIVEN", "JOBS", "STATE", "TYPE"]
    assert narrow[1].split() == ["GPU", "MEMORY", "BUSY", "JOBS"]
    assert "WAITS BECAUSE" in "".join(narrow)
    assert "NAME" in narrow[12]


def test_a_narrow_terminal_keeps_the_reasons_and_drops_names_and_the_clock() -> None:
    lines = draw(full(), View(), 60, 40)
    assert lines[0].endswith("queued")
    heading = next(line for line in lines if "WAITS BECAUSE" in line)
    assert "USER" in heading
    assert "NAME" not in heading
    assert any("needs 2 whole GPUs; the node" in line for line in lines)


def test_running_jobs_and_the_queue_share_the_room_and_what_is_left_out_is_counted() -> None:
    text = "\n".join(draw(full(), View(), 100, 40))
    assert "── RUNNING by gpu (40, " in text
    assert "── QUEUE (60, " in text
    assert "needs 2 whole GPUs" in text


def test_bars_are_as_long_as_their_part() -> None:
    assert [bar(part) for part in (0.0, 0.5, 1.0, 7.0)] == ["░" * 10, "█" * 5 + "░" * 5, "█" * 10, "█" * 10]


def test_a_bar_shows_what_is_promised_behind_what_is_used() -> None:
    assert bar(0.2, 0.5) == "██▒▒▒░░░░░"
    assert bar(0.5, 0.2) == "█████░░░░░"
    assert bar(0.0, 7.0) == "▒" * 10


def test_colours_change_no_character() -> None:
    line = f"0  {bar(0.3)} 3%  {bar(0.7, 0.9)} 7%  {bar(1.0)} 100%"
    coloured = in_colour(line)
    assert [code in coloured for code in (GREEN, YELLOW, RED)] == [True, True, True]
    for text in (line, "> 0  j-000001", "── QUEUE (3)", "no bar"):
        assert re.sub(r"\x1b\[[0-9]*m", "", in_colour(text)) == text


def test_the_chosen_job_is_always_on_the_screen() -> None:
    shown, view = full(40, 60), View()
    for key, mark in (("down", "j-000000"), ("end", "j-900059"), ("page-up", "j-900049"), ("home", "j-000000")):
        view, _ = press(view, key, shown)
        lines = draw(shown, view, 80, 24)
        assert [line for line in lines if line.startswith(">")] == [line for line in lines if mark in line], key


def test_a_daemon_that_does_not_answer_is_said_and_forgotten_once_it_does() -> None:
    answers: list[Snapshot | CotenantError] = [NoDaemonError("no daemon is running"), full(3, 0)]

    def read() -> Snapshot:
        answer = answers.pop(0)
        if isinstance(answer, CotenantError):
            raise answer
        return answer

    shown, view = updated(Client(), read, full(1, 0), View())
    assert (len(shown.jobs), "NOT CURRENT: no daemon is running" in draw(shown, view, 80, 24)[-1]) == (1, True)
    shown, view = updated(Client(), read, shown, view)
    assert (len(shown.jobs), view.lost) == (3, "")


def test_a_program_without_a_job_has_a_line() -> None:
    shown = full(1, 0)
    other = UnmanagedProcess(pid=7, user="bob", program="python", memory_mib=300)
    gpus = [msgspec.structs.replace(shown.gpus[0], unmanaged=(other,)), *shown.gpus[1:]]
    lines = draw(msgspec.structs.replace(shown, gpus=gpus), View(), 80, 40)
    assert "without a job on GPU 0: bob:python 300 MiB" in lines


def test_keys_choose_sort_filter_and_act() -> None:
    shown, view = full(2, 1), View()
    view, action = press(view, "w", shown)
    assert (action, "choose a job" in view.note) == (None, True)
    for _ in range(5):
        view, _ = press(view, "down", shown)
    assert view.chosen == "j-900000", "the last one"
    view, _ = press(view, "up", shown)
    assert view.chosen == "j-000001"
    assert press(view, "w", shown)[1] == Action("why", "j-000001")
    assert press(view, "l", shown)[1] == Action("logs", "j-000001")
    asked, action = press(view, "c", shown)
    assert (asked.confirming, action) == ("j-000001", None)
    assert press(asked, "y", shown)[1] == Action("cancel", "j-000001")
    assert press(asked, "n", shown) == (view, None)
    for key in "/carol":
        view, _ = press(view, key, shown)
    assert tuple([job.id for job in part] for part in shown_jobs(shown, view)) == ([], ["j-900000"])
    view, _ = press(view, "backspace", shown)
    view, _ = press(view, "enter", shown)
    assert (view.filter, view.typing) == ("caro", False)
    view, _ = press(view, "esc", shown)
    assert view.filter == ""
    assert press(view, "q", shown)[1] == Action("quit")


def test_every_sort_order_can_be_reached() -> None:
    view, names = View(), []
    for _ in SORTS:
        names.append(SORTS[view.sort][0])
        view, _ = press(view, "s", full(2))
    assert (names, view.sort) == ([name for name, _ in SORTS], 0)


def test_a_panel_is_wrapped_and_the_next_key_closes_it() -> None:
    view = View(panel=("word " * 40, "end"))
    lines = draw(full(), view, 60, 10)
    assert "end" in lines
    assert "any key: back" in lines[-1]
    assert press(view, "x", full()) == (View(), None)


def test_several_keys_at_once_are_all_read() -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    os.write(ours, b"\x1b[B\x1b[5~jq\x1b[Z")
    assert keys(theirs, 5.0) == ["down", "page-up", "j", "q"]
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGTSTP])
def test_a_signal_gives_the_terminal_back(daemon: Daemon, number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    env = environment(COTENANT_STATE=str(daemon.state), TERM="xterm")
    words = [*START, "top", "--every", "0.2"]
    with subprocess.Popen(words, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as command:
        seen = b""

        def until(text: bytes, times: int = 1) -> None:
            nonlocal seen
            while seen.count(text) < times:
                assert select.select([ours], [], [], 30)[0], seen
                seen += os.read(ours, 65_536)

        until(b"RUNNING")
        command.send_signal(number)
        until(b"\033[?1049l")
        if number == signal.SIGTSTP:
            while Path(f"/proc/{command.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
            assert termios.tcgetattr(theirs)[3] & termios.ECHO
            command.send_signal(signal.SIGCONT)
            until(b"\033[?1049h", times=2)
            os.write(ours, b"q")
        assert command.wait(30) == (0 if number == signal.SIGTSTP else 128 + number)
        assert termios.tcgetattr(theirs)[3] & termios.ECHO
    os.close(ours)
    os.close(theirs)
