# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Mounts of the kernel, for processes that may mount. Runs as a program, too: see `main`.

Standard library only, since every control daemon of MPS is started through it.
"""

import ctypes
import os
import sys
from collections.abc import Sequence

NOSUID, NODEV, NOEXEC, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_DETACH = 2
_NEW_NAMESPACE = 0x20000


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """OSError if the kernel refuses it."""
    words = (os.fsencode(source), os.fsencode(target), kind.encode())
    _call("mount", *words, ctypes.c_ulong(flags), options.encode())


def mount_tmpfs(target: str, options: str) -> None:
    """A file system in memory, in which nothing can be executed."""
    mount("tmpfs", target, "tmpfs", NOSUID | NODEV | NOEXEC, options)


def unmount(target: str) -> None:
    """Removes it from the tree; what is open stays open."""
    _call("umount2", os.fsencode(target), _DETACH)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(arguments: Sequence[str]) -> None:
    """`FOLDER COMMAND...`: becomes the command, with the folder as its /dev/shm, in a mount namespace of its own."""
    folder, *command = arguments
    _call("unshare", _NEW_NAMESPACE)
    mount("none", "/", "", RECURSIVE | PRIVATE)
    mount(folder, "/dev/shm", "", BIND)
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"/dev/shm of the control daemon: {error.strerror or error}")
