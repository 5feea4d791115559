# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One run of a job, as the daemon sees it: creates its folder, starts its supervisor, reads its status and its log.

All information comes from the folder (`supervisor.py` lists its files), so a new daemon that knows only the folder's
name can continue where a killed one stopped.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from cotenant.errors import CotenantError
from cotenant.local import supervisor
from cotenant.local.job_process import TOKEN, clean_up
from cotenant.local.processes import all_pids, look_at, send
from cotenant.local.run_files import (
    VERSION,
    Exit,
    Refused,
    Spec,
    boot_id,
    locked,
    read_json,
    read_spec,
    sync_folder,
    write_durably,
)
from cotenant.node import kernel
from cotenant.node.containment import kill_group
from cotenant.node.environments import has_variable
from cotenant.node.ownership import problem_of_folder

MOST_TAIL_BYTES = 16 << 20
"""of the end of a log in which its last lines are looked for"""
TAIL_BLOCK = 256 << 10
LONGEST_LINE = 500
"""characters of one line in `last_lines`"""

RunState = Literal["new", "running", "ended", "lost", "interrupted"]


class Status(NamedTuple):
    """The state of a run; the caller must close `pidfd`, a handle of its supervisor."""

    state: RunState
    pidfd: int | None = None
    """None: the supervisor runs, but this process cannot see it (yet)"""
    exit: Exit | None = None
    pid: int | None = None
    """of the supervisor, from which every process of the job descends"""


def prepare(job_dir: Path, spec: Spec) -> None:
    """Writes a run's folder and specification durably: a folder lost in a power failure would be started again."""
    make_folder(job_dir)
    write_durably(os.path.abspath(job_dir / "spec.json"), {"version": VERSION, **spec._asdict()})


def make_folder(job_dir: Path) -> None:
    """Creates the folder and its parents durably; also syncs an existing folder, which may be a moment old."""
    missing = [folder for folder in (job_dir, *job_dir.parents) if not folder.exists()]
    job_dir.mkdir(parents=True, exist_ok=True)
    if (problem := problem_of_folder(job_dir)) is not None:
        raise CotenantError(f"{job_dir}: the folder of this run {problem}")
    for folder in missing or [job_dir]:
        sync_folder(str(folder.parent))


def launch(job_dir: Path) -> None:
    """Starts a run's supervisor, detached; on return the run has been started, by this call or an earlier one."""
    command = [sys.executable, "-I", "-S", os.path.abspath(supervisor.__file__), "--detach", os.path.abspath(job_dir)]
    environment = {name: value for name, value in os.environ.items() if name != TOKEN}
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must stop the daemon only
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CotenantError(f"cannot start a supervisor for {job_dir}: {error}") from error
    if done.returncode != 0:
        raise CotenantError(done.stderr.decode(errors="replace").strip() or f"no supervisor started for {job_dir}")


def was_started(job_dir: Path) -> bool:
    """Whether a run was ever started; if so, it is never started again."""
    return read_json(f"{job_dir}/intent") is not None


def status(job_dir: Path) -> Status:
    """The state of a run, from its folder alone."""
    folder = os.path.abspath(job_dir)
    intent = read_json(f"{folder}/intent")
    if intent is None:
        return Status("new")
    if (ended := read_exit(folder)) is not None:
        return Status("ended", exit=ended)
    for _ in range(100):
        if not locked(folder):
            break
        with suppress(ProcessLookupError):
            pidfd = kernel.open_process(intent["pid"])
            seen = look_at(intent["pid"])
            alive = seen is not None and seen.start == intent["start"] and seen.state not in "ZX"
            if alive and locked(folder):
                # It lived after the handle was opened, so the handle is not that of a later process with the same pid.
                return Status("running", pidfd, pid=intent["pid"])
            os.close(pidfd)
        if "keeper" in intent:  # it may hold the lock until it has killed all processes, and may have been stopped
            send(intent["keeper"], intent["keeper_start"], signal.SIGCONT)
        time.sleep(0.005)  # it has just ended, or another reader of the status holds the lock for an instant
    else:
        return Status("running")  # by a process that we cannot see: it must not be called lost
    # The record may have been written after we first looked for it and before the lock was released.
    if (ended := read_exit(folder)) is not None:
        return Status("ended", exit=ended)
    return Status("lost" if intent["boot"] == boot_id() else "interrupted")


def read_exit(folder: str) -> Exit | None:
    """The exit record; None: there is none."""
    record = read_json(f"{folder}/exit")
    if record is None:
        return None
    try:
        return Exit(**{name: record[name] for name in Exit._fields if name in record})
    except TypeError:
        return None


def cancel(job_dir: Path, *, reclaims: bool = False) -> bool:
    """Asks a run to end; False if it has ended already. A run that is being started ends before its command starts.

    If another job needs its memory (`reclaims`), its grace period is short.
    """
    found = status(job_dir)
    if found.state == "new":
        try:
            make_folder(job_dir)  # a run that is being started may not have a folder yet
            (job_dir / "cancel").touch()
        except OSError as error:
            raise CotenantError(f"cannot cancel the job in {job_dir}: {error.strerror}; try again") from error
        # The supervisor writes the intent before it looks for `cancel`: one of the two sees the other's file.
        found = status(job_dir)
    if found.pidfd is not None:
        with suppress(ProcessLookupError):
            kernel.send_signal(found.pidfd, signal.SIGINT if reclaims else signal.SIGTERM)
            kernel.send_signal(found.pidfd, signal.SIGCONT)  # the job may have stopped it
        os.close(found.pidfd)
    return found.state in ("new", "running")


def obeys_orders(job_dir: Path) -> bool:
    """Whether a run can be paused and changed: a supervisor of an earlier version cannot."""
    intent = read_json(f"{job_dir}/intent")
    return intent is None or "orders" in intent.get("obeys", ())


def order(job_dir: Path, orders: Mapping[str, object]) -> None:
    """Tells a run what has changed; one that is being started reads it when it starts."""
    try:
        make_folder(job_dir)
        write_durably(os.path.abspath(job_dir / "orders"), {"version": VERSION, **orders})
    except OSError as error:
        raise CotenantError(f"cannot write to {job_dir}: {error.strerror}; try again") from error
    found = status(job_dir)
    if found.pidfd is not None:
        with suppress(ProcessLookupError):
            if obeys_orders(job_dir):
                kernel.send_signal(found.pidfd, signal.SIGUSR1)
        os.close(found.pidfd)


def environment_of(job_dir: Path) -> Mapping[str, str]:
    """The variables that a run was prepared with; empty if it was not."""
    try:
        return read_spec(os.path.abspath(job_dir / "spec.json")).env
    except (Refused, OSError):
        return {}


def is_cancelled(job_dir: Path) -> bool:
    """Whether a run was cancelled before its supervisor started."""
    return (job_dir / "cancel").exists()


def continue_supervisor(pid: int) -> bool:
    """Continues a supervisor that was stopped, which only its job can have done; whether it was stopped."""
    seen = look_at(pid)
    if seen is None or seen.state not in "Tt":
        return False
    send(pid, seen.start, signal.SIGCONT)
    return True


def tail_offset(job_dir: Path, lines: int) -> int:
    """The offset at which the last lines of the output begin, within its last 16 MiB."""
    end = log_begins(job_dir) + _size(job_dir / "log")
    oldest = max(0, end - MOST_TAIL_BYTES)
    position = end
    while lines and position > oldest:
        begin, block = _block(job_dir, max(oldest, position - TAIL_BLOCK), position)
        cut = len(block) - (position == end and block.endswith(b"\n"))
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            lines -= 1
            if not lines:
                return begin + cut + 1
        if begin > position - TAIL_BLOCK:
            return begin  # older output is not kept, or too old
        position = begin
    return position


def last_lines(job_dir: Path, lines: int) -> list[str]:
    """The last lines of the output, each cut to a length that fits on a screen."""
    offset = tail_offset(job_dir, lines)
    _, content = _block(job_dir, offset, offset + TAIL_BLOCK)
    return [line[:LONGEST_LINE] for line in content.decode(errors="replace").splitlines()[-lines:]]


def _block(job_dir: Path, begin: int, end: int) -> tuple[int, bytes]:
    """The output between two offsets, and the offset at which it begins: a later one if older output is not kept."""
    begin, block = read_log(job_dir, begin, end - begin)
    while begin + len(block) < end and (piece := read_log(job_dir, begin + len(block), end - begin - len(block))[1]):
        block += piece
    return begin, block


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_log(job_dir: Path, offset: int, most: int) -> tuple[int, bytes]:
    """A piece of the output and its offset: `offset`, or a larger one if that part was rotated away.

    Continue at offset + length; an empty piece is the end for now.
    """
    for _ in range(100):
        begins = log_begins(job_dir)
        with ExitStack() as stack:
            files: list[IO[bytes]] = []
            for name in ("log", *(f"log.{number}" for number in range(1, 1000))):
                try:
                    files.append(stack.enter_context(open(job_dir / name, "rb")))
                except FileNotFoundError:
                    break
            if log_begins(job_dir) == begins and (files or not (job_dir / "log.1").exists()):
                return read_piece(files, begins, offset, most)
        time.sleep(0.001)  # the files were being rotated
    return offset, b""


def log_begins(job_dir: Path) -> int:
    """The number of bytes of output before the file `log`."""
    try:
        return int((job_dir / "log.begins").read_text())
    except FileNotFoundError:
        return 0


def read_piece(files: list[IO[bytes]], begins: int, offset: int, most: int) -> tuple[int, bytes]:
    """A piece of consecutive files, newest first; the newest begins at offset `begins`."""
    starts: list[int] = []
    for file in files:
        begins -= os.fstat(file.fileno()).st_size if starts else 0
        starts.append(begins)
    for file, start in reversed(list(zip(files, starts, strict=True))):
        offset = max(offset, start) if file is files[-1] else offset
        file.seek(max(offset - start, 0))
        if offset >= start and (piece := file.read(most)):
            return offset, piece
    return offset, b""


def kill_leftovers(job_dir: Path, patience_s: float = 10.0) -> int:
    """Kills the remaining processes of a run whose supervisor was killed; their number.

    A process belongs to the run if its environment has the run's token, or if its session's leader is still the process
    in the record `run`.
    """
    folder = os.path.abspath(job_dir)
    intent, run = read_json(f"{folder}/intent"), read_json(f"{folder}/run")
    if intent is None or intent["boot"] != boot_id() or locked(folder):
        return 0
    killed: set[tuple[int, int]] = set()
    until = time.monotonic() + patience_s
    while leftovers := set(find_leftovers(intent["token"], run)):
        for pid, start in leftovers:
            send(pid, start, signal.SIGKILL)
        killed |= leftovers
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    contained = 0
    with suppress(Refused):
        spec = read_spec(f"{folder}/spec.json")
        contained = 0 if spec.contain is None else kill_group(Path(spec.contain))
        clean_up(spec)
    return len(killed) + contained


def find_leftovers(token: str, run: dict[str, Any] | None) -> Iterable[tuple[int, int]]:
    """Pid and start time of every living process of a run."""
    leader = look_at(run["pid"]) if run else None
    session = run["pid"] if run and leader and leader.start == run["start"] else None
    for pid in all_pids() - {os.getpid()}:
        seen = look_at(pid)
        if seen is None or seen.state in "ZX":
            continue
        marked = False
        with suppress(OSError):  # not known now: its cgroup may still tell
            marked = has_variable(pid, TOKEN, token)
        if marked or seen.session == session:
            yield pid, seen.start
