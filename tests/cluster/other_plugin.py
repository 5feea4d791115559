# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs in a container of the tests, which gets its source as its command: stands in for the device plugin of another
system that shares GPUs, such as HAMi's. It registers a resource with kubelet, with some devices of one GPU, and gives
every container that GPU. Of cotenant it uses kubelet's protocol only.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.rpc import Context, Unary, call, handler_for, serve

FOLDER, SOCKET = Path("/var/lib/kubelet/device-plugins"), "other.sock"
GPUS = "GPUS"
"""variable with the GPU of each node, as JSON"""
RESOURCE, DEVICES = "RESOURCE", "DEVICES"
"""variables with the name of the resource, and the number of its devices"""


async def options(_request: pb.Empty, _context: Context) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions()


async def devices(_request: pb.Empty, _context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
    count = int(os.environ[DEVICES])
    yield pb.ListAndWatchResponse(devices=[pb.Device(ID=f"other-{one}", health="Healthy") for one in range(count)])
    await asyncio.Event().wait()


async def allocate(request: pb.AllocateRequest, _context: Context) -> pb.AllocateResponse:
    gpu = json.loads(os.environ[GPUS])[os.environ["NODE_NAME"]]
    answers = [pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": gpu}) for _ in request.container_requests]
    return pb.AllocateResponse(container_responses=answers)


async def run() -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    (FOLDER / SOCKET).unlink(missing_ok=True)
    unary: dict[str, Unary] = {
        "GetDevicePluginOptions": (options, pb.Empty),
        "Allocate": (allocate, pb.AllocateRequest),
    }
    handler = handler_for("v1beta1.DevicePlugin", unary, {"ListAndWatch": (devices, pb.Empty)})
    server = await serve(FOLDER / SOCKET, handler)
    request = pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=os.environ[RESOURCE])
    await call(FOLDER / "kubelet.sock", "/v1beta1.Registration/Register", request, pb.Empty, timeout_s=30)
    await told.wait()
    await server.stop()


SOURCE = Path(__file__).read_text() if "__file__" in globals() else ""
SERVES = f"{SOURCE}\nasyncio.run(run())"
