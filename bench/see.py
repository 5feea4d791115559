# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs to be watched: by Prometheus, and by people who look at pages.

`see-cost` runs each function of `COSTS`; a further cost is one more function there.
"""

import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from bench.cluster_server import cluster_server
from bench.extender import BENCH_KEY, CALLS, PODS_PER_NODE, Measured, Started, ask_all, serve_scheduler
from bench.harness import Figure, at_most, benchmark, in_fresh_process, p99, serve_each, server_process, undisturbed
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.names import WHY_HEADER
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
MANY_NODES = 5_000
PAIRS, FEWER_PAIRS, BLOCK_S = 60, 10, 1.0
"""blocks with scrapes, each beside one without, and how long a block takes at least"""
RESAMPLED = 200
WHAT_IF_S = 0.1
"""about as long as a what-if takes"""
_AMOUNTS = count(1000)
METRIC = b"cotenant_scheduler_decisions_total"
OTHER_PAGE = METRIC + b" 1\n" * 4_000
INTERVALS_S = 1.0, 0.1
"""Prometheus scrapes every 15 s or 60 s in most clusters"""
JUDGED_S = 1.0
MOST_STALL_MS, MOST_CPU_MS, MOST_SLOWER = 10.0, 100.0, 5.0
MOST_BESIDE_MS = 50.0

Pair = tuple[list[float], list[float]]
"""milliseconds of calls without and with the disturbance"""
Disturbance = Callable[[HTTPConnection], None]


@benchmark("see-cost")
def see_cost() -> Iterator[Figure]:
    """Measures the scrape of a full node, and the scheduler's calls beside scrapes."""
    for cost in COSTS:
        yield from cost()


# A scrape


def scraping() -> Iterator[Figure]:
    """A node with 250 tenants: their usage regions are read and the page is written anew each time."""
    count, cpu_ms, stalls_ms, alone = in_fresh_process(_pages).result
    how = _how(alone)
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


# The scheduler beside scrapes and what-ifs


def scheduling() -> Iterator[Figure]:
    """Calls of kube-scheduler while its metrics are scraped, against calls while those of another server are, in
    pairs of short blocks."""
    for every_s in INTERVALS_S:
        pairs, alone = in_fresh_process(_calls, _scrape, every_s, NODES, PAIRS).result
        how = _how(alone)
        for name, of in (("mean", statistics.mean), ("p99", p99)):
            base, seen = (of([ms for pair in pairs for ms in pair[side]]) for side in (0, 1))
            low, high = _interval(pairs, of)
            calls = sum(len(pair[1]) for pair in pairs)
            note = (
                f"{NODES:,} nodes, {calls:,} calls in {len(pairs)} blocks of {BLOCK_S:g} s, each beside one in which "
                "another server is scraped; "
                f"{seen:.3f} ms against {base:.3f}; 95 % of resampled pairs: {low:+.1f} to {high:+.1f} %; {how}"
            )
            about, more = f"filter, scraped every {every_s:g} s: {name}, slower", 100 * (seen / base - 1)
            if every_s == JUDGED_S:
                yield at_most(about, more, "%", limit=MOST_SLOWER, note=note)
            else:
                yield Figure(name=about, figure=more, unit="%", note=f"{note}; no Prometheus is set up like this")


def foreseeing() -> Iterator[Figure]:
    """Calls of kube-scheduler while a user asks what-if over HTTP, one question after the other."""
    pairs, alone = in_fresh_process(_calls, _ask_what_if, 0.0, MANY_NODES, FEWER_PAIRS).result
    without, beside = ([ms for pair in pairs for ms in pair[side]] for side in (0, 1))
    note = (
        f"{MANY_NODES:,} nodes, {len(beside):,} calls while what-ifs follow each other; worst {max(beside):.1f}; "
        f"without: p99 {p99(without):.1f}, worst {max(without):.1f}; {_how(alone)}"
    )
    yield at_most("filter during what-ifs, p99", p99(beside), "ms", limit=MOST_BESIDE_MS, note=note)


def _how(alone: bool) -> str:
    return "real-time class: other programs do not count" if alone else f"load {os.getloadavg()[0]:.0f}"


def _interval(pairs: Sequence[Pair], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """How much slower calls are in 95 % of samples that are drawn from the pairs of blocks with replacement."""
    chance, found = Random(1), list[float]()
    for _ in range(RESAMPLED):
        drawn = chance.choices(pairs, k=len(pairs))
        base, seen = (of([ms for pair in drawn for ms in pair[side]]) for side in (0, 1))
        found.append(100 * (seen / base - 1))
    found.sort()
    return found[RESAMPLED // 40], found[-1 - RESAMPLED // 40]


def _calls(disturb: Disturbance, every_s: float, nodes: int, pairs: int) -> tuple[list[Pair], bool]:
    """Pairs of blocks that follow each other, in random order: what is slow for a while is slow for both. In one block
    the scheduler is disturbed. In the other block a server that does nothing else is asked for as much, so that the
    difference is the cost for the scheduler, and not that of the process which asks: it shares the machine here only.
    Both blocks have the same requests."""
    alone, chance = undisturbed(), Random(2)
    found: list[Pair] = []
    with (
        cluster_server(nodes, nodes * PODS_PER_NODE, CALLS) as port,
        server_process(serve_scheduler, port) as message,
        server_process(serve_each, _answer_each) as other,
    ):
        started = Started(*message)
        with _beside(disturb, every_s) as aim_at:
            ask_all(Measured(started), nodes, range(BOUND))  # the first calls fill caches
            ask_all(Measured(started), nodes, range(BOUND, CALLS), bind=False)
            for _ in range(pairs):
                sides: dict[bool, list[float]] = {}
                for watched in chance.sample((False, True), 2):
                    measured, began = Measured(started), time.monotonic()
                    aim_at(started.port if watched else other)
                    while time.monotonic() - began < BLOCK_S:
                        ask_all(measured, nodes, range(BOUND, CALLS), bind=False)
                    aim_at(None)
                    sides[watched] = measured.ms["filter"]
                found.append((sides[False], sides[True]))
    return found, alone


@contextmanager
def _beside(disturb: Disturbance, every_s: float) -> Iterator[Callable[[int | None], None]]:
    """A process that disturbs the server at a port; yields what tells it the port. It is a process of its own, so that
    the client that measures is not slowed down itself."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_disturb, args=(disturb, every_s, theirs), daemon=True)
    process.start()

    def aim_at(port: int | None) -> None:
        ours.send(port)
        ours.recv()

    try:
        yield aim_at
    finally:
        process.terminate()
        process.join()


def _disturb(disturb: Disturbance, every_s: float, commands: Connection) -> None:
    chance, due = Random(3), 0.0
    connection: HTTPConnection | None = None
    while True:
        if commands.poll(None if connection is None else max(0.0, due - time.monotonic())):
            port = commands.recv()
            connection = None if port is None else HTTPConnection("127.0.0.1", port)
            due = time.monotonic() + chance.uniform(0, every_s)
            commands.send(port)
        elif connection is not None:
            disturb(connection)
            due += every_s


async def _answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request with a page that is as long as that of the scheduler."""
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(OTHER_PAGE), OTHER_PAGE))
        await writer.drain()


def _scrape(connection: HTTPConnection) -> None:
    connection.request("GET", "/metrics")
    if METRIC not in connection.getresponse().read():
        raise AssertionError("the scheduler serves no metrics")


def _ask_what_if(connection: HTTPConnection) -> None:
    wish = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": next(_AMOUNTS)}  # a second one of a kind is remembered
    pod = {"metadata": {"name": "what-if"}, "spec": {"containers": [{"name": "c", "resources": {"limits": wish}}]}}
    template = urlsafe_b64encode(json.dumps(pod).encode()).decode().rstrip("=")
    connection.request("GET", f"/whatif/default/{template}", headers={WHY_HEADER: BENCH_KEY})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise AssertionError(body)
    if body == OTHER_PAGE:
        time.sleep(WHAT_IF_S)


COSTS: tuple[Callable[[], Iterator[Figure]], ...] = (scraping, scheduling, foreseeing)
