# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of Kubernetes objects that we read, and no more: what is not named here is passed over unread.

A field that is here must be as Kubernetes defines it; an object in which it is not is refused as a whole.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from cotenant.core.model import ContainerKind
from cotenant.errors import InputError
from cotenant.wire.local import decode

MOST_BYTES = 4 * 1024 * 1024
"""of one object; the API server takes 3 MiB and stores about half of that"""
MOST_CONTAINERS = 1000
EPHEMERAL_CONTAINERS = "ephemeralcontainers"
"""Subresource of a pod through which debug containers are added."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod: kubelet's record of a static pod, which runs from a file whatever the API server says."""

T = TypeVar("T")

Words = dict[str, str]
Quantities = dict[str, str | int]
"""by resource name; Kubernetes writes text, people also write numbers"""


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who an object is, and what is pinned to it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Words = {}
    annotations: Words = {}


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that is so, or is not, or is not known."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a container asks for and may use."""

    limits: Quantities = {}
    requests: Quantities = {}


class PodContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container as its author wrote it."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None
    """`Always` makes a sidecar of an init container"""


Containers = Annotated[tuple[PodContainer, ...], Meta(max_length=MOST_CONTAINERS)]


class Gate(msgspec.Struct, frozen=True):
    """What keeps a pod from being scheduled until somebody removes it."""

    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a pod is to be."""

    containers: Containers = ()
    init_containers: Containers = ()
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    priority: int | None = None
    preemption_policy: str | None = None
    """`Never`: nobody is evicted for it"""


class Running(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Since when a container runs."""

    started_at: str | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class ContainerState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of these is there; waiting is neither."""

    running: Running | None = None
    terminated: Ended | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What kubelet says of a container."""

    name: str
    state: ContainerState = ContainerState()


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What has become of a pod."""

    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an administrator says of a node."""

    unschedulable: bool = False


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is reached."""

    type: str = ""
    """InternalIP, Hostname and others"""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What kubelet says of its node."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    addresses: tuple[Address, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Node(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


def decode_pod(content: bytes) -> Pod:
    """A pod from JSON; InputError names the field that is not as it should be."""
    return decode_object(content, Pod, "a pod")


def decode_node(content: bytes) -> Node:
    """A node from JSON; InputError names the field that is not as it should be."""
    return decode_object(content, Node, "a node")


def decode_object(content: bytes, kind: type[T], what: str) -> T:
    """Any JSON from the API server: bounded in size and depth, also in the parts that we do not read."""
    if len(content) > MOST_BYTES:
        raise InputError(f"not {what}: {len(content)} bytes, expected at most {MOST_BYTES}")
    return decode(content, kind, what)


def containers_of(pod: Pod) -> Iterator[tuple[ContainerKind, PodContainer]]:
    """All containers in the order in which Kubernetes starts them."""
    for container in pod.spec.init_containers:
        kind = ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        yield kind, container
    for container in pod.spec.containers:
        yield ContainerKind.APP, container


def resources_of(container: PodContainer) -> Mapping[str, str | int]:
    """What a container asks for; of a resource that has both, the limit, as Kubernetes itself takes it."""
    return {**container.resources.requests, **container.resources.limits}


def has_ended(pod: Pod) -> bool:
    """Whether none of its containers will ever run again."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_unschedulable(pod: Pod) -> bool:
    """Whether kube-scheduler has tried to place it and found no node."""
    return any((one.type, one.reason) == ("PodScheduled", "Unschedulable") for one in pod.status.conditions)
