# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Enforces compute shares on simulated GPUs: by a CPU quota, if this user can create cgroups.

Otherwise the job's supervisor stops and continues the job in intervals of 100 ms, which needs no permission.
"""

import contextlib
import os
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MilliCpu
from cotenant.errors import DeviceError

PARENT = "cotenant"
DAEMON = "cotenant-daemon"
"""the group within its own (cgroup v2) that systemd starts the daemon in; the groups of jobs are made beside it"""
PERIOD_US = 20_000
"""short, so that a job waits little for its next period; measured to be as exact as the kernel's 100 ms"""
_LEAST_QUOTA_US = 1_000
_LONGEST_PERIOD_US = 1_000_000


class Means(StrEnum):
    """How compute shares are enforced."""

    CGROUP_V2 = "cgroup v2"
    CGROUP_V1 = "cgroup v1"
    SLOTS = "stop-and-continue"


class Quota(NamedTuple):
    """CPU time within each period."""

    quota_us: int
    period_us: int


@dataclass(frozen=True, slots=True)
class Shares:
    """How this machine enforces compute shares, and where its cgroups are."""

    means: Means
    folder: Path | None
    """contains one cgroup per job; None: there are no cgroups"""
    owner: str
    """prefix of the name of each cgroup, which tells two daemons on one machine apart"""

    def group(self, job: str) -> Path | None:
        """The path of a job's cgroup, whether it exists or not; None if there are no cgroups."""
        return None if self.folder is None else self.folder / f"{self.owner}.{job}"

    def create(self, job: str, cpu: MilliCpu) -> Path:
        """Creates a cgroup with at most this much CPU time; one that a crash left behind is used again."""
        group = self.group(job)
        if self.folder is None or group is None:
            raise DeviceError(f"no cgroup can be made for {job}: shares are enforced by {self.means} here")
        try:
            _make_folder(self.folder, self.means)
            group.mkdir(exist_ok=True)
            _write_quota(group, self.means, quota(cpu))
        except OSError as error:
            raise DeviceError(f"cannot set the compute share of {job} in {group}: {error.strerror}") from error
        return group

    def throttled_s(self, job: str) -> float:
        """Seconds that the processes of a job were held back, as the kernel counts them; 0 without a cgroup."""
        group = self.group(job)
        try:
            lines = [] if group is None else (group / "cpu.stat").read_text().splitlines()
        except OSError:  # it has no compute share, or has just ended
            return 0.0
        found = dict(line.split(maxsplit=1) for line in lines)
        return int(found.get("throttled_usec", 0)) / 1e6 or int(found.get("throttled_time", 0)) / 1e9

    def remove(self, job: str) -> bool:
        """Removes the cgroup of a job; False if it still contains processes."""
        group = self.group(job)
        return group is None or _remove(group)

    def sweep(self, alive: Collection[str] = ()) -> list[str]:
        """Removes the cgroups of all jobs that are not alive; returns those whose cgroup still contains processes."""
        return [job for job in sorted(self.jobs()) if job not in alive and not self.remove(job)]

    def jobs(self) -> list[str]:
        """The jobs that have a cgroup."""
        if self.folder is None or not self.folder.is_dir():
            return []
        prefix = f"{self.owner}."
        return [group.name.removeprefix(prefix) for group in self.folder.iterdir() if group.name.startswith(prefix)]

    def close(self) -> None:
        """Removes the common folder, unless a daemon has a cgroup in it."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def find_shares(
    owner: str = "local", mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Shares:
    """Finds the best method that works here by trying it: sets a quota on a cgroup, and removes it again."""
    if not owner or "/" in owner or "." in owner:
        raise ValueError(f"{owner!r} cannot be the prefix of a cgroup's name: expected no dot and no slash")
    for means, root in hierarchies(mounts, own):
        shares = Shares(means, root / PARENT, owner)
        if _works(shares, root):
            return shares
    return Shares(Means.SLOTS, None, owner)


def quota(cpu: MilliCpu) -> Quota:
    """The quota for this much CPU time; the kernel accepts no quota under 1 ms, so small shares have longer periods."""
    milli = max(1, cpu)
    period = min(_LONGEST_PERIOD_US, max(PERIOD_US, ceil(_LEAST_QUOTA_US * 1000 / milli)))
    return Quota(max(_LEAST_QUOTA_US, milli * period // 1000), period)


def own_cgroups(controller: str, mounts: Path, own: Path, means: Container[Means] = tuple(Means)) -> list[Path]:
    """The cgroups of this process in which groups with this controller may be created; version 1 first."""
    found = [one for one in hierarchies(mounts, own, controller) if one[0] in means]
    return [root for _, root in sorted(found, key=lambda one: one[0] is not Means.CGROUP_V1)]


def hierarchies(mounts: Path, own: Path, controller: str = "cpu") -> Iterator[tuple[Means, Path]]:
    """The cgroup of this process in each hierarchy that may have a controller."""
    try:
        paths = dict(_own_paths(own.read_text()))
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return
    for _, point, kind, options, *_ in lines:
        if kind == "cgroup2":
            group = _within(Path(_unescaped(point)), paths.get("", "/"))
            # A group with processes of its own cannot limit groups in it: systemd puts the daemon into one beside them.
            yield Means.CGROUP_V2, group.parent if group.name == DAEMON else group
        elif kind == "cgroup" and controller in options.split(","):
            yield Means.CGROUP_V1, _within(Path(_unescaped(point)), paths.get(controller, "/"))


def _own_paths(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((controller, path) for controller in controllers.split(","))


def _within(mount: Path, path: str) -> Path:
    # In a container the path may be that of the host, which is not visible: there the mount is our own cgroup.
    below = mount / path.lstrip("/")
    return below if below.is_dir() else mount


def _unescaped(point: str) -> str:
    return point.encode().decode("unicode_escape") if "\\" in point else point


def _works(shares: Shares, root: Path) -> bool:
    """Whether a cgroup can be created, limited and joined here; removes what it created."""
    probe = f"probe-{os.getpid()}"
    if not os.access(root / "cgroup.procs", os.W_OK):
        return False
    try:
        shares.create(probe, MilliCpu(500))
    except DeviceError:
        return False
    finally:
        shares.remove(probe)
        shares.close()
    return True


def _make_folder(folder: Path, means: Means) -> None:
    folder.mkdir(exist_ok=True)
    if means is Means.CGROUP_V2:
        for group in (folder.parent, folder):
            write_control(group / "cgroup.subtree_control", "+cpu")


def _write_quota(group: Path, means: Means, limit: Quota) -> None:
    if means is Means.CGROUP_V2:
        write_control(group / "cpu.max", f"{limit.quota_us} {limit.period_us}")
        return
    # The limit is removed first: neither step may exceed what a parent with a limit allows.
    write_control(group / "cpu.cfs_quota_us", "-1")
    write_control(group / "cpu.cfs_period_us", str(limit.period_us))
    write_control(group / "cpu.cfs_quota_us", str(limit.quota_us))


def write_control(control: Path, value: str) -> None:
    # Opened without O_CREAT: in a folder that is not a cgroup this must fail, and not create a file.
    descriptor = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _remove(group: Path) -> bool:
    """Removes a cgroup and the cgroups that its job created in it; False if one still contains processes."""
    try:
        for inner in group.iterdir():
            if inner.is_dir() and not _remove(inner):
                return False
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
