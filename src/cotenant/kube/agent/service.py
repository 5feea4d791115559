# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The five calls of kubelet's device plugin protocol, answered for one resource name.

A call that cannot be answered correctly fails. A wrong answer would start a container with it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Never, TypeVar

from cotenant.core.model import ContainerKind, Machine
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import (
    GRACE_S,
    CommonMounts,
    HostPlaces,
    answer_for,
    device_ids,
    gpu_of,
    renew_slice,
)
from cotenant.kube.agent.mps import NodeMps
from cotenant.kube.agent.podresources import Listed, PodKey, list_devices, list_pods
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.regions import Regions
from cotenant.kube.agent.rpc import Context, Handler, handler_for, refuse
from cotenant.kube.agent.strict import (
    KIND,
    UNSURE,
    Owned,
    VendorEdits,
    device_name,
    edits_for,
    forget_spec,
    holders_of,
    owned_by,
    pod_with,
    write_spec,
)
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import valid_record
from cotenant.node.devices.vendors import Vendor

SERVICE = "v1beta1.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
LOOK_S = 0.1
"""Seconds between two checks whether the API server has reported a pod."""

MOST_TRIES = 3
"""Attempts to free space for a slice."""

Pods = Callable[[], Iterable[Pod]]
T = TypeVar("T")


class ChangeSignal:
    """Wakes all tasks that wait for the next change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """The next change. Take it before you read what may change, or you miss a change in between."""
        return self._next


class GivenDevices:
    """The devices that containers have, as far as this agent knows.

    Kubelet loses a device that it is just giving to a container, if at the same moment a pod has ended and any program
    asks for its list of devices: it then offers the device to the next container as well.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}

    def add(self, resource: str, ids: Iterable[str]) -> None:
        now = self._clock()
        self._since |= {(resource, device): now for device in ids}

    def compare(self, listed: Iterable[Listed]) -> None:
        """Takes kubelet's list, which may be older than devices that were given since."""
        now = self._clock()
        recent = {given: since for given, since in self._since.items() if now - since <= GRACE_S}
        self._since = recent | {(one.resource, device): now for one in listed for device in one.devices}

    def of(self, resource: str) -> frozenset[str]:
        return frozenset(device for of, device in self._since if of == resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """What all device plugins of a node share."""

    machine: Callable[[], Machine]
    vendor: Vendor
    pods: Pods
    """All pods of this node, in any phase."""
    host: HostPlaces
    common: CommonMounts
    strict: bool
    by_cdi: bool
    """Whether each container gets a CDI device of its own, which names its GPUs."""
    mps: NodeMps | None = None
    """None: no pod can be a client of MPS."""
    known_s: float
    """Longest time that a container waits until the agent knows its pod; kubelet gives up after 30 s."""
    error_log: ErrorLog
    on_watch_change: Callable[[], object] = lambda: None
    """Called when kubelet begins or ceases to watch a resource."""
    changed: ChangeSignal = field(default_factory=ChangeSignal)
    """The machine has changed."""
    given: GivenDevices = field(default_factory=GivenDevices)
    regions: Regions


class Service:
    """The device plugin of one resource name."""

    def __init__(self, resource: str, state: PluginState) -> None:
        self._resource = resource
        self._state = state
        self._watching = 0

    def is_watched(self) -> bool:
        """Whether kubelet watches the devices; if not, it has dropped this plugin."""
        return self._watching > 0

    @property
    def options(self) -> pb.DevicePluginOptions:
        # Kubelet forgets the devices of a pod that is deleted while it starts, and would start it with its GPUs and
        # without our library. If it must ask before each start, it refuses to start a container without devices.
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    @property
    def handler(self) -> Handler:
        return handler_for(
            SERVICE,
            {
                "GetDevicePluginOptions": (self.get_options, pb.Empty),
                "GetPreferredAllocation": (self.get_preferred, pb.PreferredAllocationRequest),
                "Allocate": (self.allocate, pb.AllocateRequest),
                "PreStartContainer": (self.pre_start, pb.PreStartContainerRequest),
            },
            {"ListAndWatch": (self.list_and_watch, pb.Empty)},
        )

    async def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return self.options

    async def list_and_watch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All devices now, and again after each change."""
        last: pb.ListAndWatchResponse | None = None
        self._watching += 1
        self._state.on_watch_change()
        try:
            while True:
                changed = self._state.changed.next()
                devices = devices_of(self._state.machine())
                if devices != last:
                    yield devices
                    last = devices
                await changed.wait()
        finally:
            self._watching -= 1
            self._state.on_watch_change()

    async def get_preferred(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        answers = []
        for one in request.container_requests:
            wanted = likely_gpus(self._state.pods(), one.allocation_size)
            ids = preferred_ids(
                one.available_deviceIDs,
                one.must_include_deviceIDs,
                one.allocation_size,
                wanted,
                self._state.given.of(self._resource),
            )
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
        state = self._state
        machine = state.machine()
        answer = self._with_space(
            lambda: answer_for(self._resource, ids, machine, state.vendor, state.host, state.common)
        )
        state.given.add(self._resource, ids)
        if state.by_cdi:
            name = device_name(self._resource, ids)
            forget_spec(state.host.cdi, name)
            answer.cdi_devices.append(pb.CDIDevice(name=f"{KIND}={name}"))
        return answer

    async def pre_start(self, request: pb.PreStartContainerRequest, context: Context) -> pb.PreStartContainerResponse:
        """Makes a usage region for the container that is about to start; in strict mode and with MPS, also its CDI
        device."""
        ids, state = frozenset(request.devices_ids), self._state
        try:
            self._with_space(lambda: renew_slice(state.host, self._resource, ids))
            if state.by_cdi:
                await self._write_device(ids)
            if not state.strict:
                await self._check_held(ids)  # last, since the pod may be deleted meanwhile
        except CotenantError as error:
            return await self._refuse(context, "PreStartContainer", error)
        return pb.PreStartContainerResponse()

    async def _write_device(self, ids: frozenset[str]) -> None:
        """Writes the CDI device of a container; if it is a client of MPS, after its control daemon runs."""
        state = self._state
        pod, owned = await self._owned(ids)
        edits = edits_for(state.vendor, owned.gpus, state.host.cdi_folders) if state.strict else VendorEdits()
        if state.mps is not None and pod is not None:
            edits = edits.adding(await state.mps.start(pod, owned.shares))
        write_spec(state.host.cdi, device_name(self._resource, ids), state.vendor, owned, edits)

    def _with_space(self, make: Callable[[], T]) -> T:
        """Makes a slice. If tenants have filled the space for it, what they added is truncated first."""
        for _ in range(MOST_TRIES):
            try:
                made = make()
            except CotenantError:
                if not self._state.regions.cut().grown:
                    raise
            else:
                self._state.regions.hold()
                return made
        return make()

    async def _owned(self, ids: frozenset[str]) -> tuple[Pod | None, Owned]:
        """The pod and the GPUs of the container with these devices; waits, since kubelet may know a pod earlier than
        the agent.

        Unless in strict mode, the pod may be None: kubelet lists no plain init containers.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._state.known_s
        while True:
            listed = await list_devices(self._state.host.pod_resources, [self._resource])
            pod = pod_with(self._resource, ids, listed, self._state.pods())
            if pod is not None:
                return pod, owned_by(pod, self._resource, ids, listed)
            holders = holders_of(self._resource, ids, listed)
            starts_init = any(_starts_init(one, len(ids)) for one in self._state.pods())
            if not self._state.strict and not holders and starts_init:
                return None, UNSURE
            if loop.time() >= until:
                raise CotenantError(f"{self._resource}: {_unowned(ids, holders)}")
            await asyncio.sleep(LOOK_S)

    async def _check_held(self, ids: frozenset[str]) -> None:
        """CotenantError if no container has these devices: kubelet forgets them if the pod is deleted during this call.

        It would start the container all the same, with the GPUs of its record and without our library.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._state.known_s
        while True:
            try:
                listed, pods = await list_pods(self._state.host.pod_resources, [self._resource])
            except CotenantError:  # kubelet limits how often it answers
                if loop.time() >= until:
                    raise
            else:
                known = {(pod.metadata.namespace, pod.metadata.name): pod for pod in self._state.pods()}
                if any((one.resource, one.devices) == (self._resource, ids) for one in listed):
                    return
                # Kubelet does not list the devices of plain init containers.
                if any(_starts_init(known[key], len(ids)) for key in pods & known.keys()):
                    return
                if pods <= known.keys() or loop.time() >= until:  # no pod is left that could have such a container
                    devices = ", ".join(sorted(ids))[:200]
                    raise CotenantError(f"{self._resource}: kubelet no longer lists a container with {devices}")
            await asyncio.sleep(LOOK_S)

    async def _refuse(self, context: Context, call: str, error: CotenantError) -> Never:
        self._state.error_log.report(f"{call} for {self._resource}", str(error))
        await refuse(context, error)


def _unowned(ids: frozenset[str], holders: Collection[PodKey]) -> str:
    """Why the pod of these devices is not known."""
    devices = ", ".join(sorted(ids))[:200]
    if len(holders) > 1:
        names = ", ".join(sorted(map("/".join, holders)))
        return f"kubelet gave {devices} to several pods, which cannot be told apart: delete all but one of {names}"
    return (
        f"kubelet lists no pod that we know with {devices}; "
        "an init container has GPUs in strict mode only if another container of its pod has some"
    )


def devices_of(machine: Machine) -> pb.ListAndWatchResponse:
    """All devices of a machine; those of one GPU have the same health."""
    devices = []
    for gpu in machine.gpus:
        topology = None if gpu.numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=gpu.numa)])
        health = HEALTHY if gpu.healthy else UNHEALTHY
        devices += [pb.Device(ID=name, health=health, topology=topology) for name in device_ids(gpu, machine)]
    return pb.ListAndWatchResponse(devices=devices)


def init_sizes(pod: Pod) -> set[int]:
    """The numbers of GPUs of the init containers that a pod may be starting."""
    if pod.status.phase not in ("", "Pending"):
        return set()
    record = valid_record(pod)
    held = () if record is None else record.containers
    return {len(one.gpus) for one in held if one.kind is ContainerKind.INIT}


def _starts_init(pod: Pod, size: int) -> bool:
    return pod.metadata.deletion_timestamp is None and size in init_sizes(pod)


# GetPreferredAllocation. A device ID carries no meaning to the container, so a wrong guess at its GPUs does no harm. A
# right one lets kubelet align cores and memory with the GPUs, and makes its list of devices readable.


def likely_gpus(pods: Iterable[Pod], size: int) -> tuple[str, ...]:
    """The GPUs of the oldest container that waits with so many: kubelet too starts the oldest pod first."""
    waiting = [pod for pod in pods if pod.status.phase in ("", "Pending") and not pod.status.container_statuses]
    for pod in sorted(waiting, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
        record = valid_record(pod)
        for held in () if record is None else record.containers:
            if len(held.gpus) == size:
                return tuple(share.gpu for share in held.gpus)
    return ()


def preferred_ids(
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    wanted: Sequence[str],
    given: Collection[str] = frozenset(),
) -> list[str]:
    """So many device IDs: required ones first, then those of wanted GPUs, then others; each GPU once if possible.

    Devices that were given away are the last.
    """
    chosen = list(dict.fromkeys(must))
    used = Counter(map(gpu_of, chosen))
    rest = {device: _gpu_and_number(device) for device in set(available) - set(chosen)}

    def badness(device: str) -> tuple[bool, int, bool, str, int, str]:
        gpu, number = rest[device]
        return device in given, used[gpu], gpu not in wanted, gpu, number, device

    while len(chosen) < size and rest:
        best = min(rest, key=badness)
        chosen.append(best)
        used[rest.pop(best)[0]] += 1
    return chosen


def _gpu_and_number(device: str) -> tuple[str, int]:
    gpu, _, number = device.rpartition("::")
    return gpu, int(number) if number.isdecimal() else 0
