# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent costs its node: nothing to speak of while nothing happens, and little of a pod's start."""

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from bench.daemon import cpu_seconds, memory_mib
from bench.harness import Figure, at_most, benchmark
from cotenant.core.model import Machine
from cotenant.kube.access import Access
from cotenant.kube.agent.allocating import HostPlaces, at
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.running import Agent, AgentOptions
from cotenant.kube.inventory import machine_of
from cotenant.kube.objects import decode_node
from cotenant.kube.settings import KubeSettings
from tests.kube.agent.kubelet import Kubelet, kubelet_in, until
from tests.kube.agent_node.waiting import add_pod
from tests.kube.api_server import ApiServer
from tests.kube.worlds import GPU

PODS = 110
"""as many as kubelet takes"""
CARDS = 8
IDLE_S = 20.0


@benchmark("agent-load")
def agent_load() -> Iterator[Figure]:
    """A node is filled at once, then nothing happens on it."""
    took, alone, full, idle = asyncio.run(_measured())
    note = f"{PODS} pods bound at once, asked one after the other as kubelet does; median {statistics.median(took):.2f}"
    yield at_most("Allocate, p99", statistics.quantiles(took, n=100)[98], "ms", limit=10, note=note)
    yield at_most(f"idle, memory with {PODS} pods", full, "MB", limit=80, note=f"{alone:.0f} without pods")
    note = f"over {IDLE_S:g} s; {CARDS} simulated cards"
    yield at_most(f"idle, of a core, with {PODS} pods", 100 * idle, "%", limit=2, note=note)


async def _measured() -> tuple[list[float], float, float, float]:
    """Milliseconds of each Allocate, megabytes before and after, and the part of a core when all is done."""
    with TemporaryDirectory(prefix="agent") as name:
        folder, server = Path(name), ApiServer()
        server.nodes.merge("n1", {"status": {}})
        async with server.serving(), kubelet_in(folder / "k") as kubelet, _agent(folder, server.port) as pid:
            await until(lambda: len(kubelet.devices.get(GPU, [])) >= PODS)
            await until(lambda: _machine(server) is not None)
            machine = _machine(server)
            assert machine is not None
            alone = memory_mib(pid) * 1.048576
            for number in range(PODS):
                add_pod(server, f"pod-{number}", f"uid-{number}", machine, phase="Pending", gpu=number % CARDS)
            took = await _allocated(kubelet)
            await asyncio.sleep(5)  # what is said of them is written
            before = cpu_seconds(pid)
            await asyncio.sleep(IDLE_S)
            return took, alone, memory_mib(pid) * 1.048576, (cpu_seconds(pid) - before) / IDLE_S


async def _allocated(kubelet: Kubelet) -> list[float]:
    devices = [device.ID for device in kubelet.devices[GPU]][:PODS]
    took = []
    address = f"unix:{kubelet.plugins / kubelet.registered[GPU].endpoint}"
    async with grpc.aio.insecure_channel(address) as channel:
        allocate = channel.unary_unary(
            "/v1beta1.DevicePlugin/Allocate",
            request_serializer=pb.AllocateRequest.SerializeToString,
            response_deserializer=pb.AllocateResponse.FromString,
        )
        for device in devices:
            asked = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
            start = time.perf_counter()
            await allocate(asked, timeout=10)
            took.append(1000 * (time.perf_counter() - start))
    return took


def _machine(server: ApiServer) -> Machine | None:
    found = machine_of(decode_node(json.dumps(server.nodes.pods["", "n1"]).encode()))
    return None if found is None else found[0]


@asynccontextmanager
async def _agent(folder: Path, port: int) -> AsyncIterator[int]:
    """The process id of an agent."""
    process = multiprocessing.get_context("spawn").Process(target=_run_agent, args=(folder, port), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.terminate()
        process.join()


def _run_agent(folder: Path, port: int) -> None:
    host = HostPlaces(lasting=at(folder / "l"), passing=at(folder / "p"), kubelet=folder / "k", cdi=folder / "c")
    options = AgentOptions(node="n1", host=host, simulate=CARDS, gpu_memory="40GiB")
    asyncio.run(Agent(options, KubeSettings(), Access(host="127.0.0.1", port=port)).run())
