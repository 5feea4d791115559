# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a check is, and what it is carried out with: clients, a GPU, baselines."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cotenant.conformance.report import BY_LIBRARY, Device, Result, Row, Way
from cotenant.conformance.running import ClientError, Runner, Slice

MOST_LIMIT_MIB = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long the suite measures."""

    launches: int
    """of 2 ms each, without limits"""
    repeats: int
    shares: tuple[int, ...]


FULL = Effort(launches=500, repeats=3, shares=(10, 30, 50, 80))
QUICK = Effort(launches=150, repeats=1, shares=(30,))


@dataclass(kw_only=True)
class Bench:
    """What checks run with; baselines are measured once."""

    runner: Runner
    device: Device
    effort: Effort
    missing: Mapping[Way, str] = field(default_factory=dict)
    """ways that cannot be measured here, and why"""
    unlimited: Slice = field(default_factory=lambda: Slice(way=Way.NONE))
    _filled: dict[Way, dict[str, Any]] = field(default_factory=dict)
    _costs: dict[Way, dict[str, float]] = field(default_factory=dict)

    @property
    def limit_mib(self) -> int:
        """A memory limit of which two fit into what is free now."""
        return min(MOST_LIMIT_MIB, self.device.free_mib // 4)

    @cached_property
    def rounds(self) -> int:
        """Rounds of a launch of 2 ms."""
        return int(self.runner.run(self.unlimited, "spin", 1)["rounds"])

    def alone_ms(self) -> float:
        """The time on the GPU of all launches of a spinning client without limits and neighbours.

        It is measured anew each time: the clock of a GPU depends on its temperature.
        """
        return self._spin_ms(self.unlimited)

    def speed_percent(self, place: Slice) -> float:
        """The speed of a spinning client in a slice, of that of one without limits just before."""
        return statistics.median(100 * self.alone_ms() / self._spin_ms(place) for _ in range(self.effort.repeats))

    def _spin_ms(self, place: Slice) -> float:
        return float(self.runner.run(place, "spin", self.effort.launches, self.rounds)["device_ms"])

    def filled(self, way: Way) -> dict[str, Any]:
        """What a client found that took all the memory of its slice."""
        if way not in self._filled:
            self._filled[way] = self.runner.run(Slice(way=way, memory_mib=self.limit_mib), "memory")
        return self._filled[way]

    def costs(self, way: Way) -> dict[str, float]:
        """Nanoseconds of calls."""
        if way not in self._costs:
            place = self.unlimited if way is Way.NONE else Slice(way=way, memory_mib=self.limit_mib)
            found = [self.runner.run(place, "costs") for _ in range(self.effort.repeats)]
            self._costs[way] = {name: statistics.median(float(one[name]) for one in found) for name in found[0]}
        return self._costs[way]


class SkippedError(Exception):
    """A check cannot be carried out here; the text says why."""


Finding = tuple[float | None, bool | None, str]
"""A value, whether it is as promised (None: nothing is promised), and a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise and how it is measured."""

    name: str
    title: str
    measure: Callable[[Bench, Way], Finding]
    unit: str = ""
    expected: str = ""
    metric: str | None = None
    needs_gpu: bool = False
    """The stand-in cannot show it."""
    ways: tuple[Way, ...] = BY_LIBRARY
    """how clients are limited when this is measured"""
    slow: bool = False
    """It takes minutes, so a quick run leaves it out."""

    def row(self, bench: Bench, way: Way) -> Row:
        result, value, note = self._result(bench, way)
        return Row(
            check=self.name,
            rung=way,
            result=result,
            device=bench.device.title,
            value=value,
            unit=self.unit,
            expected=self.expected,
            metric=self.metric,
            note=note,
        )

    def _result(self, bench: Bench, way: Way) -> tuple[Result, float | None, str]:
        """Measures; a client that cannot do its work is a failed check."""
        if self.needs_gpu and bench.device.stand_in:
            return Result.SKIPPED, None, "the stand-in cannot show it"
        if way in bench.missing:
            return Result.SKIPPED, None, bench.missing[way]
        try:
            value, is_kept, note = self.measure(bench, way)
        except SkippedError as error:
            return Result.SKIPPED, None, str(error)
        except ClientError as error:
            return Result.FAILED, None, str(error)
        return Result.MEASURED if is_kept is None else Result.PASSED if is_kept else Result.FAILED, value, note
