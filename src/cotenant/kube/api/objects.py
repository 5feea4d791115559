# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of Kubernetes objects that we read; all other fields are ignored.

A field that is declared here must have the type that Kubernetes defines; otherwise the whole object is rejected.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from cotenant.core.model import ContainerKind
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.node_terms import Affinity, Taint, Toleration
from cotenant.wire.codec import decode

MOST_BYTES = 4 * 1024 * 1024
"""Size of one object. The API server accepts requests of 3 MiB and stores about half of that."""
MOST_CONTAINERS = 1000
EPHEMERAL_CONTAINERS = "ephemeralcontainers"
"""Subresource of a pod through which debug containers are added."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod: kubelet's record of a static pod, which runs from a file whatever the API server says."""

T = TypeVar("T")

Words = dict[str, str]
Quantities = dict[str, str | int]
"""Amounts by resource name. Kubernetes writes strings, users also write numbers."""


class Owner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An object without which another one is deleted."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The identity, labels and annotations of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Words = {}
    annotations: Words = {}
    owner_references: tuple[Owner, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> Owner | None:
        """The object that would create the pod again, such as a Job; None: nothing would."""
        return next((one for one in self.owner_references if one.controller), None)


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One condition of a pod or a node; its status is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim of the pod that a container uses."""

    name: str = ""
    """Its name within the pod."""
    request: str = ""
    """The only request of the claim whose devices it uses; empty: all."""


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The resource requests and limits of a container."""

    limits: Quantities = {}
    requests: Quantities = {}
    claims: tuple[ClaimUse, ...] = ()


class Capabilities(msgspec.Struct, frozen=True):
    """Linux capabilities that a container gets beyond the usual ones."""

    add: tuple[str, ...] = ()


class Security(msgspec.Struct, frozen=True):
    """The security context of a container."""

    privileged: bool | None = None
    capabilities: Capabilities = Capabilities()


class PodContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a container."""

    name: str = ""
    resources: Resources = Resources()
    security_context: Security = Security()
    restart_policy: str | None = None
    """`Always` turns an init container into a sidecar."""


Containers = Annotated[tuple[PodContainer, ...], Meta(max_length=MOST_CONTAINERS)]


class Gate(msgspec.Struct, frozen=True):
    """A scheduling gate: the pod is not scheduled before all its gates are removed."""

    name: str = ""


class SchedulingGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The group of pods, an object of Kubernetes 1.36, that a pod is scheduled with."""

    pod_group_name: str = ""


class PodClaim(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A ResourceClaim that a pod names, or has made from a template."""

    name: str = ""
    """Its name within the pod."""
    resource_claim_name: str | None = None
    """Of the object; in the status of a pod, None means that none is needed."""
    resource_claim_template_name: str | None = None


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a pod."""

    containers: Containers = ()
    init_containers: Containers = ()
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    """`Never`: no pod is evicted for this one."""
    resource_claims: tuple[PodClaim, ...] = ()
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    host_pid: bool = msgspec.field(name="hostPID", default=False)
    """Whether its containers see the processes of their node."""


class Running(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a running container."""

    started_at: str | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a terminated container."""

    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class ContainerState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a container; if it waits, both fields are None."""

    running: Running | None = None
    terminated: Ended | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a container, as kubelet reports it."""

    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    """The runtime's name and the ID that it gave to the container: `containerd://4f1c...`."""
    state: ContainerState = ContainerState()


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaim, ...] = ()
    """The claims that were made from templates."""
    extended_resource_claim_status: PodClaim | None = None
    """The claim that kube-scheduler made for extended resources of the pod."""


class Pod(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address of a node."""

    type: str = ""
    """InternalIP, Hostname and others."""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a node, as kubelet reports it."""

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
    """Decode a pod from JSON; InputError names the field that is wrong."""
    return decode_object(content, Pod, "a pod")


def decode_node(content: bytes) -> Node:
    """Decode a node from JSON; InputError names the field that is wrong."""
    return decode_object(content, Node, "a node")


def decode_object(content: bytes, kind: type[T], what: str) -> T:
    """Decode JSON from the API server, bounded in size and depth, also in the parts that we ignore."""
    if len(content) > MOST_BYTES:
        raise InputError(f"not {what}: {len(content)} bytes, expected at most {MOST_BYTES}")
    return decode(content, kind, what)


def containers_of(pod: Pod) -> Iterator[tuple[ContainerKind, PodContainer]]:
    """Yield all containers in the order in which Kubernetes starts them."""
    for container in pod.spec.init_containers:
        kind = ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        yield kind, container
    for container in pod.spec.containers:
        yield ContainerKind.APP, container


def resources_of(container: PodContainer) -> Mapping[str, str | int]:
    """Return the amounts that a container requests; if a resource has both, the limit counts, as in Kubernetes."""
    return {**container.resources.requests, **container.resources.limits}


def has_ended(pod: Pod) -> bool:
    """Return whether no container of the pod will ever run again."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_ready(one: Pod | Node) -> bool:
    """Whether the condition Ready of a pod or a node is true."""
    return any(found.type == "Ready" and found.status == "True" for found in one.status.conditions)


def moment_of(text: str | None) -> Seconds:
    """Return a time as Kubernetes writes it in seconds since 1970; 0 if there is none or it cannot be read."""
    try:
        return Seconds(datetime.fromisoformat(text or "").timestamp())
    except ValueError:
        return Seconds(0.0)


def time_text(moment: datetime) -> str:
    """Return a time in UTC as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_unschedulable(pod: Pod) -> bool:
    """Return whether kube-scheduler has tried to place the pod and found no node."""
    return unschedulable_message(pod) is not None


def unschedulable_message(pod: Pod) -> str | None:
    """Return what kube-scheduler wrote when it found no node for the pod; None if it found one or has not tried."""
    wanted = ("PodScheduled", "Unschedulable")
    return next((one.message for one in pod.status.conditions if (one.type, one.reason) == wanted), None)
