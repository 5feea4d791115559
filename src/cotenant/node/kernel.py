# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of Linux that Python offers only if it was built with a newer glibc: handles of processes and files in memory.

The interpreters that uv installs were built for glibc 2.17. Where a function is missing, the kernel is asked directly.
"""

import fcntl
import os
import signal

OFD_GETLK = getattr(fcntl, "F_OFD_GETLK", 36)
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""numbers of system calls, which are the same on all machines since Linux 5.1"""
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
MFD_CLOEXEC = 1


def open_process(pid: int) -> int:
    """A handle of a process, which never becomes that of a later one; OSError if there is none."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _call(PIDFD_OPEN, pid, 0)


def send_signal(handle: int, number: int) -> None:
    """Signals the process of a handle; OSError if it has ended."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(handle, number)
    else:
        _call(PIDFD_SEND_SIGNAL, handle, number, None, 0)


def file_in_memory(name: str) -> int:
    """The descriptor of a new file that is on no disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    return _call(MEMFD_CREATE[os.uname().machine], name.encode(), MFD_CLOEXEC)


def _call(number: int, *arguments: int | bytes | None) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
