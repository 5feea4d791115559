# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon for all users of a machine: it runs as root, and every user may open its socket."""

import grp
import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from cotenant.client.addresses import system_runtime, system_socket
from cotenant.core.isolation import uses_mps
from cotenant.errors import InputError
from cotenant.local.isolation import ONE_USER, IsolationSettings
from cotenant.node.ownership import problem_of_folder

FIRST_PASSED = 3
"""descriptor of the first socket that systemd passes on"""
ADMIN_GROUP = "cotenant-admin"
"""whose members are administrators, if the group exists and no other is named"""


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """The options of a daemon for all users."""

    admin_group: str | None = None
    """None: `cotenant-admin`"""


def check_system(options: SystemOptions, isolation: IsolationSettings) -> None:
    """InputError if no daemon for all users could be started with these options."""
    if os.geteuid() != 0:
        raise InputError(
            "--system: needs root, because jobs run as their owners: use sudo, or leave the option out for a daemon of "
            "your own"
        )
    find_admin_group(options.admin_group)
    rungs = [rung for rung in (isolation.default, *isolation.gpus.values()) if uses_mps(rung)]
    if rungs:
        raise InputError(f"--isolation {rungs[0]}: {ONE_USER}")


def find_admin_group(name: str | None) -> str | None:
    """The group of the administrators; None: only root is one. InputError if the named group does not exist."""
    try:
        return grp.getgrnam(name or ADMIN_GROUP).gr_name
    except KeyError:
        if name is None:
            return None
        raise InputError(f"--admin-group {name[:60]}: no such group; create it with `groupadd {name[:60]}`") from None


def make_runtime_folder() -> Path:
    """The folder with the socket, which every user can enter and only root can change."""
    folder = system_runtime()
    os.umask(0o022)  # users must reach what they load and read; what is secret has a mode of its own
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        problem = problem_of_folder(folder)
        if problem is None:
            folder.chmod(0o755)
            for name in ("limits", "terminals"):
                (folder / name).mkdir(mode=0o711, exist_ok=True)
                (folder / name).chmod(0o711)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}; COTENANT_RUNTIME names another folder") from None
    if problem is not None:
        raise InputError(f"{folder} {problem}, or let COTENANT_RUNTIME name another folder")
    return folder


def socket_of_systemd() -> socket.socket | None:
    """The socket of a socket unit, by the protocol of sd_listen_fds(3); None: there is none."""
    number, process = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    if process != str(os.getpid()) or number != "1":
        return None
    passed = socket.socket(fileno=FIRST_PASSED)
    passed.set_inheritable(False)
    if passed.family != socket.AF_UNIX or passed.getsockname() != str(system_socket()):
        raise InputError(f"systemd passed another socket than {system_socket()}; let cotenant.socket name that one")
    return passed


def open_system_socket(stack: ExitStack) -> socket.socket:
    """The socket that every user may open: the one that systemd has opened, or a new one. `stack` closes it."""
    path = system_socket()
    passed = socket_of_systemd()
    if passed is not None:
        return stack.enter_context(passed)
    path.unlink(missing_ok=True)
    opened = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    opened.bind(str(path))
    stack.callback(_remove, path, path.stat().st_ino)
    path.chmod(0o666)
    return opened


def _remove(path: Path, inode: int) -> None:
    """Removes a socket of ours, so that commands do not look for a daemon that was stopped; not that of a later one."""
    with suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()
