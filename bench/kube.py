# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of watching the pods of a cluster, which the scheduler does all the time."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from bench.harness import Figure, at_most, benchmark, in_fresh_process, serve_each, server_process
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Pace, Reflector

PODS = 5_000
EVENTS = 20_000
ROUNDS = 5
ELSEWHERE = "elsewhere: measured on a machine of this class with pods of about this size, before this was written"


@benchmark("watch-cost")
def watch_cost() -> Iterator[Figure]:
    """Measures the CPU time of this process for an event and for a list; the server is another process."""
    with server_process(serve) as port:
        events, lists = zip(*(asyncio.run(one_round(port)) for _ in range(ROUNDS)), strict=True)
        usage = in_fresh_process(list_once, port)
    size = len(json.dumps(pod(0)))
    note = f"median of {ROUNDS}, with the reflector's view; pods of {size} bytes; {ELSEWHERE}"
    others = "lightkube 35, kubernetes 239, kr8s 633"
    yield at_most(
        "one event of a watch, CPU", 1e6 * statistics.median(events), "µs", limit=35, baseline=others, note=note
    )
    others = "lightkube 0.55, kr8s 5.3"
    note = f"median of {ROUNDS}, in parts of 500; {ELSEWHERE}"
    yield at_most(f"list of {PODS:,} pods, CPU", statistics.median(lists), "s", limit=0.55, baseline=others, note=note)
    others = "lightkube 107, kr8s 783"
    yield at_most(f"memory with {PODS:,} pods", usage.peak_mib, "MiB", limit=107, baseline=others, note=ELSEWHERE)
    note = "median of 9, beyond Python's own; the others as in docs/decisions/0010-the-watch-is-ours.md"
    others = "lightkube 320, httpx 235"
    yield Figure(name="import, CPU", figure=import_milliseconds(), unit="ms", baseline=others, note=note)


async def one_round(port: int) -> tuple[float, float]:
    """CPU seconds for each event, and for the initial list."""
    client = Client(Access(host="127.0.0.1", port=port))
    start = time.process_time()
    reflector = Reflector(client, Kind("pods", Pod), lambda old, new: None, pace=Pace(watches_s=60))
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), 60)
    listed = time.process_time() - start
    while reflector.counts["events"] < EVENTS and not task.done():
        await asyncio.sleep(0.05)
    watched = time.process_time() - start - listed
    task.cancel()
    await asyncio.wait([task])
    await client.close()
    return watched / EVENTS, listed


def list_once(port: int) -> int:
    """Number of pods, with all of them in memory."""

    async def all_pods() -> int:
        client = Client(Access(host="127.0.0.1", port=port))
        pods = [one async for page in client.pages(Kind("pods", Pod)) for one in page.items]
        await client.close()
        return len(pods)

    return asyncio.run(all_pods())


def import_milliseconds() -> float:
    code = "import time; t = time.process_time(); import cotenant.kube.api.reflector; print(time.process_time() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs) * 1000


# An in-memory server in a separate process


def pod(number: int) -> dict[str, object]:
    """A pod as large as a small one of a real cluster, with many fields that the scheduler does not read."""
    fields: dict[str, dict[str, str]] = {f"f:field-{number}": {} for number in range(60)}
    env = [{"name": f"VARIABLE_{number}", "value": "value" * 3} for number in range(12)]
    conditions = [{"type": f"T{i}", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"} for i in range(5)]
    return {
        "metadata": {
            "name": f"pod-{number % PODS}",
            "namespace": "default",
            "uid": f"uid-{number % PODS}",
            "resourceVersion": str(100 + number),
            "labels": {f"label-{number}": "value" for number in range(8)},
            "annotations": {"example.com/text": "x" * 400},
            "managedFields": [{"manager": "kubelet", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": f"node-{number % 100}",
            "containers": [{"name": "main", "image": "image", "env": env, "resources": {"limits": {"cpu": "1"}}}],
        },
        "status": {"phase": "Running", "conditions": conditions},
    }


def serve(parent: Connection) -> None:
    """Serves pages of all pods, and a watch on which each pod changes four times."""
    pages = [_page(start) for start in range(0, PODS, 500)]
    lines = [json.dumps({"type": "MODIFIED", "object": pod(PODS + n)}).encode() + b"\n" for n in range(EVENTS)]
    chunks = [b"%x\r\n%s\r\n" % (len(line), line) for line in lines]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            if b"watch=1" in request:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for chunk in chunks:  # each by itself, as they happen
                    writer.write(chunk)
                    await writer.drain()
                await reader.read()
                return
            _, found, rest = request.partition(b"continue=")
            body = pages[int(rest.split()[0]) if found else 0]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    serve_each(parent, answer)


def _page(start: int) -> bytes:
    more = {"continue": str(start // 500 + 1)} if start + 500 < PODS else {}
    items = [pod(number) for number in range(start, start + 500)]
    return json.dumps(
        {"kind": "PodList", "metadata": {"resourceVersion": str(100 + PODS - 1)} | more, "items": items}
    ).encode()
