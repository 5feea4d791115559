# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The list of a slice's processes on the GPUs, which the vGPU library reads; native/lib/limits.h defines the format.

In a container NVML reports process IDs of the host, which no process there knows. Only a program outside can tell the
processes of a slice from other tenants, so it writes this file, and the tenant can read it and cannot change it.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cotenant.node.limits import write_read_only

FIRST_LINE = "cotenant-processes 1"
MOST_PROCESSES = 256
"""Processes beyond these are not written, and count as other tenants."""
MOST_BYTES = 65536
UNKNOWN_SPACE = 0


class SliceProcess(NamedTuple):
    """A process of a slice that uses a GPU, as the driver and as the process itself know it."""

    host_pid: int
    """process ID of the host, which NVML reports"""
    pid: int
    """in its own PID namespace"""
    pid_space: int
    """inode of that namespace; UNKNOWN_SPACE if this process may not know it"""


def identify(pid: int, proc: Path = Path("/proc")) -> SliceProcess | None:
    """The process with this process ID of the host; None if it has ended."""
    inner = inner_pid(pid, proc)
    return None if inner is None else SliceProcess(pid, inner, pid_space(pid, proc) or UNKNOWN_SPACE)


def inner_pid(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The process ID in the innermost of the process's PID namespaces; None if it has ended."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return int(numbers[-1]) if numbers else pid


def pid_space(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The inode of a process's PID namespace; None if it has ended or this process may not know it."""
    try:
        return os.stat(proc / str(pid) / "ns" / "pid").st_ino
    except OSError:
        return None


def list_text(processes: Iterable[SliceProcess]) -> str:
    """The content of the file; processes are in the order of their IDs, so that the same ones give the same text."""
    listed = sorted(set(processes))[:MOST_PROCESSES]
    return "\n".join([FIRST_LINE, *(f"process {one.host_pid} {one.pid} {one.pid_space}" for one in listed), "end\n"])


def write_list(path: Path, processes: Iterable[SliceProcess]) -> bool:
    """Writes the list if it differs from the one that is there; True if it did. Raises OSError."""
    text = list_text(processes)
    if _content(path) == text.encode():
        return False
    write_read_only(path, text)
    return True


def _content(path: Path) -> bytes | None:
    """The file's bytes; None if it is missing, not a regular file or too large. Jobs of the daemon can replace it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        found = file.read(MOST_BYTES + 1)
    return found if len(found) <= MOST_BYTES else None
