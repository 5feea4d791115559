# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a process was started with a variable: by that we know processes of ours whose parents have ended."""

import errno
import os
from pathlib import Path

PROC = Path("/proc")
TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EIO})
"""errors that say nothing about whether a file or a process exists"""


def has_variable(pid: int, name: str, value: str | Path, proc: Path = PROC) -> bool:
    """False if the process has ended, or belongs to another user.

    OSError if that cannot be found out now, for example because no file descriptor is free: callers know what is safe.
    """
    try:
        content = (proc / str(pid) / "environ").read_bytes()
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        return False
    return os.fsencode(f"{name}={value}") in content.split(b"\0")
