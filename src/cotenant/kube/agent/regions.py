# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the usage regions at their size. Tenants can write to them, and they are in the memory of the node.

Nothing keeps a process that has a region open from enlarging it: seals need a file of no folder, and a quota needs the
right to mount. So the agent truncates what was added, a few times a second. It keeps a descriptor of each region, since
a container may go on writing to a file whose name is gone.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cotenant.kube.codec.paths import REGION
from cotenant.node.region import cut_region

MOST_GONE = 64
"""Regions without a name that are kept; each takes as much memory as a region."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What one look at all regions has found."""

    grown: tuple[str, ...]
    """Names of slices whose regions were truncated."""
    errors: tuple[str, ...]


class Regions:
    """The usage regions below one folder, and those whose names were removed from it."""

    def __init__(self, slices: Path) -> None:
        self._slices, self._lock = slices, Lock()
        self._held: dict[tuple[int, int], tuple[int, str]] = {}
        """Descriptor and slice of each region, by device and inode, the oldest first."""

    def cut(self) -> Cut:
        """Truncates regions that have grown; an error in one does not keep the others from it."""
        with self._lock:
            errors = self._find()
            grown = []
            for descriptor, name in self._held.values():
                try:
                    if cut_region(descriptor):
                        grown.append(name)
                except OSError as error:
                    errors.append(f"slice {name}: {error.strerror}")
            self._drop(MOST_GONE)
            return Cut(tuple(grown), tuple(errors))

    def close(self) -> None:
        """Waits for a look in another thread, since a descriptor that is closed may become that of another file."""
        with self._lock:
            for descriptor, _ in self._held.values():
                os.close(descriptor)
            self._held = {}

    def _drop(self, kept: int) -> None:
        """Closes regions without a name, all but the newest."""
        gone = [key for key, (descriptor, _) in self._held.items() if os.fstat(descriptor).st_nlink == 0]
        for key in gone[: max(0, len(gone) - kept)]:
            os.close(self._held.pop(key)[0])

    def _find(self) -> list[str]:
        """Opens the regions that are new; returns the errors."""
        errors = []
        for path in sorted(self._slices.glob(f"*/{REGION.name}")):
            try:
                # It needs no permission on the file itself, and follows no link.
                descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:  # it has just been removed
                continue
            except OSError as error:
                errors.append(f"slice {path.parent.name}: {error.strerror}")
                continue
            seen = os.fstat(descriptor)
            if (seen.st_dev, seen.st_ino) in self._held:
                os.close(descriptor)
            else:
                self._held[seen.st_dev, seen.st_ino] = descriptor, path.parent.name
        return errors
