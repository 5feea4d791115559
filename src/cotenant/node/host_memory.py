# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of the host: how much jobs can have in all, and one cgroup per job that limits it, if cgroups can be created.

With cgroup v1 the group is one of its own, in the hierarchy of the memory controller. With cgroup v2 a process is in
one group only, so the limit belongs to the group that already contains the job.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.units import MIB_BYTES, MiB
from cotenant.errors import DeviceError
from cotenant.node.containment import Containment, kill_group, try_write
from cotenant.node.shares import Means, hierarchies, own_cgroups, write_control

PARENT = "cotenant-memory"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """How this machine limits the host memory of jobs."""

    means: Means | None
    """None: by no cgroup"""
    folder: Path | None = None
    """contains one cgroup per job, with cgroup v1"""
    owner: str = ""
    """prefix of the name of each cgroup, which tells two daemons on one machine apart"""

    def limit(self, job: str, contain: Path | None, memory: MiB) -> Path | None:
        """Limits the memory of a job; the cgroup that its process must join. None: no cgroup can do that here."""
        if self.means is None or (self.means is Means.CGROUP_V2 and contain is None):
            return None
        try:
            return self._limit(job, contain, memory)
        except OSError as error:
            raise DeviceError(f"cannot limit the host memory of {job}: {error.strerror}") from error

    def _limit(self, job: str, contain: Path | None, memory: MiB) -> Path:
        size = str(memory * MIB_BYTES)
        if self.folder is None:
            assert contain is not None  # `limit` has checked it
            for above in (contain.parent.parent, contain.parent):
                try_write(above / "cgroup.subtree_control", "+memory")
            write_control(contain / "memory.max", size)
            try_write(contain / "memory.swap.max", "0")
            try_write(contain / "memory.oom.group", "1")
            return contain
        group = self._group(job)
        self.folder.mkdir(exist_ok=True)
        group.mkdir(exist_ok=True)
        try_write(group / "memory.memsw.limit_in_bytes", "-1")  # it must not be below the next value at any time
        write_control(group / "memory.limit_in_bytes", size)
        try_write(group / "memory.memsw.limit_in_bytes", size)
        return group

    def remove(self, job: str) -> None:
        """Kills what is left of a job in its cgroup, and removes that."""
        if self.folder is not None:
            kill_group(self._group(job))

    def sweep(self, alive: Collection[str] = ()) -> None:
        """Removes the cgroups of all jobs that are not alive."""
        prefix = f"{self.owner}."
        found = [] if self.folder is None or not self.folder.is_dir() else list(self.folder.iterdir())
        for name in (group.name.removeprefix(prefix) for group in found if group.name.startswith(prefix)):
            if name not in alive:
                self.remove(name)

    def _group(self, job: str) -> Path:
        assert self.folder is not None  # callers have checked it
        return self.folder / f"{self.owner}.{job}"


NO_LIMIT = HostMemory(None)


def find_host_memory(
    owner: str,
    containment: Containment,
    mounts: Path = Path("/proc/self/mounts"),
    own: Path = Path("/proc/self/cgroup"),
) -> HostMemory:
    """Finds what works here by trying it: limits a cgroup, and removes it again."""
    probe, memory = f"memory-probe-{os.getpid()}", MiB(64)
    for root in own_cgroups("memory", mounts, own, (Means.CGROUP_V1,)):
        found = HostMemory(Means.CGROUP_V1, root / PARENT, owner)
        try:
            group = found.limit(probe, None, memory)
            if group is not None and os.access(group / "cgroup.procs", os.W_OK):
                return found
        except DeviceError:
            continue
        finally:
            found.remove(probe)
    try:
        contain = containment.create(probe, 1)
        if contain is not None and HostMemory(Means.CGROUP_V2).limit(probe, contain, memory) is not None:
            return HostMemory(Means.CGROUP_V2)
    except DeviceError:
        pass
    finally:
        containment.remove(probe)
    return NO_LIMIT


def host_memory(proc: Path = Path("/proc"), mounts: Path = Path("/proc/self/mounts")) -> MiB | None:
    """Memory of this machine, or of the container that this process is in; None: not known."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        total = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemTotal:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return MiB(min([total, *_limits_above(mounts, proc / "self" / "cgroup")]))


def _limits_above(mounts: Path, own: Path) -> list[int]:
    """The limits of the groups that this process is in, in MiB."""
    found = []
    for _, group in hierarchies(mounts, own, "memory"):
        for above in (group, *group.parents):
            for name in ("memory.max", "memory.limit_in_bytes"):
                try:
                    found.append(int((above / name).read_text()) // MIB_BYTES)
                except (OSError, ValueError):
                    continue
    return [limit for limit in found if limit > 0]
