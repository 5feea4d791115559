# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tells kubelet whether the GPUs of claims are healthy, for the status of pods (feature gate ResourceHealthStatus)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping

from cotenant.core.model import Machine
from cotenant.kube.agent.proto import drahealth_pb2 as pb
from cotenant.kube.agent.rpc import Context, Handler, handler_for
from cotenant.kube.codec.claims import device_name

SERVICE = "v1alpha1.DRAResourceHealth"
LOOK_S = 1.0
"""Between two looks at the GPUs."""
REPEAT_S = 10.0
"""Kubelet takes the health for unknown if it hears nothing for 30 s."""
LONGEST = 1000

Faults = Callable[[], Mapping[str, str]]
"""Returns why GPUs are not healthy, by UUID."""


def health_handler(machine: Callable[[], Machine], faults: Faults, *, look_s: float = LOOK_S) -> Handler:
    """The service that kubelet calls once it knows the driver."""

    async def watch(
        request: pb.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        told, told_at = None, 0.0
        while True:
            now = machine(), dict(faults())
            if now != told or time.monotonic() >= told_at + REPEAT_S:
                told, told_at = now, time.monotonic()
                yield health_of(*now)
            await asyncio.sleep(look_s)

    return handler_for(SERVICE, {}, {"NodeWatchResources": (watch, pb.NodeWatchResourcesRequest)})


def health_of(machine: Machine, faults: Mapping[str, str]) -> pb.NodeWatchResourcesResponse:
    """The health of all GPUs of a node."""
    return pb.NodeWatchResourcesResponse(
        devices=[
            pb.DeviceHealth(
                device=pb.DeviceIdentifier(pool_name=machine.name, device_name=device_name(gpu.uuid)),
                health=pb.HEALTHY if gpu.healthy else pb.UNHEALTHY,
                last_updated_time=int(time.time()),
                message="" if gpu.healthy else faults.get(gpu.uuid, "")[:LONGEST],
            )
            for gpu in machine.gpus
        ]
    )
