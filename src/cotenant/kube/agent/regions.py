# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Bounds what usage regions take of the node's memory. Tenants can write to them, so they can enlarge them.

The regions of a node are on a tmpfs of their own. Its size is all that tenants can take, whatever they do; it is
mounted before the agent starts, by a program that may mount. What a tenant has added is truncated, so that there is
room for the next container. That needs a descriptor, which the agent opens once, and no access to the file: a container
may change the mode of the file or take a lease on it, and may go on writing to a file whose name is gone.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cotenant.errors import CotenantError
from cotenant.node.mounts import mount_tmpfs
from cotenant.node.region import SIZE, UNFINISHED, cut_region, open_region

MOST_REGIONS = 448
MOST_BYTES = MOST_REGIONS * SIZE
"""Of the tmpfs. Memory is used only for what is written."""
MOST_INODES = 2 * MOST_REGIONS
MOST_GONE = 16
"""Regions without a name that are kept; each takes as much memory as a region."""


def mount_regions(folder: Path) -> bool:
    """Mounts the tmpfs for the regions of this node; False if it is there already. Needs the right to mount."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_bounded(folder):
            return False
        mount_tmpfs(str(folder), f"size={MOST_BYTES},nr_inodes={MOST_INODES},mode=0700")
    except OSError as error:
        raise CotenantError(f"{folder}: the tmpfs for usage regions cannot be mounted: {error.strerror}") from None
    return True


def is_bounded(folder: Path) -> bool:
    """Whether the folder is on a file system of its own that is no larger than ours."""
    seen = os.statvfs(folder)
    page = os.sysconf("SC_PAGE_SIZE")
    return os.path.ismount(folder) and seen.f_blocks * seen.f_frsize <= MOST_BYTES + page


@dataclass(frozen=True, slots=True)
class Cut:
    """What one look at all regions has found."""

    grown: tuple[str, ...]
    """Names of slices whose regions were truncated."""
    errors: tuple[str, ...]


class Regions:
    """The usage regions in one folder, and those whose names were removed from it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        self._held: dict[int, tuple[int, str]] = {}
        """Descriptor and slice of each region, by inode, the oldest first. An inode that is held is not used again."""

    def cut(self) -> Cut:
        """Truncates regions that have grown; an error in one does not keep the others from it."""
        with self._lock:
            present, errors = self._find()
            grown = []
            for descriptor, name in self._held.values():
                try:
                    if cut_region(descriptor):
                        grown.append(name)
                except OSError as error:
                    errors.append(_problem(name, error))
            gone = [inode for inode in self._held if inode not in present]
            for inode in gone[: max(0, len(gone) - MOST_GONE)]:
                os.close(self._held.pop(inode)[0])
            return Cut(tuple(grown), tuple(errors))

    def hold(self) -> None:
        """Opens the regions that are new, before a tenant can shut this process out. Errors come with the next look."""
        with self._lock:
            self._find()

    def close(self) -> None:
        """Waits for a look in another thread, since a descriptor that is closed may become that of another file."""
        with self._lock:
            for descriptor, _ in self._held.values():
                os.close(descriptor)
            self._held = {}

    def _find(self) -> tuple[set[int], list[str]]:
        """Opens the regions that are new; returns the inodes in the folder, and the errors."""
        errors: list[str] = []
        try:
            with os.scandir(self._folder) as entries:
                found = {entry.name: entry.inode() for entry in entries}
        except OSError as error:
            return set(self._held), [f"{self._folder}: {error.strerror}"]
        for name in sorted(name for name, inode in found.items() if inode not in self._held):
            if name.endswith(UNFINISHED):  # no tenant has it
                continue
            try:
                descriptor = open_region(self._folder / name)
            except FileNotFoundError:  # it has just been removed
                continue
            except OSError as error:
                errors.append(_problem(name, error))
                continue
            inode = os.fstat(descriptor).st_ino
            if inode in self._held:  # it was renamed in between
                os.close(descriptor)
            else:
                self._held[inode] = descriptor, name
        return set(found.values()), errors


def _problem(name: str, error: OSError) -> str:
    return f"slice {name}: {error.strerror}"
