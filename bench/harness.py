# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a benchmark is written with: a way to register it, the figure it yields, and honest ways to measure.

@benchmark("replay-speed")
def replay_speed() -> Iterator[Figure]:
    yield at_most("one replay, CPU", cpu_seconds(replay, repeats=5), "s", limit=1.5, baseline="plain numpy 23")
"""

import asyncio
import gc
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Concatenate, Generic, ParamSpec, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number, and what it is held against."""

    name: str
    """what was measured"""
    figure: float
    unit: str
    baseline: float | str | None = None
    """the same quantity elsewhere, with whose it is; None: there is none"""
    target: str | None = None
    """what it should be; None: it is only reported"""
    met: bool | None = None
    note: str = ""


Benchmark = Callable[[], Iterable[Figure]]
F = TypeVar("F", bound=Benchmark)
P = ParamSpec("P")
R = TypeVar("R")

BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[F], F]:
    """Register a function that yields figures under the name that `make bench ONLY=name` takes."""

    def register(run: F) -> F:
        if name in BENCHMARKS:
            raise ValueError(f"two benchmarks are named {name!r}")
        BENCHMARKS[name] = run
        return run

    return register


def at_most(
    name: str, figure: float, unit: str, *, limit: float, baseline: float | str | None = None, note: str = ""
) -> Figure:
    """A figure that is good when small."""
    target = f"<= {limit:g}"
    return Figure(name=name, figure=figure, unit=unit, baseline=baseline, target=target, met=figure <= limit, note=note)


def at_least(
    name: str, figure: float, unit: str, *, limit: float, baseline: float | str | None = None, note: str = ""
) -> Figure:
    """A figure that is good when large."""
    target = f">= {limit:g}"
    return Figure(name=name, figure=figure, unit=unit, baseline=baseline, target=target, met=figure >= limit, note=note)


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """The median CPU time of this process over some runs; other users of the machine do not count."""
    return statistics.median(_cpu_seconds_once(run) for _ in range(repeats))


def p99(values: Sequence[float]) -> float:
    """The 99th percentile, never more than the most that was seen, however few there are."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _cpu_seconds_once(run: Callable[[], object]) -> float:
    gc.collect()  # the garbage of the run before is not this one's work
    start = time.process_time()
    run()
    return time.process_time() - start


@dataclass(frozen=True, slots=True)
class Usage(Generic[R]):
    """What a function took in a process of its own, and what it returned."""

    result: R
    cpu_seconds: float
    peak_mib: float


def in_fresh_process(run: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Usage[R]:
    """Run a module-level function in a new interpreter, so that nothing done before is in its memory or caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, run, *args, **kwargs).result()


@contextmanager
def server_process(
    serve: Callable[Concatenate[Connection, P], None], /, *args: P.args, **kwargs: P.kwargs
) -> Iterator[int]:
    """The port of a server in a process of its own, which sends it through the connection once it listens."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *args), kwargs=kwargs, daemon=True)
    process.start()
    theirs.close()  # or a server that died would be waited for
    try:
        port: int = ours.recv()
        yield port
    finally:
        process.terminate()
        process.join()


def serve_each(
    parent: Connection, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    """The work of such a process: answers each who connects until they go, and closes after them."""

    async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(until_gone, "127.0.0.1", 0)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def _measured(run: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Usage[R]:
    start = time.process_time()
    result = run(*args, **kwargs)
    return Usage(result, time.process_time() - start, _peak_mib())


def _peak_mib() -> float:
    # Not getrusage: its maximum is inherited over exec, so that a child would answer with its parent's size.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("peak memory is read from /proc/self/status, and this system's has no VmHWM")
