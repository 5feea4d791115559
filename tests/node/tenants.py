# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of measurements share: a GPU, a profile, and reports of jobs."""

from dataclasses import dataclass
from typing import Any

from cotenant.core.model import Gpu, Machine
from cotenant.core.tuning.episode import Trial
from cotenant.core.units import MiB
from cotenant.wire.agent import Steps
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.profile import JobProfile

V100 = Machine(name="local", gpus=(Gpu(uuid="GPU-0", type="V100", memory=MiB(1024)),))
BERT = JobProfile(
    family="bert", batch=32, card="V100", digest="a" * 64, step_seconds=0.02, samples_per_second=1600.0,
    utilisation=0.5, measured_s=20.0, at=1.0,
)  # fmt: skip


def request(**wishes: Any) -> JobRequest:
    return JobRequest(**{"command": ("train",), "cwd": "/", "memory": "100MiB", **wishes})


def steps(samples: int = 320, n: int = 10, wall_s: float = 1.0, batch: int = 32, **more: Any) -> Steps:
    return Steps(n=n, samples=samples, busy_s=wall_s / 2, wall_s=wall_s, batch=batch, **more)


@dataclass
class Trials:
    """A tuner that has measured at most one trial, and told its job at most one batch size."""

    trial: Trial | None = None
    measured_elsewhere: bool = False
    told: int | None = None

    def solo(self, job: str) -> float | None:
        return None

    def untuned(self, job: str) -> Trial | None:
        return self.trial

    def batch(self, job: str) -> int | None:
        return self.told
