# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A window of time in which tenants are measured at given batch sizes: which reports count, and the speeds."""

import math
from collections.abc import Mapping

from cotenant.core.tuning.events import StepReport
from cotenant.core.units import Seconds

SLACK = 0.05
"""seconds by which a report may seem to begin too early, because of transport and different clocks"""
SETTLING = 1.0
"""seconds until a paused tenant has finished its step"""
LONGEST = Seconds(15.0)
"""longest window; with very long steps, a few of them are enough"""
USUAL_WEIGHT = 4
"""weight of the usual noise, in reports"""


class Window:
    """All tenants run at given sizes, or one runs while the others pause."""

    def __init__(self, asked: Seconds, sizes: Mapping[str, int], fixed: frozenset[str], alone: str | None) -> None:
        self.sizes = sizes
        self.alone = alone
        self._fixed = fixed
        self._measured = (alone,) if alone is not None else tuple(sizes)
        self.restart(asked)

    def restart(self, at: Seconds) -> None:
        """Forget what was measured."""
        self.asked = at
        self._reports: dict[str, list[tuple[float, StepReport]]] = {job: [] for job in self._measured}

    def add(self, report: StepReport) -> None:
        """Adds a report; a report with another size means that the job has not switched yet."""
        if report.job not in self._reports:
            return
        reports = self._reports[report.job]
        if report.batch != self.sizes[report.job] and report.job not in self._fixed:
            reports.clear()
            return
        # Wall time leaves out pauses and compilation, so a report may reach further back than it says.
        began = min(report.at - report.wall, *(earlier.at for _, earlier in reports[-1:]), report.at)
        reports.append((began, report))

    @property
    def opened(self) -> float | None:
        """Time since which all tenants run at their sizes; None: not yet."""
        if not all(self._reports.values()):
            return None
        if self.alone is None:
            return max(self.asked, *(reports[0][0] for reports in self._reports.values()))
        whole = (report.at for began, report in self._reports[self.alone] if began >= self.asked)
        first = next(whole, None)
        return None if first is None else max(first, self.asked + SETTLING)

    def complete(self, seconds: Seconds, steps: int) -> bool:
        """Whether all tenants were measured for long enough and over enough steps."""
        measured = [self._counted(job) for job in self._measured]
        walls = [sum(report.wall for report in reports) for reports in measured]
        return all(
            wall >= 0.9 * seconds and (wall >= LONGEST or sum(report.steps for report in reports) >= steps)
            for wall, reports in zip(walls, measured, strict=True)
        )

    def speeds(self) -> dict[str, float]:
        """Samples per second."""
        return {job: _speed(self._counted(job)) for job in self._measured}

    def variances(self, usual: float) -> dict[str, float]:
        """Of the logarithm of each speed: what the reports say of themselves, tempered by what is usual."""
        return {job: _variance(self._counted(job), usual) for job in self._measured}

    def step_seconds(self, job: str) -> float:
        reports = self._counted(job)
        return sum(report.wall for report in reports) / max(sum(report.steps for report in reports), 1)

    def _counted(self, job: str) -> list[StepReport]:
        """Reports that began after all tenants had switched."""
        opened = self.opened
        if opened is None:
            return []
        return [report for began, report in self._reports[job] if began >= opened - SLACK and report.samples > 0]


def _speed(reports: list[StepReport]) -> float:
    return sum(report.samples for report in reports) / sum(report.wall for report in reports)


def _variance(reports: list[StepReport], usual: float) -> float:
    if len(reports) < 2:
        return usual
    mean = _speed(reports)
    strays = [math.log(report.samples / report.wall / mean) ** 2 for report in reports]
    of_one = sum(strays) / (len(reports) - 1)
    return (USUAL_WEIGHT * usual + of_one) / (USUAL_WEIGHT + len(reports))
