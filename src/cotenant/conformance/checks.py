# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The checks: which clients run in which slices, and what is expected of them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cotenant.conformance.report import Device, Result, Row, Rung
from cotenant.conformance.running import ClientError, Runner, Slice
from cotenant.errors import InputError
from cotenant.node.limits import Limits, change_limits

MIB = 1 << 20
MOST_LIMIT_MIB = 2048
LEAST_GOT_PERCENT = 98.0
"""Drivers allocate in pieces of 2 MiB, so the last piece may not fit."""
SHARE_POINTS = 2.0
"""A share may differ from its limit by so many percent of the GPU."""
MOST_LOSS_PERCENT = 2.0
CROWD = 4
NEIGHBOURS = 4
RESIZE_S = 20


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
    unlimited: Slice = field(default_factory=lambda: Slice(rung=Rung.NONE))
    _filled: dict[Rung, dict[str, Any]] = field(default_factory=dict)
    _costs: dict[Rung, dict[str, float]] = field(default_factory=dict)

    @property
    def limit_mib(self) -> int:
        """A memory limit of which two fit into what is free now."""
        return min(MOST_LIMIT_MIB, self.device.free_mib // 4)

    @cached_property
    def rounds(self) -> int:
        """Rounds of a launch of 2 ms."""
        return int(self.runner.run(self.unlimited, "spin", 1)["rounds"])

    @cached_property
    def alone_ms(self) -> float:
        """The time on the GPU of all launches of a spinning client without limits and neighbours."""
        return self.spin_ms(self.unlimited)

    def spin_ms(self, place: Slice) -> float:
        work = "spin", self.effort.launches, self.rounds
        return statistics.median(float(self.runner.run(place, *work)["device_ms"]) for _ in range(self.effort.repeats))

    def filled(self, rung: Rung) -> dict[str, Any]:
        """What a client found that took all the memory of its slice."""
        if rung not in self._filled:
            self._filled[rung] = self.runner.run(Slice(rung=rung, memory_mib=self.limit_mib), "memory")
        return self._filled[rung]

    def costs(self, rung: Rung) -> dict[str, float]:
        """Nanoseconds of calls."""
        if rung not in self._costs:
            place = self.unlimited if rung is Rung.NONE else Slice(rung=rung, memory_mib=self.limit_mib)
            found = [self.runner.run(place, "costs") for _ in range(self.effort.repeats)]
            self._costs[rung] = {name: statistics.median(float(one[name]) for one in found) for name in found[0]}
        return self._costs[rung]


class SkippedError(Exception):
    """A check cannot be carried out here; the text says why."""


Finding = tuple[float | None, bool | None, str]
"""A value, whether it is as promised (None: nothing is promised), and a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise and how it is measured."""

    name: str
    title: str
    measure: Callable[[Bench, Rung], Finding]
    unit: str = ""
    expected: str = ""
    metric: str | None = None
    needs_gpu: bool = False
    """The stand-in cannot show it."""
    slow: bool = False
    """It takes minutes, so a quick run leaves it out."""

    def row(self, bench: Bench, rung: Rung) -> Row:
        result, value, note = self._result(bench, rung)
        return Row(
            check=self.name,
            rung=rung,
            result=result,
            device=bench.device.title,
            value=value,
            unit=self.unit,
            expected=self.expected,
            metric=self.metric,
            note=note,
        )

    def _result(self, bench: Bench, rung: Rung) -> tuple[Result, float | None, str]:
        """Measures; a client that cannot do its work is a failed check."""
        if self.needs_gpu and bench.device.stand_in:
            return Result.SKIPPED, None, "the stand-in cannot show it"
        try:
            value, is_kept, note = self.measure(bench, rung)
        except SkippedError as error:
            return Result.SKIPPED, None, str(error)
        except ClientError as error:
            return Result.FAILED, None, str(error)
        return Result.MEASURED if is_kept is None else Result.PASSED if is_kept else Result.FAILED, value, note


# Memory


def _is_filled(percent: float) -> bool:
    return LEAST_GOT_PERCENT <= percent <= 100


def _memory_limit(bench: Bench, rung: Rung) -> Finding:
    limit = bench.limit_mib
    got = bench.filled(rung)
    percent = 100 * got["got_mib"] / limit
    return percent, _is_filled(percent), f"{got['got_mib']} of {limit} MiB"


def _memory_shown(bench: Bench, rung: Rung) -> Finding:
    limit = bench.limit_mib
    got = bench.filled(rung)
    shown = got["total_mib"], got["info_mib"]
    return float(shown[0]), shown == (limit, limit), f"the limit is {limit} MiB"


def _memory_refusal(bench: Bench, rung: Rung) -> Finding:
    got = bench.filled(rung)
    return got["refusal_ns"] / 1000, None, f"{got['refused']} allocations beyond the limit were refused"


def _memory_crowd(bench: Bench, rung: Rung) -> Finding:
    limit = bench.limit_mib
    got = bench.runner.run(Slice(rung=rung, memory_mib=limit), "crowd", CROWD)
    percent = 100 * got["got_mib"] / limit
    return percent, _is_filled(percent), f"{CROWD} processes got {got['each_mib']} of {limit} MiB"


def _memory_neighbours(bench: Bench, rung: Rung) -> Finding:
    limit = bench.limit_mib
    place = Slice(rung=rung, memory_mib=limit)
    with bench.runner.together([place, place], "hold") as clients:  # both hold all that they got until both are ready
        got = [client.result()["got_mib"] for client in clients]
    percents = [100 * mib / limit for mib in got]
    return min(percents), all(map(_is_filled, percents)), f"two slices got {got} of {limit} MiB each"


def _memory_after_kill(bench: Bench, rung: Rung) -> Finding:
    got = bench.runner.run(Slice(rung=rung, memory_mib=bench.limit_mib), "killed")
    return 100 * got["got_mib"] / max(1, got["before_mib"]), got["got_mib"] == got["before_mib"], ""


def _memory_resize(bench: Bench, rung: Rung) -> Finding:
    place = Slice(rung=rung, memory_mib=bench.limit_mib // 2)
    with bench.runner.client(place, "grow", RESIZE_S) as client:
        file = client.wait_until_ready()
        client.start()
        began = time.time()
        _double_memory(file)
        grew = client.result()["grew_at"]
    return (None, False, "the limit was raised without effect") if grew is None else (1000 * (grew - began), None, "")


def _double_memory(file: Path) -> None:
    def doubled(limits: Limits) -> Limits:
        larger = tuple(gpu._replace(memory_bytes=2 * (gpu.memory_bytes or 0)) for gpu in limits.gpus)
        return replace(limits, gpus=larger)

    try:
        change_limits(file, doubled)
    except (OSError, InputError) as error:
        raise ClientError(f"the limits cannot be changed: {error}") from None


# Compute


def _share(percent: int) -> Callable[[Bench, Rung], Finding]:
    def measure(bench: Bench, rung: Rung) -> Finding:
        got = 100 * bench.alone_ms / bench.spin_ms(Slice(rung=rung, compute_percent=percent))
        return got, abs(got - percent) <= SHARE_POINTS, ""

    return measure


def _shares_together(bench: Bench, rung: Rung) -> list[float]:
    """Percent of the GPU that each of several tenants with equal shares gets."""
    place = Slice(rung=rung, compute_percent=100 // NEIGHBOURS)
    with bench.runner.together([place] * NEIGHBOURS, "spin", bench.effort.launches, bench.rounds) as clients:
        times = [client.result()["device_ms"] for client in clients]
    return [100 * bench.alone_ms / one for one in times]


def _compute_fairness(bench: Bench, rung: Rung) -> Finding:
    shares = _shares_together(bench, rung)
    index = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    return index, index >= 0.98, f"shares of {', '.join(f'{share:.1f}' for share in shares)} %"


def _compute_neighbour(bench: Bench, rung: Rung) -> Finding:
    """The share of a tenant beside one that wants the whole GPU."""
    half = Slice(rung=rung, compute_percent=50)
    many = 100 * bench.effort.launches
    with bench.runner.client(half, "spin", many, bench.rounds) as noisy:
        noisy.wait_until_ready()
        with bench.runner.together([half], "spin", bench.effort.launches, bench.rounds) as (client,):
            noisy.start()
            got = 100 * bench.alone_ms / client.result()["device_ms"]
    return got, abs(got - 50) <= SHARE_POINTS, ""


def _throughput(bench: Bench, rung: Rung) -> Finding:
    loss = 100 * (1 - bench.alone_ms / bench.spin_ms(Slice(rung=rung)))
    return loss, loss <= MOST_LOSS_PERCENT, ""


# Faults


def _survives(bench: Bench, rung: Rung, end: Callable[[Bench, Rung], str]) -> Finding:
    """A tenant works before, while and after its neighbour ends badly."""
    half = Slice(rung=rung, compute_percent=50)
    with bench.runner.client(half, "spin_on", bench.effort.launches, bench.rounds) as client:
        client.wait_until_ready()
        how = end(bench, rung)
        client.start()
        client.result()
    return None, True, how


def _kill_neighbour(bench: Bench, rung: Rung) -> str:
    half = Slice(rung=rung, compute_percent=50)
    with bench.runner.client(half, "spin_on", 0, bench.rounds) as neighbour:
        neighbour.wait_until_ready()
        neighbour.kill()
    return "the neighbour was killed at work"


def _fault_neighbour(bench: Bench, rung: Rung) -> str:
    code = bench.runner.run(Slice(rung=rung, compute_percent=50), "fault")["error"]
    if not code:
        raise ClientError("the driver reported no error after a write to an address that does not exist")
    return f"the neighbour ended with CUDA error {code}"


# Costs


def _added(name: str, per: float) -> Callable[[Bench, Rung], Finding]:
    def measure(bench: Bench, rung: Rung) -> Finding:
        cost, before = bench.costs(rung)[name], bench.costs(Rung.NONE)[name]
        return (cost - before) / per, None, f"{before / per:.3g} without the library"

    return measure


CHECKS = (
    Check(
        name="memory-limit",
        title="A process gets its limit, and not more",
        measure=_memory_limit,
        unit="%",
        expected="98 to 100",
        metric="IS-001 memory limit accuracy",
    ),
    Check(
        name="memory-shown",
        title="The driver's calls show the limit as the size of the GPU",
        measure=_memory_shown,
        unit="MiB",
        expected="the limit",
    ),
    Check(
        name="memory-refusal",
        title="Time of an allocation beyond the limit",
        measure=_memory_refusal,
        unit="us",
        metric="IS-002 memory limit enforcement",
    ),
    Check(
        name="memory-crowd",
        title="Processes of one slice that allocate at the same moment stay below the limit together",
        measure=_memory_crowd,
        unit="%",
        expected="98 to 100",
    ),
    Check(
        name="memory-neighbours",
        title="Two slices get their limits at the same time",
        measure=_memory_neighbours,
        unit="%",
        expected="98 to 100",
    ),
    Check(
        name="memory-after-kill",
        title="Memory of a killed process is free for the next one",
        measure=_memory_after_kill,
        unit="%",
        expected="100",
    ),
    Check(
        name="memory-resize",
        title="Time until a raised limit can be used by a running process",
        measure=_memory_resize,
        unit="ms",
    ),
    *(
        Check(
            name=f"compute-{percent}",
            title=f"A share of {percent} % of the GPU",
            measure=_share(percent),
            unit="%",
            expected=f"{percent} ± {SHARE_POINTS:g}",
            metric="IS-003 SM utilization accuracy",
        )
        for percent in FULL.shares
    ),
    Check(
        name="compute-fairness",
        title=f"Jain's index of {NEIGHBOURS} tenants with equal shares",
        measure=_compute_fairness,
        expected="0.98 or more",
        metric="IS-008 fairness index",
    ),
    Check(
        name="compute-neighbour",
        title="A share of 50 % beside a tenant that wants all",
        measure=_compute_neighbour,
        unit="%",
        expected=f"50 ± {SHARE_POINTS:g}",
        metric="IS-009 noisy neighbor",
    ),
    Check(
        name="throughput",
        title="Throughput lost without limits",
        measure=_throughput,
        unit="%",
        expected=f"{MOST_LOSS_PERCENT:g} or less",
        metric="OH-010 total throughput",
    ),
    Check(
        name="killed-neighbour",
        title="A tenant goes on if its neighbour is killed",
        measure=lambda bench, rung: _survives(bench, rung, _kill_neighbour),
        expected="goes on",
        metric="IS-010 fault isolation",
    ),
    Check(
        name="faulty-neighbour",
        title="A tenant goes on if its neighbour writes to an address that it does not have",
        measure=lambda bench, rung: _survives(bench, rung, _fault_neighbour),
        needs_gpu=True,
        expected="goes on",
        metric="IS-010 fault isolation",
    ),
    Check(
        name="launch-cost",
        title="Time added to a kernel launch",
        measure=_added("launch_ns", 1),
        unit="ns",
        metric="OH-001 kernel launch latency",
    ),
    Check(
        name="allocation-cost",
        title="Time added to an allocation and its release",
        measure=_added("allocate_free_ns", 1),
        unit="ns",
        metric="OH-002 and OH-003 memory allocation and free latency",
    ),
    Check(
        name="context-cost",
        title="Time added to the first context",
        measure=_added("context_ns", 1e6),
        unit="ms",
        metric="OH-004 context creation",
    ),
)
