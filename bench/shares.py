# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how closely a process keeps to its compute share, with the stand-in driver.

The virtual clock is exact and the same on every machine; results with the real clock are reported too. HAMi-core's
figures were measured on commit 8f3a89c, also with a stand-in driver, at a limit of 30 % unless stated otherwise.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.harness import Figure, at_most, benchmark
from tests.native.kit import Slice
from tests.native.namespaces import can_unshare, namespaced_shares
from tests.native.shares import PERCENT, burn, long_share, slice_in

LIMITS = (10, 30, 60)
ONE: dict[str, tuple[Sequence[str], dict[str, int], str | None]] = {
    "kernels of 0.1 ms": (["ns=100000"], {}, "HAMi-core 32.5 %"),
    "kernels of 1 ms": (["ns=1000000"], {}, "HAMi-core 39, 68, 79 %"),
    "1 ms, each waited for": (["ns=1000000", "sync=1"], {}, None),
    "kernels of 20 ms": (["ns=20000000"], {}, "HAMi-core 98 %"),
    "kernels of one block": (["grid=1"], {}, "HAMi-core 89 %"),
    "kernels of 0.1 to 1.9 ms": (["mode=variable"], {}, None),
    "graphs": (["mode=graph"], {}, "HAMi-core 98 %"),
    "cooperative launches": (["mode=cooperative"], {}, "HAMi-core 85 %"),
    "16 streams in turn": (["streams=16"], {}, None),
    "16 streams side by side": (["streams=16"], {"overlap": 1}, None),
    "300 streams in turn": (["streams=300"], {}, None),
    "events up to 50 µs off": (["ns=1000000"], {"jitter_ns": 50_000}, None),
}
LONG: dict[str, tuple[str, int, int]] = {
    "kernels of 10 s": ("synced", 10 * 10**9, 10),
    "kernels of 60 s": ("synced", 60 * 10**9, 10),
    "60 s, tiny kernels beside": ("tiny", 60 * 10**9, 10),
    "riding launches of 20 ms": ("riding", 20 * 10**6, 100),
    "riding launches of 1 s": ("riding", 10**9, 40),
}
"""by name: the mode of share_long, the device time of a launch in nanoseconds, and the number of launches"""
SIBLINGS: dict[str, tuple[str, Sequence[str]]] = {
    "1 ms": ("round-robin", []),
    "0.1 ms, each four waited for": ("fifo", ["ns=100000", "sync=4"]),
    "20, 1, 0.1 and 0.005 ms": ("fifo", ["0:ns=20000000", "2:ns=100000", "3:ns=5000", "3:sync=50"]),
}
TWO: dict[str, Sequence[str]] = {
    "1 ms": ["ns=1000000"],
    "0.1 to 1.9 ms": ["mode=variable"],
    "20 and 0.1 ms": ["0:ns=20000000", "1:ns=100000"],
}


@benchmark("share-accuracy")
def share_accuracy() -> Iterator[Figure]:
    """Measures one process at three limits, two tenants of one GPU, several processes of one slice, and the real
    clock."""
    for what, (given, settings, baseline) in ONE.items():
        shares = [alone(limit, *given, **settings) for limit in LIMITS]
        yield farthest(f"one process, {what}", shares, LIMITS, limit=1, baseline=baseline)
    for what, (mode, nanoseconds, launches) in LONG.items():
        shares = [alone_long(limit, mode, nanoseconds, launches) for limit in LIMITS]
        yield farthest(f"one process, {what}", shares, LIMITS, limit=2)
    for engine in ("fifo", "round-robin"):
        for what, given in TWO.items():
            shares = together([300, 600], "seconds=20", *given, engine=engine)
            baseline = "HAMi-core 45.6, 54.3 %" if (engine, what) == ("fifo", "1 ms") else None
            yield farthest(f"two tenants, {what}, {engine}", shares, (30, 60), limit=2, baseline=baseline)
    if can_unshare():
        shares = in_folder(beside_a_neighbour)
        yield farthest("PID namespaces, an idle sibling beside a neighbour", shares, (10, 0, 90), limit=2)
    for what, (engine, given) in SIBLINGS.items():
        shares = siblings(engine, *given)
        yield farthest(f"four processes of one slice, {what}", [sum(shares)], (30,), limit=2, note=said(shares))
    for limit in LIMITS:
        found = alone(limit, "seconds=4", "settle=1", clock="real")
        yield Figure(name=f"real clock, kernels of 1 ms, {limit} %", figure=found, unit="%")
    shares = together([300, 600], "seconds=6", clock="real", engine="round-robin")
    worst = farthest("real clock, two tenants, 1 ms, round-robin", shares, (30, 60), limit=2)
    yield replace(worst, target=None, met=None)


def alone(limit: int, *given: str, **settings: str | int) -> float:
    """Percent of the GPU that one process gets with this limit."""
    return in_folder(lambda folder: shares_of([slice_in(folder, limit * 10)], *given, **settings))[0]


def alone_long(limit: int, mode: str, nanoseconds: int, launches: int) -> float:
    """Percent of the GPU that launches get that are long, or longer than before."""
    return in_folder(lambda folder: [long_share(slice_in(folder, limit * 10), mode, nanoseconds, launches)])[0]


def together(computes: Sequence[int], *given: str, **settings: str | int) -> list[float]:
    """Percent of the GPU that each process gets, each in its own slice."""

    def run(folder: Path) -> list[float]:
        places = [slice_in(folder / str(number), compute) for number, compute in enumerate(computes)]
        return shares_of(places, *given, **settings)

    return in_folder(run)


def beside_a_neighbour(folder: Path) -> list[float]:
    """A tenant with an idle sibling, and its neighbour, each process in a PID namespace of its own."""
    tenant = slice_in(folder / "a", 100, "conserving")
    places = [tenant, tenant, slice_in(folder / "b", 900, "conserving")]
    return namespaced_shares(places, [[], ["idle=1"], []], listed=True)


def siblings(engine: str, *given: str) -> list[float]:
    """Percent of the GPU that each of four processes of one slice gets."""
    return in_folder(lambda folder: shares_of([slice_in(folder, 300)] * 4, "seconds=20", *given, engine=engine))


def shares_of(places: Sequence[Slice], *given: str, **settings: str | int) -> list[float]:
    return [found["share"] / PERCENT for found in burn(places, *given, **settings)]


def in_folder(run: Callable[[Path], list[float]]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder))


def farthest(
    name: str,
    shares: Sequence[float],
    wanted: Sequence[int],
    *,
    limit: float,
    baseline: str | None = None,
    note: str | None = None,
) -> Figure:
    """The largest deviation from the target."""
    worst = max(abs(share - want) for share, want in zip(shares, wanted, strict=True))
    return at_most(name, worst, "points", limit=limit, baseline=baseline, note=note or said(shares))


def said(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.1f}" for share in shares) + " %"
