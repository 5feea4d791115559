# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of pods on this node: which pod a process belongs to, and the socket on which jobs report their speed.

The kernel says which pod a process belongs to: its cgroup carries the pod's UID, and no process in a container can
change that. Kubelet's own cgroup driver writes `.../pod<UID>/...`, systemd's `...-pod<UID>.slice/...` with underscores
for dashes.
"""

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from cotenant.kube.codec.paths import AGENT_SOCKET, PROCESSES_FOLDER
from cotenant.node.agent import AgentServer, Sink

PROC = Path("/proc")
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?=[./\n]|$)")
_CONTAINER = re.compile(rb"(?<![0-9a-f])([0-9a-f]{64})(?=[./\n]|$)")
PROCESSES_NAME = "processes"
"""The folder of a slice with what its container may read: the list of its processes, and its grants."""
_MOST_BYTES = 64 * 1024
_MOST_MOUNTS = 1024 * 1024
"""Bytes of a list of mounts."""


def pod_of(pid: int, known: Collection[str], proc: Path = PROC) -> str | None:
    """The UID of a process's pod; None if it is in none of the known pods, or has ended.

    The outermost known UID counts, because a container may make groups within its own and name them freely.
    """
    return next((uid for uid in pods_of(pid, proc) if uid in known), None)


def pods_of(pid: int, proc: Path = PROC) -> list[str]:
    """The UIDs in the cgroup of a process, the outermost first; empty if it is in no pod, or has ended."""
    return [match.decode().replace("_", "-") for match in _POD.findall(_read(proc / str(pid) / "cgroup"))]


def container_of(pid: int, known: Collection[str], proc: Path = PROC) -> str | None:
    """The ID of a process's container in one of the known pods; None if it is in none, or has ended.

    Below the group of its pod, the outermost group with an ID counts, for the same reason.
    """
    for line in _read(proc / str(pid) / "cgroup").splitlines():
        for pod in _POD.finditer(line):
            container = _CONTAINER.search(line, pod.end())
            if container is not None and pod.group(1).decode().replace("_", "-") in known:
                return container.group(1).decode()
    return None


class Mount(NamedTuple):
    """A mount as a process sees it."""

    device: str
    """Of the file system, such as `0:25`."""
    root: str
    """Path of what is mounted, within its file system; ends with `//deleted` if it was removed."""
    point: str
    """Path at which it is mounted, with special characters as the kernel escapes them."""


def mounts_of(pid: int | Literal["self"], proc: Path = PROC) -> list[Mount]:
    """What a process has mounted; empty if it has ended.

    The kernel shows the mounts of other users' processes too, without the rights that reading their files needs.
    """
    content = os.fsdecode(_read(proc / str(pid) / "mountinfo", _MOST_MOUNTS))
    lines = (line.split(" ", 5) for line in content.split("\n"))
    return [Mount(*words[2:5]) for words in lines if len(words) > 5]


def slice_of(pid: int, slices: Path, proc: Path = PROC) -> str | None:
    """The name of the slice whose list of processes a process has mounted; None if it has none of ours."""
    try:
        device = slices.stat().st_dev
    except OSError:
        return None
    own = f"{os.major(device)}:{os.minor(device)}"
    for mount in mounts_of(pid, proc):
        if mount.point != str(PROCESSES_FOLDER):
            continue
        # A process that may mount can choose a path that looks like ours, but not on our file system.
        *_, above, name, last = ("", "", "", *PurePosixPath(mount.root).parts)
        if (mount.device, above, last) == (own, slices.name, PROCESSES_NAME):
            return name
    return None


def running_pods(known: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """The known pods that have processes; a zombie does not count, since it holds no resources."""
    found = set()
    for name in os.listdir(proc):
        if name.isdecimal():
            uid = pod_of(int(name), known, proc)
            if uid is not None and uid not in found and is_alive(proc / name):
                found.add(uid)
    return frozenset(found)


def is_alive(process: Path) -> bool:
    """Whether a process, given by its folder in /proc, has not ended."""
    fields = _read(process / "stat").rpartition(b")")[2].split()
    if not fields:
        return False
    # The first thread of a process may end before the others.
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def _read(path: Path, most: int = _MOST_BYTES) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:  # the process has ended
        return b""


class Jobs:
    """The jobs that are connected to the agent's socket, from `start` to `close`."""

    def __init__(self, folder: Path, known: Callable[[], Collection[str]], sink: Sink, proc: Path = PROC) -> None:
        """`sink` receives the messages of pods; jobs are named by the UID of their pod."""
        self._folder = folder
        self.server = AgentServer(
            str(folder / AGENT_SOCKET.name),
            job_of=lambda pid: pod_of(pid, known(), proc),
            sink=sink,
            mode=0o666,  # the containers that have it mounted run as any user
        )

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o755)  # whatever the umask is
        await self.server.start()

    async def close(self) -> None:
        await self.server.close()
