# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A node for the agent benchmark, in separate processes: the agent, an API server, and a plugin to compare with."""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

import grpc
import trustme

from bench.cluster_server import pod_object
from cotenant.core.model import Gpu, Machine, Slot
from cotenant.core.units import MiB
from cotenant.kube.agent.allocating import HostPlaces, at, device_ids, prepare
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.regions import Regions
from cotenant.kube.agent.rpc import Context
from cotenant.kube.agent.service import PluginState, Service
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import decode_node, decode_pod
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import record_for
from cotenant.kube.codec.inventory import machine_of
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.request import request_of
from cotenant.node.devices.vendors import Vendor
from cotenant.node.preload import find_library
from tests.kube.api_server import ApiServer
from tests.kube.worlds import GPU

PODS = 110
"""the largest number that kubelet accepts"""
GPUS = 8
NODE = "n1"
RUN_AGENT = """
import sys
from pathlib import Path
from cotenant.kube.agent.allocating import HostPlaces, at
from cotenant.kube.agent.options import AgentOptions
from cotenant.kube.agent.process import serve
folder, passing, node, gpus = Path(sys.argv[1]), *sys.argv[2:]
host = HostPlaces(lasting=at(folder / "l"), passing=at(passing), kubelet=folder / "k", cdi=folder / "c")
serve(AgentOptions(node=node, host=host, kubeconfig=folder / "config", simulate=int(gpus), gpu_memory="40GiB"))
"""
"""the same as `cotenant kube agent`, with temporary folders"""


@contextmanager
def agent(folder: Path, passing: str) -> Iterator[int]:
    """Starts an agent with its log and kubeconfig in the folder, and yields its process ID."""
    command = [sys.executable, "-c", RUN_AGENT, str(folder), passing, NODE, str(GPUS)]
    with (folder / "agent.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def allocate_directly(folder: Path, passing: Path) -> list[float]:
    """Milliseconds that the agent takes to answer each call, without gRPC."""
    gpus = tuple(Gpu(uuid=f"GPU-{gpu}", memory=MiB(40_960), slots=16) for gpu in range(GPUS))
    machine = Machine(name=NODE, gpus=gpus)
    host = HostPlaces(lasting=at(folder / "own"), passing=at(passing), kubelet=folder, cdi=folder)
    around = PluginState(
        machine=lambda: machine,
        vendor=Vendor.NVIDIA,
        pods=list,
        host=host,
        common=prepare(host, find_library()),
        strict=False,
        by_cdi=False,
        known_s=1.0,
        error_log=ErrorLog(),
        regions=Regions(host.regions.seen),
    )
    service, took = Service(GPU, around), []
    context = cast("Context", None)  # only a rejected call uses it
    for device in [device for gpu in gpus for device in device_ids(gpu, machine)][:PODS]:
        asked = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
        start = time.perf_counter()
        await service.allocate(asked, context)
        took.append(1000 * (time.perf_counter() - start))
    return took


def serve_plain(parent: Connection, socket: Path) -> None:
    """A device plugin that answers at once."""
    mounts = [pb.Mount(container_path=f"{'/place' * 6}/{n}", host_path=f"{'/place' * 10}/{n}") for n in range(4)]
    one = pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "void", "OTHER": "value" * 6}, mounts=mounts)
    everything = pb.AllocateResponse(container_responses=[one])

    async def prefer(request: pb.PreferredAllocationRequest, context: Any) -> pb.PreferredAllocationResponse:
        ids = list(request.container_requests[0].available_deviceIDs[:1])
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids)]
        )

    async def allocate(request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        return everything

    def handler(method: Any, asked: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=asked.FromString, response_serializer=lambda answer: answer.SerializeToString()
        )

    async def run() -> None:
        server = grpc.aio.server()
        methods = {
            "GetPreferredAllocation": handler(prefer, pb.PreferredAllocationRequest),
            "Allocate": handler(allocate, pb.AllocateRequest),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        parent.send(0)
        await server.wait_for_termination()

    asyncio.run(run())


def serve_api(parent: Connection, kubeconfig: Path, bind: Event, run: Event) -> None:
    """An API server that binds all pods on a command and reports them as running."""
    os.sched_setscheduler(
        0, os.SCHED_OTHER, os.sched_param(0)
    )  # the API server is not on the node, whose processes have priority

    async def serve() -> None:
        server, authority = ApiServer(), trustme.CA()
        tls = _tls(authority)
        server.nodes.merge(NODE, {"status": {}})
        async with server.serving(tls):
            kubeconfig.write_text(_kubeconfig(server.port, authority))
            parent.send(server.port)
            pods = list(_bound_pods(await _machine(server)))
            await _told(bind)
            for made in pods:
                server.merge(made["metadata"]["name"], made, made["metadata"]["namespace"])
            await _told(run)
            for number in range(PODS):
                server.merge(f"pod-{number}", {"status": {"phase": "Running"}}, "team")
            await asyncio.Event().wait()

    asyncio.run(serve())


def _tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def _kubeconfig(port: int, authority: trustme.CA) -> str:
    trusted = base64.b64encode(authority.cert_pem.bytes()).decode()
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": trusted}
    content = {
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "here", "user": "agent"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "agent", "user": {"token": "secret"}}],
    }
    return json.dumps(content)


async def _told(event: Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


async def _machine(server: ApiServer) -> Machine:
    """The node as its agent publishes it."""
    while (found := machine_of(decode_node(json.dumps(server.nodes.pods["", NODE]).encode()))) is None:
        await asyncio.sleep(0.1)
    return found[0]


def _bound_pods(machine: Machine) -> Iterator[dict[str, Any]]:
    for number in range(PODS):
        made = pod_object(f"pod-{number}", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
        pod = decode_pod(json.dumps(made).encode())
        request = request_of(pod)
        record = record_for(pod, request, Slot(machine.name, (number % GPUS,)), machine)
        made["metadata"]["annotations"] |= binding_annotations(pod, request, record, machine, moment=1, region=REGION)
        made["spec"]["nodeName"] = machine.name
        yield made
