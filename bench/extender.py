# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the extender: how long kube-scheduler waits for each of its calls in a large cluster, and the time of a
restart.

The complete scheduler runs in a process of its own with the settings that we install, serves a socket, and reads its
cluster from an API server in a third process. The time is that of the client, from the request to the whole response.
With these settings filter answers one node, so kube-scheduler does not call prioritize.

Pods that no node can take, and pods with a request that was never seen before, are counted apart from the others: a
refusal names the reason of every node, and a new request is compared with every node.

The targets are stricter than what a large cluster needs. Kubernetes' own scalability tests create 100 pods per second
with 5,000 nodes and fail if kube-scheduler places fewer than 90 (the density test of kubernetes/perf-tests).
kube-scheduler places one pod after the other and waits for filter each time. Of the 11.1 ms for a pod it needs 7.5 ms
itself (decision 0014), so filter may take 3.5 ms on average.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any, NamedTuple

import uvloop

from bench.cluster_server import KINDS, NODE, cluster_server, new_kind, pod_object
from bench.harness import Figure, at_most, benchmark, in_fresh_process, p99, peak_mib, server_process, undisturbed
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import Listener, application, listen, serve_all
from cotenant.kube.scheduler.process import CLIENT_LIMITS, ready
from cotenant.kube.scheduler.scheduler import Scheduler
from cotenant.kube.settings import KubeSettings
from cotenant.sim.report.axes import Axis, linear
from cotenant.sim.report.plots import Line, Plot, draw

SIZES = 500, 1_000, 2_000, 5_000
LARGEST = SIZES[-1]
COMPARED = 1_000
"""nodes for which others published a figure"""
PODS_PER_NODE = 4
CALLS = 600
NEW = 25
"""among this number of pods, one has a new request, and one a request that no node can satisfy"""
VERBS = "filter", "bind"
LIMIT_MS, RARE_MS = 2.5, 5.0
MEAN_MS = 3.5
"""targets with the most nodes: of 99 of 100 calls, of refusals and new requests, and of filter on average"""
REFUSED, NEW_DEMAND = "refused", "new demand"
PLOT = Path(__file__).parents[1] / "docs" / "images" / "extender-latency.svg"
OTHERS = {"filter": "HAMi, filter at 1,000 nodes: 105"}
"""of the same verb, also measured by its client"""


BENCH_KEY = "bench"
"""with which the scheduler is asked what-if"""


class Started(NamedTuple):
    """What the process of the scheduler says when it is ready."""

    port: int
    pid: int
    ready_s: float
    ready_cpu_s: float


@dataclass(slots=True)
class Measured:
    """The milliseconds of all calls by verb, refusals and new requests apart, and the cost of the process."""

    started: Started
    ms: dict[str, list[float]] = field(default_factory=dict)
    peak_mib: float = 0.0
    cpu_ms: float = 0.0
    """of the scheduler, for each call on average"""


@benchmark("extender-latency")
def extender_latency() -> Iterator[Figure]:
    """Measures filter and bind against the number of nodes (also drawn), and memory and a restart with the most
    nodes."""
    by_size: dict[int, Measured] = {}
    for nodes in SIZES:
        by_size[nodes], alone = in_fresh_process(measure, nodes).result
        yield from _figures(by_size[nodes], nodes, alone=alone, largest=nodes == LARGEST)
    yield from _process(by_size[LARGEST])
    PLOT.write_text(draw(_plot(by_size)) + "\n")


def _process(found: Measured) -> Iterator[Figure]:
    yield at_most("memory", found.peak_mib * 1.048576, "MB", limit=300, note="at most, of the whole process")
    ready = found.started
    note = f"with {NODE['gpus']} GPUs a node; CPU {ready.ready_cpu_s:.2f} s; a second of it is given to agents"
    yield at_most("restart to ready", ready.ready_s, "s", limit=5, note=note)


def _figures(measured: Measured, nodes: int, *, alone: bool, largest: bool) -> Iterator[Figure]:
    how = "real-time class: other programs do not count" if alone else f"load {os.getloadavg()[0]:.0f}"
    for call, took in measured.ms.items():
        note = (
            f"over a socket, of {len(took)}; median {statistics.median(took):.2f}, worst {max(took):.2f}; "
            f"CPU of the scheduler {measured.cpu_ms:.2f} ms a call; {how}"
        )
        name, baseline = f"{call}, p99, {nodes:,} nodes", OTHERS.get(call) if nodes == COMPARED else None
        if largest:
            limit = LIMIT_MS if call in VERBS else RARE_MS
            yield at_most(name, p99(took), "ms", limit=limit, baseline=baseline, note=note)
        else:
            yield Figure(name=name, figure=p99(took), unit="ms", baseline=baseline, note=note)
    if largest:
        mean = statistics.mean(took for call, all_ in measured.ms.items() if call.startswith("filter") for took in all_)
        yield at_most(f"filter, mean, {nodes:,} nodes", mean, "ms", limit=MEAN_MS, note=how)


def _plot(by_size: Mapping[int, Measured]) -> Plot:
    lines = [
        Line(
            name=verb,
            points=[(nodes, p99(measured.ms[verb])) for nodes, measured in by_size.items()],
            style=style,
        )
        for style, verb in enumerate(VERBS)
    ]
    highest = max(LIMIT_MS, *(y for line in lines for _, y in line.points))
    ticks = tuple((float(nodes), f"{nodes:,}") for nodes in SIZES)
    return Plot(
        slug="extender-latency",
        title="How long kube-scheduler waits for a call of the extender",
        text=f"99th percentile of {CALLS} calls by nodes with {NODE['gpus']} GPUs and {PODS_PER_NODE} pods each.",
        x=Axis(label="nodes", low=0.0, high=float(LARGEST), ticks=ticks),
        y=linear("p99, ms", 0.0, highest, fit=True),
        lines=lines,
        reference=[(0.0, LIMIT_MS), (float(LARGEST), LIMIT_MS)],
        reference_name="target",
    )


def measure(nodes: int) -> tuple[Measured, bool]:
    """Sends the calls one after the other, as kube-scheduler does; also says whether other programs do not count."""
    alone = undisturbed()
    with (
        cluster_server(nodes, nodes * PODS_PER_NODE, CALLS) as port,
        server_process(serve_scheduler, port) as message,
    ):
        measured = Measured(Started(*message))
        before = _cpu_s(measured.started.pid)
        ask_all(measured, nodes)
        calls = sum(map(len, measured.ms.values()))
        measured.cpu_ms = 1000 * (_cpu_s(measured.started.pid) - before) / calls
        measured.peak_mib = peak_mib(measured.started.pid)
    return measured, alone


def serve_scheduler(parent: Connection, port: int) -> None:
    """The main function of the scheduler's process."""
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stderr(nowhere),  # a line for each pod, as in its log
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,  # as the scheduler itself
    ):
        runner.run(_serve_scheduler(parent, port))


async def _serve_scheduler(parent: Connection, port: int) -> None:
    start, began = time.monotonic(), time.process_time()
    client = Client(Access(host="127.0.0.1", port=port), CLIENT_LIMITS)
    scheduler = Scheduler(client, KubeSettings(), ErrorLog())
    routes = {**scheduler.for_operators(BENCH_KEY.encode), **scheduler.for_kube_scheduler()}
    listener = Listener(listen("127.0.0.1", 0), application(routes, scheduler.errors))
    async with asyncio.TaskGroup() as group:
        group.create_task(scheduler.run())
        group.create_task(serve_all([listener], asyncio.Event()))
        await ready(scheduler)
        spent = time.monotonic() - start, time.process_time() - began
        parent.send((listener.bound.getsockname()[1], os.getpid(), *spent))


def _cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def ask_all(measured: Measured, nodes: int, pods: Iterable[int] = range(CALLS), *, bind: bool = True) -> None:
    """Has these pods placed, one after the other; without `bind` they stay where they are, and can be asked about
    again."""
    random = Random(7)
    names = [f"node-{i:05d}" for i in range(nodes)]
    connection = HTTPConnection("127.0.0.1", measured.started.port, timeout=60)
    connection.connect()
    connection.sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # as Go's client does
    for number in pods:
        pod = waiting_pod(number)
        at = random.randrange(nodes)  # kube-scheduler begins with another node each time
        args = {"Pod": pod, "NodeNames": names[at:] + names[:at]}
        kind = {NEW - 1: NEW_DEMAND, NEW // 2: REFUSED}.get(number % NEW)
        found = _call(connection, measured, "filter", args, kind)
        if not found["NodeNames"] or not bind:
            continue
        (best,) = found["NodeNames"]
        about = pod["metadata"]
        binding = {"PodName": about["name"], "PodNamespace": about["namespace"], "PodUID": about["uid"], "Node": best}
        bound = _call(connection, measured, "bind", binding)
        if bound["Error"]:
            raise AssertionError(bound["Error"])
    connection.close()


def waiting_pod(number: int) -> dict[str, Any]:
    """The pods of the server; some of them request too much, or something new."""
    kind: Mapping[str, int] = KINDS[number % len(KINDS)]
    if number % NEW == NEW - 1:
        kind = new_kind(number)
    elif number % NEW == NEW // 2:
        kind = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": NODE["memory"] + 1 + number % 3}
    return pod_object(f"waiting-{number}", kind)


def _call(connection: HTTPConnection, measured: Measured, verb: str, args: object, kind: str | None = None) -> Any:
    body = json.dumps(args, separators=(",", ":")).encode()
    began = time.monotonic()
    connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = 1000 * (time.monotonic() - began)
    measured.ms.setdefault(verb if kind is None else f"{verb}, {kind}", []).append(took)
    if response.status != 200:
        raise AssertionError(answer)
    return json.loads(answer)
