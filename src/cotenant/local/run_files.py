# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a run: its supervisor writes them, the daemon reads them.

A folder belongs to one run of a job and contains:

lock    locked (flock) while the supervisor or its keeper lives; unlike a pid, it cannot be taken over by another
        process
intent  on disk before the fork: a run with an intent is never started again
run     pid and start time of the job's first process
log     its output, rotated to log.1, log.2, ...; log.begins contains the number of bytes before `log`
exit    how it ended, written completely or not at all
cancel  exists if the run was cancelled before it began
orders  what the daemon changed since: whether the run is paused, its time limit and its memory; read at the start
        and after each SIGUSR1
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

VERSION = 1
MIB = 1 << 20
EXIT_BYTES = 4096  # reserved before the job starts, so that the exit record can be written on a full disk
NEW_FILE = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW  # a link would lead out of the run's folder
Outcome = Literal["exited", "signalled", "out-of-memory", "time-limit", "cancelled", "exec-failed", "interrupted"]


class Spec(NamedTuple):
    """The specification of a run, as in spec.json."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    cpus: list[int] | None = None
    rlimit_data_mib: int | None = None
    memory_mib: int | None = None
    memory_baseline_mib: int = 0
    share_percent: int | None = None
    cgroup: str | None = None
    grace_s: float = 10.0
    log_bytes: int = 64 * MIB
    log_files: int = 3
    max_processes: int | None = None
    open_files: int | None = None
    contain: str | None = None
    partition: str | None = None
    time_s: float | None = None
    warn_s: float | None = None
    uid: int | None = None  # of the user that the job runs as; None: that of the supervisor
    user: str = ""
    umask: int | None = None
    limits: dict[str, list[int]] = {}  # noqa: RUF012 - never changed
    program: str | None = None  # a Python file whose function `main` is called instead of the command
    host_memory_mib: int | None = None
    host_memory_cgroup: str | None = None  # None: we watch that limit
    after: list[str] = []  # noqa: RUF012 - never changed; a command that removes what the run left behind
    terminal: dict[str, Any] = {}  # noqa: RUF012 - never changed; of an interactive run: `Supervision.open_terminal`
    new_privileges: bool = False  # whether set-user-ID programs gain rights in a job of another user


class Exit(NamedTuple):
    """How a job ended, as in the exit record."""

    outcome: Outcome
    code: int | None
    signal: int | None
    error: str | None
    started: float
    ended: float
    peak_mib: int
    dropped_bytes: int = 0
    of_host: bool = False  # whether the memory that it ran out of is that of --host-memory


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The run cannot be started; nothing was done."""


def write_durably(path: str, content: Mapping[str, object], room: int = 0) -> None:
    """Replaces a file atomically and durably; with `room`, overwrites space that was reserved by `set_aside`."""
    text = json.dumps(content).encode().ljust(room)
    file = os.open(path + ".tmp", NEW_FILE | (0 if room else os.O_TRUNC), 0o600)
    try:
        if os.write(file, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)
    os.rename(path + ".tmp", path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: str) -> None:
    """Reserves the disk space of the exit record."""
    file = os.open(path, NEW_FILE | os.O_TRUNC, 0o600)
    try:
        if os.write(file, b" " * EXIT_BYTES) != EXIT_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)


def read_json(path: str) -> dict[str, Any] | None:
    """A record; None: the file does not exist or is not a JSON object."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_spec(path: str) -> Spec:
    """The specification in a file; Refused says why it is not valid."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            seen = os.fstat(file.fileno())
            if seen.st_uid not in (os.geteuid(), 0) or seen.st_mode & 0o022:
                raise Refused(f"{path} can be changed by another user: expected a file that only its owner can write")
            content = json.loads(file.read())
        version = content.pop("version")
        spec = Spec(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused(f"{path} is not the specification of a job: {error}") from error
    if version != VERSION:
        raise Refused(f"{path} has version {version!r}; this supervisor understands version {VERSION}")
    if not spec.argv or not all(isinstance(word, str) for word in spec.argv):
        raise Refused(f"{path}: argv must be a list of at least one text, not {spec.argv!r}")
    if spec.share_percent is not None and not 1 <= spec.share_percent <= 100:
        raise Refused(f"{path}: share_percent must be 1 to 100, not {spec.share_percent}")
    if spec.log_bytes < 1 or spec.log_files < 1:
        raise Refused(f"{path}: log_bytes and log_files must be at least 1")
    return spec


def boot_id() -> str:
    """An identifier of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def locked(job_dir: str) -> bool:
    """Whether a supervisor lives. This takes the lock for an instant; a starting supervisor tries again."""
    try:
        lock = os.open(f"{job_dir}/lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def open_lock(job_dir: str) -> int:
    """Opens the lock. The keeper opens it before it forks, so that it holds the lock that the supervisor takes."""
    return os.open(f"{job_dir}/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def take_lock(job_dir: str, lock: int) -> bool:
    """Takes the lock; False: another supervisor has it. Retries, because `status` holds the lock for an instant."""
    for _ in range(200):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if os.path.exists(f"{job_dir}/intent"):
                break
            time.sleep(0.01)
        else:
            return True
    return False


def record_exit(job_dir: str, end: Exit) -> None:
    """Writes the exit record, and retries until the disk allows it; meanwhile the lock is held."""
    record: dict[str, object] = {"version": VERSION, **end._asdict()}
    if end.error is not None:
        record["error"] = end.error[: EXIT_BYTES // 8]  # JSON escapes may make six characters of one
    pause = 0.05
    while os.path.isdir(job_dir):
        with suppress(OSError):
            write_durably(f"{job_dir}/exit", record, room=EXIT_BYTES)
            break
        time.sleep(pause)
        pause = min(pause * 2, 2.0)
