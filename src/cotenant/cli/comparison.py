# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compares two runs of the same jobs: completion times side by side, and the verdict. All demos share it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from cotenant.cli.output import aligned
from cotenant.wire.text import counted
from cotenant.workloads.driving import Life

SAME = 0.02
"""relative differences below this count as no difference"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of one run of all jobs, in seconds."""

    mean_jct: float
    median_jct: float
    makespan: float
    """from the first submission to the last end"""
    mean_wait: float

    @classmethod
    def of(cls, lives: Sequence[Life]) -> "Metrics":
        return cls(
            mean_jct=mean(life.jct or 0.0 for life in lives),
            median_jct=median(life.jct or 0.0 for life in lives),
            makespan=max(life.finish or 0.0 for life in lives) - min(life.submit for life in lives),
            mean_wait=mean((life.start or life.submit) - life.submit for life in lives),
        )


def slowdown(ours: Life, theirs: Life | None) -> float | None:
    """Run time in the first run divided by that in the second, start-up included; None if the job failed in one."""
    if theirs is None or not ours.state == theirs.state == "done":
        return None
    return ours.ran / theirs.ran if ours.ran and theirs.ran else None


def metrics_table(headings: tuple[str, str], ours: Metrics, theirs: Metrics) -> str:
    """The metrics of two runs side by side."""
    rows = zip(_rows(ours), _rows(theirs), strict=True)
    lines = [(name, f"{one:.1f} s", f"{other:.1f} s", compared(one, other)) for (name, one), (_, other) in rows]
    return "\n".join(aligned([("", *headings, ""), *lines]))


def metrics_list(heading: str, ours: Metrics) -> str:
    """The metrics of one run."""
    return "\n".join(aligned([("", heading), *((name, f"{one:.1f} s") for name, one in _rows(ours))]))


def _rows(one: Metrics) -> list[tuple[str, float]]:
    return [
        ("mean JCT", one.mean_jct),
        ("median JCT", one.median_jct),
        ("makespan", one.makespan),
        ("mean wait", one.mean_wait),
    ]


def compared(ours: float, theirs: float) -> str:
    """Compares a duration with another, for example `12% shorter`."""
    if theirs <= 0 or abs(ours / theirs - 1) < SAME:
        return "no difference" if ours <= theirs * (1 + SAME) else "longer"
    return f"{1 - ours / theirs:.0%} shorter" if ours < theirs else f"{ours / theirs - 1:.0%} longer"


def outcome(
    ours: Metrics, theirs: Metrics, slowdowns: Sequence[float], what: str = "Sharing", than: str = "alone"
) -> str:
    """The verdict on what the first run did differently, with the numbers that it follows from."""
    gains = [theirs.mean_jct / ours.mean_jct - 1, theirs.makespan / ours.makespan - 1]
    if all(abs(gain) <= SAME for gain in gains):
        verdict = f"{what} made no difference"
    elif min(gains) >= -SAME:
        verdict = f"{what} helped"
    elif max(gains) <= SAME:
        verdict = f"{what} did not help"
    else:
        verdict = f"{what} helped in one way and harmed in another"
    jct, makespan = compared(ours.mean_jct, theirs.mean_jct), compared(ours.makespan, theirs.makespan)
    return f"{verdict} (mean JCT: {jct}; makespan: {makespan}). {_slowed(slowdowns, than)}"


def _slowed(slowdowns: Sequence[float], than: str) -> str:
    """How many jobs paid for the sharing by a longer run time, and how much."""
    slower = [one for one in slowdowns if one > 1 + SAME]
    if not slower:
        return f"No job ran slower than {than}."
    return f"{len(slower)} of {counted(len(slowdowns), 'job')} ran slower than {than}, {mean(slower):.2f}x on average."
