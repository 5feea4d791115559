# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One run of a job as the daemon sees it: make its folder, start its supervisor, find it again, end it, read its log.

Everything is asked of the folder (`supervisor.py` says what stands in it), so a daemon that knows nothing but the
folder's name can go on where a killed one stopped.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from cotenant.errors import CotenantError
from cotenant.local import supervisor
from cotenant.local.supervisor import (
    TOKEN,
    VERSION,
    Exit,
    Spec,
    all_pids,
    boot_id,
    locked,
    look_at,
    read_json,
    send,
    sync_folder,
    write_durably,
)

State = Literal["new", "running", "ended", "lost", "interrupted"]


class Status(NamedTuple):
    """Where a run stands; `pidfd` is an open handle of its supervisor, which the caller must close."""

    state: State
    pidfd: int | None = None
    """None for a supervisor that runs where we cannot see it (yet)"""
    exit: Exit | None = None
    pid: int | None = None
    """of the supervisor: every process of the job descends from it"""


def prepare(job_dir: Path, spec: Spec) -> None:
    """Write a job's folder and specification, durably: a folder that vanished with the power would be started again."""
    make_folder(job_dir)
    write_durably(os.path.abspath(job_dir / "spec.json"), {"version": VERSION, **spec._asdict()})


def make_folder(job_dir: Path) -> None:
    """The folder and those above it, durably; one that is there already may be of a moment ago, so its name is too."""
    missing = [folder for folder in (job_dir, *job_dir.parents) if not folder.exists()]
    job_dir.mkdir(parents=True, exist_ok=True)
    for folder in missing or [job_dir]:
        sync_folder(str(folder.parent))


def launch(job_dir: Path) -> None:
    """Start a job's supervisor, detached; on return the job is started for good, by this call or an earlier one."""
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
            start_new_session=True,  # a Ctrl-C for the daemon is not for us
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CotenantError(f"cannot start a supervisor for {job_dir}: {error}") from error
    if done.returncode != 0:
        raise CotenantError(done.stderr.decode(errors="replace").strip() or f"no supervisor started for {job_dir}")


def was_started(job_dir: Path) -> bool:
    """Whether a run was ever begun; if so it never will be again."""
    return read_json(f"{job_dir}/intent") is not None


def status(job_dir: Path) -> Status:
    """Where a job stands, from its folder alone."""
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
            pidfd = os.pidfd_open(intent["pid"])
            seen = look_at(intent["pid"])
            if seen is not None and seen.start == intent["start"] and locked(folder):
                return Status(
                    "running", pidfd, pid=intent["pid"]
                )  # alive after the handle was opened: the handle is its own
            os.close(pidfd)
        time.sleep(0.005)  # it has just ended, or the lock is held for an instant by one who looks at it
    else:
        return Status("running")  # by a process that we cannot see: never call it lost
    if (ended := read_exit(folder)) is not None:  # written between our first look and the end of the lock
        return Status("ended", exit=ended)
    return Status("lost" if intent["boot"] == boot_id() else "interrupted")


def read_exit(folder: str) -> Exit | None:
    """The exit record, or None when there is none."""
    record = read_json(f"{folder}/exit")
    if record is None:
        return None
    try:
        return Exit(**{name: record[name] for name in Exit._fields if name in record})
    except TypeError:
        return None


def cancel(job_dir: Path) -> bool:
    """Tell a job to end; False when it has ended already. One that is being started ends before it has begun."""
    found = status(job_dir)
    if found.state == "new":
        try:
            make_folder(job_dir)  # it may not have come that far
            (job_dir / "cancel").touch()
        except OSError as error:
            raise CotenantError(f"cannot cancel the job in {job_dir}: {error.strerror}; try again") from error
        found = status(job_dir)  # its supervisor looks for that file after the intent: one of us sees the other
    if found.pidfd is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(found.pidfd, signal.SIGTERM)
        os.close(found.pidfd)
    return found.state in ("new", "running")


def read_log(job_dir: Path, offset: int, most: int) -> tuple[int, bytes]:
    """A piece of the output and where it begins: at `offset` of all output, or later if that was rotated away.

    Read on from begin + length; an empty piece is the end, for now.
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
        time.sleep(0.001)  # it was being rotated
    return offset, b""


def log_begins(job_dir: Path) -> int:
    """How much output came before the file `log`."""
    try:
        return int((job_dir / "log.begins").read_text())
    except FileNotFoundError:
        return 0


def read_piece(files: list[IO[bytes]], begins: int, offset: int, most: int) -> tuple[int, bytes]:
    """A piece of files that follow each other, newest first, of which the newest begins at `begins`."""
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
    """After a supervisor was killed: kill what is left of its job, and say how many processes that were.

    A process is the job's if it carries the job's token, or is of the session whose leader is still the one on record.
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
    return len(killed)


def find_leftovers(token: str, run: dict[str, Any] | None) -> Iterable[tuple[int, int]]:
    """Pid and start time of every living process of a job."""
    mark = f"{TOKEN}={token}".encode()
    leader = look_at(run["pid"]) if run else None
    session = run["pid"] if run and leader and leader.start == run["start"] else None
    for pid in all_pids() - {os.getpid()}:
        seen = look_at(pid)
        if seen is None or seen.state in "ZX":
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = mark in file.read().split(b"\0")
        except OSError:
            marked = False
        if marked or seen.session == session:
            yield pid, seen.start
