# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What GPUs and pods use, read from the metrics of agents; an agent that says nonsense or nothing is harmless."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cotenant.kube.api.names import AGENT, NAMESPACE, labels_of
from cotenant.kube.settings import KubeSettings, MetricsPart
from cotenant.metrics import table
from cotenant.web.kube.agents import WANTED, Reading, TenantKey, parse
from tests.kube.control_plane import until
from tests.web.kube.world import ADMIN, ALICE, Cluster, Pages, shared_cluster, some_pages

GIB = 1024**3
PAGE = f"""\
# HELP cotenant_gpu_memory_used_bytes Memory in use, as the driver reports it.
# TYPE cotenant_gpu_memory_used_bytes gauge
cotenant_gpu_memory_used_bytes{{node="n1",gpu="GPU-n1-0"}} {6 * GIB}.0
cotenant_gpu_utilization_ratio{{node="n1",gpu="GPU-n1-0"}} 0.876
cotenant_gpu_temperature_celsius{{node="n1",gpu="GPU-n1-0"}} 61.0
cotenant_gpu_power_watts{{node="n1",gpu="GPU-n1-0"}} 212.4
cotenant_tenant_memory_limit_bytes{{node="n1",gpu="GPU-n1-0",tenant_namespace="a",tenant="train"}} +Inf
cotenant_tenant_memory_used_bytes{{node="n1",gpu="GPU-n1-0",tenant_namespace="a",tenant="train"}} {3 * GIB}.0
cotenant_tenant_compute_got_ratio{{node="n1",gpu="GPU-n1-0",tenant_namespace="a",tenant="train"}} 0.42
cotenant_tenant_memory_used_bytes{{node="n1",gpu="GPU-n2-1",tenant_namespace="b",tenant="hidden-job"}} {7 * GIB}.0
"""


def test_the_names_are_those_of_the_table_of_metrics() -> None:
    names = {one.name for one in table.GPU} | {one.name for one in table.TENANT_GPU}
    assert {name.removeprefix("cotenant_") for name in WANTED} <= {name.removeprefix("cotenant_") for name in names}


def test_figures_are_read_in_the_units_of_the_pages() -> None:
    found = parse(PAGE.encode())
    assert found.gpus["GPU-n1-0"] == (6144, 88.0, 61, 212)
    assert found.tenants[TenantKey("a/train", "GPU-n1-0")] == (3072, 420)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\xff\xfe\x00",
        b"cotenant_gpu_power_watts",
        b"cotenant_gpu_power_watts{",
        b'cotenant_gpu_power_watts{gpu="a"} NaN',
        b'cotenant_gpu_power_watts{gpu="a"} 1e999',
        b'cotenant_gpu_power_watts{gpu="a"} --1',
        b'cotenant_gpu_power_watts{gpu="a\\"b"} 1 2 3',
        b"<html>" * 1000,
    ],
)
def test_nonsense_is_nothing(page: bytes) -> None:
    assert parse(page) == Reading()


@asynccontextmanager
async def an_agent(page: str) -> AsyncIterator[int]:
    """A port at which an agent answers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def add_agent(cluster: Cluster, node: str, address: str) -> None:
    about = {"namespace": NAMESPACE, "uid": f"agent-{node}", "labels": dict(labels_of(AGENT))}
    cluster.merge(
        f"agent-{node}",
        {"metadata": about, "spec": {"nodeName": node}, "status": {"phase": "Running", "podIP": address}},
        NAMESPACE,
    )


def test_pages_show_what_an_agent_measured_on_its_own_node() -> None:
    async def story() -> None:
        cluster = shared_cluster()
        add_agent(cluster, "n1", "127.0.0.1")
        async with an_agent(PAGE) as port:
            settings = KubeSettings(metrics=MetricsPart(port=port))
            async with some_pages(cluster, settings=settings) as pages:
                await until(lambda: pages.parts.watch.agents.readings)
                overview = await pages.text("/", ADMIN)
                assert "88 %" in overview
                job = await pages.text("/jobs/a/train", ALICE)
                assert "3 GiB" in job
                other = await pages.text("/jobs/b/hidden-job", ADMIN)
                assert "7 GiB" not in other  # that pod is on another node, of which this agent knows nothing
                await loses_its_agent(pages)

    async def loses_its_agent(pages: Pages) -> None:
        pages.cluster.remove("agent-n1", NAMESPACE)
        pages.parts.watch.agents._every_s = 0.01
        await until(lambda: ("cotenant-system", "agent-n1") not in pages.parts.watch._pods.objects)
        await pages.parts.watch.agents._turn()
        assert "3 GiB" not in await pages.text("/jobs/a/train", ALICE)

    asyncio.run(story())


def test_agents_that_cannot_be_reached_are_counted_for_those_who_may_list_nodes() -> None:
    async def story() -> None:
        cluster = shared_cluster()
        add_agent(cluster, "n1", "127.0.0.1")
        settings = KubeSettings(metrics=MetricsPart(port=1))
        async with some_pages(cluster, settings=settings) as pages:
            await pages.parts.watch.agents._turn()
            assert "1 agent cannot be reached at port 1" in await pages.text("/", ADMIN)
            assert "cannot be reached" not in await pages.text("/", ALICE)

    asyncio.run(story())
