# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the extender: the time of each call of kube-scheduler in a large cluster, and the time of a restart.

The complete scheduler runs and reads its cluster from an API server in another process. Its time is the CPU time of its
process; the wall-clock time is reported too, and depends on the other load of the machine.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.cluster_server import KINDS, NODE, cluster_server, new_kind, pod_object
from bench.harness import Figure, Usage, at_most, benchmark, in_fresh_process, p99
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import Application, application
from cotenant.kube.scheduler.process import CLIENT_LIMITS, Scheduler, ready
from cotenant.kube.settings import KubeSettings, SchedulerPart
from cotenant.sim.report.axes import Axis, linear
from cotenant.sim.report.plots import Line, Plot, draw

SIZES = 500, 1_000, 2_000, 5_000
LARGEST = SIZES[-1]
PODS_PER_NODE = 4
CALLS = 600
NEW = 25
"""among this number of pods, one has a new request, and one a request that no node can satisfy"""
SHORTLIST = 16
"""nodes that remain after filter, so that there is something to prioritize"""
VERBS = "filter", "prioritize", "bind"
LIMIT_MS = 3.0
PLOT = Path(__file__).parents[1] / "docs" / "images" / "extender-latency.svg"
OTHERS = "at 1,000 nodes: HAMi 105, gpushare 100"


class Took(NamedTuple):
    """Milliseconds of a call."""

    cpu: float
    passed: float


@dataclass(slots=True)
class Measured:
    """The times of all calls, and the cost of the start."""

    ms: dict[str, list[Took]] = field(default_factory=dict)
    ready_s: float = 0.0
    ready_cpu_s: float = 0.0


@benchmark("extender-latency")
def extender_latency() -> Iterator[Figure]:
    """Measures filter, prioritize and bind against the number of nodes (also drawn), and memory and a restart with the
    most nodes."""
    by_size: dict[int, Measured] = {}
    for nodes in SIZES:
        usage = _asked(nodes)
        by_size[nodes] = usage.result
        yield from _figures(usage.result, nodes, largest=nodes == LARGEST)
        if nodes == LARGEST:
            yield from _process(usage)
    PLOT.write_text(draw(_plot(by_size)) + "\n")


def _asked(nodes: int) -> Usage[Measured]:
    with cluster_server(nodes, nodes * PODS_PER_NODE, CALLS) as port:
        return in_fresh_process(measure, port, nodes)


def _process(usage: Usage[Measured]) -> Iterator[Figure]:
    yield at_most("memory", usage.peak_mib * 1.048576, "MB", limit=300, note="at most, of the whole process")
    ready = usage.result
    note = f"with {NODE['gpus']} GPUs a node; CPU {ready.ready_cpu_s:.2f} s; a second of it is given to agents"
    yield at_most("restart to ready", ready.ready_s, "s", limit=5, note=note)


def _figures(measured: Measured, nodes: int, *, largest: bool) -> Iterator[Figure]:
    where = f"{nodes:,} nodes"
    for call, calls in measured.ms.items():
        took = [one.cpu for one in calls]
        passed = [one.passed for one in calls]
        note = (
            f"CPU, of {len(took)}; median {statistics.median(took):.2f}, worst {max(took):.2f}; "
            f"passed: median {statistics.median(passed):.2f}, p99 {p99(passed):.2f}, load {os.getloadavg()[0]:.0f}"
        )
        if largest and call in VERBS:
            yield at_most(f"{call}, p99, {where}", p99(took), "ms", limit=LIMIT_MS, baseline=OTHERS, note=note)
        else:
            yield Figure(name=f"{call}, p99, {where}", figure=p99(took), unit="ms", note=note)


def _plot(by_size: Mapping[int, Measured]) -> Plot:
    lines = [
        Line(
            name=verb,
            points=[(nodes, p99([one.cpu for one in measured.ms[verb]])) for nodes, measured in by_size.items()],
            style=style,
        )
        for style, verb in enumerate(VERBS)
    ]
    highest = max(LIMIT_MS, *(y for line in lines for _, y in line.points))
    ticks = tuple((float(nodes), f"{nodes:,}") for nodes in SIZES)
    return Plot(
        slug="extender-latency",
        title="The extender's own time for a call",
        text=f"99th percentile of {CALLS} calls by nodes with {NODE['gpus']} GPUs and {PODS_PER_NODE} pods each.",
        x=Axis(label="nodes", low=0.0, high=float(LARGEST), ticks=ticks),
        y=linear("p99, ms of CPU", 0.0, highest, fit=True),
        lines=lines,
        reference=[(0.0, LIMIT_MS), (float(LARGEST), LIMIT_MS)],
        reference_name="target",
    )


def measure(port: int, nodes: int) -> Measured:
    """Sends the calls one after the other, as kube-scheduler does."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # a line for each pod, as in its log
        return asyncio.run(_measure(port, nodes))


async def _measure(port: int, nodes: int) -> Measured:
    measured, client = Measured(), Client(Access(host="127.0.0.1", port=port), CLIENT_LIMITS)
    start, began = time.monotonic(), time.process_time()
    settings = KubeSettings(scheduler=SchedulerPart(shortlist=SHORTLIST))
    scheduler = Scheduler(client, settings, ErrorLog())
    running = asyncio.create_task(scheduler.run())
    await ready(scheduler)
    asked = application(scheduler.for_kube_scheduler(), scheduler.errors)
    measured.ready_s, measured.ready_cpu_s = time.monotonic() - start, time.process_time() - began
    await _ask_all(asked, measured, nodes)
    running.cancel()
    await asyncio.wait([running])
    await client.close()
    return measured


async def _ask_all(asked: Application, measured: Measured, nodes: int) -> None:
    random = Random(7)
    names = [f"node-{i:05d}" for i in range(nodes)]
    for number in range(CALLS):
        pod = waiting_pod(number)
        at = random.randrange(nodes)  # kube-scheduler begins with another node each time
        args = {"Pod": pod, "NodeNames": names[at:] + names[:at]}
        kind = {NEW - 1: "new demand", NEW // 2: "refused"}.get(number % NEW)
        found = await _call(asked, measured, "filter", args, kind)
        if not found["NodeNames"]:
            continue
        scores = await _call(asked, measured, "prioritize", args | {"NodeNames": found["NodeNames"]})
        best = max(scores, key=lambda one: one["Score"])["Host"]
        about = pod["metadata"]
        bind = {"PodName": about["name"], "PodNamespace": about["namespace"], "PodUID": about["uid"], "Node": best}
        bound = await _call(asked, measured, "bind", bind)
        if bound["Error"]:
            raise AssertionError(bound["Error"])


def waiting_pod(number: int) -> dict[str, Any]:
    """The pods of the server; some of them request too much, or something new."""
    kind: Mapping[str, int] = KINDS[number % len(KINDS)]
    if number % NEW == NEW - 1:
        kind = new_kind(number)
    elif number % NEW == NEW // 2:
        kind = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": NODE["memory"] + 1 + number % 3}
    return pod_object(f"waiting-{number}", kind)


async def _call(asked: Application, measured: Measured, verb: str, args: object, kind: str | None = None) -> Any:
    body = json.dumps(args, separators=(",", ":")).encode()
    events: list[Any] = [
        {"type": "http.request", "body": body[at : at + 65536], "more_body": at + 65536 < len(body)}
        for at in range(0, len(body), 65536)
    ]
    events.reverse()
    answers: list[Any] = []

    async def receive() -> Any:
        return events.pop()

    async def send(event: Any) -> None:
        answers.append(event)

    scope = {"type": "http", "path": f"/{verb}", "method": "POST", "headers": ()}
    began, start = time.monotonic(), time.process_time()
    await asked(scope, receive, send)
    took = Took(1000 * (time.process_time() - start), 1000 * (time.monotonic() - began))
    measured.ms.setdefault(verb, []).append(took)
    if kind is not None:
        measured.ms.setdefault(f"{verb}, {kind}", []).append(took)
    answer = json.loads(answers[1]["body"])
    if answers[0]["status"] != 200:
        raise AssertionError(answers)
    return answer
