# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job's supervisor, with real processes: ends are told apart, limits hold, nothing survives or runs twice."""

import ast
import fcntl
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.errors import CotenantError
from cotenant.local import attempts, supervisor
from cotenant.local.processes import Tree, look_at
from cotenant.local.run_files import Exit, Spec, locked, read_json
from cotenant.local.supervision import TICK_S, Supervision

PATIENCE_S = 40.0
SOURCES = str(Path(supervisor.__file__).parents[2])
PYTHON = [sys.executable, "-I", "-S", "-c"]

Start = Callable[..., Path]
MODULES = ("supervisor", "supervision", "run_files", "processes", "run_log", "cpu_share", "job_process")
"""of the package `local`, which a supervisor loads"""


def test_a_supervisor_loads_the_standard_library_and_its_own_modules_only() -> None:
    imported = set[str]()
    for module in (*(f"local/{name}" for name in MODULES), "node/kernel"):
        for node in ast.walk(ast.parse(Path(SOURCES, "cotenant", f"{module}.py").read_text())):
            if isinstance(node, ast.Import):
                imported |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
    own = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert own == {*(f"cotenant.local.{module}" for module in MODULES[1:]), "cotenant.node.kernel"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a job in a new folder; at the end of the test nothing of it is left."""
    folders: list[Path] = []

    def start_job(argv: list[str], **limits: Any) -> Path:
        folders.append(tmp_path / "jobs" / f"j-{len(folders) + 1:06d}")
        attempts.prepare(folders[-1], specification(tmp_path, argv, **limits))
        attempts.launch(folders[-1])
        return folders[-1]

    yield start_job
    for folder in folders:
        clean_up(folder)


def specification(cwd: Path, argv: list[str], **limits: Any) -> Spec:
    return Spec(argv=argv, cwd=str(cwd), env={"PATH": os.environ["PATH"]}, **limits)


def clean_up(folder: Path) -> None:
    found = attempts.status(folder)
    if found.pidfd is not None:
        signal.pidfd_send_signal(found.pidfd, signal.SIGKILL)
        wait_for_handle(found.pidfd)
    attempts.kill_leftovers(folder)


def wait_for_handle(pidfd: int) -> None:
    assert select.select([pidfd], [], [], PATIENCE_S)[0], "the supervisor did not end"
    os.close(pidfd)


def end_of(folder: Path) -> Exit:
    """How the job ended, as soon as it has."""
    found = attempts.status(folder)
    if found.pidfd is not None:
        wait_for_handle(found.pidfd)
        found = attempts.status(folder)
    assert found.exit is not None, found
    assert leftovers(folder) == []
    return found.exit


def leftovers(folder: Path) -> list[int]:
    intent, run = read_json(f"{folder}/intent"), read_json(f"{folder}/run")
    return [] if intent is None else [pid for pid, _ in attempts.find_leftovers(intent["token"], run)]


def until(condition: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.01)


def output_of(folder: Path) -> str:
    """All output that is kept."""
    offset, text = 0, b""
    while True:
        begin, piece = attempts.read_log(folder, offset, 1 << 20)
        if not piece:
            return text.decode()
        offset, text = begin + len(piece), text + piece


def record(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_bytes())
    return content


# How jobs end


@pytest.mark.parametrize(
    ("script", "outcome", "code", "number"),
    [
        ("exit 0", "exited", 0, None),
        ("exit 42", "exited", 42, None),
        ("kill -SEGV $$", "signalled", None, signal.SIGSEGV),
        ("kill -KILL $$", "signalled", None, signal.SIGKILL),
    ],
)
def test_exit_codes_and_signals_are_told_apart(
    start: Start, script: str, outcome: str, code: int | None, number: int | None
) -> None:
    before = time.time()
    end = end_of(start(["sh", "-c", script]))
    assert (end.outcome, end.code, end.signal) == (outcome, code, number)
    assert before - 1 <= end.started <= end.ended <= time.time() + 1


def test_output_and_errors_are_in_the_log_and_the_environment_is_the_given_one(start: Start, tmp_path: Path) -> None:
    folder = start(["sh", "-c", "pwd; echo oops >&2; echo $COTENANT_RUN; env | wc -l; cat"])
    assert end_of(folder).code == 0
    where, oops, token, variables = output_of(folder).split()
    assert (where, oops, token) == (str(tmp_path), "oops", record(folder, "intent")["token"])
    assert int(variables) <= 5  # PATH, our mark, and what the shell adds itself


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"argv": ["no-such-command"]}, "cannot run the command 'no-such-command': No such file or directory (ENOENT)"),
        ({"argv": ["/etc/passwd"]}, "cannot run the command '/etc/passwd': Permission denied (EACCES)"),
        ({"argv": ["a\0b"]}, "embedded null"),
        ({"cwd": "/no/such/folder"}, "cannot enter the working directory '/no/such/folder': No such file"),
        ({"cpus": [100_000]}, "cannot run on the CPUs [100000]"),
        ({"cgroup": "/no/such/group"}, "cannot join the control group /no/such/group"),
    ],
)
def test_a_job_that_cannot_be_run_says_why(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    attempts.prepare(tmp_path / "job", specification(tmp_path, ["true"])._replace(**change))
    attempts.launch(tmp_path / "job")
    end = end_of(tmp_path / "job")
    assert (end.outcome, end.code) == ("exec-failed", 127)
    assert sentence in (end.error or "")


def test_a_folder_without_a_usable_specification_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CotenantError, match=r"spec\.json is not the specification of a job"):
        attempts.launch(tmp_path)
    (tmp_path / "spec.json").write_text('{"version": 7, "argv": ["true"], "cwd": "/", "env": {}}')
    with pytest.raises(CotenantError, match="has version 7"):
        attempts.launch(tmp_path)
    assert attempts.status(tmp_path).state == "new"


def test_signals_that_python_ignores_are_not_ignored_by_the_job(start: Start) -> None:
    folder = start(["sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status"])
    end_of(folder)
    internal = 0b11 << 31  # signals 32 and 33 are the C library's own: nobody can set them, and they may be inherited
    assert {int(line.split()[1], 16) & ~internal for line in output_of(folder).splitlines()} == {0}


# Cancelling


def test_cancelling_asks_first(start: Start) -> None:
    folder = start(["sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"])
    until(lambda: "ready" in output_of(folder), "the job")
    assert attempts.cancel(folder)
    end = end_of(folder)
    assert (end.outcome, end.code, end.error) == ("cancelled", 7, None)
    assert "bye" in output_of(folder)
    assert not attempts.cancel(folder)


def test_cancelling_kills_what_does_not_end(start: Start) -> None:
    folder = start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"], grace_s=0.2)
    until(lambda: "ready" in output_of(folder), "the job")
    attempts.cancel(folder)
    end = end_of(folder)
    assert (end.outcome, end.signal) == ("cancelled", signal.SIGKILL)
    assert end.error == "did not end within 0.2 s of SIGTERM: killed"


def test_the_time_limit_asks_a_job_to_end_and_says_so(start: Start) -> None:
    script = "trap 'exit 7' TERM; while :; do sleep 0.05; done"
    end = end_of(start(["sh", "-c", script], time_s=0.3, grace_s=PATIENCE_S))
    assert (end.outcome, end.code, end.error) == ("time-limit", 7, "ran for its time limit of 0.3 s")


def test_a_job_that_ignores_its_time_limit_is_killed(start: Start) -> None:
    end = end_of(start(["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"], time_s=0.2, grace_s=0.1))
    assert (end.outcome, end.signal) == ("time-limit", signal.SIGKILL)
    assert end.error == "ran for its time limit of 0.2 s; did not end within 0.1 s of SIGTERM: killed"


def test_a_warning_comes_before_the_time_limit(start: Start) -> None:
    script = "trap 'echo warned; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    folder = start(["sh", "-c", script], time_s=PATIENCE_S + 2, warn_s=PATIENCE_S)
    assert (end_of(folder).outcome, output_of(folder).split()) == ("exited", ["ready", "warned"])


def test_a_job_that_ends_in_time_does_not_notice_its_limit(start: Start) -> None:
    assert end_of(start(["true"], time_s=PATIENCE_S, warn_s=1.0)).outcome == "exited"


def test_a_job_whose_memory_another_job_needs_has_a_short_grace(start: Start) -> None:
    folder = start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"], grace_s=PATIENCE_S)
    until(lambda: "ready" in output_of(folder), "the job")
    assert attempts.cancel(folder, reclaims=True)
    end = end_of(folder)
    assert (end.outcome, end.error) == ("cancelled", "did not end within 1 s of SIGTERM: killed")


def test_the_grace_is_also_for_the_program_inside_a_shell(start: Start) -> None:
    code = """if True:
        import os, signal, time
        def save(*_):
            time.sleep(0.5)
            os.write(1, b"saved\\n")
            os._exit(0)
        signal.signal(signal.SIGTERM, save)
        os.write(1, b"ready\\n")
        time.sleep(100)
        """
    folder = start(["sh", "-c", '"$@"; true', "sh", *PYTHON, code], grace_s=PATIENCE_S)
    until(lambda: "ready" in output_of(folder), "the job")
    attempts.cancel(folder)
    end = end_of(folder)
    assert (end.outcome, end.signal) == ("cancelled", signal.SIGTERM)
    assert output_of(folder).split().count("saved") == 1


def test_a_job_cancelled_before_its_start_never_runs(tmp_path: Path) -> None:
    attempts.prepare(tmp_path / "job", specification(tmp_path, ["touch", "ran"]))
    assert attempts.cancel(tmp_path / "job")
    attempts.launch(tmp_path / "job")
    end = end_of(tmp_path / "job")
    assert (end.outcome, end.code, end.error) == ("cancelled", None, "cancelled before it started")
    assert not (tmp_path / "ran").exists()


def test_a_shutdown_of_the_machine_is_not_a_cancellation(start: Start) -> None:
    folder = start(["sleep", "100"])
    pid = record(folder, "intent")["pid"]
    code = f"import ctypes, os; ctypes.CDLL(None).prctl(15, b'systemd', 0, 0, 0); os.kill({pid}, 15); input()"
    with subprocess.Popen([*PYTHON, code], stdin=subprocess.PIPE) as sender:
        end = end_of(folder)
        sender.kill()
    assert (end.outcome, end.error) == ("interrupted", "the machine went down")


def test_a_throttled_job_can_be_cancelled_while_it_is_stopped(start: Start) -> None:
    folder = start([*PYTHON, "print('ready', flush=True)\nwhile True: pass"], share_percent=1, grace_s=PATIENCE_S)
    until(lambda: "ready" in output_of(folder), "the job")
    attempts.cancel(folder)
    end = end_of(folder)
    assert (end.outcome, end.signal) == ("cancelled", signal.SIGTERM)


# Limits


def test_memory_over_the_limit_ends_that_job_alone(start: Start) -> None:
    other = start(["sleep", "100"], memory_mib=64)
    hog = start(
        [*PYTHON, "x = bytearray(400 << 20)\nimport time; time.sleep(100)"], memory_mib=100, memory_baseline_mib=30
    )
    end = end_of(hog)
    assert (end.outcome, end.signal) == ("out-of-memory", signal.SIGKILL)
    assert "besides a baseline of 30 MiB, its limit is 100 MiB" in (end.error or "")
    assert end.peak_mib > 130
    assert attempts.status(other).state == "running"


def test_memory_is_that_of_the_whole_tree(start: Start) -> None:
    child = f"{sys.executable} -I -S -c 'x = bytearray(60 << 20); import time; time.sleep(100)'"
    folder = start(["sh", "-c", f"{child} & setsid {child} & {child} & wait"], memory_mib=120)
    assert end_of(folder).outcome == "out-of-memory"


def test_shared_pages_and_mapped_files_are_not_counted_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * (60 << 20))
    code = """if True:
        import mmap, os, time
        data = mmap.mmap(os.open("data", os.O_RDONLY), 0, prot=mmap.PROT_READ)
        sum(data[i] for i in range(0, len(data), 4096))
        held = bytearray(60 << 20)
        for _ in range(3):
            if os.fork() == 0:
                sum(held[i] for i in range(0, len(held), 4096))
                time.sleep(1.5)
                os._exit(0)
        for _ in range(3):
            os.wait()
        """
    end = end_of(start([*PYTHON, code], memory_mib=130))
    assert (end.outcome, end.code) == ("exited", 0)
    assert 60 <= end.peak_mib <= 130


def test_the_data_limit_is_the_programs_own_error(start: Start) -> None:
    folder = start([*PYTHON, "x = bytearray(400 << 20)"], rlimit_data_mib=100)
    end = end_of(folder)
    assert (end.outcome, end.code) == ("exited", 1)
    assert "MemoryError" in output_of(folder)


@pytest.mark.parametrize(("end", "outcome"), [("kill -9 $$", "out-of-memory"), ("exit 0", "exited")])
def test_a_kill_that_the_control_group_counted_is_out_of_memory(
    start: Start, tmp_path: Path, end: str, outcome: str
) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 0\n")  # stands for the kernel's file
    folder = start(
        ["sh", "-c", f"printf 'oom 1\noom_kill 1\n' > memory.events; {end}"], host_memory_cgroup=str(tmp_path)
    )
    assert end_of(folder).outcome == outcome
    assert int((tmp_path / "cgroup.procs").read_text()) == record(folder, "run")["pid"]


def test_a_fork_bomb_is_ended_whole(start: Start) -> None:
    bomb = """if True:
        import os, time
        for _ in range(1000):
            if os.fork() == 0:
                os.setsid()
                time.sleep(100)
        time.sleep(100)
        """
    end = end_of(start([*PYTHON, bomb], max_processes=50))
    assert (end.outcome, end.signal) == ("signalled", signal.SIGKILL)
    assert "its limit is 50: killed with all of them" in (end.error or "")


def test_nothing_outlives_the_job_not_even_what_left_its_session(start: Start) -> None:
    script = "setsid sleep 100 & (setsid setsid sleep 101 &); env -i setsid sleep 102 & echo $!; sleep 0.3; exit 5"
    folder = start(["sh", "-c", script])
    assert end_of(folder).code == 5
    seen = look_at(int(output_of(folder)))
    assert seen is None or seen.start < record(folder, "run")["start"]


def test_a_share_of_compute_is_not_exceeded_and_the_job_goes_on(start: Start) -> None:
    code = """if True:
        import time
        began = time.monotonic()
        while time.monotonic() - began < 3: pass
        print(time.process_time() / (time.monotonic() - began))
        """
    cpu = min(os.sched_getaffinity(0))
    folder = start([*PYTHON, code], share_percent=30, cpus=[cpu])
    assert end_of(folder).code == 0
    assert 0.0 < float(output_of(folder)) < 0.4


def test_the_job_runs_on_its_cores_only(start: Start) -> None:
    cpu = max(os.sched_getaffinity(0))
    folder = start([*PYTHON, "import os; print(os.sched_getaffinity(0))"], cpus=[cpu])
    end_of(folder)
    assert output_of(folder).strip() == str({cpu})


# The log


def test_a_log_of_gigabytes_stays_within_its_files(start: Start) -> None:
    code = "for i in range(200_000): print(f'line {i:06d} ' + 'x' * 87)"
    folder = start([*PYTHON, code], log_bytes=1 << 18, log_files=3)
    assert end_of(folder).code == 0
    sizes = {path.name: path.stat().st_size for path in folder.glob("log*") if path.name != "log.begins"}
    assert sizes.keys() == {"log", "log.1", "log.2"}
    assert all(size <= 1 << 18 for size in sizes.values())
    lines = output_of(folder).splitlines()
    assert lines[-1].startswith("line 199999")
    assert [int(line.split()[1]) for line in lines[1:]] == list(range(200_001 - len(lines), 200_000))
    assert attempts.read_log(folder, 100 * 199_999, 1000) == (100 * 199_999, (lines[-1] + "\n").encode())


def test_one_log_file_begins_anew(start: Start) -> None:
    folder = start([*PYTHON, "for i in range(1000): print(f'{i:09d}')"], log_bytes=300, log_files=1)
    end_of(folder)
    assert output_of(folder).split() == [f"{i:09d}" for i in range(990, 1000)]


def test_a_reader_that_follows_sees_all_of_a_log_that_is_rotated(start: Start) -> None:
    code = "import time\nfor i in range(60):\n  print(f'{i:09d}' + 90 * 'y', flush=True); time.sleep(0.01)"
    folder = start([*PYTHON, code], log_bytes=1000, log_files=4)
    offset, text = 0, b""
    limit = time.monotonic() + PATIENCE_S
    while offset < 6000 and time.monotonic() < limit:
        begin, piece = attempts.read_log(folder, offset, 4096)
        assert begin >= offset  # later only if we were too slow
        offset, text = begin + len(piece), text + piece
    assert offset == 6000
    assert text[-100:].startswith(b"000000059")


def test_a_log_that_cannot_grow_costs_output_but_not_the_job(tmp_path: Path) -> None:
    attempts.prepare(
        tmp_path / "job", specification(tmp_path, [*PYTHON, "print(3 * 10**6 * 'x')\nraise SystemExit(9)"])
    )
    # no file of the supervisor may grow beyond 64 KiB, as if the disk were full
    limit = (
        "import resource as r, runpy, sys; r.setrlimit(r.RLIMIT_FSIZE, (1 << 16, 1 << 16)); sys.argv[:] = sys.argv[1:]"
    )
    script = [*PYTHON, f"{limit}; runpy.run_path(sys.argv[0], run_name='__main__')", supervisor.__file__]
    assert subprocess.run([*script, str(tmp_path / "job")], check=False, timeout=PATIENCE_S).returncode == 0
    end = end_of(tmp_path / "job")
    assert (end.outcome, end.code) == ("exited", 9)
    assert end.dropped_bytes == 3 * 10**6 + 1 - (1 << 16)


def test_a_full_disk_loses_output_but_not_the_exit(tmp_path: Path) -> None:
    mounted = "mount -t tmpfs -o size=256k tmpfs disk && touch disk/x && rm disk/x"
    (tmp_path / "disk").mkdir()
    unshare = [shutil.which("unshare") or "unshare", "--map-root-user", "--mount", "sh", "-ec"]
    try:
        subprocess.run([*unshare, mounted], cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs to mount a small disk: user namespaces are not allowed here")
    spec = specification(tmp_path, [*PYTHON, "print(3 * 10**6 * 'x')\nraise SystemExit(9)"])._asdict()
    (tmp_path / "spec.json").write_text(json.dumps({"version": 1, **spec}))
    script = (
        f"{mounted}; mkdir disk/job; cp spec.json disk/job; {sys.executable} -I -S {supervisor.__file__} $PWD/disk/job;"
        "cat disk/job/exit; df disk >&2"
    )
    done = subprocess.run([*unshare, script], cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)
    end = json.loads(done.stdout)
    assert (end["outcome"], end["code"]) == ("exited", 9)
    assert end["dropped_bytes"] > 2 * 10**6
    assert b"100%" in done.stderr


def test_a_job_that_crashes_writes_no_memory_to_the_disk(start: Start) -> None:
    folder = start(["sh", "-c", "ulimit -Sc; ulimit -Hc"])
    end_of(folder)
    assert (folder / "log").read_text().split() == ["0", "0"]


# Being found again, and being killed


def test_status_follows_a_job_through_its_life(start: Start, tmp_path: Path) -> None:
    attempts.prepare(tmp_path / "waiting", specification(tmp_path, ["true"]))
    assert attempts.status(tmp_path / "waiting").state == "new"
    assert attempts.status(tmp_path / "nowhere").state == "new"
    folder = start(["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"])
    found = attempts.status(folder)
    assert found.state == "running"
    assert found.pidfd is not None
    (tmp_path / "go").touch()
    wait_for_handle(found.pidfd)
    assert attempts.status(folder).state == "ended"


def test_a_run_whose_lock_is_held_by_a_process_that_cannot_be_seen_still_runs(start: Start) -> None:
    folder = start(["true"])
    end_of(folder)
    until(lambda: not locked(str(folder)), "the supervisor to go")
    (folder / "exit").unlink()
    another = {"pid": os.getpid(), "start": 1}  # the pid of its supervisor belongs to a later process now
    (folder / "intent").write_text(json.dumps({**record(folder, "intent"), **another}))
    with open(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert attempts.status(folder) == attempts.Status("running")
    assert attempts.status(folder).state == "lost"


@pytest.mark.parametrize(
    ("log", "lines", "begins"),
    [(b"\nlast\n", 1, 1), (b"\nlast", 1, 1), (b"a\nb\nc\n", 2, 2), (b"a\n\n", 1, 2), (b"a\nb\n", 5, 0), (b"a\n", 0, 2)],
)
def test_the_last_lines_begin_after_a_line_break(log: bytes, lines: int, begins: int, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(log)
    assert attempts.tail_offset(tmp_path, lines) == begins


def test_a_supervisor_of_an_earlier_boot_means_interrupted(start: Start) -> None:
    folder = start(["true"])
    end_of(folder)
    until(lambda: not locked(str(folder)), "the supervisor to go")  # it writes the exit before it goes
    (folder / "exit").unlink()
    assert attempts.status(folder).state == "lost"
    (folder / "intent").write_text(json.dumps({**record(folder, "intent"), "boot": "another"}))
    assert attempts.status(folder).state == "interrupted"
    assert attempts.kill_leftovers(folder) == 0


def test_a_job_is_never_started_twice(start: Start, tmp_path: Path) -> None:
    folder = start(["sh", "-c", "echo x >> runs; sleep 0.3"])
    attempts.launch(folder)
    assert end_of(folder).code == 0
    attempts.launch(folder)
    assert attempts.status(folder).state == "ended"
    assert (tmp_path / "runs").read_text() == "x\n"


def test_many_supervisors_at_once_start_a_job_once(tmp_path: Path) -> None:
    attempts.prepare(tmp_path / "job", specification(tmp_path, ["sh", "-c", "echo x >> runs; sleep 0.3"]))
    command = [sys.executable, "-I", "-S", supervisor.__file__, str(tmp_path / "job")]
    rivals = [subprocess.Popen(command) for _ in range(5)]
    for _ in range(50):
        locked(str(tmp_path / "job"))  # a look at the lock must not keep all of them out
    assert [rival.wait(PATIENCE_S) for rival in rivals] == [0] * 5
    assert end_of(tmp_path / "job").code == 0
    assert (tmp_path / "runs").read_text() == "x\n"


def test_the_job_dies_with_its_supervisor_and_leftovers_are_found(start: Start) -> None:
    folder = start(["sh", "-c", "sleep 100 & setsid sleep 101 & echo ready; while :; do :; done"], share_percent=1)
    until(lambda: "ready" in output_of(folder) and len(leftovers(folder)) >= 3, "the job's processes")
    found = attempts.status(folder)
    assert found.pidfd is not None
    os.kill(record(folder, "intent")["keeper"], signal.SIGKILL)  # which would kill them itself
    signal.pidfd_send_signal(found.pidfd, signal.SIGKILL)
    wait_for_handle(found.pidfd)
    until(lambda: record(folder, "run")["pid"] not in leftovers(folder), "the death of the job's first process")
    assert attempts.status(folder).state == "lost"
    assert attempts.kill_leftovers(folder) >= 2
    assert leftovers(folder) == []


def test_a_supervisor_killed_at_any_moment_leaves_nothing_and_no_second_run(tmp_path: Path) -> None:
    chance = random.Random(1)
    states = []
    for i in range(12):
        folder = tmp_path / f"job{i}"
        # A folder for each run: unlike a line in a file, it exists as a whole or not at all when the shell is killed.
        command = ["sh", "-c", f"mkdir run{i}-$$; sleep 0.1 & setsid sleep 0.2 & sleep 0.05"]
        attempts.prepare(folder, specification(tmp_path, command))
        process = subprocess.Popen([sys.executable, "-I", "-S", supervisor.__file__, str(folder)])
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        process.wait(PATIENCE_S)
        states.append(attempts.status(folder).state)
        attempts.kill_leftovers(folder)
        assert leftovers(folder) == []
        attempts.launch(folder)  # as a restarted daemon would, if it were careless
        if states[-1] == "new":
            assert end_of(folder).code == 0
        runs = list(tmp_path.glob(f"run{i}-*"))
        assert len(runs) <= 1
    assert set(states) <= {"new", "lost", "ended"}


RUNNER = """if True:
    import os, select, sys
    from pathlib import Path
    from cotenant.local import attempts
    jobs = sorted(Path(sys.argv[1]).iterdir())
    while jobs:
        for folder in jobs[:4]:
            found = attempts.status(folder)
            if found.state == "new":
                attempts.launch(folder)
            elif found.pidfd is not None:
                select.select([found.pidfd], [], [], 0.02)
                os.close(found.pidfd)
            else:
                assert found.state == "ended", found
                jobs.remove(folder)
    """


@pytest.mark.slow
def test_each_job_runs_exactly_once_though_their_starter_is_killed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(2)
    expected = {}
    for i in range(30):
        code = chance.choice((0, 0, 1, 42, -signal.SIGKILL, -signal.SIGTERM))
        end = f"exit {code}" if code >= 0 else f"kill {code} $$"
        script = f"echo x >> runs{i}; sleep {chance.uniform(0.0, 0.3):.2f}; {end}"
        attempts.prepare(tmp_path / "jobs" / f"j{i:02d}", specification(tmp_path, ["sh", "-c", script]))
        expected[i] = code
    command = [sys.executable, "-c", RUNNER, str(tmp_path / "jobs")]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    for _ in range(15):
        runner = subprocess.Popen(command, env=environment)
        time.sleep(chance.uniform(0.05, 0.4))
        runner.kill()
        runner.wait(PATIENCE_S)
    assert subprocess.run(command, env=environment, check=False, timeout=PATIENCE_S).returncode == 0
    for i, code in expected.items():
        found = end_of(tmp_path / "jobs" / f"j{i:02d}")
        assert (found.code if found.signal is None else -found.signal) == code
        assert (tmp_path / f"runs{i}").read_text() == "x\n"


class SlowTree(Tree):
    """A tree whose memory takes longer to measure than the time between two checks, as on a busy machine."""

    def refresh(self, thorough: bool = False) -> None:
        """Keeps its members."""

    def memory(self, limit: int | None, now: float) -> int:
        time.sleep(1.2 * TICK_S)
        return 1 << 40


def test_a_job_above_its_limit_is_killed_although_each_check_takes_long(tmp_path: Path) -> None:
    spec = Spec(argv=["sleep"], cwd="/", env={}, memory_mib=1)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        job = Supervision(str(tmp_path), spec, "token", os.open("/dev/null", os.O_RDONLY))
        job.leader, job.tree = process.pid, SlowTree()
        for _ in range(5):
            job.act(time.monotonic())
        try:
            assert process.wait(PATIENCE_S) == -signal.SIGKILL
        finally:
            process.kill()
