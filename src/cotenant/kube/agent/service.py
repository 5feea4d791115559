# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The five questions that kubelet asks a device plugin, answered for one resource name.

What cannot be answered rightly is an error to kubelet, never a wrong value that a container would then start with.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Never, TypeVar

import grpc
from google.protobuf.message import Message

from cotenant.core.model import Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.allocating import CommonMounts, HostPlaces, answer_for, device_ids, renew_slice
from cotenant.kube.agent.podresources import PodKey, list_devices
from cotenant.kube.agent.preference import guess, prefer
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.strict import KIND, Owned, device_name, forget_spec, holders_of, owned_by, pod_with, write_spec
from cotenant.kube.agent.vendor import brought_for
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod

SERVICE = "v1beta1.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
LOOK_S = 0.1
"""how often we look whether a pod is known by now"""

Pods = Callable[[], Iterable[Pod]]


class Bell:
    """Wakes whoever waits, each time that it rings."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Take it before looking at what may change, or a change is missed."""
        return self._next


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all plugins of a node share."""

    machine: Callable[[], Machine]
    pods: Pods
    """of this node, in any state"""
    host: HostPlaces
    common: CommonMounts
    strict: bool
    known_s: float
    """how long a container waits for its pod to be known here; kubelet waits 30 s in all"""
    error_log: ErrorLog
    heard: Callable[[], object] = lambda: None
    """is called when kubelet begins or ceases to follow a resource"""
    bell: Bell = field(default_factory=Bell)
    """rings when the machine has changed"""


Context = grpc.aio.ServicerContext[object, object]
Asked = TypeVar("Asked")
Answered = TypeVar("Answered", bound=Message)


class Service:
    """One resource name."""

    def __init__(self, resource: str, around: Surroundings) -> None:
        self._resource = resource
        self._around = around
        self._watching = 0

    def is_watched(self) -> bool:
        """Whether kubelet follows the devices; where it does not, it has given us up."""
        return self._watching > 0

    @property
    def options(self) -> pb.DevicePluginOptions:
        # Kubelet forgets the devices of a pod that is deleted while it starts, and would start it with its cards and
        # without our library. Where it must ask us before each start, it refuses to when it has none to name.
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """For a server to add."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": _unary(self.get_options, pb.Empty.FromString),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self.list_and_watch,
                    request_deserializer=pb.Empty.FromString,
                    response_serializer=pb.ListAndWatchResponse.SerializeToString,
                ),
                "GetPreferredAllocation": _unary(self.get_preferred, pb.PreferredAllocationRequest.FromString),
                "Allocate": _unary(self.allocate, pb.AllocateRequest.FromString),
                "PreStartContainer": _unary(self.pre_start, pb.PreStartContainerRequest.FromString),
            },
        )

    async def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return self.options

    async def list_and_watch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All slots now, and again whenever they are others."""
        last: pb.ListAndWatchResponse | None = None
        self._watching += 1
        self._around.heard()
        try:
            while True:
                changed = self._around.bell.next()
                devices = devices_of(self._around.machine())
                if devices != last:
                    yield devices
                    last = devices
                await changed.wait()
        finally:
            self._watching -= 1
            self._around.heard()

    async def get_preferred(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        answers = []
        for one in request.container_requests:
            wanted = guess(self._around.pods(), one.allocation_size)
            ids = prefer(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size, wanted)
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        try:
            return pb.AllocateResponse(
                container_responses=[self._allocated(list(one.devices_ids)) for one in request.container_requests]
            )
        except CotenantError as error:
            return await self._refuse(context, "Allocate", error)

    def _allocated(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        around = self._around
        answer = answer_for(self._resource, ids, around.machine(), around.host, around.common)
        if around.strict:
            name = device_name(self._resource, ids)
            forget_spec(around.host.cdi, name)
            answer.cdi_devices.append(pb.CDIDevice(name=f"{KIND}={name}"))
        return answer

    async def pre_start(self, request: pb.PreStartContainerRequest, context: Context) -> pb.PreStartContainerResponse:
        """A region for the container that is about to be made; in strict mode, its GPUs are written down."""
        ids = frozenset(request.devices_ids)
        try:
            renew_slice(self._around.host, self._resource, ids)
            if self._around.strict:
                owned = await self._owned(ids)
                brought = brought_for(owned.gpus, self._around.host.cdi_folders)
                write_spec(self._around.host.cdi, device_name(self._resource, ids), owned, brought)
        except CotenantError as error:
            return await self._refuse(context, "PreStartContainer", error)
        return pb.PreStartContainerResponse()

    async def _owned(self, ids: frozenset[str]) -> Owned:
        """Kubelet may know a pod earlier than we do."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._around.known_s
        while True:
            listed = await list_devices(self._around.host.pod_resources, [self._resource])
            pod = pod_with(self._resource, ids, listed, self._around.pods())
            if pod is not None:
                return owned_by(pod, self._resource, ids, listed)
            if loop.time() >= until:
                raise CotenantError(f"{self._resource}: {_unowned(ids, holders_of(self._resource, ids, listed))}")
            await asyncio.sleep(LOOK_S)

    async def _refuse(self, context: Context, call: str, error: CotenantError) -> Never:
        self._around.error_log.report(f"{call} for {self._resource}", str(error))
        code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, InputError) else grpc.StatusCode.INTERNAL
        await context.abort(code, str(error))
        raise AssertionError("abort has raised")


def _unowned(ids: frozenset[str], holders: Collection[PodKey]) -> str:
    """Why it is not known whose these slots are."""
    slots = ", ".join(sorted(ids))[:200]
    if len(holders) > 1:
        names = ", ".join(sorted(map("/".join, holders)))
        return f"kubelet gave {slots} to several pods, which cannot be told apart: delete all but one of {names}"
    return (
        f"kubelet lists no pod that we know with {slots}; "
        "an init container has GPUs in strict mode only where another container of its pod has some"
    )


def devices_of(machine: Machine) -> pb.ListAndWatchResponse:
    """All slots of a machine; those of a card are healthy or not together."""
    devices = []
    for gpu in machine.gpus:
        topology = None if gpu.numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=gpu.numa)])
        health = HEALTHY if gpu.healthy else UNHEALTHY
        devices += [pb.Device(ID=name, health=health, topology=topology) for name in device_ids(gpu, machine)]
    return pb.ListAndWatchResponse(devices=devices)


def _unary(
    method: Callable[[Asked, Context], Awaitable[Answered]], read: Callable[[bytes], Asked]
) -> "grpc.RpcMethodHandler[Asked, Answered]":
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=read, response_serializer=lambda answer: answer.SerializeToString()
    )
