# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Latency objectives of jobs: violations are counted, and reported if a new neighbour may be their cause."""

from collections import deque
from dataclasses import dataclass, field

from cotenant.node.agent import Reported
from cotenant.node.tenant import MeasuredJob
from cotenant.signals import Signal
from cotenant.wire.agent import Steps

AVERAGED_OVER_S = 3.0
"""seconds of steps over which the latency of a job is averaged"""
VIOLATIONS_TO_ACT = 2
"""violations in a row after which the newest neighbour is removed"""
NOTED_EVERY_S = 60.0
"""between two events about the latency objective of one job"""


@dataclass(slots=True)
class _Objective:
    latency_s: float
    recent: deque[Steps] = field(default_factory=deque)
    """reports since the last check"""
    violations: int = 0
    """in total"""
    violations_in_row: int = 0
    """with the present neighbours"""
    violated_before: bool = False
    """it was violated before the last change of the neighbours, and has not held since"""
    noted_at: float = -NOTED_EVERY_S
    """time of the last event"""


class LatencyObjectives:
    """The objectives of all tenants that have one."""

    def __init__(self, noted: Signal[[str, str, str]]) -> None:
        """`noted` is sent with the kind of an event, its job and its text."""
        self.violated: Signal[[str, float]] = Signal()
        """sent with a job and its latency in seconds, if its objective is violated since its neighbours changed"""
        self.total = 0
        """violations of all jobs"""
        self._noted = noted
        self._objectives: dict[str, _Objective] = {}

    def add(self, job: MeasuredJob) -> None:
        self._objectives.pop(job.id, None)
        if job.request.latency_s is not None:
            self._objectives[job.id] = _Objective(job.request.latency_s)

    def remove(self, job: str) -> None:
        self._objectives.pop(job, None)

    def neighbours_changed(self, job: str) -> None:
        one = self._objectives.get(job)
        if one is not None:
            one.violated_before |= one.violations_in_row > 0
            one.violations_in_row = 0
            one.recent.clear()

    def violations(self, job: str) -> int:
        return self._objectives[job].violations if job in self._objectives else 0

    def report(self, event: Reported) -> None:
        """Checks the objective of a job once its reports cover enough time."""
        one = self._objectives.get(event.job)
        if one is None:
            return
        one.recent.append(event.steps)
        seconds = sum(steps.wall_s for steps in one.recent)
        if seconds < AVERAGED_OVER_S:
            return
        latency = seconds / sum(steps.n for steps in one.recent)
        one.recent.clear()
        if latency <= one.latency_s:
            one.violations_in_row, one.violated_before = 0, False
            return
        one.violations += 1
        one.violations_in_row += 1
        self.total += 1
        if event.at - one.noted_at >= NOTED_EVERY_S:
            one.noted_at = event.at
            took = f"steps took {1000 * latency:.3g} ms over {seconds:.0f} s"
            self._noted.send("slo-violated", event.job, f"{took}; the objective is {1000 * one.latency_s:g} ms")
        if one.violations_in_row >= VIOLATIONS_TO_ACT and not one.violated_before:
            self.violated.send(event.job, latency)
