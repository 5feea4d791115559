# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Interactive jobs in real terminals: keys, sizes, exit codes, and what is left when a part of it is killed."""

import os
import pwd
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.client.terminal import Keys, Modes, connect, frame
from cotenant.errors import CotenantError
from cotenant.local.run_files import read_json
from cotenant.local.terminal import MOST_CLIENTS, QUESTIONS
from cotenant.wire.job_views import TerminalView
from tests.local.daemon import Daemon, running_daemon, until
from tests.local.screens import Screen, screen
from tests.local.users import SystemDaemon, as_user, system_daemon

SMALL = ("--memory", "100MiB")
DETACH = "\x1dd"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "daemon" in request.fixturenames:
        request.getfixturevalue("daemon").clear()


@contextmanager
def cotenant(daemon: Daemon, *words: str, rows: int = 30, columns: int = 100) -> Iterator[Screen]:
    with screen(*words, env={"COTENANT_STATE": str(daemon.state)}, rows=rows, columns=columns) as one:
        yield one


@contextmanager
def shell(daemon: Daemon, *options: str, **size: int) -> Iterator[tuple[Screen, str]]:
    """An interactive shell that is ready for input, and its job."""
    with cotenant(daemon, "submit", "--interactive", *SMALL, *options, "--", "sh", **size) as one:
        job = one.until(" is submitted").split()[0]
        one.until("# ")
        yield one, job


def place(daemon: Daemon, job: str) -> str:
    return daemon.client.get(f"/v1/jobs/{job}/terminal", TerminalView).socket


def log(daemon: Daemon, job: str) -> str:
    return b"".join(daemon.client.log(job)).decode(errors="replace")


def supervisor_of(daemon: Daemon, job: str) -> int:
    intent = read_json(str(daemon.state / "jobs" / job / "1" / "intent"))
    assert intent is not None
    return int(intent["pid"])


def test_a_shell_has_the_terminal_its_size_and_ctrl_c_and_ends_with_its_exit_code(daemon: Daemon) -> None:
    with shell(daemon, rows=33, columns=111) as (one, job):
        one.type("stty size; tty; echo typed > /dev/tty\r")
        one.until("33 111")
        one.until("/dev/pts/")
        one.until("typed")
        one.resize(40, 120)
        one.type("trap 'echo resized' WINCH; stty size\r")
        one.until("40 120")
        one.type("sleep 1000; echo status $?\r")
        until(lambda: "sleep 1000" in log(daemon, job))
        one.type("\x03")
        one.until("^C")
        one.type("echo still here\r")
        one.until("still here\r\n")
        one.type("exit 7\r")
        assert one.end() == 7
        assert one.now() == one.modes
    assert daemon.ended(job).code == 7
    assert "still here" in log(daemon, job)


def test_the_keys_leave_the_terminal_and_attach_returns_to_it(daemon: Daemon) -> None:
    with shell(daemon) as (one, job):
        one.type("x=kept\r")
        one.until("# ")
        one.type(DETACH)
        one.until("detached")
        assert one.end() == 0
        assert one.now() == one.modes
    assert daemon.job(job).state == "running"
    with cotenant(daemon, "attach", job) as again, cotenant(daemon, "attach", "--read-only", job) as beside:
        again.until("x=kept")  # the end of the output is shown again
        again.type("echo value $x\r")
        again.until("value kept")
        beside.until("value kept")
        beside.type("exit 9\r")  # not passed on
        beside.type("\x03")
        assert beside.end() == 0
        again.type("exit 4\r")
        assert again.end() == 4


def test_a_job_that_waits_says_why_and_starts_when_it_is_its_turn(daemon: Daemon) -> None:
    full = daemon.submit("sleep", "1000", gpus=2, memory="100%").id
    with cotenant(daemon, "submit", "--interactive", *SMALL, "--", "sh", "-c", "echo begun; exit 5") as one:
        one.until("is queued: ")
        daemon.client.act(full, "cancel")
        one.until("begun")
        assert one.end() == 5


def test_a_terminal_that_ends_before_it_accepts_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "terminal")
    with ThreadPoolExecutor() as pool:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(path)
            listener.listen()
            one = pool.submit(connect, path)
            assert select.select([listener], [], [], 60.0)[0]
        with pytest.raises(ConnectionRefusedError):
            one.result()


def test_ctrl_c_while_it_waits_cancels_it(daemon: Daemon) -> None:
    daemon.submit("sleep", "1000", gpus=2, memory="100%")
    with cotenant(daemon, "submit", "--interactive", *SMALL) as one:
        job = one.until(" is submitted").split()[0]
        one.until("is queued: ")
        one.type("\x03")
        assert one.end() == 130
    assert daemon.ended(job).state == "cancelled"


def test_a_cancelled_shell_ends_at_once_after_its_command_has_ended_in_its_own_way(daemon: Daemon) -> None:
    """A shell ignores SIGTERM, and passes SIGHUP on to its command, which may save what it has done."""
    command = """sh -c 'trap "sleep 1; echo saved; exit" TERM; echo ready; while :; do sleep 0.1; done'"""
    with shell(daemon) as (one, job):
        one.type(f"{command}\r")
        one.until("\nready")
        daemon.client.act(job, "cancel")
        one.until("\nsaved")
        one.until("was cancelled")
    ended = daemon.ended(job)
    assert (ended.state, ended.error) == ("cancelled", None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_and_the_job_continues_when_the_client_is_killed(daemon: Daemon, number: int) -> None:
    with shell(daemon) as (one, job):
        assert one.now() != one.modes
        one.type("echo before; sleep 0.5; echo after\r")
        one.until("before\r\n")
        one.kill(number)
        until(lambda: one.now() == one.modes)
        until(lambda: "after\r\n" in log(daemon, job))
        assert daemon.job(job).state == "running"


@pytest.mark.slow
def test_the_terminal_outlives_the_daemon(daemon: Daemon) -> None:
    with shell(daemon) as (one, _job):
        daemon.kill()
        one.type("echo without a daemon\r")
        one.until("without a daemon\r\n")
        one.type("exit 6\r")
        one.until("waiting for it")
        daemon.up()
        assert one.end() == 6


def test_the_client_ends_when_the_supervisor_is_killed(daemon: Daemon) -> None:
    with shell(daemon) as (one, job):
        one.type("echo $$ > /dev/tty; sleep 1000\r")
        os.kill(supervisor_of(daemon, job), signal.SIGKILL)
        one.until("is lost")
        assert one.end() != 0
        assert one.now() == one.modes
    assert daemon.ended(job).state == "lost"


def test_output_just_before_the_end_is_shown_and_stored(daemon: Daemon) -> None:
    code = "seq 1 60000; exit 3"
    with cotenant(daemon, "submit", "--interactive", *SMALL, "--", "sh", "-c", code) as one:
        job = one.until(" is submitted").split()[0]
        one.until("\r\n60000\r\n")
        assert one.end() == 3
    assert log(daemon, job).split() == [str(number) for number in range(1, 60001)]


def test_a_client_that_does_not_read_delays_nothing_and_is_told_what_it_missed(daemon: Daemon) -> None:
    with shell(daemon) as (one, job), closing(connect(place(daemon, job))) as lazy:
        one.type("seq 1 900000 | tail -c 5000000; echo the end\r")
        while b"the end\r\n# " not in one.seen:
            one.read()
            one.seen = one.seen[-100:]
        lazy.settimeout(10)
        seen = b""
        while b"the end\r\n" not in seen[-100:]:
            seen += lazy.recv(1 << 16)
        assert b"bytes of output skipped" in seen
        assert len(seen) < 3_000_000


def test_input_that_the_job_does_not_read_waits_in_the_client(daemon: Daemon) -> None:
    with (
        cotenant(daemon, "submit", "--interactive", *SMALL, "--", "sh", "-c", "stty raw; echo up; sleep 1000") as one,
    ):
        job = one.until(" is submitted").split()[0]
        one.until("up")
        with closing(connect(place(daemon, job))) as typist:
            typist.setblocking(False)
            taken = 0
            with suppress(BlockingIOError):
                while taken < 50_000_000:
                    taken += typist.send(frame(b"i", b"x" * 16_000))
            assert taken < 50_000_000
            memory = Path(f"/proc/{supervisor_of(daemon, job)}/statm").read_text().split()[1]
            assert int(memory) * os.sysconf("SC_PAGE_SIZE") < 60 << 20
        daemon.client.act(job, "cancel")
        one.until("was cancelled")


@pytest.mark.parametrize("content", [b"q\0\0", b"w\0\1x", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 70_000])
def test_a_client_that_breaks_the_rules_is_dropped_and_nobody_else(daemon: Daemon, content: bytes) -> None:
    with shell(daemon) as (one, job):
        with closing(connect(place(daemon, job))) as broken:
            broken.settimeout(10)
            broken.sendall(content)
            with suppress(ConnectionResetError):
                while broken.recv(1 << 16):
                    pass
        one.type("echo fine\r")
        one.until("fine\r\n")


def test_a_window_of_any_size_is_taken(daemon: Daemon) -> None:
    with shell(daemon) as (one, job):
        with closing(connect(place(daemon, job))) as strange:
            for rows, columns in ((0, 0), (65_535, 65_535), (1, 1)):
                strange.sendall(frame(b"w", struct.pack("!HH", rows, columns)))
        one.type("echo fine\r")
        one.until("fine\r\n")


def test_too_many_terminals_are_refused_with_the_number(daemon: Daemon) -> None:
    with shell(daemon) as (_one, job), ExitStack() as stack:
        for _ in range(MOST_CLIENTS - 1):
            stack.enter_context(closing(connect(place(daemon, job))))
        with pytest.raises(CotenantError, match=f"{MOST_CLIENTS} terminals are attached"):
            connect(place(daemon, job))


def test_a_paused_shell_goes_on_with_its_command_in_the_foreground(daemon: Daemon) -> None:
    """A shell with job control would take a child that is stopped for one that Ctrl-Z has stopped."""
    with cotenant(daemon, "submit", "--interactive", *SMALL, "--", "bash", "--norc", "-i") as one:
        job = one.until(" is submitted").split()[0]
        one.until("# ")
        one.type("sleep 1; echo slept $?\r")
        until(lambda: "sleep 1" in log(daemon, job))
        for _ in range(3):
            daemon.client.act(job, "pause")
            time.sleep(0.2)
            daemon.client.act(job, "resume")
            time.sleep(0.2)
        assert "Stopped" not in one.until("slept 0")


def test_attach_to_another_job_shows_its_output_and_ends_as_it_does(daemon: Daemon, tmp_path: Path) -> None:
    code = f"echo begun; while ! test -e {tmp_path}/go; do sleep 0.1; done; echo done; exit 3"
    job = daemon.submit("sh", "-c", code).id
    with cotenant(daemon, "attach", job) as one:
        one.until("is not interactive")
        one.until("begun")
        (tmp_path / "go").touch()
        one.until("done")
        assert one.end() == 3
    with cotenant(daemon, "attach", job) as late:
        late.until("cotenant logs")
        assert late.end() == 1


def test_attach_to_another_job_is_left_by_ctrl_c(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "echo begun; sleep 1000").id
    with cotenant(daemon, "attach", job) as one:
        one.until("begun")
        one.type("\x03")
        assert one.end() == 0
    assert daemon.job(job).state == "running"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--array", "0-3"), "leave out --array"),
        (("--file", __file__), "leave out --file"),
        (("--output", "json"), "leave out --output"),
        (("--on", "kubernetes"), "--interactive"),
    ],
)
def test_what_does_not_fit_is_refused(daemon: Daemon, words: tuple[str, ...], problem: str) -> None:
    with cotenant(daemon, "submit", "--interactive", *words, "--", "true", columns=300) as one:
        one.until(problem)
        assert one.end() == 2


def test_a_job_without_a_terminal_has_none(daemon: Daemon) -> None:
    job = daemon.submit("sleep", "1000").id
    with pytest.raises(RefusedByDaemonError, match="is not interactive"):
        place(daemon, job)
    with pytest.raises(RefusedByDaemonError, match="array has no terminal"):
        daemon.submit("true", array={"indexes": "0-2"}, terminal={})


def test_a_terminal_that_cannot_be_made_is_reported(daemon: Daemon) -> None:
    """A folder has the name of its socket."""
    held = daemon.submit("sleep", "1000", gpus=2, memory="100%").id
    job = daemon.submit("true", terminal={}).id
    (daemon.state / "jobs" / job / "1" / "terminal" / "x").mkdir(parents=True)
    daemon.client.act(held, "cancel")
    assert "cannot make a terminal" in str(daemon.ended(job).error)


def test_keys_that_leave() -> None:
    keys = Keys()
    assert keys.take(b"ab\x1d") == b"ab"
    assert keys.take(b"x\x1d\x1dy") == b"\x1dx\x1dy"
    assert not keys.left
    assert keys.take(b"z\x1ddef") == b"z"
    assert keys.left


def test_a_key_that_is_not_followed_by_another_is_passed_on() -> None:
    keys = Keys()
    assert keys.take(b"\x1d") == b""
    assert keys.overdue() == b""
    until(lambda: keys.patience_s() == 0)
    assert keys.overdue() == b"\x1d"
    assert keys.patience_s() is None


def test_modes_are_undone() -> None:
    modes = Modes()
    modes.see(b"text \x1b[?1049h\x1b[?2004;1")
    modes.see(b"000h\x1b[?25l\x1b[?7h\x1b[?7l")
    assert modes.undo() == b"\x1b[?1000l\x1b[?1049l\x1b[?2004l\x1b[?25h"


def test_questions_to_the_terminal_are_not_repeated() -> None:
    past = b"a\x1b[cb\x1b[6nc\x1b[>cd\x1b]11;?\x07e\x1b[1;31mf\x1b]0;title\x07g\x1b[?1049h"
    assert QUESTIONS.sub(b"", past) == b"abcde\x1b[1;31mf\x1b]0;title\x07g\x1b[?1049h"


root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make users")


@pytest.fixture(scope="module")
def shared() -> Iterator[SystemDaemon]:
    with system_daemon("--listen", "0") as one:
        yield one


@contextmanager
def as_ada(shared: SystemDaemon, *words: str) -> Iterator[Screen]:
    env = {"COTENANT_RUNTIME": f"{shared.folder}/run", "HOME": "/nonexistent"}
    with screen(*words, env=env, user=shared.ada) as one:
        yield one


@root
def test_a_terminal_belongs_to_the_submitter_and_nobody_else_reaches_it(shared: SystemDaemon) -> None:
    with as_ada(shared, "submit", "--interactive", *SMALL, "--", "sh") as one:
        job = one.until(" is submitted").split()[0]
        one.until("$ ")
        entry = pwd.getpwnam(shared.ada)
        one.type("id -u; echo tty=$(tty); grep NoNewPrivs /proc/self/status\r")
        one.until(f"\r\n{entry.pw_uid}\r\n")
        one.until("tty=")
        device = one.until("\r\n").strip()
        one.until("NoNewPrivs:\t1")
        seen = os.stat(device)
        assert (seen.st_uid, stat.S_IMODE(seen.st_mode)) == (entry.pw_uid, 0o600)

        path = shared.folder / "run" / "terminals" / job
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (entry.pw_uid, 0o600)
        for other in (shared.bob, shared.admin):
            with pytest.raises(PermissionError):
                as_user(other, lambda: connect(str(path)).close())
            with pytest.raises(PermissionError):
                as_user(other, lambda: os.close(os.open(device, os.O_WRONLY | os.O_NOCTTY)))
            with pytest.raises(PermissionError):
                as_user(other, lambda: os.listdir(path.parent))
            with pytest.raises(PermissionError):
                as_user(other, path.unlink)
            answer = shared.ask(other, "GET", f"/v1/jobs/{job}/terminal")
            assert answer.status == 403, answer.body
        path.chmod(0o666)  # even then, the kernel says who it is
        with pytest.raises(CotenantError, match="belongs to another user"):
            as_user(shared.bob, lambda: connect(str(path)).close())

        token = shared.ask(shared.ada, "POST", "/v1/tokens").json()["token"]
        answer = shared.ask_over_tcp(token, "GET", f"/v1/jobs/{job}/terminal")
        assert answer.status == 400
        assert b"not over TCP" in answer.body
        one.type("exit 8\r")
        assert one.end() == 8
    until(lambda: not path.exists())


@root
def test_the_command_is_refused_over_tcp_before_anything_is_submitted(shared: SystemDaemon, tmp_path: Path) -> None:
    token = shared.ask(shared.ada, "POST", "/v1/tokens").json()["token"]
    file = tmp_path / "token"
    file.write_text(token)
    before = len(shared.ask(shared.ada, "GET", "/v1/jobs").json())
    env = {"COTENANT_URL": f"http://127.0.0.1:{shared.port}", "COTENANT_TOKEN_FILE": str(file)}
    with screen("submit", "--interactive", *SMALL, env=env) as one:
        one.until("not over TCP")
        assert one.end() == 2
    assert len(shared.ask(shared.ada, "GET", "/v1/jobs").json()) == before


@root
def test_the_job_of_another_user_is_not_attached(shared: SystemDaemon) -> None:
    sizes: tuple[dict[str, int] | None, ...] = (None, {})
    jobs = [shared.submit(shared.bob, "sleep", "1000", terminal=size).id for size in sizes]
    for job in jobs:
        shared.running(job)
        with as_ada(shared, "attach", job) as one:
            one.until(f"belongs to {shared.bob}")
            assert one.end() != 0


@root
def test_a_terminal_left_by_a_killed_supervisor_is_removed(shared: SystemDaemon) -> None:
    job = shared.submit(shared.ada, "sleep", "1000", terminal={"rows": 20, "columns": 50}).id
    path = shared.folder / "run" / "terminals" / job
    until(path.exists)
    intent = until(lambda: read_json(str(shared.folder / "state" / "jobs" / job / "1" / "intent")))
    os.kill(intent["pid"], signal.SIGKILL)
    assert shared.ended(job).state == "lost"
    until(lambda: not path.exists())
