# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What ResourceClaims give on a node, by the records of the pods that use them.

Several pods may share a claim. They have the same GPUs by it, and one set of limits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cotenant.errors import InputError
from cotenant.kube.agent.claim_files import PreparedClaim
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record, Share, record_of, valid_record
from cotenant.kube.codec.claims import claim_names, holder_of
from cotenant.kube.codec.request import container_names


@dataclass(frozen=True, slots=True)
class GivenClaim:
    """What a pod has by a claim."""

    uid: str
    pod: Pod
    number: int
    """Of the container for which the claim counts."""
    shares: tuple[Share, ...]
    """What the container has, by this claim and others."""
    carries: bool
    given: tuple[Share, ...] = ()
    """What it has by this claim, if the record says so."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of this claim."""
        return tuple(share.gpu for share in self.given or self.shares)


def use_by(pod: Pod, record: Record, uid: str) -> GivenClaim | None:
    """The use of a claim that the record of a pod names; None if it does not."""
    held = record.held_by_claim(uid)
    if not held:
        return None
    given = tuple(share for one in held for share in one.gpus)
    number = held[0].number
    return GivenClaim(uid, pod, number, record.held_by(number), record.carries(uid), given)


def chosen_use(uid: str, users: Sequence[tuple[Pod, str]]) -> GivenClaim:
    """What decides about a claim: the record of the oldest pod that has one for it. InputError if none has."""
    uses = []
    for pod, name in users:
        record = record_of(pod)
        if (
            record is not None
            and (use := use_by(pod, record, uid) or _use_by_number(pod, record, uid, name)) is not None
        ):
            uses.append(use)
    if not uses:
        raise InputError(
            f"pod {users[0][0].metadata.name} has no GPUs by cotenant's scheduler for this ResourceClaim, which another"
            " program allocated; delete the pod, and let cotenant allocate the claim"
        )
    if any(use.gpus != uses[0].gpus for use in uses):
        names = ", ".join(sorted(use.pod.metadata.name for use in uses))
        raise InputError(
            f"pods {names} use one ResourceClaim and have different GPUs by it; delete all but one of them"
        )
    return uses[0]


def _use_by_number(pod: Pod, record: Record, uid: str, name: str) -> GivenClaim | None:
    """The use of a claim if the record names no claims: an older scheduler gives a container one claim at most."""
    if _names_claims(record):
        return None
    numbers = {container: number for number, container in enumerate(container_names(pod))}
    number = numbers[holder_of(pod, name)]
    shares = record.held_by(number)
    return GivenClaim(uid, pod, number, shares, carries=True) if shares else None


def users_of(namespace: str, claim: str, pods: Iterable[Pod]) -> list[tuple[Pod, str]]:
    """The pods that use a claim, oldest first, and its name within each; none if kube-scheduler made the claim for
    resources of the pod."""
    return [
        (pod, name)
        for pod in _alive(pods)
        if pod.metadata.namespace == namespace
        for name, real in (*claim_names(pod).items(), ("", _made_for_resources(pod)))
        if real == claim
    ]


def _made_for_resources(pod: Pod) -> str | None:
    made = pod.status.extended_resource_claim_status
    return None if made is None else made.resource_claim_name


def shared_besides(use: GivenClaim, pods: Iterable[Pod]) -> str | None:
    """The pod with which the container of a claim shares another claim; None: there is none."""
    record = valid_record(use.pod)
    own = {held.claim for held in record.containers if held.number == use.number} if record is not None else set()
    if len(own) < 2:
        return None
    others = (pod for pod in _alive(pods) if pod.metadata.uid != use.pod.metadata.uid and pod.spec.resource_claims)
    for pod in others:
        theirs = valid_record(pod)
        if theirs is not None and any(held.claim in own for held in theirs.containers):
            return pod.metadata.name
    return None


def in_use(prepared: Iterable[PreparedClaim], pods: Iterable[Pod]) -> Iterator[tuple[PreparedClaim, GivenClaim]]:
    """The prepared claims whose pods are there, and what gives them: the record of the oldest pod that uses them."""
    alive = [(pod, record) for pod in _alive(pods) if (record := valid_record(pod)) is not None]
    for claim in prepared:
        uses = [use for pod, record in alive if (use := use_by(pod, record, claim.uid)) is not None]
        uses += [  # of a scheduler that does not name claims in records
            GivenClaim(claim.uid, pod, claim.number, record.held_by(claim.number), carries=True)
            for pod, record in alive
            if pod.metadata.uid == claim.pod and not _names_claims(record)
        ]
        if uses:
            yield claim, uses[0]


def _alive(pods: Iterable[Pod]) -> list[Pod]:
    there = (pod for pod in pods if not has_ended(pod))
    return sorted(there, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.uid))


def _names_claims(record: Record) -> bool:
    return any(held.claim for held in record.containers)
