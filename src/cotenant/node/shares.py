# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Shares of a simulated GPU's compute: a CPU quota by cgroup where this user may make one.

Where not, the job's supervisor stops and continues it in slots of 100 ms, which needs no permission.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MilliCpu
from cotenant.errors import DeviceError

PARENT = "cotenant"
PERIOD_US = 20_000
"""short, so that a job waits little for its next turn; measured as exact as the kernel's 100 ms"""
_LEAST_QUOTA_US = 1_000
_LONGEST_PERIOD_US = 1_000_000


class Means(StrEnum):
    """How compute shares are held."""

    CGROUP_V2 = "cgroup v2"
    CGROUP_V1 = "cgroup v1"
    SLOTS = "stop-and-continue"


class Quota(NamedTuple):
    """CPU time within each period."""

    quota_us: int
    period_us: int


@dataclass(frozen=True, slots=True)
class Shares:
    """How this machine holds compute shares, and where its groups are."""

    means: Means
    folder: Path | None
    """holds one group per job; None: no groups"""
    owner: str
    """starts the name of each group, so that two daemons on one machine do not meet"""

    def group(self, job: str) -> Path | None:
        """Where the group of a job is or would be."""
        return None if self.folder is None else self.folder / f"{self.owner}.{job}"

    def create(self, job: str, cpu: MilliCpu) -> Path:
        """A group that gets at most this much CPU time; what a crash left of an older one is used again."""
        group = self.group(job)
        if self.folder is None or group is None:
            raise DeviceError(f"no cgroup can be made for {job}: shares are held by {self.means} here")
        try:
            _make_folder(self.folder, self.means)
            group.mkdir(exist_ok=True)
            _write_quota(group, self.means, quota(cpu))
        except OSError as error:
            raise DeviceError(f"cannot set the compute share of {job} in {group}: {error.strerror}") from error
        return group

    def remove(self, job: str) -> bool:
        """Whether the group of a job is gone; it stays while processes are in it."""
        group = self.group(job)
        return group is None or _remove(group)

    def sweep(self, alive: Collection[str] = ()) -> list[str]:
        """Remove the groups of all jobs but the living; returns those that still hold processes."""
        return [job for job in sorted(self.jobs()) if job not in alive and not self.remove(job)]

    def jobs(self) -> list[str]:
        """The jobs that have a group."""
        if self.folder is None or not self.folder.is_dir():
            return []
        prefix = f"{self.owner}."
        return [group.name.removeprefix(prefix) for group in self.folder.iterdir() if group.name.startswith(prefix)]

    def close(self) -> None:
        """Remove the common folder, if no daemon has a group in it."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def find_shares(
    owner: str = "local", mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Shares:
    """The best means that works here, found by trying: a quota is set on a group that is removed again."""
    if not owner or "/" in owner or "." in owner:
        raise ValueError(f"{owner!r} cannot start the name of a group")
    for means, root in _hierarchies(mounts, own):
        shares = Shares(means, root / PARENT, owner)
        if _works(shares, root):
            return shares
    return Shares(Means.SLOTS, None, owner)


def quota(cpu: MilliCpu) -> Quota:
    """`cpu` of CPU time per period; the kernel takes no quota under 1 ms, so small shares have longer periods."""
    milli = max(1, cpu)
    period = min(_LONGEST_PERIOD_US, max(PERIOD_US, ceil(_LEAST_QUOTA_US * 1000 / milli)))
    return Quota(max(_LEAST_QUOTA_US, milli * period // 1000), period)


def _hierarchies(mounts: Path, own: Path) -> Iterator[tuple[Means, Path]]:
    """Where this process stands in each hierarchy that may have the cpu controller."""
    try:
        paths = dict(_own_paths(own.read_text()))
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return
    for _, point, kind, options, *_ in lines:
        if kind == "cgroup2":
            yield Means.CGROUP_V2, _within(Path(_unescaped(point)), paths.get("", "/"))
        elif kind == "cgroup" and "cpu" in options.split(","):
            yield Means.CGROUP_V1, _within(Path(_unescaped(point)), paths.get("cpu", "/"))


def _own_paths(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((controller, path) for controller in controllers.split(","))


def _within(mount: Path, path: str) -> Path:
    # In a container the path may be the host's, which is not visible: there the mount is our own group.
    below = mount / path.lstrip("/")
    return below if below.is_dir() else mount


def _unescaped(point: str) -> str:
    return point.encode().decode("unicode_escape") if "\\" in point else point


def _works(shares: Shares, root: Path) -> bool:
    """Whether a group can be made, limited and joined here; leaves nothing."""
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
            _write(group / "cgroup.subtree_control", "+cpu")


def _write_quota(group: Path, means: Means, limit: Quota) -> None:
    if means is Means.CGROUP_V2:
        _write(group / "cpu.max", f"{limit.quota_us} {limit.period_us}")
        return
    # In two steps, of which neither may ask for more than a parent with a limit allows.
    _write(group / "cpu.cfs_quota_us", "-1")
    _write(group / "cpu.cfs_period_us", str(limit.period_us))
    _write(group / "cpu.cfs_quota_us", str(limit.quota_us))


def _write(control: Path, value: str) -> None:
    # Opened without O_CREAT: on anything that is not a cgroup this must fail, not make a file.
    descriptor = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _remove(group: Path) -> bool:
    """Whether a group and all groups that its job made in it are gone."""
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
