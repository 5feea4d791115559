# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that hold a GPU and have not used it for a while: they are reported, and stopped only if that was configured."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cotenant.local.tenants import Tenants
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.measurement import JobUsage
from cotenant.signals import Signal

IDLE_AFTER_S = 1800.0


class IdleAction(StrEnum):
    """What becomes of an idle job."""

    REPORT = "report"
    REQUEUE = "requeue"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSettings:
    """When a job is idle, and what becomes of it."""

    after_s: float = IDLE_AFTER_S
    action: IdleAction = IdleAction.REPORT


class IdleJobs:
    """Since when the jobs that hold GPUs have not used them. A job whose use is not known is not idle."""

    def __init__(
        self,
        settings: IdleSettings,
        usage_of: Callable[[str], JobUsage],
        tenants: Tenants,
        clock: Callable[[], float] = time.monotonic,
        is_paused: Callable[[str], bool] = lambda job: False,
    ) -> None:
        """`usage_of` tells what a job uses. A job that is paused uses nothing, also if its use is not known."""
        self._is_paused = is_paused
        self._settings, self._usage_of, self._tenants, self._clock = settings, usage_of, tenants, clock
        self._used: dict[str, float] = {}
        """when each job was last seen to use its GPUs"""
        self._reported: set[str] = set()
        self.found: Signal[[str, str]] = Signal()
        """a job is idle, with a sentence; sent once until it uses its GPUs again"""

    def idle_s(self, job: str) -> float | None:
        """For how long a job has not used its GPUs, if that is long enough to report it."""
        return self._clock() - self._used[job] if job in self._reported else None

    def look(self, usage: Sequence[GpuUsage]) -> None:
        """Subscriber of `Devices.looked`."""
        now, placed = self._clock(), self._tenants.placed
        self._used = {job: since for job, since in self._used.items() if job in placed}
        self._reported &= placed.keys()
        for job, one in placed.items():
            paused = self._is_paused(job)
            busy = 0.0 if paused else self._usage_of(job).utilisation
            if not one.gpus or busy is None or busy > 0 or job not in self._used:
                self._used[job] = now
                self._reported.discard(job)
            elif now - self._used[job] >= self._settings.after_s and job not in self._reported:
                self._reported.add(job)
                why = ", because it is paused" if paused else ""
                self.found.send(job, f"has not used its GPU for {(now - self._used[job]) / 60:.0f} min{why}")
