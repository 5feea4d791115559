# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tenants of a GPU as measurements see them: the run of a job, what its owner requested, and its last report.

The engines implement the protocols: a job of the daemon and a pod are measured by the same code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cotenant.core.interference import Speed
from cotenant.core.model import Gpus
from cotenant.core.tuning.episode import Trial
from cotenant.core.units import WHOLE_GPU, MilliGpu
from cotenant.node.measurement import TenantMeasurement
from cotenant.wire.profile import JobProfile, WorkloadId


class OwnerRequest(Protocol):
    """What the owner of a job requested."""

    @property
    def batch(self) -> int | None: ...
    @property
    def latency_s(self) -> float | None: ...
    @property
    def revert(self) -> bool:
        """Whether the job may be removed for the sake of its neighbours."""
        ...


class MeasuredJob(Protocol):
    """A run of a job on its GPUs."""

    @property
    def id(self) -> str: ...
    @property
    def gpus(self) -> Gpus: ...
    @property
    def gpu_type(self) -> str | None:
        """Of its first GPU; None: it uses no GPU."""
        ...

    @property
    def since(self) -> float: ...
    @property
    def workload(self) -> WorkloadId: ...
    @property
    def digest(self) -> str:
        """SHA-256 of its command."""
        ...

    @property
    def compute(self) -> MilliGpu:
        """Its compute share; 0: none."""
        ...

    @property
    def crowding(self) -> float | None:
        """Waiting jobs for each GPU when it was placed; None: it is not judged."""
        ...

    @property
    def request(self) -> OwnerRequest: ...


class Knowledge(Protocol):
    """The store of profiles, which learns speeds and predicts them."""

    def introduce(self, workload: WorkloadId) -> None: ...
    def profile(self, workload: WorkloadId, gpu_type: str) -> JobProfile | None: ...
    def add(self, profile: JobProfile, *, replace: bool = False) -> JobProfile: ...
    def predict(self, gpu_type: str, workloads: Mapping[str, str]) -> Mapping[str, Speed]:
        """The speed of each job on a GPU that they share; empty: none is predicted."""
        ...

    def observe(self, gpu_type: str, workloads: Mapping[str, str], speeds: Mapping[str, float]) -> bool: ...
    def save(self, now: float) -> None: ...


class TunerRates(Protocol):
    """What the tuner has measured."""

    measured_elsewhere: bool
    """whether it must look for foreign work although it tries no batch size"""

    def solo(self, job: str) -> float | None: ...

    def untuned(self, job: str) -> Trial | None: ...

    def batch(self, job: str) -> int | None:
        """The batch size that the tuner last requested of a job; None: it requested none."""
        ...


@dataclass(slots=True)
class TenantState:
    """What is known about one tenant."""

    job: MeasuredJob
    workload: WorkloadId
    gpu_type: str
    crowding: float | None
    """of the pass that placed it beside others; None: its GPU was idle, or it was judged already"""
    default_batch: int | None
    """its batch size unless it is tuned"""
    limit: MilliGpu = MilliGpu(0)
    """the compute share to which it is limited although it claims none; 0: it is not limited"""
    rate: float | None = None
    """samples per second in its last report"""
    busy: float = 0.0
    """fraction of its time inside steps in its last report"""
    predicted: float | None = None
    """the speed that was predicted before it and its neighbours were measured together"""
    rejected: bool = False
    """an event about its impossible reports was sent"""

    @property
    def gpu(self) -> int | None:
        """Its GPU; None: it has several."""
        return self.job.gpus[0] if len(self.job.gpus) == 1 else None

    @property
    def limited(self) -> bool:
        """Whether it is limited to a compute share."""
        return 0 < (self.job.compute or self.limit) < WHOLE_GPU

    def comparable(self, measurement: TenantMeasurement) -> bool:
        """Whether it ran at its own batch size and was not limited to a compute share, as profiles describe it."""
        own_batch = self.default_batch or measurement.batch
        return not self.limited and (not measurement.steps or measurement.batch == own_batch)
