# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which pod a process belongs to, as the kernel says: its cgroup carries the pod's UID, and no process can change that.

Kubelet's own cgroup driver writes `.../pod<UID>/...`, systemd's `...-pod<UID>.slice/...` with underscores for dashes.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

PROC = Path("/proc")
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?=[./\n]|$)")
_MOST_BYTES = 64 * 1024


def pod_of(pid: int, known: Collection[str], proc: Path = PROC) -> str | None:
    """The pod of a process; None where it is in none of the known ones, or has ended.

    The outermost known one counts: a container may make groups within its own and call them as it likes.
    """
    content = _read(proc / str(pid) / "cgroup")
    uids = (match.decode().replace("_", "-") for match in _POD.findall(content))
    return next((uid for uid in uids if uid in known), None)


def running_pods(known: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Those pods that have processes; one that ended and was not waited for holds nothing any more."""
    found = set()
    for name in os.listdir(proc):
        if name.isdecimal():
            uid = pod_of(int(name), known, proc)
            if uid is not None and uid not in found and _is_alive(proc / name):
                found.add(uid)
    return frozenset(found)


def _is_alive(process: Path) -> bool:
    fields = _read(process / "stat").rpartition(b")")[2].split()
    if not fields:
        return False
    # The first thread of a process may end before the others.
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:  # it has ended
        return b""
