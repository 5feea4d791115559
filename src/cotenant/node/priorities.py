# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Two classes of slices on one GPU: while one of the higher class works there, those of the lower class are paused.

The library counts launches and obeys `paused`; who may go on is decided here, by whichever process holds the lock of
the folder of slices. When that one ends, another of them takes over.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cotenant.errors import CotenantError
from cotenant.node.limits import GpuLimit, Limits, Priority, change_limits
from cotenant.node.monitor import gpu_names
from cotenant.node.slices import LIMITS, Seen, see_slices, slice_folders

POLL_S = 0.05
WORKS_S = 0.2
"""after its last launch a slice counts as working; less, and the lower class would slip between two steps"""
TOUCH_S = 1.0
"""how often a pause is said again; the library forgets one that is not, so that no slice waits for a relay that died"""
CALM_S = 1.0
"""how long a folder without the lower class is only glanced at: its time of change may be too coarse to tell"""
LEADER = "relay.lock"


class Launched(NamedTuple):
    """How many launches a slice of the higher class had made at one look."""

    launches: int
    last_s: float | None
    """when their number was seen to change; None: not yet"""


class Activity:
    """Which GPUs the higher class works on: told again and again what its slices have launched so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Launched] = {}

    def working(self, launches: Mapping[tuple[str, str], int], now: float) -> frozenset[str]:
        """UUIDs; `launches` by slice and UUID. Slices that are no longer told of are forgotten."""
        before, self._known = self._known, {}
        for key, count in launches.items():
            known = before.get(key, Launched(count, None))
            self._known[key] = known if known.launches == count else Launched(count, now)
        return frozenset(
            uuid
            for (_, uuid), known in self._known.items()
            if known.last_s is not None and now - known.last_s <= WORKS_S
        )


class Relay:
    """Pauses and resumes the slices of one folder; `step` is called every POLL_S by each who has a slice there."""

    def __init__(self, root: Path) -> None:
        self._root, self._activity = root, Activity()
        self._lock: int | None = None
        self._calm: tuple[int, float] | None = None
        """when the folder last changed, and how long to go by that, if nobody in it can be in another's way"""
        self._said: dict[str, float] = {}
        """when a slice was last told that it is paused"""

    def step(self, now: float) -> None:
        """Does nothing where another process does it, or where nobody could be in anybody's way."""
        if not self._leads():
            return
        try:
            changed = self._root.stat().st_mtime_ns  # when a slice came or went; none ever changes its class
        except OSError:  # somebody has removed the folder, and our lock with it
            self.close()
            return
        if self._calm is not None and changed == self._calm[0] and now < self._calm[1]:
            return
        slices = see_slices(self._root)
        low = [seen for seen in slices if seen.limits.priority is Priority.LOW]
        high = [seen for seen in slices if seen.limits.priority is Priority.HIGH]
        calm = not low and len(slices) == len(slice_folders(self._root))  # else one is just coming
        self._calm = (changed, now + CALM_S) if calm else None
        working = self._activity.working(_launches(high), now)
        self._said = {seen.name: self._said[seen.name] for seen in low if seen.name in self._said}
        for seen in low:
            self._hold(seen, working, now)

    def close(self) -> None:
        """Leaves it to others; what is paused goes on unless they say so again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _leads(self) -> bool:
        try:
            if self._lock is None:
                self._root.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._root / LEADER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _hold(self, seen: Seen, working: frozenset[str], now: float) -> None:
        path, names = self._root / seen.name / LIMITS, gpu_names(seen)
        wanted = paused(seen.limits, working, names)
        with contextlib.suppress(OSError, CotenantError):  # it has just ended, or keeps us out
            if wanted != seen.limits:
                change_limits(path, lambda limits: paused(limits, working, names), wait=False)
            elif working & set(names) and now - self._said.get(seen.name, 0.0) >= TOUCH_S:
                os.utime(path)
            else:
                return
            self._said[seen.name] = now


def paused(limits: Limits, working: frozenset[str], names: Iterable[str | None]) -> Limits:
    """The same limits, paused on these GPUs and on no other; GPUs that have no line are paused together."""
    gpus = tuple(limit._replace(paused=limit.uuid in working) for limit in limits.gpus)
    unnamed = set(names) - {limit.uuid for limit in gpus}
    others = limits.others
    if others is not None or unnamed & working:
        others = (others or GpuLimit("", None))._replace(paused=bool(unnamed & working))
    return replace(limits, gpus=gpus, others=others)


def _launches(slices: Iterable[Seen]) -> dict[tuple[str, str], int]:
    return {
        (seen.name, uuid): sum(
            process.gpus[gpu].launches for process in seen.region.processes if gpu < len(process.gpus)
        )
        for seen in slices
        if seen.region is not None
        for gpu, uuid in enumerate(gpu_names(seen))
        if uuid is not None
    }
