# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of the vGPU library, and checks that racing processes never exceed their quota.

Costs are nanoseconds of CPU time with the stand-in driver, compared with the stand-in alone in the same run. Each is
the minimum of several repetitions, because other load only adds. The bound of a pair of cuMemAlloc and cuMemFree is the
stand-in's own pair and twice a pair of atomic additions, both measured in the same run.
HAMi-core's figures were measured on commit
8f3a89c, also with a stand-in driver, and as it is built by default, for debugging; with -O2 the pair costs 1518 ns.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_most, benchmark
from tests.native import kit
from tests.native.kit import MIB, Slice

REPEATS, CALLS, ROUNDS = 15, 100_000, 3
QUOTA = 1024 * MIB
Costs = dict[str, float]


@benchmark("hook-cost")
def hook_cost() -> Iterator[Figure]:
    """Measures calls through the library against calls to the stand-in alone."""
    with tempfile.TemporaryDirectory() as folder:
        free = Slice(Path(folder)).write(memory=QUOTA)
        alone, plain = costs(free)
    with tempfile.TemporaryDirectory() as folder:
        held = Slice(Path(folder)).write(memory=QUOTA, compute=500, policy="always")
        alone_again, limited = costs(held)
    alone = {name: min(value, alone_again[name]) for name, value in alone.items()}

    def added(name: str, what: str, costs: Costs, limit: float, baseline: str | None = None) -> Figure:
        note = f"{costs[name]:.1f} ns, the stand-in alone {alone[name]:.1f} ns"
        return at_most(what, costs[name] - alone[name], "ns", limit=limit, baseline=baseline, note=note)

    yield added("alloc_free", "cuMemAlloc + cuMemFree, added", plain, 40, "HAMi-core 1850, -O2 1518")
    bound = 2 * (2 * alone["atomic"]) + alone["alloc_free"]
    for name, what in (("alloc_free", "the pair"), ("alloc_free_live", "the pair with 5,000 live allocations")):
        note = (
            f"{plain[name]:.1f} ns over {bound:.1f} ns: the stand-in's own pair of {alone['alloc_free']:.1f} ns, and "
            f"twice a pair of atomic additions of {alone['atomic']:.1f} ns; measured in the same run"
        )
        yield at_most(f"{what}, over the stand-in and two atomic pairs", plain[name] / bound, "x", limit=1, note=note)
    yield added("alloc_free_live", "the same with 5,000 live allocations", plain, 40, "HAMi-core 47700")
    yield added("launch", "cuLaunchKernel, no compute limit, added", plain, 15, "HAMi-core 22")
    yield added("launch", "cuLaunchKernel, compute limit, added", limited, 300)
    note = f"the stand-in alone {alone['info']:.1f} ns"
    yield at_most("cuMemGetInfo", plain["info"], "ns", limit=10, baseline="HAMi-core 1976", note=note)
    for name, what in (("init", "cuInit, added"), ("start", "cuInit to the first allocation, added")):
        extra = (plain[name] - alone[name]) / 1e6
        yield at_most(what, extra, "ms", limit=1, baseline="HAMi-core 4.0" if name == "init" else None)


def costs(place: Slice) -> tuple[Costs, Costs]:
    """Measures the stand-in alone and with the library in front of it, in turns."""
    inside = place.env(backing="none")
    alone = {name: value for name, value in inside.items() if name != "LD_PRELOAD"}
    measure(alone, repeats=1)  # creates the state of the stand-in, so that no measured run pays for it
    rounds = [(measure(alone), measure(inside)) for _ in range(ROUNDS)]
    first, second = ([both[side] for both in rounds] for side in (0, 1))
    return least(first), least(second)


def measure(env: dict[str, str], repeats: int = REPEATS) -> Costs:
    command = [str(kit.program("memory_cost")), str(repeats), str(CALLS)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300).stdout
    return {name: picoseconds / 1000 for name, picoseconds in kit.values(said).items()}


def least(runs: list[Costs]) -> Costs:
    return {name: min(run[name] for run in runs) for name in runs[0]}


@benchmark("memory-race")
def memory_race() -> Iterator[Figure]:
    """Eight processes request 300 MiB of 1,024 MiB at the same moment, 500 times."""
    with tempfile.TemporaryDirectory() as folder:
        place = Slice(Path(folder)).write(memory=QUOTA)
        done = kit.run(place, [kit.program("memory_race"), "8", "300", "500"], backing="none", timeout=600)
    seen = kit.values(done.stdout)
    full = seen.get("rounds_with_3", 0)
    yield at_most("most held at once", seen["peak"] / MIB, "MiB", limit=1024, baseline="HAMi-core 1200")
    yield at_most("answers other than success and out of memory", seen["wrong"] + seen["failed"], "", limit=0)
    yield Figure(name="rounds in which the quota was used up", figure=full, unit="of 500")
