# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What was made for a container and nobody has: removed after a while, since kubelet lists containers only later.

How old a file is says the clock of the machine, which may be set meanwhile: an hour forward, and a container that is
just being made would lose what it was promised. So it counts how long we have seen it so.
"""

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

GRACE_S = 60.0
"""how long something may be there before kubelet lists its container"""

_Made = tuple[Path, int, int]
"""the same name may be made anew, for somebody else"""


class Unclaimed:
    """Remembers since when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[_Made, float] = {}

    def remove(self, paths: Iterable[Path]) -> None:
        """Told of all that nobody has, again and again, removes those of which that was so for long."""
        now = self._clock()
        self._since = {made: self._since.get(made, now) for made in map(_made, paths)}
        for made, since in self._since.items():
            if now - since > GRACE_S:
                path = made[0]
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _made(path: Path) -> _Made:
    seen = path.stat()
    return path, seen.st_ino, seen.st_mtime_ns
