# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The checks: which clients run in which slices, and what is expected of them."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cotenant.conformance.bench import FULL, Bench, Check, Finding
from cotenant.conformance.report import BY_LIBRARY, Way
from cotenant.conformance.running import ClientError, Slice
from cotenant.errors import InputError
from cotenant.node.limits import Limits, change_limits

MIB = 1 << 20
LEAST_GOT_PERCENT = 98.0
"""Drivers allocate in pieces of 2 MiB, so the last piece may not fit."""
SHARE_POINTS = 2.0
"""A share may differ from its limit by so many percent of the GPU."""
MOST_LOSS_PERCENT = 2.0
ANY_WAY = (*BY_LIBRARY, Way.MPS)
TOGETHER = (*BY_LIBRARY, Way.DRIVER)
"""ways that hold all processes of a slice together"""
MEMORY_WAYS = (*ANY_WAY, Way.DRIVER)
"""The driver holds memory; compute is left to MPS."""
CROWD = 4
NEIGHBOURS = 4
RESIZE_S = 20


# Memory


def _is_filled(percent: float) -> bool:
    return LEAST_GOT_PERCENT <= percent <= 100


def _memory_limit(bench: Bench, way: Way) -> Finding:
    limit = bench.limit_mib
    got = bench.filled(way)
    percent = 100 * got["got_mib"] / limit
    return percent, _is_filled(percent), f"{got['got_mib']} of {limit} MiB"


def _memory_shown(bench: Bench, way: Way) -> Finding:
    limit = bench.limit_mib
    got = bench.filled(way)
    shown = got["total_mib"], got["info_mib"]
    return float(shown[0]), shown == (limit, limit), f"the limit is {limit} MiB"


def _memory_refusal(bench: Bench, way: Way) -> Finding:
    got = bench.filled(way)
    return got["refusal_ns"] / 1000, None, f"{got['refused']} allocations beyond the limit were refused"


def _memory_crowd(bench: Bench, way: Way) -> Finding:
    limit = bench.limit_mib
    got = bench.runner.run(Slice(way=way, memory_mib=limit), "crowd", CROWD)
    percent = 100 * got["got_mib"] / limit
    return percent, _is_filled(percent), f"{CROWD} processes got {got['each_mib']} of {limit} MiB"


def _memory_neighbours(bench: Bench, way: Way) -> Finding:
    limit = bench.limit_mib
    place = Slice(way=way, memory_mib=limit)
    with bench.runner.together([place, place], "hold") as clients:  # both hold all that they got until both are ready
        got = [client.result()["got_mib"] for client in clients]
    percents = [100 * mib / limit for mib in got]
    return min(percents), all(map(_is_filled, percents)), f"two slices got {got} of {limit} MiB each"


def _memory_after_kill(bench: Bench, way: Way) -> Finding:
    got = bench.runner.run(Slice(way=way, memory_mib=bench.limit_mib), "killed")
    return 100 * got["got_mib"] / max(1, got["before_mib"]), got["got_mib"] == got["before_mib"], ""


def _memory_resize(bench: Bench, way: Way) -> Finding:
    place = Slice(way=way, memory_mib=bench.limit_mib // 2)
    with bench.runner.client(place, "grow", RESIZE_S) as client:
        file = client.wait_until_ready()
        client.start()
        began = time.time()
        if way is Way.DRIVER:
            bench.runner.limit(client, 2 * (bench.limit_mib // 2))
        else:
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


def _share(percent: int) -> Callable[[Bench, Way], Finding]:
    def measure(bench: Bench, way: Way) -> Finding:
        got = bench.speed_percent(Slice(way=way, compute_percent=percent))
        # MPS gives whole multiprocessors, so its share is a figure, not a promise.
        return got, None if way is Way.MPS else abs(got - percent) <= SHARE_POINTS, ""

    return measure


def _shares_together(bench: Bench, way: Way) -> list[float]:
    """Percent of the GPU that each of several tenants with equal shares gets."""
    place, alone = Slice(way=way, compute_percent=100 // NEIGHBOURS), bench.alone_ms()
    with bench.runner.together([place] * NEIGHBOURS, "spin", bench.effort.launches, bench.rounds) as clients:
        times = [client.result()["device_ms"] for client in clients]
    return [100 * alone / one for one in times]


def _compute_fairness(bench: Bench, way: Way) -> Finding:
    shares = _shares_together(bench, way)
    index = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    return index, index >= 0.98, f"shares of {', '.join(f'{share:.1f}' for share in shares)} %"


def _compute_neighbour(bench: Bench, way: Way) -> Finding:
    """The share of a tenant beside one that wants the whole GPU."""
    half = Slice(way=way, compute_percent=50)
    many, alone = 100 * bench.effort.launches, bench.alone_ms()
    with bench.runner.client(half, "spin", many, bench.rounds) as noisy:
        noisy.wait_until_ready()
        with bench.runner.together([half], "spin", bench.effort.launches, bench.rounds) as (client,):
            noisy.start()
            got = 100 * alone / client.result()["device_ms"]
    return got, abs(got - 50) <= SHARE_POINTS, ""


def _throughput(bench: Bench, way: Way) -> Finding:
    loss = 100 - bench.speed_percent(Slice(way=way))
    return loss, loss <= MOST_LOSS_PERCENT, ""


# Faults


def _survives(bench: Bench, way: Way, end: Callable[[Bench, Way], str]) -> Finding:
    """A tenant works before, while and after its neighbour ends badly."""
    half = Slice(way=way, compute_percent=50)
    with bench.runner.client(half, "spin_on", bench.effort.launches, bench.rounds) as client:
        client.wait_until_ready()
        how = end(bench, way)
        client.start()
        client.result()
    return None, True, how


def _kill_neighbour(bench: Bench, way: Way) -> str:
    half = Slice(way=way, compute_percent=50)
    with bench.runner.client(half, "spin_on", 0, bench.rounds) as neighbour:
        neighbour.wait_until_ready()
        neighbour.kill()
    return "the neighbour was killed at work"


def _fault_neighbour(bench: Bench, way: Way) -> str:
    code = bench.runner.run(Slice(way=way, compute_percent=50), "fault")["error"]
    if not code:
        raise ClientError("the driver reported no error after a write to an address that does not exist")
    return f"the neighbour ended with CUDA error {code}"


# Costs


def _added(name: str, per: float) -> Callable[[Bench, Way], Finding]:
    def measure(bench: Bench, way: Way) -> Finding:
        cost, before = bench.costs(way)[name], bench.costs(Way.NONE)[name]
        return (cost - before) / per, None, f"{before / per:.3g} without limits"

    return measure


CHECKS = (
    Check(
        name="memory-limit",
        ways=MEMORY_WAYS,
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
        ways=MEMORY_WAYS,
        title="Time of an allocation beyond the limit",
        measure=_memory_refusal,
        unit="us",
        metric="IS-002 memory limit enforcement",
    ),
    Check(
        name="memory-crowd",
        ways=TOGETHER,
        title="Processes of one slice that allocate at the same moment stay below the limit together",
        measure=_memory_crowd,
        unit="%",
        expected="98 to 100",
    ),
    Check(
        name="memory-neighbours",
        ways=MEMORY_WAYS,
        title="Two slices get their limits at the same time",
        measure=_memory_neighbours,
        unit="%",
        expected="98 to 100",
    ),
    Check(
        name="memory-after-kill",
        ways=TOGETHER,
        title="Memory of a killed process is free for the next one",
        measure=_memory_after_kill,
        unit="%",
        expected="100",
    ),
    Check(
        name="memory-resize",
        ways=TOGETHER,
        title="Time until a raised limit can be used by a running process",
        measure=_memory_resize,
        unit="ms",
    ),
    *(
        Check(
            name=f"compute-{percent}",
            ways=ANY_WAY,
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
        ways=ANY_WAY,
        title="Throughput lost without limits",
        measure=_throughput,
        unit="%",
        expected=f"{MOST_LOSS_PERCENT:g} or less",
        metric="OH-010 total throughput",
    ),
    Check(
        name="killed-neighbour",
        ways=ANY_WAY,
        title="A tenant goes on if its neighbour is killed",
        measure=lambda bench, way: _survives(bench, way, _kill_neighbour),
        expected="goes on",
        metric="IS-010 fault isolation",
    ),
    Check(
        name="faulty-neighbour",
        title="A tenant goes on if its neighbour writes to an address that it does not have",
        measure=lambda bench, way: _survives(bench, way, _fault_neighbour),
        needs_gpu=True,
        expected="goes on",
        metric="IS-010 fault isolation",
    ),
    Check(
        name="launch-cost",
        ways=ANY_WAY,
        title="Time added to a kernel launch",
        measure=_added("launch_ns", 1),
        unit="ns",
        metric="OH-001 kernel launch latency",
    ),
    Check(
        name="allocation-cost",
        ways=ANY_WAY,
        title="Time added to an allocation and its release",
        measure=_added("allocate_free_ns", 1),
        unit="ns",
        metric="OH-002 and OH-003 memory allocation and free latency",
    ),
    Check(
        name="context-cost",
        ways=ANY_WAY,
        title="Time added to the first context",
        measure=_added("context_ns", 1e6),
        unit="ms",
        metric="OH-004 context creation",
    ),
)
