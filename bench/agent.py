# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the load of an agent on its node, while it is idle and while pods start.

Kubelet admits pods one after the other, even if many arrive at once: for each container it asks which devices the
plugin prefers, then allocates them, and goes on to the next pod when it has the answer. The kubelet of this benchmark
does the same without a pause, while all pods reach the agent from the API server. Agent, kubelet and API server are
separate processes. A plugin that answers at once with an answer of the same length shows the cost of gRPC and of the
machine.
"""

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from bench.agent_node import GPUS, PODS, agent, allocate_directly, serve_api, serve_plain
from bench.daemon import cpu_seconds, memory_mib
from bench.harness import Figure, at_most, benchmark, in_fresh_process, p99, server_process, undisturbed
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from tests.kube.agent.kubelet import Kubelet, kubelet_in, until
from tests.kube.worlds import GPU

ROUNDS = 5
CALM_S = 3.0
SETTLED_S = 10.0
IDLE_S = 60.0
MEMORY_FOLDER = Path("/dev/shm")


@dataclass(slots=True)
class Measured:
    """Milliseconds that kubelet waited for each call, and the resources that the agent used."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    own_ms: list[float] = field(default_factory=list)
    burst_cpu_ms: list[float] = field(default_factory=list)
    memory: float = 0.0
    own_memory: float = 0.0
    idle: float = 0.0
    alone: bool = False
    """whether the agent ran with priority over other processes of this machine"""


@benchmark("agent-load")
def agent_load() -> Iterator[Figure]:
    """Fills a node with pods at once, several times with a new agent each, and then leaves it idle."""
    found = in_fresh_process(_measured).result
    how = "real-time class: others on this machine do not count" if found.alone else "others on this machine count"
    took, plain = found.ms["Allocate"], found.ms["Allocate, plain"]
    note = f"{_spread(took)}; {ROUNDS} times {PODS} pods at once, asked as kubelet does; {how}"
    baseline = f"no-op plugin {p99(plain):.2f}"
    yield at_most("Allocate, p99 as kubelet waits", p99(took), "ms", limit=10, baseline=baseline, note=note)
    note = f"{_spread(found.own_ms)}; our own time: called without gRPC, files and all"
    yield Figure(name="Allocate itself, p99", figure=p99(found.own_ms), unit="ms", note=note)
    asked, plain = found.ms["GetPreferredAllocation"], found.ms["GetPreferredAllocation, plain"]
    baseline = f"no-op plugin {p99(plain):.2f}"
    name = "GetPreferredAllocation, p99 as kubelet waits"
    yield Figure(name=name, figure=p99(asked), unit="ms", baseline=baseline, note=_spread(asked))
    note = f"median of {ROUNDS}; {statistics.median(found.burst_cpu_ms):.0f} ms of the agent's CPU until all is said"
    baseline = f"no-op plugin {statistics.median(found.ms['all, plain']):.0f}"
    burst = statistics.median(found.ms["all"])
    yield Figure(name=f"all {PODS} pods admitted", figure=burst, unit="ms", baseline=baseline, note=note)
    note = f"resident; {found.own_memory:.0f} of it shared with nobody"
    yield at_most(f"idle, memory with {PODS} pods", found.memory, "MB", limit=80, note=note)
    note = f"over {IDLE_S:g} s; {GPUS} simulated GPUs"
    yield at_most(f"idle, of a core, with {PODS} pods", 100 * found.idle, "%", limit=0.5, note=note)


def _spread(took: Sequence[float]) -> str:
    return f"median {statistics.median(took):.2f}, most {max(took):.1f}"


def _measured() -> Measured:
    found = Measured(alone=undisturbed())
    for number in range(ROUNDS):
        asyncio.run(_one_round(found, last=number == ROUNDS - 1))
    return found


async def _one_round(found: Measured, *, last: bool) -> None:
    context = multiprocessing.get_context("spawn")
    bind, run = context.Event(), context.Event()
    # As on a node: files that need not survive a restart are in memory, the others on disk.
    memory = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with TemporaryDirectory(prefix="agent") as name, TemporaryDirectory(prefix="agent", dir=memory) as passing:
        folder = Path(name)
        found.own_ms += await allocate_directly(folder, Path(passing) / "own")
        with server_process(serve_api, folder / "config", bind, run), server_process(serve_plain, folder / "plain"):
            async with kubelet_in(folder / "k") as kubelet:
                with agent(folder, passing) as pid:
                    await until(lambda: len(kubelet.devices.get(GPU, [])) >= PODS and len(kubelet.registered) > 1)
                    await asyncio.sleep(CALM_S)  # it has said all that there is to say
                    await _filled(found, kubelet, folder / "plain", pid, bind.set)
                    if last:
                        run.set()
                        await _idle(found, pid)


async def _filled(found: Measured, kubelet: Kubelet, plain: Path, pid: int, begin: Callable[[], object]) -> None:
    """Creates all pods at once; kubelet admits one after the other."""
    devices = [device.ID for device in kubelet.devices[GPU]]
    await _admit(found, plain, devices, ", plain")
    before = cpu_seconds(pid)
    begin()
    given = await _admit(found, kubelet.plugins / kubelet.registered[GPU].endpoint, devices)
    for number, device in enumerate(given):
        kubelet.has(f"pod-{number}", "main", GPU, device)
    await asyncio.sleep(CALM_S)
    found.burst_cpu_ms.append(1000 * (cpu_seconds(pid) - before))


async def _admit(found: Measured, socket: Path, devices: Sequence[str], whose: str = "") -> list[str]:
    """The devices that the containers got, in order."""
    free, given = set(devices), []

    def took(what: str, since: float) -> None:
        found.ms.setdefault(what + whose, []).append(1000 * (time.perf_counter() - since))

    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        prefer = _question(channel, "GetPreferredAllocation", pb.PreferredAllocationResponse)
        allocate = _question(channel, "Allocate", pb.AllocateResponse)
        await channel.channel_ready()  # kubelet is connected long before
        start = time.perf_counter()
        for _ in range(PODS):
            one = pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=1)
            asked = time.perf_counter()
            answer = await prefer(pb.PreferredAllocationRequest(container_requests=[one]), timeout=10)
            took("GetPreferredAllocation", asked)
            (device,) = answer.container_responses[0].deviceIDs
            wanted = pb.ContainerAllocateRequest(devices_ids=[device])
            asked = time.perf_counter()
            await allocate(pb.AllocateRequest(container_requests=[wanted]), timeout=10)
            took("Allocate", asked)
            free.remove(device)
            given.append(device)
        took("all", start)
    return given


def _question(channel: grpc.aio.Channel, method: str, answer: Any) -> Any:
    return channel.unary_unary(
        f"/v1beta1.DevicePlugin/{method}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=answer.FromString,
    )


async def _idle(found: Measured, pid: int) -> None:
    await asyncio.sleep(SETTLED_S)
    before = cpu_seconds(pid)
    await asyncio.sleep(IDLE_S)
    found.idle = (cpu_seconds(pid) - before) / IDLE_S
    found.memory = memory_mib(pid) * 1.048576
    found.own_memory = _own_megabytes(pid)


def _own_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6
