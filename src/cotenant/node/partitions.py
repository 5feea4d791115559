# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The memory partitions of tenants: a cgroup for each, with a limit on GPU memory that the driver enforces.

The limit counts for all processes of the cgroup together, whatever their environment says, and can be changed at any
time. It needs cgroup v2 and root. If cotenant contains jobs in cgroups of version 2 anyway, these are the same cgroups.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import DeviceError
from cotenant.node.containment import Containment, find_containment
from cotenant.node.devices.memory_limits import NO_LIMIT, MemoryLimits
from cotenant.node.shares import Means

TRIAL = 1 << 30
"""bytes of the limit that is set on a trial cgroup"""


@dataclass(frozen=True, slots=True)
class Partitions:
    """The cgroups of tenants, and the driver that enforces their limits."""

    groups: Containment
    limits: MemoryLimits

    def obstacle(self, uuid: str) -> str | None:
        """Why no memory of a GPU can be partitioned here, found by trying it; None: it can."""
        name = f"trial-{os.getpid()}"
        group = self.groups.create(name, 1)
        if group is None:
            return "no cgroup of version 2 can be made"
        try:
            self.limits.set(uuid, group, TRIAL)
            found = self.limits.get(uuid, group).hard
        except DeviceError as error:
            return str(error)
        finally:
            self.groups.remove(name)
        return None if found == TRIAL else f"a limit of {TRIAL} bytes was set, and the driver says {found}"

    def create(self, job: str, most_processes: int, uuid: str, bytes_: int | None) -> Path:
        """The cgroup of a job with its limit, before its first process joins it. None bytes: all of the GPU."""
        group = self.groups.create(job, most_processes)
        if group is None:
            raise DeviceError(f"{job}: its cgroup cannot be made, so the driver cannot limit its memory")
        self.limits.set(uuid, group, NO_LIMIT if bytes_ is None else bytes_)
        return group


def find_partitions(
    owner: str, limits: MemoryLimits, mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Partitions:
    """In the hierarchy of cgroup v2."""
    return Partitions(find_containment(owner, mounts, own, means=(Means.CGROUP_V2,)), limits)
