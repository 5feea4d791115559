# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod gets that shares ResourceClaims with other pods: the same GPUs, on the same node, with the same limits."""

from collections.abc import Mapping
from dataclasses import replace

from cotenant.core.model import ContainerKind
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.claims import ResourceClaim
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record, valid_record
from cotenant.kube.codec.claimed import Claimed, ClaimPart
from cotenant.kube.codec.isolation import ISOLATION, Isolation, is_enforced, wish_of
from cotenant.wire.text import printable


def record_to_join(
    claim: ResourceClaim, joining: Pod, users: Mapping[str, Pod], given: Mapping[str, Pod], allowed: Isolation
) -> Record | None:
    """The assignment of another pod that uses a claim; None if there is none. InputError if another pod uses it in a
    way that this one cannot join.

    `users` are the pods that name the claim, `given` those of them that have an assignment, by UID.
    """
    about, uid = claim.metadata, joining.metadata.uid
    what = f"ResourceClaim {printable(about.name[:80])}"
    for other, pod in given.items():
        record = None if other == uid else valid_record(pod)
        if record is None:
            continue
        mine = record.held_by_claim(about.uid)
        if not mine:
            raise InputError(f"{what}: pod {pod.metadata.name} uses an earlier claim of this name; wait for its end")
        if any(held.number == mine[0].number and held.claim != about.uid for held in record.containers):
            raise InputError(
                f"{what}: pod {pod.metadata.name} uses it together with other claims to GPUs; a claim that pods share"
                " must be the only one of its containers"
            )
        _check_enforcement(joining, pod, what, allowed)
        return record
    for one in claim.status.reserved_for:
        user = users.get(one.uid)
        if one.uid != uid and (user is None or (user.spec.node_name and not has_ended(user))):
            raise InputError(
                f"{what}: pod {printable(one.name[:80])} uses it, to which cotenant gave no GPUs; wait for its end"
            )
    return None


def _check_enforcement(joining: Pod, user: Pod, what: str, allowed: Isolation) -> None:
    """InputError if a pod wishes for limits, or for none, unlike a pod whose claim it would share. A claim has one set
    of limits: those of its oldest pod."""
    wish = wish_of(joining.metadata.annotations)
    is_limited = is_enforced(user.metadata.annotations, allowed)
    if wish is not None and is_enforced(joining.metadata.annotations, allowed) is not is_limited:
        raise InputError(
            f"annotation {ISOLATION}: {wish}: {what} is in use by pod {user.metadata.name}, whose limits are"
            f" {'' if is_limited else 'not '}enforced; remove it"
        )


def joined_with(found: Claimed, joined: Mapping[str, Record]) -> Claimed:
    """What a pod requests if other pods have some of its claims already."""
    nodes = {record.node for record in joined.values()}
    if len(nodes) > 1:
        raise InputError(
            f"its claims are in use on different nodes: {', '.join(sorted(nodes))}; use claims of one node"
        )
    holders = {part.claim: part.holder for option in found.options for part in option}
    counts = {holder: sum(one == holder for one in holders.values()) for holder in holders.values()}
    if any(counts[holders[claim]] > 1 for claim in joined):
        raise InputError("a claim that pods share must be the only claim to GPUs of its containers")
    kinds = {part.claim: part.container.kind for option in found.options for part in option}
    given = [
        ClaimPart(
            holder=holders[claim],
            claim=claim,
            request=held.request,
            container=replace(
                found.options[0][0].container,
                kind=ContainerKind.SIDECAR if kinds[claim] is ContainerKind.INIT else kinds[claim],
                gpus=len(held.gpus),
                memory_percent=WHOLE_MEMORY if record.exclusive else None,
                compute=WHOLE_GPU if record.exclusive else MilliGpu(held.gpus[0].compute),
            ),
            given=held.gpus,
        )
        for claim, record in joined.items()
        for held in record.held_by_claim(claim)
    ]
    own = dict.fromkeys(tuple(part for part in option if part.claim not in joined) for option in found.options)
    return replace(found, options=tuple(own), joined=tuple(given), node=nodes.pop())
