# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""As much of kubelet as a device plugin meets: it takes registrations, follows the devices, and lists who has which."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.proto import podresources_pb2 as listing

PATIENCE_S = 180.0


class Kubelet:
    """What it was told, and the calls it can make."""

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self.listing = folder / "pod-resources"
        self.registered: dict[str, pb.RegisterRequest] = {}
        self.devices: dict[str, list[pb.Device]] = {}
        """by resource, as the plugin said last"""
        self.refuse_next = 0
        """so many registrations are refused"""
        self.pods: list[listing.PodResources] = []
        self.lists = 0
        """how often it was asked for them"""
        self._followed: list[asyncio.Task[None]] = []

    async def call(self, resource: str, method: str, request: Any, answer: Any) -> Any:
        """One question to the plugin of a resource."""
        async with grpc.aio.insecure_channel(self._address(resource)) as channel:
            return await channel.unary_unary(
                f"/v1beta1.DevicePlugin/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )(request, timeout=PATIENCE_S)

    async def allocate(self, resource: str, *devices: str) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=devices)])
        answer = await self.call(resource, "Allocate", request, pb.AllocateResponse)
        (only,) = answer.container_responses
        assert isinstance(only, pb.ContainerAllocateResponse)
        return only

    async def pre_start(self, resource: str, *devices: str) -> None:
        request = pb.PreStartContainerRequest(devices_ids=devices)
        await self.call(resource, "PreStartContainer", request, pb.PreStartContainerResponse)

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        one = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        answer = await self.call(resource, "GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs)

    def has(self, pod: str, container: str, resource: str, *devices: str, namespace: str = "team") -> None:
        """From now on, it lists this container with these devices."""
        held = listing.ContainerDevices(resource_name=resource, device_ids=devices)
        containers = [listing.ContainerResources(name=container, devices=[held])]
        self.pods.append(listing.PodResources(name=pod, namespace=namespace, containers=containers))

    # What it serves

    async def register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if self.refuse_next:
            self.refuse_next -= 1
            await context.abort(grpc.StatusCode.UNKNOWN, "not now")
        self.registered[request.resource_name] = request
        self._followed.append(asyncio.create_task(self._follow(request.resource_name)))
        return pb.Empty()

    async def is_listed(self, times: int = 2) -> None:
        """Until its list was asked for so often, after the question that may be under way."""
        wanted = self.lists + times + 1
        await until(lambda: self.lists >= wanted)

    async def list(self, request: listing.ListPodResourcesRequest, context: Any) -> listing.ListPodResourcesResponse:
        self.lists += 1
        return listing.ListPodResourcesResponse(pod_resources=self.pods)

    async def close(self) -> None:
        """It no longer follows any device."""
        for task in self._followed:
            task.cancel()
        await asyncio.gather(*self._followed, return_exceptions=True)

    async def _follow(self, resource: str) -> None:
        async with grpc.aio.insecure_channel(self._address(resource)) as channel:
            stream = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=pb.Empty.SerializeToString,
                response_deserializer=pb.ListAndWatchResponse.FromString,
            )(pb.Empty())
            async for answer in stream:
                self.devices[resource] = list(answer.devices)

    def _address(self, resource: str) -> str:
        return f"unix:{self.plugins / self.registered[resource].endpoint}"


@asynccontextmanager
async def kubelet_in(folder: Path) -> AsyncIterator[Kubelet]:
    """A kubelet that has just been started: as the real one, it first removes the sockets of all plugins."""
    kubelet = Kubelet(folder)
    for place in (kubelet.plugins, kubelet.listing):
        place.mkdir(parents=True, exist_ok=True)
        for path in place.glob("*.sock"):
            path.unlink()
    server = grpc.aio.server()
    register = grpc.unary_unary_rpc_method_handler(
        kubelet.register,
        request_deserializer=pb.RegisterRequest.FromString,
        response_serializer=pb.Empty.SerializeToString,
    )
    list_ = grpc.unary_unary_rpc_method_handler(
        kubelet.list,
        request_deserializer=listing.ListPodResourcesRequest.FromString,
        response_serializer=listing.ListPodResourcesResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),
            grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": list_}),
        )
    )
    for place in (kubelet.plugins, kubelet.listing):
        server.add_insecure_port(f"unix:{place / 'kubelet.sock'}")
    await server.start()
    try:
        yield kubelet
    finally:
        await kubelet.close()
        await server.stop(grace=None)


async def until(condition: Callable[[], object]) -> None:
    """Waits for something that will come."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)
