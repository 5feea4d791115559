# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML page of `cotenant report`: one self-contained file that loads nothing from another host."""

from datetime import UTC, datetime

from cotenant.history.day_report import DayReport
from cotenant.sim.report.page import template


def render_day(report: DayReport) -> str:
    """Renders the report of a period as HTML; all texts are escaped."""
    hours = report.gpu_hours
    whole = max(hours.capacity, 1e-9)
    bars = (
        ("shared", 100 * hours.shared / whole, "two jobs or more"),
        ("occupied", 100 * (hours.occupied - hours.shared) / whole, "one job"),
        ("idle", max(0.0, 100 * (hours.capacity - hours.occupied) / whole), "no job"),
    )
    return template("day.html").render(
        report=report,
        bars=bars,
        moment=lambda at: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=_seconds,
    )


def _seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "–"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
