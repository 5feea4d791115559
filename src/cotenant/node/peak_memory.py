# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The peak memory of workloads, observed as long as their jobs run.

Memory depends neither on neighbours nor on compute shares, and a job may need the most of it at its end.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from cotenant.node.measurement import JobUsage
from cotenant.node.tenant import Knowledge, TenantState, TunerRates
from cotenant.wire.profile import validated

STORED_EVERY_S = 10.0
"""between two writes of a larger peak of one job"""


@dataclass(slots=True)
class _Peak:
    tenant: TenantState
    memory: int | None = None
    """in MiB, at the job's own batch size"""
    stored_at: float = -STORED_EVERY_S
    tuned: bool = False
    """the tuner requested another batch size, so the memory no longer shows what the job needs at its own"""


class PeakMemory:
    """The peak of each tenant. Times are those of time.monotonic."""

    def __init__(self, profiles: Knowledge, tuner: TunerRates) -> None:
        self._profiles, self._tuner = profiles, tuner
        self._peaks: dict[str, _Peak] = {}

    def add(self, tenant: TenantState) -> None:
        self._peaks[tenant.job.id] = _Peak(tenant)

    def remove(self, job: str) -> None:
        """The run has ended; its peak is stored."""
        self._store(self._peaks.pop(job))

    def peak(self, job: str) -> int | None:
        """In MiB; None: no use of memory was observed at the job's own batch size."""
        return self._peaks[job].memory

    def tick(self, usage_of: Callable[[str], JobUsage], at: float) -> None:
        """Observes the memory of all tenants."""
        for job, one in self._peaks.items():
            batch, own = self._tuner.batch(job), one.tenant.default_batch
            if batch is not None and own is not None and batch != own:
                one.tuned = True
            used = None if one.tenant.gpu is None or one.tuned else usage_of(job).memory_mib
            if used is not None:
                one.memory = max(one.memory or 0, used)
            if at - one.stored_at >= STORED_EVERY_S:
                one.stored_at = at
                self._store(one)

    def _store(self, peak: _Peak) -> None:
        """Raises the peak in the profile of a workload, if there is one: a run that has just begun says too little."""
        profile = self._profiles.profile(peak.tenant.workload, peak.tenant.gpu_type)
        if profile is None or peak.memory is None or peak.memory <= (profile.memory_mib or 0):
            return
        raised = validated(msgspec.structs.replace(profile, memory_mib=peak.memory))
        if raised is not None:
            self._profiles.add(raised, replace=True)
