# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and removes the files of MPS, and finds its processes.

Tenants can write to the folders of MPS. Whatever they put there must not stop, block or mislead the daemon: links are
not followed, reads do not block, and a folder in place of a file is removed like a file.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.node import environments
from cotenant.node.environments import TRANSIENT

TOKEN = "COTENANT_MPS"
"""the variable by which the control daemon and the servers that it starts are known as ours"""
MOST_BYTES = 65_536
"""that are read of a file"""
LOG_TAIL = 65_536
"""bytes at the end of the server's log in which the client that caused a fault is looked for"""
_FAULT = re.compile(r"(?<![a-z])(?:fault|fatal|exception)", re.IGNORECASE)
"""also in MMU_FAULT, but not in default"""
_NUMBER = re.compile(r"\d+")
_CLIENT = re.compile(r"client (\d+) connected", re.IGNORECASE)


class MpsError(CotenantError):
    """MPS cannot be used on a GPU; the message is a sentence that begins with the GPU or the path."""


class MpsTimeoutError(MpsError):
    """A control daemon exists, and does not answer in time."""


class MpsUnknownError(MpsError):
    """What MPS does cannot be found out now, for example because no file descriptor is free. It is not a crash."""


def mps_error(what: str, error: OSError) -> MpsError:
    """The MpsError for an error of the operating system, to be read after `what`."""
    kind = MpsUnknownError if error.errno in TRANSIENT else MpsError
    return kind(f"{what}: {error.strerror or error}")


@contextmanager
def os_errors_as(what: str) -> Iterator[None]:
    """Turns an OSError into an MpsError that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise mps_error(what, error) from error


def open_safely(path: str, flags: int) -> int:
    """For `open`: does not follow a link, and does not wait for the writer of a named pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def content_of(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """The first bytes of a file; None if there is none that we may read, MpsUnknownError if that is not known."""
    try:
        with open(path, "rb", opener=open_safely) as file:
            return file.read(most) or b""
    except OSError as error:
        if error.errno in TRANSIENT:
            raise mps_error(str(path), error) from error
        return None


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether a process was started with a variable; MpsUnknownError if that cannot be found out now."""
    with os_errors_as(f"/proc/{pid}/environ"):
        return environments.has_variable(pid, name, value)


def processes_with(token: str) -> list[int]:
    """All processes that have a token."""
    with os_errors_as("/proc cannot be read"):
        names = os.listdir("/proc")
    return [int(name) for name in names if name.isdecimal() and has_variable(int(name), TOKEN, token)]


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def culprits_in(log: Path, since: int) -> tuple[int, ...]:
    """The clients that caused the last fault, by the log of a server from that byte on.

    The words of the log are not specified, and were not compared with those of real drivers.
    """
    size = size_of(log)
    if size <= since:
        return ()
    try:
        with open(log, "rb", opener=open_safely) as file:
            file.seek(max(since, size - LOG_TAIL))
            lines = file.read(LOG_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return ()
    known = {pid for line in lines for pid in _CLIENT.findall(line)}
    for line in reversed(lines):
        named = {int(pid) for pid in known.intersection(_NUMBER.findall(line.partition("]")[2]))}
        if named and _FAULT.search(line):
            return tuple(sorted(named))
    return ()


def remove(path: Path) -> None:
    """Removes a file, a link or a folder with all that it contains.

    A folder is renamed first, so that its name is free even if something in it cannot be removed.
    """
    for left in path.parent.glob(f"{path.name}.removed-*"):
        shutil.rmtree(left, ignore_errors=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path.rename(path.with_name(f"{path.name}.removed-{secrets.token_hex(8)}")), ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
