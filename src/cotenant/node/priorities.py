# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Two priority classes on one GPU: while a slice of the higher class works there, those of the lower class are paused.

The library counts launches and obeys `paused`. The process that holds the lock of the slices' folder decides; when it
ends, another process takes over.
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
from cotenant.node.monitor import gpu_uuids
from cotenant.node.slices import LIMITS, SliceState, read_slices, slice_folders

POLL_S = 0.05
WORKS_S = 0.2
"""seconds for which a slice counts as working after a launch; fewer, and the lower class would run between two steps"""
TOUCH_S = 1.0
"""seconds between renewals of a pause; the library ends one that is not renewed, should this process be killed"""
CALM_S = 1.0
"""seconds for which a folder without the lower class is not read again: its time of change may be too coarse to tell"""
LOCK = "relay.lock"


class LaunchCount(NamedTuple):
    """The launches of one slice of the higher class on one GPU."""

    launches: int
    last_s: float | None
    """time at which their number last changed; None: not yet"""


class Activity:
    """Finds the GPUs on which the higher class works, from the number of launches of its slices over time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], LaunchCount] = {}

    def busy_gpus(self, launches: Mapping[tuple[str, str], int], now: float) -> frozenset[str]:
        """UUIDs of the GPUs in use; `launches` by slice and UUID. Slices that are not among them are forgotten."""
        before, self._known = self._known, {}
        for key, count in launches.items():
            known = before.get(key, LaunchCount(count, None))
            self._known[key] = known if known.launches == count else LaunchCount(count, now)
        return frozenset(
            uuid
            for (_, uuid), known in self._known.items()
            if known.last_s is not None and now - known.last_s <= WORKS_S
        )


class PriorityPauser:
    """Pauses and resumes the slices of one folder. Each process with a slice there calls `step` every POLL_S."""

    def __init__(self, root: Path) -> None:
        self._root, self._activity = root, Activity()
        self._lock: int | None = None
        self._calm: tuple[int, float] | None = None
        """without the lower class: the folder's last change, and the time until which it is not read again"""
        self._renewed: dict[str, float] = {}
        """time at which the pause of a slice was last written or renewed"""

    def step(self, now: float) -> None:
        """Does nothing if another process holds the lock, or if there is no slice of the lower class."""
        if not self._has_lock():
            return
        try:
            changed = (
                self._root.stat().st_mtime_ns
            )  # changes when a slice is made or removed; a slice never changes its class
        except OSError:  # the folder was removed, and our lock with it
            self.close()
            return
        if self._calm is not None and changed == self._calm[0] and now < self._calm[1]:
            return
        slices = read_slices(self._root)
        low = [seen for seen in slices if seen.limits.priority is Priority.LOW]
        high = [seen for seen in slices if seen.limits.priority is Priority.HIGH]
        calm = not low and len(slices) == len(slice_folders(self._root))  # else one is being made
        self._calm = (changed, now + CALM_S) if calm else None
        working = self._activity.busy_gpus(_launches(high), now)
        self._renewed = {seen.name: self._renewed[seen.name] for seen in low if seen.name in self._renewed}
        for seen in low:
            self._pause(seen, working, now)

    def close(self) -> None:
        """Releases the lock; paused slices go on unless another process renews their pause."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _has_lock(self) -> bool:
        try:
            if self._lock is None:
                self._root.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _pause(self, seen: SliceState, working: frozenset[str], now: float) -> None:
        path, names = self._root / seen.name / LIMITS, gpu_uuids(seen)
        wanted = with_pauses(seen.limits, working, names)
        with contextlib.suppress(OSError, CotenantError):  # the slice has just ended, or the tenant holds its lock
            if wanted != seen.limits:
                change_limits(path, lambda limits: with_pauses(limits, working, names), wait=False)
            elif working & set(names) and now - self._renewed.get(seen.name, 0.0) >= TOUCH_S:
                os.utime(path)
            else:
                return
            self._renewed[seen.name] = now


def with_pauses(limits: Limits, working: frozenset[str], names: Iterable[str | None]) -> Limits:
    """The same limits, paused on exactly the `working` GPUs; GPUs without a line of their own are paused together."""
    gpus = tuple(limit._replace(paused=limit.uuid in working) for limit in limits.gpus)
    unnamed = set(names) - {limit.uuid for limit in gpus}
    others = limits.others
    if others is not None or unnamed & working:
        others = (others or GpuLimit("", None))._replace(paused=bool(unnamed & working))
    return replace(limits, gpus=gpus, others=others)


def _launches(slices: Iterable[SliceState]) -> dict[tuple[str, str], int]:
    return {
        (seen.name, uuid): sum(
            process.gpus[gpu].launches for process in seen.region.processes if gpu < len(process.gpus)
        )
        for seen in slices
        if seen.region is not None
        for gpu, uuid in enumerate(gpu_uuids(seen))
        if uuid is not None
    }
