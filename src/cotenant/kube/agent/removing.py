# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Removes the files of an agent that has left its node, unless a container still has one of them mounted.

A container keeps what it has mounted, but new processes in it would find neither the vGPU library nor the file that
preloads it, and so have no limits. After its agent has left, no container can be given these files, so none is added
between the look and the removal.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath

from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import Folder, HostPlaces
from cotenant.kube.agent.claim_driver import REGISTRATIONS, folders_in
from cotenant.kube.agent.jobs import PROC, Mount, mounts_of, pods_of
from cotenant.kube.agent.plugin import SOCKETS
from cotenant.kube.agent.strict import SPECS
from cotenant.node.mounts import unmount


@dataclass(frozen=True, slots=True)
class _Source:
    """A folder by its place in its file system, in which mounts name it."""

    device: str
    root: PurePosixPath
    itself: bool
    """Whether a mount of the folder itself counts as use. All processes of the node see a file system that is
    mounted in our folders."""

    def is_used_by(self, mount: Mount) -> bool:
        root = PurePosixPath(mount.root.removesuffix("//deleted"))
        return mount.device == self.device and (self.root in root.parents or (self.itself and root == self.root))


def places_below(root: Path) -> HostPlaces:
    """The folders of a node whose /run and /var/lib are in a folder of this container."""
    usual = HostPlaces()
    lasting, passing = (Folder(root / one.host.relative_to("/"), one.host) for one in (usual.lasting, usual.passing))
    kubelet, cdi = (root / one.relative_to("/") for one in (usual.kubelet, usual.cdi))
    return HostPlaces(lasting=lasting, passing=passing, kubelet=kubelet, cdi=cdi)


def remove_files(host: HostPlaces, proc: Path = PROC) -> None:
    """Removes all files of an agent and unmounts what it mounted; CotenantError if some are in use, and then all stay.

    Needs the right to unmount, and to see all processes of the node.
    """
    folders = _folders(host)
    if users := users_of(host, proc):
        names = " and ".join(str(one.host) for one in folders)
        raise CotenantError(f"{names} stay, because these use files in them: {', '.join(users)}")
    try:
        for mount in reversed(list(_mounts_in(folders, proc))):
            unmount(mount.point)
        for folder in folders:
            shutil.rmtree(folder.seen)
        driver, registrations = folders_in(host.kubelet)
        if driver.exists():
            shutil.rmtree(driver)
        for path in chain(host.plugins.glob(SOCKETS), registrations.glob(REGISTRATIONS), host.cdi.glob(SPECS)):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CotenantError(f"{error.filename}: cannot be removed: {error.strerror}") from None


def users_of(host: HostPlaces, proc: Path = PROC) -> list[str]:
    """The pods that have files of an agent mounted, and processes outside of pods that do."""
    folders = _folders(host)
    sources = [_source(folder.seen, proc) for folder in folders]
    sources += [_Source(one.device, PurePosixPath(one.root), False) for one in _mounts_in(folders, proc)]
    found = set()
    for pid in (int(name) for name in os.listdir(proc) if name.isdecimal()):
        if any(source.is_used_by(mount) for mount in mounts_of(pid, proc) for source in sources):
            found.add(next((f"pod {uid}" for uid in pods_of(pid, proc)), f"process {pid}"))
    return sorted(found)


def _folders(host: HostPlaces) -> list[Folder]:
    return [one for one in (host.lasting, host.passing) if one.seen.exists()]


def _source(folder: Path, proc: Path) -> _Source:
    """Where a folder is: below the last mount of this process that contains it."""
    held = [one for one in mounts_of("self", proc) if folder.is_relative_to(one.point)]
    mount = max(reversed(held), key=lambda one: len(one.point))
    return _Source(mount.device, PurePosixPath(mount.root) / folder.relative_to(mount.point), True)


def _mounts_in(folders: list[Folder], proc: Path) -> Iterator[Mount]:
    """What is mounted in these folders, in the order in which it was mounted."""
    for mount in mounts_of("self", proc):
        if any(folder.seen in Path(mount.point).parents for folder in folders):
            yield mount
