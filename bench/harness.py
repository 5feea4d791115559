# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Building blocks of benchmarks: registration, figures with targets, and ways to measure CPU time and memory.

@benchmark("replay-speed")
def replay_speed() -> Iterator[Figure]:
    yield at_most("one replay, CPU", cpu_seconds(replay, repeats=5), "s", limit=1.5, baseline="plain numpy 23")
"""

import asyncio
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number, with its baseline and its target."""

    name: str
    """what was measured"""
    figure: float
    unit: str
    baseline: float | str | None = None
    """the same quantity of another system, with its name; None: there is none"""
    target: str | None = None
    """the target as text; None: the figure is only reported"""
    met: bool | None = None
    note: str = ""


Benchmark = Callable[[], Iterable[Figure]]
F = TypeVar("F", bound=Benchmark)
P = ParamSpec("P")
R = TypeVar("R")

BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[F], F]:
    """Registers a function that yields figures under the name for `make bench ONLY=name`."""

    def register(run: F) -> F:
        if name in BENCHMARKS:
            raise ValueError(f"two benchmarks are named {name!r}")
        BENCHMARKS[name] = run
        return run

    return register


def at_most(
    name: str, figure: float, unit: str, *, limit: float, baseline: float | str | None = None, note: str = ""
) -> Figure:
    """A figure with an upper limit."""
    target = f"<= {limit:g}"
    return Figure(name=name, figure=figure, unit=unit, baseline=baseline, target=target, met=figure <= limit, note=note)


def at_least(
    name: str, figure: float, unit: str, *, limit: float, baseline: float | str | None = None, note: str = ""
) -> Figure:
    """A figure with a lower limit."""
    target = f">= {limit:g}"
    return Figure(name=name, figure=figure, unit=unit, baseline=baseline, target=target, met=figure >= limit, note=note)


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """The median CPU time of this process over several runs.

    The time in which others have the processor is not counted. What they cost otherwise is: they share its caches, its
    memory and its clock frequency, and a virtual machine's steal time may be included.
    """
    return statistics.median(_cpu_seconds_once(run) for _ in range(repeats))


def p99(values: Sequence[float]) -> float:
    """The 99th percentile; with few values, at most their maximum."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _cpu_seconds_once(run: Callable[[], object]) -> float:
    gc.collect()  # the garbage of the run before is not this one's work
    start = time.process_time()
    run()
    return time.process_time() - start


@dataclass(frozen=True, slots=True)
class Usage(Generic[R]):
    """The cost of a function in a separate process, and its result."""

    result: R
    cpu_seconds: float
    peak_mib: float


def in_fresh_process(run: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Usage[R]:
    """Runs a module-level function in a new interpreter, so that its memory and caches contain nothing from before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, run, *args, **kwargs).result()


@contextmanager
def server_process(
    serve: Callable[Concatenate[Connection, P], None], /, *args: P.args, **kwargs: P.kwargs
) -> Iterator[Any]:
    """Starts a server in a separate process, and yields what it sends through the connection when it listens: its
    port, or more."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *args), kwargs=kwargs, daemon=True)
    process.start()
    theirs.close()  # or a server that died would be waited for
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def serve_each(
    parent: Connection, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    """The main function of such a process: serves every connection until the client closes it."""

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
    return Usage(result, time.process_time() - start, peak_mib())


def peak_mib(process: int | str = "self") -> float:
    """The largest memory that a process has had so far."""
    # Not getrusage: its maximum is inherited over exec, so a child would report the size of its parent.
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"peak memory is read from /proc/{process}/status, and this system's has no VmHWM")


def undisturbed() -> bool:
    """Puts this process, and those that it starts, into the real-time class, so that other programs of the machine do
    not count; False if it may not."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True
