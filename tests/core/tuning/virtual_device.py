# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on a FIFO device in virtual time, for whatever state machine tunes them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from cotenant.core.tuning.coordination import (
    Action,
    Coordinator,
    Disturbed,
    Event,
    Joined,
    Left,
    Pause,
    ReportEvery,
    Resume,
    SetBatch,
    StepReport,
    Tick,
    Trial,
)
from cotenant.core.tuning.goodput import GradientNoise, efficiency
from cotenant.core.units import Seconds
from tests.core.tuning.fifo_device import Work, fifo_speeds

TICK = 0.25


@cache
def speeds_of(works: tuple[Work, ...], sizes: tuple[int, ...]) -> list[float]:
    return fifo_speeds(works, sizes)


@dataclass
class Device:
    """Jobs that share one FIFO engine, obey at once, and report as often as they are asked to."""

    coordinator: Coordinator = field(default_factory=lambda: Coordinator("gpu 0"))
    decide: Callable[[Event], list[Action]] | None = None
    """instead of the coordinator"""
    works: dict[str, Work] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    """standard deviation of what is reported"""
    speed: float = 1.0
    """of the machine"""
    gradient: GradientNoise | None = None
    gradients: dict[str, GradientNoise] = field(default_factory=dict)
    """of some jobs, instead of that"""
    now: float = 0.0
    paused: set[str] = field(default_factory=set)
    every: dict[str, float] = field(default_factory=dict)
    done: dict[str, tuple[float, float]] = field(default_factory=dict)
    """samples and seconds that are not reported yet"""
    mute: set[str] = field(default_factory=set)
    actions: list[Action] = field(default_factory=list)
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def send(self, event: Event) -> list[Action]:
        """What is to be done, but for how often to report, which is not remembered either."""
        actions: list[Action] = []
        for action in (self.decide or self.coordinator.handle)(event):
            if not isinstance(action, ReportEvery):
                self.actions.append(action)
                actions.append(action)
            assert action.job in self.works, "an action for a job that is not there"
            match action:
                case SetBatch(job, size, _):
                    self.batches[job] = size
                    self.done.pop(job, None)
                case ReportEvery(job, seconds):
                    self.every[job] = seconds
                case Pause(job):
                    self.paused.add(job)
                case Resume(job):
                    self.paused.remove(job)
        self.coordinator.check()
        return actions

    def join(self, work: Work, event: Joined) -> list[Action]:
        self.works[event.job] = work
        self.batches[event.job] = event.batch or 1
        self.every[event.job] = 1.0
        return self.send(replace(event, at=Seconds(self.now)))

    def leave(self, job: str) -> list[Action]:
        del self.works[job], self.batches[job]
        self.paused.discard(job)
        self.mute.discard(job)
        self.done.pop(job, None)
        return self.send(Left(at=Seconds(self.now), job=job))

    def disturb(self) -> list[Action]:
        return self.send(Disturbed(at=Seconds(self.now)))

    def speeds(self, **batches: int) -> dict[str, float]:
        """Samples per second of all together, at their batch sizes or at others."""
        return self._speeds({**self.batches, **batches})

    def _speeds(self, sizes: dict[str, int]) -> dict[str, float]:
        together = speeds_of(tuple(self.works[job] for job in sizes), tuple(sizes.values())) if sizes else []
        return dict(zip(sizes, together, strict=True))

    def goodputs(self, **batches: int) -> dict[str, float]:
        worth = {job: efficiency(size, 32, None) for job, size in {**self.batches, **batches}.items()}
        return {job: speed * worth[job] for job, speed in self.speeds(**batches).items()}

    def second(self) -> None:
        """One second passes."""
        for _ in range(round(1 / TICK)):
            self.tick()

    def tick(self) -> None:
        """A moment passes, then everybody for whom it is time reports."""
        self.now += TICK
        batches = {job: size for job, size in self.batches.items() if job not in self.paused}
        for job, speed in self._speeds(batches).items():
            samples, seconds = self.done.get(job, (0.0, 0.0))
            self.done[job] = samples + speed * self.speed * TICK, seconds + TICK
        for job, batch in batches.items():
            samples, seconds = self.done.get(job, (0.0, 0.0))
            if seconds > self.every[job] - TICK and samples >= batch:
                self.report(job, batch, *self.done.pop(job))
        self.send(Tick(at=Seconds(self.now)))

    def report(self, job: str, batch: int, samples: float, seconds: float) -> None:
        if job in self.mute:
            return
        # Errors are those of a second; a shorter time errs more.
        seen = samples * math.exp(self.error * float(self.chance.standard_normal()) / math.sqrt(seconds))
        self.send(
            StepReport(
                at=Seconds(self.now),
                job=job,
                samples=max(round(seen), 1),
                steps=max(round(seen / batch), 1),
                wall=Seconds(seconds),
                batch=batch,
                noise=self.gradients.get(job, self.gradient),
            )
        )

    def settle(self, most: int = 2000) -> int:
        """Seconds until nothing is being tried."""
        for second in range(1, most + 1):
            self.second()
            if self.coordinator.idle:
                return second
        raise AssertionError(f"still trying after {most} seconds")

    def trials(self, job: str, kind: str) -> list[Trial]:
        return [trial for trial in self.coordinator.history(job) if trial.kind == kind]

    def choice(self, job: str) -> Trial:
        return self.trials(job, "choice")[-1]
