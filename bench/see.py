# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs to be watched: by Prometheus, and by people who look at pages.

`see-cost` runs each function of `COSTS`; a further cost is one more function there.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.cluster_server import cluster_server
from bench.extender import CALLS, PODS_PER_NODE, Measured, Started, ask_all, serve_scheduler
from bench.harness import Figure, at_most, benchmark, in_fresh_process, p99, server_process, undisturbed
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.metrics.counts import Counts
from cotenant.metrics.figures import NodeFigures, TenantFigures
from cotenant.metrics.page import FRESH_S, Page
from cotenant.metrics.table import Part
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.figures import Assigned, Collector, Look, Occupant
from cotenant.node.limits import GpuLimit, Limits
from cotenant.node.slices import make_slice, read_slice

SERIES, TENANTS, GPUS = 8_000, 250, 8
PAGES = 20
NODES = 1_000
BOUND = 100
TURNS, TURN_S = 4, 5.0
"""turns with scrapes and as many without, and how long each takes at least"""
INTERVALS_S = 1.0, 0.1
"""Prometheus scrapes every 15 s or 60 s in most clusters"""
JUDGED_S = 1.0
MOST_STALL_MS, MOST_CPU_MS, MOST_SLOWER = 10.0, 100.0, 5.0


@benchmark("see-cost")
def see_cost() -> Iterator[Figure]:
    """Measures the scrape of a full node, and the scheduler's calls beside scrapes."""
    for cost in COSTS:
        yield from cost()


# A scrape


def scraping() -> Iterator[Figure]:
    """A node with 250 tenants: their usage regions are read and the page is written anew each time."""
    count, cpu_ms, stalls_ms, alone = in_fresh_process(_pages).result
    how = "real-time class: other programs do not count" if alone else f"load {os.getloadavg()[0]:.0f}"
    note = f"median of {PAGES} pages, {TENANTS} usage regions read for each; worst {max(cpu_ms):.0f}; {how}"
    name = f"a page of {count:,} series, CPU"
    assert count >= SERIES
    yield at_most(name, statistics.median(cpu_ms), "ms", limit=MOST_CPU_MS, note=note)
    note = f"longest turn of the event loop in {PAGES} pages; their median {statistics.median(stalls_ms):.1f}; {how}"
    yield at_most(f"stall of the loop, {count:,} series", max(stalls_ms), "ms", limit=MOST_STALL_MS, note=note)


def _pages() -> tuple[int, list[float], list[float], bool]:
    alone = undisturbed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        return *asyncio.run(_compute(_look(folder))), alone


def _look(folder: Path) -> Look:
    machine = Machine(
        name="n1", gpus=tuple(Gpu(uuid=f"GPU-{i}", type="A100", memory=MiB(40_960), slots=64) for i in range(GPUS))
    )
    occupants = []
    for number in range(TENANTS):
        uuid, name = f"GPU-{number % GPUS}", f"tenant-{number}"
        make_slice(folder, name, Limits(gpus=(GpuLimit(uuid, 1 << 30),)))
        occupants.append(
            Occupant(
                key=name,
                known=TenantFigures(name=name, namespace="team", speed=0.9),
                assigned={uuid: Assigned(1 << 30, 0.1)},
                read_slices=lambda place=folder / name: [state for state in [read_slice(place)] if state],  # type: ignore[misc]
            )
        )
    usage = [GpuUsage(uuid=gpu.uuid, used_mib=MiB(1), utilisation=50, processes=()) for gpu in machine.gpus]
    return Look(
        machine=machine,
        vendor="nvidia",
        usage=usage,
        occupants=occupants,
        allocated={},
        owner_of=lambda process: None,
    )


async def _compute(look: Look) -> tuple[int, list[float], list[float]]:
    collector, cpu_ms, stalls_ms = Collector(), list[float](), list[float]()

    async def figures() -> NodeFigures:
        gpus, tenants = await asyncio.to_thread(collector.collect, look)
        return NodeFigures(node="n1", gpus=gpus, tenants=tenants)

    now = 0.0
    page = Page(Counts(Part.AGENT), node=figures, clock=lambda: now)
    text = await page.text()
    for _ in range(1 + PAGES):  # the first one loads code
        now += 10 * FRESH_S
        done = asyncio.Event()

        async def watch(done: asyncio.Event = done) -> float:
            longest, last = 0.0, time.perf_counter()
            while not done.is_set():
                await asyncio.sleep(0.0005)
                seen = time.perf_counter()
                longest, last = max(longest, seen - last - 0.0005), seen
            return longest

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.01)
        before = time.process_time()
        text = await page.text()
        cpu_ms.append(1000 * (time.process_time() - before))
        done.set()
        stalls_ms.append(1000 * await watching)
    return sum(not line.startswith(b"#") for line in text.splitlines()), cpu_ms[1:], stalls_ms[1:]


# The scheduler beside scrapes


def scheduling() -> Iterator[Figure]:
    """Calls of kube-scheduler while its metrics are scraped, against calls without that, by turns."""
    for every_s in INTERVALS_S:
        without, beside, alone = in_fresh_process(_calls, every_s).result
        how = "real-time class: other programs do not count" if alone else f"load {os.getloadavg()[0]:.0f}"
        for name, of in (("mean", statistics.mean), ("p99", p99)):
            base, seen = of(without), of(beside)
            calls = f"{NODES:,} nodes, {len(beside):,} calls by turns with and without"
            note = f"{calls}; {seen:.3f} ms against {base:.3f}; {how}"
            about, more = f"filter, scraped every {every_s:g} s: {name}, slower", 100 * (seen / base - 1)
            if every_s == JUDGED_S:
                yield at_most(about, more, "%", limit=MOST_SLOWER, note=note)
            else:
                yield Figure(name=about, figure=more, unit="%", note=f"{note}; no Prometheus is set up like this")


def _calls(every_s: float) -> tuple[list[float], list[float], bool]:
    alone = undisturbed()
    with (
        cluster_server(NODES, NODES * PODS_PER_NODE, CALLS) as port,
        server_process(serve_scheduler, port) as message,
    ):
        started = Started(*message)
        both = Measured(started), Measured(started)
        with _scraper(started.port, every_s) as scrapes:
            ask_all(Measured(started), NODES, range(BOUND))  # the first calls fill caches
            ask_all(Measured(started), NODES, range(BOUND, CALLS), bind=False)
            for turn in range(2 * TURNS):
                watched = turn % 4 in (1, 2)  # neither is always the first
                (scrapes.set if watched else scrapes.clear)()
                began = time.monotonic()
                while time.monotonic() - began < TURN_S:
                    ask_all(both[watched], NODES, range(BOUND, CALLS), bind=False)
    return both[0].ms["filter"], both[1].ms["filter"], alone


@contextmanager
def _scraper(port: int, every_s: float) -> Iterator[Event]:
    """A process that scrapes while the event is set, so that the client that measures is not slowed down itself."""
    context = multiprocessing.get_context("spawn")
    scrapes, ready = context.Event(), context.Event()
    process = context.Process(target=_scrape, args=(port, every_s, scrapes, ready), daemon=True)
    process.start()
    ready.wait()
    try:
        yield scrapes
    finally:
        process.terminate()
        process.join()


def _scrape(port: int, every_s: float, scrapes: Event, ready: Event) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    ready.set()
    while True:
        scrapes.wait()
        connection.request("GET", "/metrics")
        if b"cotenant_scheduler_decisions_total" not in connection.getresponse().read():
            raise AssertionError("the scheduler serves no metrics")
        time.sleep(every_s)


COSTS: tuple[Callable[[], Iterator[Figure]], ...] = (scraping, scheduling)
