# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Events and actions of the coordinator. Events carry their time; actions are a closed set."""

from dataclasses import dataclass
from typing import TypeAlias

from cotenant.core.tuning.candidates import MemoryModel
from cotenant.core.tuning.goodput import GradientNoise, LearningRate
from cotenant.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A job registered on the GPU."""

    at: Seconds
    job: str
    batch: int | None = None
    """the size its owner chose, and the default it is never tuned worse than"""
    bounds: tuple[int, int] | None = None
    """the least and the most its owner allows; None: it is measured, not tuned"""
    memory: MemoryModel | None = None
    learning_rate: LearningRate | None = None
    floor: float | None = None
    """the share of its speed alone that tuning must leave it"""
    workload: str | None = None
    """the kind of work; jobs of one kind are expected to behave alike"""
    solo: float | None = None
    """samples per second alone at its default size, if known"""
    remaining: Seconds | None = None
    """expected remaining run time, if known"""

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"{self.job}: batch size {self.batch} is not a positive number")
        if self.bounds is not None:
            least, most = self.bounds
            if self.batch is None or not 1 <= least <= self.batch <= most:
                raise ValueError(f"{self.job}: batch size {self.batch} is not within its bounds {least} to {most}")
        if self.floor is not None and not 0 <= self.floor <= 1:
            raise ValueError(f"{self.job}: floor {self.floor} is not a share from 0 to 1")
        if self.solo is not None and not self.solo > 0:
            raise ValueError(f"{self.job}: speed alone {self.solo} is not a positive number")
        if self.remaining is not None and not self.remaining >= 0:
            raise ValueError(f"{self.job}: {self.remaining} s cannot remain")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a job did since its last report."""

    at: Seconds
    job: str
    samples: int
    steps: int
    wall: Seconds
    """how long that took, waiting included"""
    busy: Seconds = Seconds(0.0)
    """the part of it spent inside steps"""
    batch: int
    noise: GradientNoise | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A job ended or cannot be reached."""

    at: Seconds
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""

    at: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """Other work used the GPU, so the current measurement is invalid."""

    at: Seconds


@dataclass(frozen=True, slots=True)
class SetBatch:
    """Use this batch size from the next opportunity on, and this multiple of the default learning rate."""

    job: str
    size: int
    lr_scale: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop before the next step."""

    job: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on."""

    job: str


@dataclass(frozen=True, slots=True)
class ReportEvery:
    """Report this often."""

    job: str
    seconds: Seconds


Event: TypeAlias = Joined | StepReport | Left | Tick | Disturbed
Action: TypeAlias = SetBatch | Pause | Resume | ReportEvery
