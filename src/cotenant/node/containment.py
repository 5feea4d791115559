# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One cgroup per job, if this user can create cgroups, by which all processes of a job are found and killed.

A process can clear its environment, start a session of its own and outlive its parent; its cgroup stays. The cgroup
also limits the number of processes, if the kernel offers the pids controller here. It limits nothing else.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from cotenant.node import kernel
from cotenant.node.shares import Means, own_cgroups

PARENT = "cotenant-jobs"
PATIENCE_S = 5.0
"""how long `kill_group` waits for killed processes to disappear"""


@dataclass(frozen=True, slots=True)
class Containment:
    """Where the cgroups of one daemon's jobs are."""

    folder: Path | None
    """None: no cgroup can be created here"""
    owner: str
    """prefix of the name of each cgroup, which tells two daemons on one machine apart"""

    def create(self, job: str, most_processes: int) -> Path | None:
        """Creates the cgroup of a job; None if that is not possible. One that a crash left behind is used again."""
        group = self.group(job)
        if group is None or self.folder is None:
            return None
        try:
            self.folder.mkdir(exist_ok=True)
            for above in (self.folder.parent, self.folder):
                try_write(above / "cgroup.subtree_control", "+pids")
            group.mkdir(exist_ok=True)
        except OSError:
            return None
        try_write(group / "pids.max", str(most_processes))
        return group

    def group(self, job: str) -> Path | None:
        """The path of a job's cgroup, whether it exists or not."""
        return None if self.folder is None else self.folder / f"{self.owner}.{job}"

    def remove(self, job: str) -> int:
        """Kills what is left of a job, and removes its cgroup; the number of killed processes."""
        group = self.group(job)
        return 0 if group is None else kill_group(group)

    def sweep(self, alive: Collection[str] = ()) -> None:
        """Removes every job that is not alive."""
        prefix = f"{self.owner}."
        found = [] if self.folder is None or not self.folder.is_dir() else list(self.folder.iterdir())
        for name in (group.name for group in found if group.name.startswith(prefix)):
            if name.removeprefix(prefix) not in alive:
                self.remove(name.removeprefix(prefix))


def find_containment(
    owner: str,
    mounts: Path = Path("/proc/self/mounts"),
    own: Path = Path("/proc/self/cgroup"),
    *,
    means: Container[Means] = tuple(Means),
) -> Containment:
    """The first hierarchy, by any of these means, in which a cgroup can be created and joined; none that would change
    CPU scheduling."""
    for root in own_cgroups("pids", mounts, own, means):
        containment = Containment(root / PARENT, owner)
        probe = f"probe-{os.getpid()}"
        group = containment.create(probe, 1)
        if group is None:
            continue
        try:
            if os.access(group / "cgroup.procs", os.W_OK):
                return containment
        finally:
            containment.remove(probe)
    return Containment(None, owner)


def kill_group(group: Path) -> int:
    """Kills all processes of a cgroup and of the cgroups in it, and removes them; the number of killed processes."""
    killed: set[int] = set()
    until = time.monotonic() + PATIENCE_S
    while (pids := set(_members(group))) and time.monotonic() < until:
        killed |= pids
        try_write(group / "cgroup.kill", "1")
        for pid in pids:
            _kill_member(pid, group)
        time.sleep(0.005)
    folders = [folder for folder, _, _ in os.walk(group, topdown=False)]
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return len(killed)


def _kill_member(pid: int, group: Path) -> None:
    """Membership is checked again with the handle open, so that a later process with the same ID is never killed."""
    try:
        handle = kernel.open_process(pid)
    except OSError:
        return
    try:
        if pid in set(_members(group)):
            kernel.send_signal(handle, signal.SIGKILL)
    except OSError:
        pass  # it has ended
    finally:
        os.close(handle)


def _members(group: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(group):
        try:
            yield from map(int, Path(folder, "cgroup.procs").read_text().split())
        except OSError:
            continue


def try_write(control: Path, value: str) -> None:
    # Opened without O_CREAT: in a folder that is not a cgroup no file may be created.
    with contextlib.suppress(OSError):
        descriptor = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
