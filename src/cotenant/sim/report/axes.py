# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Axes and their ticks: multiples of 1, 2 or 5 on a linear scale, round durations on a logarithmic one."""

import math
from dataclasses import dataclass

from cotenant.sim.report.summary import time_unit

Ticks = tuple[tuple[float, str], ...]

_LOG_TIMES: Ticks = (
    (0.001, "1 ms"),
    (0.01, "10 ms"),
    (0.1, "0.1 s"),
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (21_600.0, "6 h"),
    (86_400.0, "1 d"),
    (604_800.0, "7 d"),
    (2_592_000.0, "30 d"),
    (15_552_000.0, "180 d"),
    (63_072_000.0, "2 y"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high` with labelled ticks; values outside are clipped or drawn at the edge."""

    label: str
    low: float
    high: float
    ticks: Ticks
    log: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """The position of a value on the drawing, between `start` and `end`."""
        if self.log:
            value = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            value = (value - self.low) / (self.high - self.low)
        return start + value * (end - start)


def step_125(span: float, count: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten that divides a span into at most `count` parts."""
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def linear(label: str, low: float, high: float, *, count: int = 8, fit: bool = False, unit: str = "") -> Axis:
    """A linear axis; with `fit`, it begins on the last tick at or below `low` and ends on the first at or above
    `high`."""
    if high <= low:
        high = low + 1.0
    step = step_125(high - low, count)
    if fit:
        low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple((index * step, f"{index * step:,.{digits}f}{unit}") for index in range(first, last + 1))
    return Axis(label=label, low=low, high=high, ticks=ticks)


def elapsed(label: str, end: float, *, count: int = 7) -> Axis:
    """An axis of time from zero, in a unit that suits its end."""
    seconds, name = time_unit(end)
    axis = linear(f"{label} ({name})", 0.0, max(end, 1e-9) / seconds, count=count)
    ticks = tuple((value * seconds, text) for value, text in axis.ticks)
    return Axis(label=axis.label, low=0.0, high=axis.high * seconds, ticks=ticks)


def log_time(label: str, low: float, high: float, *, below: bool = False) -> Axis:
    """A logarithmic axis of durations; `below`: smaller values, zero included, are drawn at its left end."""
    low = max(low, 0.001)
    high = max(high, low * 10)
    ticks = [(value, text) for value, text in _LOG_TIMES if low <= value <= high]
    if below:
        ticks = [(value, f"≤ {text}" if value == low else text) for value, text in ticks]
    return Axis(label=label, low=low, high=high, ticks=tuple(ticks), log=True)


def log_floor(value: float) -> float:
    """The largest labelled time not above a value."""
    return max((time for time, _ in _LOG_TIMES if time <= value), default=_LOG_TIMES[0][0])
