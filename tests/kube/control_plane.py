# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A whole scheduler beside an API server that can fail, and a kube-scheduler's part played by hand."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.names import WHY_HEADER
from cotenant.kube.api.reflector import Pace
from cotenant.kube.api.server import Listener, application, listen
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.scheduler.lease import LEASE_LIMITS, Election
from cotenant.kube.scheduler.scheduler import Scheduler
from cotenant.kube.settings import SCHEDULER_NAME, KubeSettings
from cotenant.node.devices.vendors import Vendor
from tests.kube.api_server import ApiServer, Pod
from tests.kube.http import Answer, ask, serving
from tests.kube.pods import pod_object

QUICK = Limits(connect_s=5, answer_s=2, tries=2, first_pause_s=0.01, longest_pause_s=0.05)
PACE = Pace(silence_s=5, watches_s=0.01, lists_s=0.01)
MEMORY = "nvidia.com/gpumem"
KEY = b"a key"
DECISIONS_KEY = b"another key"
PATIENCE_S = 180.0
"""the machine may be busy"""
LEASE = ("cotenant-system", "cotenant-scheduler")
KNOWS = {WHY_HEADER: KEY.decode()}
"""what those show who ask about pods"""


@dataclass
class ControlPlane:
    """A scheduler with its two ports (both without TLS), and the API server that it uses."""

    server: ApiServer
    scheduler: Scheduler
    kube_port: int
    api_port: int
    lines: list[str] = field(default_factory=list)

    def add_node(self, name: str, cards: int = 1, memory: int = 16_000, **more: Any) -> None:
        add_node(self.server, name, cards, memory, **more)

    def add_pod(self, name: str, memory: int = 6000, annotations: dict[str, str] | None = None, **spec: object) -> Pod:
        return add_pod(self.server, name, memory, annotations, **spec)

    def pod(self, name: str) -> Pod:
        return self.server.pods["team", name]

    def annotation(self, name: str, key: str) -> str | None:
        value: str | None = self.pod(name)["metadata"]["annotations"].get(f"cotenant.io/{key}")
        return value

    def end(self, name: str) -> None:
        self.server.merge(name, {"status": {"phase": "Succeeded"}}, "team")

    async def knows(self, *names: str) -> None:
        """Until the scheduler's watch has brought the newest of these pods."""
        known = self.scheduler.watches.pods.objects
        for name in names:
            wanted = self.pod(name)["metadata"]["resourceVersion"]
            async with asyncio.timeout(PATIENCE_S):
                while ("team", name) not in known or known["team", name].metadata.resource_version != wanted:
                    await asyncio.sleep(0.005)

    def args(self, name: str, *nodes: str) -> dict[str, Any]:
        return {"Pod": self.pod(name), "Nodes": None, "NodeNames": list(nodes)}

    async def call(self, verb: str, body: object) -> Answer:
        return await ask(self.kube_port, "POST", f"/{verb}", body)

    async def filter(self, name: str, *nodes: str) -> Any:
        return (await self.call("filter", self.args(name, *nodes))).json

    async def bind(self, name: str, node: str, uid: str | None = None) -> str:
        args = {"PodName": name, "PodNamespace": "team", "PodUID": uid or f"uid-{name}", "Node": node}
        error: str = (await self.call("bind", args)).json["Error"]
        return error

    async def preemption_passes(self, count: int = 3) -> None:
        """Until so many passes of the preemptor have begun and ended; one that is under way does not count."""
        await passes(lambda: self.scheduler.preemptor.passes, count)

    async def place(self, name: str, *nodes: str) -> str:
        """All that kube-scheduler does with a pod; the node, or why not."""
        await until(lambda: ("team", name) in self.scheduler.watches.pods.objects)
        found = await self.filter(name, *nodes)
        if not found["NodeNames"]:
            return json.dumps({**found["FailedNodes"], **found["FailedAndUnresolvableNodes"]})
        scores = (await self.call("prioritize", self.args(name, *found["NodeNames"]))).json
        best: str = max(scores, key=lambda one: one["Score"])["Host"]
        return await self.bind(name, best) or best

    async def why(self, name: str) -> Any:
        return (await ask(self.api_port, "GET", f"/why/team/{name}", headers=KNOWS)).json

    def events(self, reason: str) -> list[str]:
        return [one["message"] for one in self.server.events.pods.values() if one["reason"] == reason]


def add_node(
    server: ApiServer, name: str, cards: int = 1, memory: int = 16_000, kind: str = "T4", numa: Sequence[int] = ()
) -> None:
    """A node whose agent has told of these cards."""
    gpus = tuple(
        Gpu(uuid=f"GPU-{name}-{card}", type=kind, memory=MiB(memory), numa=numa[card] if numa else None)
        for card in range(cards)
    )
    inventory = inventory_for(Machine(name=name, gpus=gpus), Vendor.NVIDIA)
    server.nodes.merge(name, {"metadata": {"annotations": {INVENTORY: inventory}}})


def add_pod(
    server: ApiServer, name: str, memory: int = 6000, annotations: dict[str, str] | None = None, **spec: object
) -> Pod:
    """A pod that waits for part of a card."""
    amounts = {"nvidia.com/gpu": 1, MEMORY: memory}
    new = pod_object([amounts], [], annotations or {}, None, {"schedulerName": SCHEDULER_NAME, **spec})
    new["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return server.merge(name, new, "team")


def given_by(server: ApiServer) -> dict[str, int]:
    """How much of each card the pods have, by what is written on them."""
    given: dict[str, int] = {}
    for pod in list(server.pods.values()):
        record = pod["metadata"].get("annotations", {}).get(RECORD)
        ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        for container in json.loads(record)["containers"] if record and not ended else ():
            for share in container["gpus"]:
                given[share["gpu"]] = given.get(share["gpu"], 0) + share["memory"]
    return given


async def passes(counted: Callable[[], int], count: int = 2) -> None:
    """Until a loop has gone round so often, after the round that may be under way.

    What a loop must not do, it has not done after this.
    """
    wanted = counted() + count + 1
    await until(lambda: counted() >= wanted)


async def until(so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def a_control_plane(
    settings: KubeSettings, *, synced: bool = True, pace: Pace = PACE, server: ApiServer | None = None
) -> AsyncIterator[ControlPlane]:
    server = server or ApiServer()
    async with server.serving(), a_scheduler(server, settings, synced=synced, pace=pace) as plane:
        yield plane


@asynccontextmanager
async def a_scheduler(
    server: ApiServer, settings: KubeSettings, *, host: str | None = None, synced: bool = True, pace: Pace = PACE
) -> AsyncIterator[ControlPlane]:
    """One that runs beside the server; with a host name, as one of several."""
    lines, access = list[str](), Access(host="127.0.0.1", port=server.port)
    client, looking = Client(access, QUICK), Client(access, LEASE_LIMITS)
    election = None if host is None else Election(looking, *LEASE, host)
    scheduler = Scheduler(client, settings, ErrorLog(lines.append), election=election, pace=pace)
    # Before it runs: a loop that waits already does not see another time.
    scheduler.preemptor.tick_s, scheduler.preemptor.sweep_s = 0.01, 0.02
    scheduler.resizer.again_s, scheduler.learning.refresh_s = 0.1, 0.01
    scheduler.allocator.sweep_s = 0.1
    doors = [
        Listener(listen("127.0.0.1", 0), application(routes, scheduler.errors))
        for routes in (scheduler.for_kube_scheduler(), scheduler.for_operators(lambda: KEY, lambda: DECISIONS_KEY))
    ]
    ports = [door.bound.getsockname()[1] for door in doors]
    plane = ControlPlane(server, scheduler, ports[0], ports[1], lines)
    async with serving(doors):
        task = asyncio.create_task(scheduler.run())
        try:
            if synced:
                await until(lambda: scheduler.unready_reason() is None)
            yield plane
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=10)
            await client.close()
            await looking.close()


def play(
    test: Callable[[ControlPlane], Awaitable[None]],
    settings: KubeSettings | None = None,
    pace: Pace = PACE,
    server: ApiServer | None = None,
) -> ControlPlane:
    """Runs a test against a control plane, and returns what is left of it."""

    async def told() -> ControlPlane:
        async with a_control_plane(settings or KubeSettings(), pace=pace, server=server) as plane:
            await test(plane)
            return plane

    return asyncio.run(told())
