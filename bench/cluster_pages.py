# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the pages of a large cluster cost: 64 nodes with 8 GPUs each and 2,000 pods, while pods come and go."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_most, benchmark, peak_mib
from cotenant.web.kube.picture import Sight
from tests.kube.control_plane import until
from tests.kube.http import ask, connect
from tests.kube.process import ANY_PORT, a_process, kubeconfig, ports_of, until_listening
from tests.web.kube.world import ADMIN, Cluster, large_cluster, some_pages

VIEWERS = 5
CHANGES_PER_S = 5.0
MEASURED_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")


@benchmark("cluster-pages")
def cluster_pages() -> Iterator[Figure]:
    anew_ms, one_ms = asyncio.run(_snapshots())
    yield at_most(
        "overview after a change of one pod, CPU",
        one_ms,
        "ms",
        limit=50,
        baseline=f"all nodes anew {anew_ms:.0f}",
        note="64 nodes x 8 GPUs, 2,000 pods",
    )
    alone, viewed, quiet, peak = asyncio.run(_process())
    yield at_most(
        f"{VIEWERS} viewers, {CHANGES_PER_S:g} pods/s, CPU of a core",
        viewed - alone,
        "%",
        limit=5,
        baseline=f"no viewers {alone:.1f}",
        note="what the viewers add; of the overview of 64 nodes x 8 GPUs with 2,000 pods",
    )
    yield at_most(f"{VIEWERS} viewers, no changes, CPU of a core", quiet, "%", limit=1)
    yield at_most("memory of the process", peak, "MiB", limit=400)


async def _snapshots() -> tuple[float, float]:
    """CPU milliseconds of an overview of which all is new, and of one after a change of one pod."""
    cluster = large_cluster()
    async with some_pages(cluster) as pages:
        picture, watch, sight = pages.parts.source._picture, pages.parts.watch, Sight(None, True, None)
        await asyncio.sleep(5)  # until the profiles are taken in
        await picture.overview(sight)
        watch.changed_nodes.update(watch.state.vendors)
        began = time.process_time()
        await picture.overview(sight)
        anew = time.process_time() - began
        costs = []
        for number in range(40):
            cluster.add_pod("team-03", f"new-{number}", f"node-{number:02d}", 3)
            await until(lambda number=number: ("team-03", f"new-{number}") in watch.pods)  # type: ignore[misc]
            began = time.process_time()
            await picture.overview(sight)
            costs.append(time.process_time() - began)
        return 1000 * anew, 1000 * sorted(costs)[len(costs) // 2]


async def _process() -> tuple[float, float, float, float]:
    """CPU in percent of a core without viewers, with viewers, and with viewers while nothing changes; MiB."""
    cluster = large_cluster()
    cluster.users[""] = "pages"  # without TLS no token is sent
    with tempfile.TemporaryDirectory() as folder:
        async with cluster.serving():
            config = kubeconfig(Path(folder), cluster.port)
            words = ("--listen", ANY_PORT, "--kubeconfig", config)
            async with a_process(*words, program="web", longest_s=None) as process:
                (port,) = await ports_of(process)
                await until_listening(port)
                while (await ask(port, "GET", "/readyz")).status != 200:
                    await asyncio.sleep(0.2)
                await ask(port, "GET", "/", headers={"Authorization": f"Bearer {ADMIN}"})  # what is computed once
                await asyncio.sleep(25)
                alone = await _percent(process.pid, cluster, CHANGES_PER_S)
                seen = [0] * VIEWERS
                viewers = [asyncio.create_task(_view(port, seen, number)) for number in range(VIEWERS)]
                await asyncio.sleep(5)
                first = list(seen)
                viewed = await _percent(process.pid, cluster, CHANGES_PER_S)
                assert all(now > before for now, before in zip(seen, first, strict=True)), "a page did not change"
                quiet = await _percent(process.pid, cluster, 0.0)
                assert not any(one.done() for one in viewers), "a stream ended"
                for one in viewers:
                    one.cancel()
                await asyncio.wait(viewers)
                return alone, viewed, quiet, peak_mib(process.pid)


async def _percent(pid: int, cluster: Cluster, changes_per_s: float) -> float:
    """CPU of a process over some seconds, while so many pods per second come or go."""
    began, before, number = time.monotonic(), _cpu_s(pid), 0
    while time.monotonic() - began < MEASURED_S:
        if not changes_per_s:
            await asyncio.sleep(1)
            continue
        name, node = f"brief-{number % 50}", f"node-{number % 64:02d}"
        if ("team-01", name) in cluster.pods:
            cluster.remove(name, "team-01")
        else:
            cluster.add_pod("team-01", name, node, 5)
        number += 1
        await asyncio.sleep(1 / changes_per_s)
    return 100 * (_cpu_s(pid) - before) / (time.monotonic() - began)


async def _view(port: int, seen: list[int], number: int) -> None:
    """An open overview; counts the bytes that it receives."""
    reader, writer = await connect(port)
    head = f"GET /live/overview/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
    writer.write(head.encode())
    try:
        while piece := await reader.read(1 << 20):
            seen[number] += len(piece)
    finally:
        writer.transport.abort()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
