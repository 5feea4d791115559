# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for GPUs by ResourceClaims, and the allocation of a claim that follows from the assignment of its pod.

A claim names one of our device classes. The amounts of a shared GPU are opaque parameters of our driver, because
Kubernetes 1.34 counts no capacity. Nothing in a claim says what a pod has: that is in the record of the pod.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cotenant.core.model import Container, ContainerKind
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.claims import AllocatedDevice, DeviceClaim, DeviceRequest, ResourceClaim
from cotenant.kube.api.objects import Pod, containers_of, has_ended
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.assignment import RECORD, Record
from cotenant.kube.codec.settings import MOST_GPUS, MOST_MEMORY
from cotenant.wire.text import printable

DRIVER = "gpu.cotenant.io"
SHARED, WHOLE = DRIVER, f"whole.{DRIVER}"
"""Device classes: a share of a GPU of the size that the claim states, and a GPU that no other tenant uses."""
CLASSES = (SHARED, WHOLE)
PARAMETERS = f"{DRIVER}/v1"
_LONGEST_DEVICE = 63

FindClaim = Callable[[str, str], ResourceClaim | None]
"""Returns a claim by namespace and name; None if there is none."""


class GpuShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The parameters of a claim: what it needs of each of its GPUs."""

    api_version: Literal["gpu.cotenant.io/v1"]
    kind: Literal["GpuShare"]
    memory: str | int
    """A quantity of bytes, such as 4Gi."""
    compute: Annotated[int, Meta(ge=0, le=100)] = 0
    """Percent of the compute; 0 claims none and is not limited."""


def claim_names(pod: Pod) -> dict[str, str | None]:
    """The names of the claims of a pod, by their names within the pod; None: it is not made from its template yet."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    return {one.name: one.resource_claim_name or made.get(one.name) for one in pod.spec.resource_claims}


def claims_of(pod: Pod, find: FindClaim) -> dict[str, ResourceClaim]:
    """The claims of a pod that request our GPUs, by their names within the pod. InputError if one is not there: what it
    requests is not known."""
    found = {}
    for name, real in claim_names(pod).items():
        claim = None if real is None else find(pod.metadata.namespace, real)
        if claim is None:
            what = f"the claim {_short(name)} of the pod" if real is None else f"ResourceClaim {_short(real)}"
            raise InputError(f"{what} does not exist yet")
        if is_ours(claim.spec.devices):
            found[name] = claim
    return found


def is_ours(devices: DeviceClaim) -> bool:
    """Whether a claim requests our GPUs, correctly or not."""
    return any(
        name in CLASSES
        for one in devices.requests
        for name in (
            *(() if one.exactly is None else (one.exactly.device_class_name,)),
            *(sub.device_class_name for sub in one.first_available),
        )
    )


def claimed_containers(pod: Pod, claims: Mapping[str, ResourceClaim]) -> dict[str, Container]:
    """What containers request by these claims of their pod; InputError if a claim cannot be satisfied.

    Several containers may use one claim. They share its GPUs and its limits, so it counts once, for the first of them
    that stays.
    """
    holders: dict[str, Container] = {}
    for name, claim in claims.items():
        kind, holder = _holder(pod, name)
        if holder in holders:
            raise InputError(
                f"container {_short(holder)}: uses two claims to GPUs; use one, with the number of GPUs as its count"
            )
        try:
            holders[holder] = _container(kind, claim.spec.devices)
        except InputError as error:
            raise InputError(f"ResourceClaim {_short(claim.metadata.name)}: {error}") from None
    return holders


def holder_of(pod: Pod, name: str) -> str:
    """The container for which a claim counts; InputError if none uses it."""
    return _holder(pod, name)[1]


def _holder(pod: Pod, name: str) -> tuple[ContainerKind, str]:
    users = [
        (kind, one.name) for kind, one in containers_of(pod) if any(use.name == name for use in one.resources.claims)
    ]
    if not users:
        raise InputError(f"no container uses the claim {_short(name)} of the pod; remove it from spec.resourceClaims")
    return next((one for one in users if one[0] is not ContainerKind.INIT), users[0])


def _container(kind: ContainerKind, devices: DeviceClaim) -> Container:
    request = _only_request(devices)
    exactly = request.exactly
    assert exactly is not None
    stated = _parameters(devices, request.name)
    if exactly.device_class_name == WHOLE:
        if stated is not None:
            raise InputError(f"class {WHOLE} is for whole GPUs; remove the parameters, or use class {SHARED}")
        return Container(kind=kind, gpus=exactly.count, memory_percent=WHOLE_MEMORY, memory=MiB(0), compute=WHOLE_GPU)
    if stated is None:
        raise InputError(
            f"class {SHARED} needs parameters that state the memory, such as {{apiVersion: {PARAMETERS}, kind:"
            f" GpuShare, memory: 4Gi}}; for whole GPUs, use class {WHOLE}"
        )
    return Container(
        kind=kind, gpus=exactly.count, memory=_memory(stated.memory), compute=MilliGpu(stated.compute * 10)
    )


def _only_request(devices: DeviceClaim) -> DeviceRequest:
    if len(devices.requests) != 1 or devices.constraints:
        raise InputError("expected one request without constraints; request other devices by another claim")
    (request,) = devices.requests
    exactly = request.exactly
    if exactly is None:
        raise InputError("firstAvailable is not supported for these GPUs; write exactly")
    if exactly.selectors:
        raise InputError("selectors are not supported for these GPUs; annotate the pod with the types that it may use")
    if exactly.allocation_mode not in ("", "ExactCount") or exactly.admin_access:
        raise InputError("allocationMode: All and adminAccess are not supported for these GPUs; write a count")
    if not 1 <= exactly.count <= MOST_GPUS:
        raise InputError(f"{exactly.count} GPUs, expected 1 to {MOST_GPUS}")
    return request


def _parameters(devices: DeviceClaim, request: str) -> GpuShare | None:
    found = [
        one.opaque.parameters
        for one in devices.config
        if one.opaque is not None and one.opaque.driver == DRIVER and (not one.requests or request in one.requests)
    ]
    if len(found) > 1:
        raise InputError(f"{len(found)} configurations for driver {DRIVER}, expected 1")
    try:
        return msgspec.convert(found[0], GpuShare) if found else None
    except msgspec.ValidationError as error:
        raise InputError(f"parameters for driver {DRIVER}: {printable(str(error)[:200])}") from None


def _memory(written: str | int) -> MiB:
    try:
        mib = -(-parse_quantity(written) // MIB_BYTES)
    except ValueError as error:
        raise InputError(f"memory: {error}") from None
    if not 1 <= mib <= MOST_MEMORY:
        raise InputError(f"memory: {printable(str(written)[:40])}, expected an amount of up to 1 TiB, such as 4Gi")
    return MiB(int(mib))


# The allocation


def is_decided(pod: Pod) -> bool:
    """Whether a pod that is not on its node yet has the assignment by which its claims are allocated."""
    is_bound = bool(pod.spec.node_name) or has_ended(pod)
    return bool(pod.spec.resource_claims) and not is_bound and RECORD in pod.metadata.annotations


def device_name(uuid: str) -> str:
    """The name of a GPU in ResourceSlices and allocations, which Kubernetes restricts to a DNS label."""
    return re.sub(r"[^a-z0-9]+", "-", uuid.lower())[:_LONGEST_DEVICE].strip("-")


def slice_name(node: str) -> str:
    """The name of the ResourceSlice of a node."""
    return f"{node}-{DRIVER}"


def allocated_devices(claim: ResourceClaim, record: Record, number: int) -> tuple[AllocatedDevice, ...]:
    """The devices of a claim whose container has this number."""
    request = claim.spec.devices.requests[0].name
    return tuple(
        AllocatedDevice(request=request, driver=DRIVER, pool=record.node, device=device_name(share.gpu))
        for share in record.held_by(number)
    )


def allocation_status(devices: tuple[AllocatedDevice, ...], node: str) -> dict[str, Any]:
    """The allocation of a claim as Kubernetes stores it; kube-scheduler binds its pod only to this node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": [msgspec.to_builtins(one) for one in devices]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def _short(text: str) -> str:
    return printable(text[:80])
