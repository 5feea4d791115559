# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An in-memory API server of a large cluster, in a separate process; it supports only lists, watches and binds."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import product
from multiprocessing.connection import Connection
from random import Random
from typing import Any

from bench.harness import serve_each, server_process
from cotenant.core.cluster import Node
from cotenant.core.model import Gpu, Machine, Slot
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import rate
from cotenant.core.units import MiB
from cotenant.kube.api.objects import decode_pod
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import record_for, tenant_for
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.request import request_of
from cotenant.kube.settings import SCHEDULER_NAME
from cotenant.node.devices.vendors import Vendor

NODE = {"gpus": 8, "memory": 40_960}
KINDS: tuple[Mapping[str, int], ...] = tuple(
    {"nvidia.com/gpu": gpus, "nvidia.com/gpumem": memory, "nvidia.com/gpucores": cores}
    for gpus, memory, cores in product((1, 1, 1, 2), (1000, 2000, 4000, 6000, 8000), (0, 10, 25))
)
PAGE = 500


def new_kind(number: int) -> Mapping[str, int]:
    """A request that differs for every number."""
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3001 + number}


def pod_object(name: str, limits: Mapping[str, int]) -> dict[str, Any]:
    """A pending pod of typical size."""
    env = [{"name": f"VARIABLE_{number}", "value": "value" * 3} for number in range(6)]
    container = {"name": "main", "image": "image", "env": env, "resources": {"limits": {"cpu": "1", **limits}}}
    about = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "labels": {"app": "train"},
    }
    return {
        "metadata": about | {"annotations": {"cotenant.io/containers": '["main"]'}},
        "spec": {"schedulerName": SCHEDULER_NAME, "containers": [container]},
        "status": {"phase": "Pending"},
    }


def machine(number: int) -> Machine:
    """A node with identical GPUs."""
    gpus = (
        Gpu(uuid=f"GPU-{number:05d}-{gpu}", type="NVIDIA A100-PCIE-40GB", memory=MiB(NODE["memory"]), slots=10)
        for gpu in range(NODE["gpus"])
    )
    return Machine(name=f"node-{number:05d}", gpus=tuple(gpus))


def node_object(of: Machine) -> dict[str, Any]:
    """The Node object with the annotations of its agent."""
    told = {INVENTORY: inventory_for(of, Vendor.NVIDIA)}
    return {"metadata": {"name": of.name, "resourceVersion": "1", "labels": {"zone": "a"}, "annotations": told}}


def placed_pods(machines: list[Machine], count: int) -> Iterator[dict[str, Any]]:
    """Pods on random nodes, so that few nodes are alike."""
    random, policy = Random(11), build_policy("spread")
    nodes = [Node.of(one) for one in machines]
    for number in range(count):
        made = pod_object(f"placed-{number}", random.choice(KINDS))
        pod = decode_pod(json.dumps(made).encode())
        request = request_of(pod)
        tries = iter(lambda: random.randrange(len(nodes)), None)
        at, fit = next((at, fit) for at in tries if (fit := rate(policy, request.demand, nodes[at])) is not None)
        record = record_for(pod, request, Slot(nodes[at].name, fit[1]), machines[at])
        nodes[at] = nodes[at].with_tenant(tenant_for(record, request.constraints, machines[at]))
        made["metadata"]["annotations"] |= binding_annotations(
            pod, request, record, machines[at], moment=1, region=REGION
        )
        made["spec"]["nodeName"], made["status"]["phase"] = nodes[at].name, "Running"
        yield made


def cluster_server(nodes: int, pods: int, waiting: int) -> AbstractContextManager[int]:
    """Starts the server with placed and waiting pods (`extender.waiting_pod`), and yields its port."""
    return server_process(_serve, nodes, pods, waiting)


def _serve(parent: Connection, nodes: int, pods: int, waiting: int) -> None:
    from bench.extender import waiting_pod

    machines = [machine(number) for number in range(nodes)]
    new = {one["metadata"]["name"]: one for one in map(waiting_pod, range(waiting))}
    objects = {
        "nodes": _pages([node_object(one) for one in machines]),
        "pods": _pages([*placed_pods(machines, pods), *new.values()]),
        "resourcequotas": _pages([]),
    }
    watchers: list[asyncio.StreamWriter] = []
    versions = iter(range(2, 10_000_000))

    async def bound(name: str, body: bytes) -> None:
        said, pod = json.loads(body), new[name]
        pod["spec"]["nodeName"] = said["target"]["name"]
        pod["metadata"]["annotations"] |= said["metadata"].get("annotations", {})
        pod["metadata"]["resourceVersion"] = str(next(versions))
        line = json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"
        for watcher in watchers:
            watcher.write(b"%x\r\n%s\r\n" % (len(line), line))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target = head.split()[:2]
            length = next(
                (line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-l")), "0"
            )
            content = await reader.readexactly(int(length))
            path, _, query = target.partition("?")
            words = path.strip("/").split("/")
            if "watch=1" in query:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                if words[-1] == "pods":
                    watchers.append(writer)
                await reader.read()
                return
            status, body = b"200 OK", b"{}"
            if method == "POST":
                status, body = b"201 Created", b'{"kind":"Status","status":"Success","metadata":{}}'
                if words[-1] == "binding":
                    await bound(words[-2], content)
            elif words[-1] in objects:
                _, found, rest = query.partition("continue=")
                body = objects[words[-1]][int(rest.split("&")[0]) if found else 0]
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    serve_each(parent, answer)


def _pages(items: list[dict[str, Any]]) -> list[bytes]:
    """The pages of a list, each with the number of the next."""
    parts = [items[at : at + PAGE] for at in range(0, len(items), PAGE)] or [[]]
    more = [{"continue": str(number)} for number in range(1, len(parts))] + [{}]
    return [
        json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"} | next_, "items": part}).encode()
        for part, next_ in zip(parts, more, strict=True)
    ]
