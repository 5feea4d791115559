# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for GPUs by ResourceClaims, and the allocation of a claim that follows from the assignment of its pod.

A claim names one of our device classes, or a class that names our driver. Nothing in a claim says what a pod has: that
is in the record of the pod.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice, product
from typing import Any

import msgspec

from cotenant.core.model import Container, ContainerKind
from cotenant.errors import InputError
from cotenant.kube.api.claims import AllocatedDevice, ResourceClaim
from cotenant.kube.api.objects import Pod, containers_of, has_ended, time_text
from cotenant.kube.codec.assignment import RECORD, Record
from cotenant.kube.codec.claim_requests import CLASSES as CLASSES
from cotenant.kube.codec.claim_requests import DRIVER as DRIVER
from cotenant.kube.codec.claim_requests import MOST_OPTIONS, ClaimRequest, FindClass, is_ours
from cotenant.kube.codec.claim_requests import PARAMETERS as PARAMETERS
from cotenant.kube.codec.claim_requests import SHARED as SHARED
from cotenant.kube.codec.claim_requests import WHOLE as WHOLE
from cotenant.kube.codec.claimed import Claimed, ClaimPart
from cotenant.wire.text import printable

_LONGEST_DEVICE = 63
_SHARES = uuid.UUID("6ab4d1f0-6f0a-5c39-8a1f-0d8f0c7b5d11")
"""Namespace of the IDs of shares."""

MISSING = "does not exist yet"
"""Ends the error about a claim that is not there."""
MOST_CLAIMS = 100
"""Of one pod. A change of one of them has all of them read again."""

FindClaim = Callable[[str, str], ResourceClaim | None]
"""Returns a claim by namespace and name; None if there is none."""


class UnknownClaimsError(InputError):
    """What devices the claims of a pod are for is not known."""


def claim_names(pod: Pod) -> dict[str, str | None]:
    """The names of the claims of a pod, by their names within the pod; None: it is not made from its template yet.
    Without those of which Kubernetes has said that none is needed."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    unneeded = {name for name, real in made.items() if real is None}
    return {
        one.name: one.resource_claim_name or made.get(one.name)
        for one in pod.spec.resource_claims
        if one.resource_claim_name or one.name not in unneeded
    }


def claims_of(pod: Pod, find: FindClaim, find_class: FindClass) -> dict[str, ResourceClaim]:
    """The claims of a pod that request our GPUs, by their names within the pod. UnknownClaimsError if one is not
    there."""
    names, found = claim_names(pod), {}
    if len(names) > MOST_CLAIMS:
        raise UnknownClaimsError(f"the pod names {len(names)} ResourceClaims, expected at most {MOST_CLAIMS}")
    for name, real in names.items():
        claim = None if real is None else find(pod.metadata.namespace, real)
        if claim is None:
            what = f"the claim {_short(name)} of the pod" if real is None else f"ResourceClaim {_short(real)}"
            raise UnknownClaimsError(f"{what} {MISSING}")
        if is_ours(claim.spec.devices, find_class):
            found[name] = claim
    return found


def check_usable(pod: Pod, claims: Mapping[str, ResourceClaim]) -> None:
    """InputError if Kubernetes would start no pod with one of these claims."""
    made = {one.name for one in pod.spec.resource_claims if one.resource_claim_template_name}
    for name, claim in claims.items():
        about = claim.metadata
        if about.deletion_timestamp:
            raise InputError(f"ResourceClaim {_short(about.name)} is being deleted; the pod needs another claim")
        if name in made and (about.controller is None or about.controller.uid != pod.metadata.uid):
            raise InputError(
                f"ResourceClaim {_short(about.name)} was not made for this pod; delete the claim, and Kubernetes makes"
                " another one from the template"
            )


def check_named_once(claims: Mapping[str, ResourceClaim]) -> None:
    """InputError if a pod, by whose names these are, names a claim twice: it has its GPUs once."""
    first: dict[str, str] = {}
    for name, claim in claims.items():
        if (other := first.setdefault(claim.metadata.uid, name)) != name:
            raise InputError(
                f"the claims {_short(other)} and {_short(name)} of the pod are both ResourceClaim"
                f" {_short(claim.metadata.name)}; name it once, and let all its containers use that name"
            )


def claimed_by(pod: Pod, claims: Mapping[str, ResourceClaim], read: Callable[[ResourceClaim], ClaimRequest]) -> Claimed:
    """What containers request by these claims of their pod; InputError if a claim cannot be satisfied.

    Several containers may use one claim. They share its GPUs and its limits, so it counts once, for the first of them
    that stays. A container may use several claims, and has the sum of them.
    """
    holders, choices, one_numa = _holders(pod, claims), [], []
    for name, claim in claims.items():
        try:
            request = read(claim)
        except InputError as error:
            raise InputError(f"ResourceClaim {_short(claim.metadata.name)}: {error}") from None
        kind, holder = holders[name]
        # A claim of an init container stays until the pod ends; it counts as in Kubernetes only if it is the only one.
        several = len(request.options[0]) > 1 or sum(other[1] == holder for other in holders.values()) > 1
        kind = ContainerKind.SIDECAR if several and kind is ContainerKind.INIT else kind
        one_numa.append(request.one_numa)
        choices.append(
            [
                tuple(
                    ClaimPart(
                        holder=holder,
                        claim=claim.metadata.uid,
                        request=part.request,
                        container=replace(
                            _ending(part.container) if kind is ContainerKind.INIT else part.container, kind=kind
                        ),
                        automatic=part.automatic,
                    )
                    for part in option
                )
                for option in request.options
            ]
        )
    if any(one_numa) and len(claims) > 1:
        raise InputError("matchAttribute for the NUMA node is supported for pods with one claim to GPUs")
    found = list(islice(product(*choices), MOST_OPTIONS + 1))
    if len(found) > MOST_OPTIONS:
        raise InputError(f"its claims have more than {MOST_OPTIONS} ways to satisfy them; leave fewer choices")
    options = tuple(tuple(part for parts in option for part in parts) for option in found)
    return Claimed(options=options, one_numa=any(one_numa))


def _holders(pod: Pod, claims: Mapping[str, ResourceClaim]) -> dict[str, tuple[ContainerKind, str]]:
    """The container for which each claim counts. Containers that share a claim must use the same claims, because
    variables and limits follow from all claims of a container."""
    uses = {
        one.name: (kind, {use.name: use.request for use in one.resources.claims if use.name in claims})
        for kind, one in containers_of(pod)
    }
    found = {}
    for name, claim in claims.items():
        users = [(kind, container, names) for container, (kind, names) in uses.items() if name in names]
        if not users:
            raise InputError(
                f"no container uses the claim {_short(name)} of the pod; remove it from spec.resourceClaims"
            )
        for _, container, names in users:
            if names[name] and len(claim.spec.devices.requests) > 1:
                raise InputError(
                    f"container {_short(container)}: uses one request of the claim {_short(name)}; use all of them, or"
                    " a claim for each container"
                )
            if set(names) != set(users[0][2]):
                raise InputError(
                    f"containers {_short(users[0][1])} and {_short(container)} share the claim {_short(name)}, but not"
                    " all of their claims to GPUs; let both use the same claims"
                )
        kind, container, _ = next((one for one in users if one[0] is not ContainerKind.INIT), users[0])
        found[name] = kind, container
    return found


def _ending(container: Container) -> Container:
    """An init container, which has what it requests: it ends before others could give anything back."""
    return replace(container, memory_limit=None, memory_limit_percent=None, compute_limit=None)


def holder_of(pod: Pod, name: str) -> str:
    """The container for which a claim counts; InputError if none uses it."""
    users = [
        (kind, one.name) for kind, one in containers_of(pod) if any(use.name == name for use in one.resources.claims)
    ]
    if not users:
        raise InputError(f"no container uses the claim {_short(name)} of the pod; remove it from spec.resourceClaims")
    return next((one for one in users if one[0] is not ContainerKind.INIT), users[0])[1]


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


def allocated_devices(claim: str, record: Record) -> tuple[AllocatedDevice, ...]:
    """The devices of the claim with this UID."""
    return tuple(
        AllocatedDevice(request=held.request, driver=DRIVER, pool=record.node, device=device_name(share.gpu))
        for held in record.held_by_claim(claim)
        for share in held.gpus
    )


def allocation_status(claim: str, record: Record, now: datetime) -> dict[str, Any]:
    """The allocation of a claim as Kubernetes stores it; kube-scheduler binds its pods only to this node.

    Where Kubernetes counts the capacity of devices, it counts what is written here. Otherwise it drops these fields.
    Without a time, kube-scheduler 1.36 would add one when it reserves the claim, and an allocation cannot be changed.
    """
    field = {"key": "metadata.name", "operator": "In", "values": [record.node]}
    shares = [(held.request, share) for held in record.held_by_claim(claim) for share in held.gpus]
    results = [
        {
            **msgspec.to_builtins(device),
            "shareID": str(uuid.uuid5(_SHARES, f"{claim} {request} {share.gpu}")),
            "consumedCapacity": {"memory": f"{share.memory}Mi", "compute": str(-(-share.compute // 10))},
        }
        for device, (request, share) in zip(allocated_devices(claim, record), shares, strict=True)
    ]
    return {
        "devices": {"results": results},
        "allocationTimestamp": time_text(now),
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def devices_for_admins(claim: ResourceClaim, node: str) -> frozenset[str]:
    """The devices of a node that a claim gives an administrator; empty unless all of our devices are such.

    The API server lets a claim request that only in a namespace that an administrator has labelled.
    """
    allowed = {one.name for one in claim.spec.devices.requests if one.exactly is not None and one.exactly.admin_access}
    given = () if claim.status.allocation is None else claim.status.allocation.devices.results
    ours = [one for one in given if one.driver == DRIVER]
    if not all(one.admin_access and one.request in allowed and one.pool == node for one in ours):
        return frozenset()
    return frozenset(one.device for one in ours)


def _short(text: str) -> str:
    return printable(text[:80])
