# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The lock of a journal: one daemon at a time writes it."""

import fcntl
import os
import time
from pathlib import Path

from cotenant.local.journal_schema import JournalError
from cotenant.local.processes import look_at
from cotenant.node.ownership import problem_of_file

DYING_S = 5.0
"""how long a child process that a killed daemon was starting may still hold the lock"""


def take_lock(path: Path) -> int:
    """Locks the journal for this process, whose ID is written to the lock file."""
    try:
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise JournalError(
            f"cannot open the journal {path}: {error.strerror}; the daemon needs a folder that it can write to"
        ) from error
    problem = problem_of_file(lock)
    if problem is not None:
        os.close(lock)
        raise JournalError(f"cannot use the journal {path}: its file {path}.lock {problem}; remove it")
    try:
        _wait_for_lock(lock)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = _holder(lock)
        os.close(lock)
        raise JournalError(
            f"the journal {path} is in use by another daemon, process {holder}: stop that one, or use another folder"
        ) from None
    except OSError:
        pass  # a full disk: only the process ID in the lock file is missing
    return lock


def _wait_for_lock(lock: int) -> None:
    """Takes the lock, or raises BlockingIOError at once if a living process holds it.

    A child that a killed daemon was just starting inherits the lock until it executes its program, so the lock of a
    dead process is waited for.
    """
    deadline = time.monotonic() + DYING_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if _lives(_holder(lock)) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _lives(pid: str) -> bool:
    """Whether a process exists and is not a zombie."""
    seen = look_at(int(pid)) if pid.isdecimal() else None
    return seen is not None and seen.state not in "ZX"


def _holder(lock: int) -> str:
    return os.pread(lock, 20, 0).decode(errors="replace") or "unknown"
