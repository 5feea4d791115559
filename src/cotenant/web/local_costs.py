# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the last day of one machine cost, for the history page: the numbers of `cotenant report`."""

import threading
import time
from collections.abc import Iterable

from cotenant.errors import CotenantError
from cotenant.history.day_report import DayReport, Group, Use, make_report
from cotenant.history.decisions import DecisionRecorder
from cotenant.history.quantities import GPU
from cotenant.history.recorded import read_recording
from cotenant.history.store import DAY_S, History
from cotenant.web.model import Table
from cotenant.wire.text import counted

FRESH_S = 30.0
"""for how long an answer is given again: a day of decisions takes a while to read"""
MOST_GROUPS = 100
COLUMNS = ("Name", "GPU-hours", "Jobs", "Failed", "Shared", "Mean wait", "Slowdown")


class Costs:
    """The report of the last day, which is made at most every half minute. Any thread may ask."""

    def __init__(self, recorder: DecisionRecorder, history: History | None) -> None:
        self._recorder, self._history = recorder, history
        self._turn = threading.Lock()
        self._made: tuple[float, DayReport | None] = (-FRESH_S, None)

    def report(self) -> DayReport | None:
        """None: nothing was recorded in the last day, or it cannot be read."""
        with self._turn:
            at, made = self._made
            if time.monotonic() - at >= FRESH_S:
                try:
                    made = self._make(time.time())
                except CotenantError:
                    made = None
                self._made = time.monotonic(), made
            return made

    def _make(self, now: float) -> DayReport | None:
        since = now - DAY_S
        lines = list(self._recorder.lines(since))
        if not lines:
            return None
        found = read_recording(lines, "the recording")
        used, whole = self._mean("memory_used_mib", since, now), self._mean("memory_mib", since, now)
        return make_report(
            found,
            max(since, found.start),
            now,
            use=Use(
                self._mean("utilisation", since, now),
                None if used is None or not whole else 100 * used / whole,
            ),
        )

    def _mean(self, quantity: str, since: float, until: float) -> float | None:
        """Over all GPUs; None: not recorded."""
        if self._history is None:
            return None
        found = [
            points[0].mean
            for seen in self._history.entities(GPU, since)
            if (points := self._history.series(seen.entity, quantity, since, until, 1))
        ]
        return sum(found) / len(found) if found else None


def figures_of(report: DayReport) -> Iterable[tuple[str, str]]:
    """What the day cost, in a few figures."""
    hours, saved = report.gpu_hours, report.saved
    yield "GPU-hours occupied", f"{hours.occupied:.2f} of {hours.capacity:.2f}"
    yield "Shared by jobs", f"{hours.shared:.2f} GPU-hours"
    yield "Saved by sharing", f"{saved.estimate:.2f} GPU-hours"
    yield "Busy", "–" if report.utilisation is None else f"{report.utilisation:.0f} %"
    yield "Memory in use", "–" if report.memory_percent is None else f"{report.memory_percent:.0f} %"
    yield "Mean wait", _wait(report.waits_s.mean)
    slow = report.slowdowns.mean
    yield "Mean slowdown", "–" if slow is None else f"{slow:.2f}×"


def sentences_of(report: DayReport) -> Iterable[str]:
    """How it was computed, and what the recording lacks."""
    hours, saved = report.gpu_hours, report.saved
    outcomes = ", ".join(f"{count} {word}" for word, count in report.outcomes.items())
    yield (
        f"The last day cost {hours.occupied:.2f} of {hours.capacity:.2f} GPU-hours: "
        f"{counted(report.came, 'job')} came and {report.started} started ({outcomes or 'none'})."
    )
    yield f"Saved: {saved.low:.2f} to {saved.high:.2f} GPU-hours. {saved.method}"
    yield from report.notes


def table_of(report: DayReport) -> Table:
    """One row for all jobs, and one for each user, team and namespace."""
    groups = report.groups[:MOST_GROUPS]
    return Table(title="Who used the GPUs", columns=COLUMNS, rows=tuple(map(_cells, groups)))


def _cells(group: Group) -> tuple[str, ...]:
    return (
        "all jobs" if group.by == "all" else f"{group.by} {group.name}",
        f"{group.gpu_hours:.2f}",
        str(group.jobs),
        str(group.failed),
        f"{group.shared_percent:.0f} %",
        _wait(group.mean_wait_s),
        "–" if group.mean_slowdown is None else f"{group.mean_slowdown:.2f}×",
    )


def _wait(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
