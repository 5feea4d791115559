# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Admission reviews: the API server's request about one object, and the responses that it accepts.

A pod is decoded in more detail than placement needs: mounts, variables, rights. It is checked before anything is
changed, so code that edits the JSON can rely on its shape.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.api.objects import (
    MIRROR,
    MOST_CONTAINERS,
    Gate,
    Metadata,
    Pod,
    PodContainer,
    PodSpec,
    Resources,
    SchedulingGroup,
    Security,
    decode_object,
)
from cotenant.kube.api.objects import MOST_BYTES as MOST_OBJECT_BYTES
from cotenant.wire.codec import decode


class Variable(msgspec.Struct, frozen=True):
    """An environment variable."""

    name: str = ""
    value: str | None = None


class Mount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume that is mounted in a container."""

    name: str = ""
    mount_path: str = ""


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume that a container gets as a block device."""

    device_path: str = ""


class ContainerManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container as the user wrote it."""

    name: str = ""
    restart_policy: str | None = None
    env: tuple[Variable, ...] = ()
    resources: Resources = Resources()
    volume_mounts: tuple[Mount, ...] = ()
    volume_devices: tuple[BlockDevice, ...] = ()
    security_context: Security = Security()


class HostPath(msgspec.Struct, frozen=True):
    """A directory of the node."""

    path: str = ""


class Claim(msgspec.Struct, frozen=True):
    """A ResourceClaim that a pod names: devices of a driver for dynamic resource allocation."""

    name: str = ""


class Volume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume of a pod."""

    name: str = ""
    host_path: HostPath | None = None


ContainerManifests = Annotated[tuple[ContainerManifest, ...], Meta(max_length=MOST_CONTAINERS)]


class SpecManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a pod as the user wrote it."""

    containers: ContainerManifests = ()
    init_containers: ContainerManifests = ()
    ephemeral_containers: ContainerManifests = ()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[Claim, ...] = ()
    node_name: str = ""
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: Mapping[str, Any] | None = None
    """what Kubernetes 1.35 has instead of the group"""
    runtime_class_name: str | None = None
    priority: int | None = None


class PodManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod as the user wrote it."""

    metadata: Metadata = Metadata()
    spec: SpecManifest = SpecManifest()


def is_mirror(annotations: dict[str, str]) -> bool:
    """Return whether the pod mirrors a static pod: it runs already, and a change or refusal would not affect it."""
    return MIRROR in annotations


def to_pod(manifest: PodManifest, annotations: dict[str, str]) -> Pod:
    """Return the pod with other annotations, in the form that the codec reads."""
    return Pod(
        metadata=msgspec.structs.replace(manifest.metadata, annotations=annotations),
        spec=PodSpec(
            containers=_to_containers(manifest.spec.containers),
            init_containers=_to_containers(manifest.spec.init_containers),
            scheduling_group=manifest.spec.scheduling_group,
            priority=manifest.spec.priority,
        ),
    )


def _to_containers(containers: tuple[ContainerManifest, ...]) -> tuple[PodContainer, ...]:
    return tuple(
        PodContainer(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in containers
    )


MOST_BYTES = 2 * MOST_OBJECT_BYTES
"""A review holds two objects: the old and the new one."""
VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

T = TypeVar("T")
_NULL = msgspec.Raw(b"null")


class Resource(msgspec.Struct, frozen=True):
    """The resource type of the object."""

    group: str = ""
    resource: str = ""


class User(msgspec.Struct, frozen=True):
    """The user that sent the request to the API server."""

    username: str = ""
    groups: tuple[str, ...] = ()


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A write to one object that the API server is about to do."""

    uid: str
    operation: str = ""
    resource: Resource = Resource()
    sub_resource: str = ""
    namespace: str = ""
    user_info: User = User()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL

    def is_for(self, operation: str, sub_resource: str = "") -> bool:
        """Return whether this is the given operation on a pod or on a subresource of a pod."""
        return (self.resource, self.operation, self.sub_resource) == (Resource("", "pods"), operation, sub_resource)


class _Review(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    kind: str
    request: AdmissionRequest


def decode_review(body: bytes) -> AdmissionRequest:
    """Decode the request of a review; InputError if the body has no request that a response could refer to."""
    if len(body) > MOST_BYTES:
        raise InputError(f"not an admission review: {len(body)} bytes, expected at most {MOST_BYTES}")
    review = decode(body, _Review, "an admission review")
    if (review.api_version, review.kind) != (VERSION, KIND):
        raise InputError(f"not an admission review: expected {KIND} of {VERSION}")
    return review.request


def decode_optional(raw: msgspec.Raw, kind: type[T], what: str) -> T | None:
    """Decode an object of a review; None if the review carries no such object."""
    content = bytes(raw)
    return None if content == b"null" else decode_object(content, kind, what)


def allow(
    request: AdmissionRequest, old: Json | None = None, new: Json | None = None, warnings: Sequence[str] = ()
) -> bytes:
    """Return the response that admits the object after the changes from `old` to `new`; kubectl prints the warnings."""
    patch = [] if old == new else list(_patch(_mutable(old), _mutable(new), ""))
    answer: Json = {"allowed": True} | ({"warnings": [f"cotenant: {text}" for text in warnings]} if warnings else {})
    if not patch:
        return _response(request, answer)
    encoded = b64encode(msgspec.json.encode(patch)).decode()
    return _response(request, {**answer, "patchType": "JSONPatch", "patch": encoded})


def refuse(request: AdmissionRequest, message: str) -> bytes:
    """Return the response that refuses the object as invalid, with a message for the user."""
    status = {"status": "Failure", "code": 422, "reason": "Invalid", "message": f"cotenant: {message}"}
    return _response(request, {"allowed": False, "status": status})


def _response(request: AdmissionRequest, response: Json) -> bytes:
    return msgspec.json.encode({"apiVersion": VERSION, "kind": KIND, "response": {"uid": request.uid, **response}})


def _patch(old: object, new: object, path: str) -> Iterator[Json]:
    """Yield the operations of a JSONPatch from `old` to `new`.

    A list whose length changed is replaced as a whole. The shortest patch would take quadratic time in the length of
    the list, and the author of a pod chooses that length.
    """
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                yield {"op": "remove", "path": place}
            elif key not in old:
                yield {"op": "add", "path": place, "value": new[key]}
            else:
                yield from _patch(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _patch(before, after, f"{path}/{number}")
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _mutable(pod: Json | None) -> Json:
    """Return the parts of a pod that the webhook may change; managedFields is long and need not be compared."""
    parts = {key: value for key, value in (pod or {}).items() if key in ("metadata", "spec")}
    if "metadata" in parts:
        parts["metadata"] = {key: value for key, value in parts["metadata"].items() if key == "annotations"}
    return parts
