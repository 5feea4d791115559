# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of an agent: every pod with its own numbers, from its record, its region and the driver."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MIB_BYTES, MiB
from cotenant.kube.agent.allocating import slice_name
from cotenant.kube.agent.latency import Servers
from cotenant.kube.agent.metrics import AgentMetrics
from cotenant.kube.agent.training import Training
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Pod, PodContainer, PodSpec, PodStatus
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.kube.codec.isolation import ISOLATION, Isolation
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import MetricsPart
from cotenant.node.agent import Reported
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.node.devices.vendors import Vendor
from cotenant.node.region import GpuUse, ProcessIdentity
from cotenant.wire.agent import Steps
from tests.kube.agent_node.test_members import DEVICES, GPU, LONE, MAIN, ONE, OTHER, World
from tests.metrics.nodes import values
from tests.node.regions import claim, write_slot

MIB = MIB_BYTES


def placed(
    name: str,
    uid: str,
    *,
    memory: int,
    limit: int = 0,
    compute: int = 0,
    phase: str = "Running",
    isolation: str = "enforced",
) -> Pod:
    share = Share(gpu="GPU-a", memory=memory, compute=compute, memory_limit=limit)
    record = Record(pod=uid, node="n1", containers=(Held(number=0, gpus=(share,)),))
    notes = {RECORD: encode_record(record), ISOLATION: isolation}
    return Pod(
        metadata=Metadata(name=name, namespace="team", uid=uid, annotations=notes),
        spec=PodSpec(node_name="n1", containers=(PodContainer(name="main"),)),
        status=PodStatus(phase=phase),
    )


class Node:
    """Two pods on one GPU; the first has a process with a region."""

    def __init__(self, folder: Path, stack: ExitStack, *, hami: bool = False) -> None:
        self.world = World(folder)
        self.world.pods = [
            placed("one", ONE, memory=4000, compute=300),
            placed("two", OTHER, memory=1000, limit=3000, isolation="none"),
            placed("over", "e" * 36, memory=10, phase="Succeeded"),
        ]
        self.world.start(4001, 1, ONE, MAIN)
        region = self.world.host.regions.seen / slice_name(GPU, [DEVICES[MAIN]])
        stack.callback(os.close, claim(region, 0))
        use = GpuUse(1200 * MIB, 0, 1300 * MIB, 2, 9, 4_000_000_000, 500_000_000)
        write_slot(region, 0, ProcessIdentity(1, 0, 12345), [use])
        with open(region, "r+b") as file:
            file.seek(24)
            file.write((1).to_bytes(4, "little"))  # one GPU
            file.seek(40 + 8 * 16)
            file.write(b"GPU-a")
        process = ProcessUsage(4001, MiB(1500), None)
        self.usage = [GpuUsage(uuid="GPU-a", used_mib=MiB(1500), utilisation=40, processes=(process,))]
        self.world.members.update(self.usage)
        self.errors = ErrorLog(self.world.said.append)
        pods = lambda: self.world.pods  # noqa: E731
        machine = Machine(name="n1", gpus=(Gpu(uuid="GPU-a", type="A100", memory=MiB(40960), slots=16),))
        self.metrics = AgentMetrics(
            "n1",
            Settings(isolation=Isolation.OPTIONAL),
            machine=lambda: machine,
            vendor=lambda: Vendor.NVIDIA,
            usage=lambda: self.usage,
            pods=pods,
            slices=self.world.members.slices,
            regions=self.world.host.regions.seen,
            training=Training(pods, lambda: machine, None, lambda job, message: None, report=print),  # type: ignore[arg-type]
            servers=Servers(pods, lambda text: None),
            errors=self.errors.counts,
            drifting=lambda: 1,
            hami=hami,
            proc=self.world.proc,
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))


def test_pods_have_their_own_numbers_and_ended_pods_have_none(folder: Path, stack: ExitStack) -> None:
    node = Node(folder, stack)
    node.metrics.handle(Reported(job=ONE, at=1.0, steps=Steps(n=5, wall_s=1, busy_s=0.5, samples=320, batch=64)))
    text = asyncio.run(node.metrics.page.text())
    limits = values(text, "cotenant_tenant_memory_limit_bytes")
    assert limits == {"GPU-a n1 one team": 4000 * MIB, "GPU-a n1 two team": 3000 * MIB}
    requests = values(text, "cotenant_tenant_memory_request_bytes")
    assert requests == {"GPU-a n1 one team": 4000 * MIB, "GPU-a n1 two team": 1000 * MIB}
    assert values(text, "cotenant_tenant_memory_used_bytes")["GPU-a n1 one team"] == 1500 * MIB
    assert values(text, "cotenant_tenant_memory_recorded_bytes")["GPU-a n1 one team"] == 1200 * MIB
    assert values(text, "cotenant_tenant_memory_context_bytes")["GPU-a n1 one team"] == 300 * MIB
    assert values(text, "cotenant_tenant_device_seconds_total") == {"GPU-a n1 one team": 4, "GPU-a n1 two team": 0}
    assert values(text, "cotenant_tenant_throttled_seconds_total")["GPU-a n1 one team"] == 0.5
    assert values(text, "cotenant_tenant_refused_allocations_total")["GPU-a n1 one team"] == 2
    assert values(text, "cotenant_tenant_samples_total") == {"n1 one team": 320, "n1 two team": 0}
    assert set(values(text, "cotenant_tenant_isolation_info")) == {"n1 preload one team", "n1 none two team"}
    assert values(text, "cotenant_gpu_memory_allocated_bytes") == {"GPU-a n1": 5000 * MIB}
    assert values(text, "cotenant_gpu_tenants") == {"GPU-a n1": 2}
    assert values(text, "cotenant_node_kubelet_drift_pods") == {"n1": 1}


def test_hami_names_are_there_only_if_they_are_wanted(folder: Path, stack: ExitStack) -> None:
    node = Node(folder, stack, hami=True)
    text = asyncio.run(node.metrics.page.text())
    assert values(text, "vGPU_device_memory_limit_in_bytes")["main GPU-a n1 one team 0"] == 4000 * MIB
    assert values(text, "hami_vgpu_memory_used_bytes")["main GPU-a team n1 one 0"] == 1500 * MIB
    node.metrics.page._hami = False
    node.metrics.page._made = float("-inf")
    assert b"vGPU" not in asyncio.run(node.metrics.page.text())


def test_the_page_is_served_until_the_agent_stops(folder: Path, stack: ExitStack) -> None:
    node = Node(folder, stack)

    async def scraped() -> bytes:
        stop, port = asyncio.Event(), free_port()
        serving = asyncio.create_task(
            node.metrics.serve(MetricsPart(port=port, address="127.0.0.1"), node.errors, stop)
        )
        reader = writer = None
        while writer is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
        assert reader is not None
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        stop.set()
        await serving
        return answer

    answer = asyncio.run(scraped())
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: text/plain; version=0.0.4" in answer
    assert b"\ncotenant_gpu_healthy{" in answer


def test_a_port_that_is_off_or_in_use_leaves_the_agent_alone(folder: Path, stack: ExitStack) -> None:
    node = Node(folder, stack)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for port in (0, taken.getsockname()[1]):
            part = MetricsPart(port=port, address="127.0.0.1")
            asyncio.run(node.metrics.serve(part, node.errors, asyncio.Event()))
    (line,) = node.world.said
    assert "metrics.port" in line


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_slice_belongs_to_the_pod_whose_processes_have_it(folder: Path) -> None:
    world = World(folder)
    world.start(4001, 1, ONE, MAIN)
    world.start(4004, 1, OTHER, LONE)
    processes = tuple(ProcessUsage(pid, MiB(1), None) for pid in (4001, 4004))
    world.members.update([GpuUsage(uuid="GPU-a", used_mib=None, utilisation=None, processes=processes)])
    assert world.members.slices() == {
        ONE: [slice_name(GPU, [DEVICES[MAIN]])],
        OTHER: [slice_name(GPU, [DEVICES[LONE]])],
    }
