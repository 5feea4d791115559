# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How a job of a daemon for all users resembles a login of its owner: umask, limits, and environment.

Umask and limits are those of the process that submitted the job, by the kernel's word, so that no request on the socket
exceeds the hard limits of its process, nor those of the daemon. A job that was submitted over TCP gets those of the
daemon.
"""

import os
import pwd
import re
import resource
from pathlib import Path

import msgspec

from cotenant.errors import InputError
from cotenant.local.owners import Owner
from cotenant.node.environments import PROC
from cotenant.node.sockets import Credentials

LIMITS = {
    "Max address space": "AS",
    "Max cpu time": "CPU",
    "Max data size": "DATA",
    "Max file size": "FSIZE",
    "Max locked memory": "MEMLOCK",
    "Max open files": "NOFILE",
    "Max processes": "NPROC",
    "Max stack size": "STACK",
}
"""limits of a process that its jobs have, too: the kernel's words, and the names of setrlimit(2)"""
_LIMIT = re.compile(r"(Max [a-z ]+?) {2,}(\S+) +(\S+)")
LOGIN_SETTINGS = Path("/etc/login.defs")
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"


class Origin(msgspec.Struct, frozen=True):
    """Of the process that submitted a job."""

    umask: int
    limits: dict[str, tuple[int, int]]
    """soft and hard limit, by name; -1: none"""


def origin_of(peer: Credentials | None) -> Origin | None:
    """What a job gets of the process that submits it; None: it is on another machine.

    InputError if that process has ended: a user could exceed limits by not waiting for the answer.
    """
    if peer is None:
        return None
    try:
        limits = _limits((PROC / str(peer.pid) / "limits").read_text())
        fields = dict(line.split(":", 1) for line in (PROC / str(peer.pid) / "status").read_text().splitlines())
        if int(fields["Uid"].split()[1]) == peer.uid:  # else another process has its ID now
            return Origin(int(fields["Umask"], 8), limits)
    except (OSError, KeyError, ValueError):
        pass
    raise InputError("the process that submits this job has ended, so its limits are not known: let it wait")


def _limits(text: str) -> dict[str, tuple[int, int]]:
    found = (line for line in map(_LIMIT.match, text.splitlines()) if line is not None and line[1] in LIMITS)
    return {LIMITS[line[1]]: (_number(line[2]), _number(line[3])) for line in found}


def _number(text: str) -> int:
    return resource.RLIM_INFINITY if text == "unlimited" else int(text)


def login_environment(owner: Owner, settings: Path = LOGIN_SETTINGS) -> dict[str, str]:
    """The variables of a login of a user; none if the user was removed."""
    try:
        entry = pwd.getpwuid(owner.uid)
    except KeyError:
        return {}
    found = {"HOME": entry.pw_dir, "SHELL": entry.pw_shell or "/bin/sh", "USER": entry.pw_name}
    language = {"LANG": os.environ["LANG"]} if "LANG" in os.environ else {}
    return {**found, "LOGNAME": entry.pw_name, "PATH": _login_path(owner.uid, settings), **language}


def _login_path(uid: int, settings: Path) -> str:
    """The search path of a login, as login(1) sets it."""
    wanted = "ENV_SUPATH" if uid == 0 else "ENV_PATH"
    try:
        lines = [line.split() for line in settings.read_text(errors="replace").splitlines()]
    except OSError:
        return USUAL_PATH
    found = (words[1] for words in lines if len(words) == 2 and words[0] == wanted)
    return next(found, USUAL_PATH).removeprefix("PATH=")
