# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The assignment: which GPUs each container of a pod was given, as JSON in one annotation of the pod.

It carries the pod's UID and node, so a copy of it (in a template, on a pod that was created again) is not valid.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby, islice
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.core.footprint import compute_limit_on, compute_on, memory_limit_on, memory_on
from cotenant.core.isolation import BY_MPS, Rung
from cotenant.core.model import Container, ContainerKind, Demand, Gpu, Gpus, Machine, Slot, Tenant
from cotenant.core.units import WHOLE_GPU, MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import MOST_CONTAINERS as MOST_NUMBERS
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.keys import decode_annotation, own_key
from cotenant.kube.codec.request import MOST_CONTAINERS, PodRequest, demand_for
from cotenant.kube.codec.settings import MOST_GPUS
from cotenant.node.limits import LONGEST_UUID

RECORD = own_key("assignment")
VERSION = 1
INDEX = "index:"
"""Begins the name of a GPU of which only the index is known, in an assignment that another system made."""

Uuid = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9/:._-]{{0,{LONGEST_UUID - 1}}}$(?!\n)")]
Identity = Annotated[str, Meta(min_length=1, max_length=253)]


class Share(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a container was given of one GPU.

    Unknown fields are ignored: nodes are updated one after the other, and a later version may add an optional field.
    """

    gpu: Uuid
    memory: Annotated[int, Meta(ge=0, le=1_000_000_000)]
    """MiB."""
    compute: Annotated[int, Meta(ge=0, le=1000)]
    """Thousandths of a GPU; 0 claims nothing."""
    most: Annotated[int, Meta(ge=0, le=1000)] = 0
    """The largest compute share of a container that claims none, beside a server with a latency objective; 0: any."""
    rung: Rung | None = None
    """What holds the container to its share, if it is a client of MPS; None: as the annotations of the pod say."""
    memory_limit: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    """MiB that the container may use while others leave it free; 0: no more than `memory`."""
    compute_limit: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Thousandths of a GPU that it may have while no other container requests them; 0: no more than `compute`."""

    @property
    def is_elastic(self) -> bool:
        """Whether it may use more than it is guaranteed."""
        return self.memory_limit > self.memory or self.compute_limit > self.compute

    def most_memory(self, gpu: Gpu) -> MiB:
        """What it may use of this GPU: the limits of several requests of a container can be more than there is."""
        return MiB(max(self.memory, min(self.memory_limit, gpu.memory_capacity)))


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What one container was given."""

    number: Annotated[int, Meta(ge=0, lt=MOST_NUMBERS)]
    kind: ContainerKind = ContainerKind.APP
    gpus: Annotated[tuple[Share, ...], Meta(min_length=1, max_length=MOST_GPUS)]
    claim: Annotated[str, Meta(max_length=253)] = ""
    """UID of the ResourceClaim by which it was given; pods that use one claim have the same GPUs by it, which count
    once. A container has one entry for each request of its claims."""
    request: Annotated[str, Meta(max_length=253)] = ""
    """Of that claim. If it is one of several alternatives: `request/subrequest`."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The assignment of a pod: enough to count what it takes, whatever else the pod says."""

    version: int = VERSION
    pod: Identity
    """UID of the pod."""
    node: Identity
    exclusive: bool = False
    """Whether no other tenant may use its GPUs."""
    containers: Annotated[tuple[Held, ...], Meta(max_length=MOST_CONTAINERS)]
    """In the order in which they start."""

    def held_by(self, number: int) -> tuple[Share, ...]:
        """The shares of the container with this number: by several requests, their sum on each GPU."""
        found = [held.gpus for held in self.containers if held.number == number]
        return found[0] if len(found) == 1 else _summed(share for gpus in found for share in gpus)

    def held_by_claim(self, claim: str) -> tuple[Held, ...]:
        """What was given by the ResourceClaim with this UID, an entry for each request."""
        return tuple(held for held in self.containers if claim and held.claim == claim)

    def carries(self, claim: str) -> bool:
        """Whether a ResourceClaim brings everything that its container gets from the node. If a container has several
        claims, the first does: variables and mounts of two of them would exclude each other."""
        mine = self.held_by_claim(claim)
        return bool(mine) and next(held for held in self.containers if held.number == mine[0].number).claim == claim


def _summed(shares: Iterable[Share]) -> tuple[Share, ...]:
    sums: dict[str, Share] = {}
    for share in shares:
        other = sums.get(share.gpu)
        sums[share.gpu] = share if other is None else _sum(other, share)
    return tuple(sums.values())


def _sum(one: Share, other: Share) -> Share:
    """What a container has of a GPU by two requests: it may use more than it requests if it may by one of them."""
    memory, compute = one.memory + other.memory, min(WHOLE_GPU, one.compute + other.compute)
    most = sum(max(share.memory, share.memory_limit) for share in (one, other))
    limit = min(WHOLE_GPU, sum(max(share.compute, share.compute_limit) for share in (one, other)))
    return msgspec.structs.replace(
        one,
        memory=memory,
        compute=compute,
        memory_limit=most if most > memory else 0,
        compute_limit=limit if limit > compute else 0,
    )


def record_for(pod: Pod, request: PodRequest, slot: Slot, machine: Machine) -> Record:
    """The shares of each container on a slot; percentages become MiB of the GPU that was chosen."""
    gpus = iter(slot.gpus)
    rung = request.demand.rung if request.demand.rung in BY_MPS else None
    containers = []
    for one in request.containers:
        wanted = one.amounts.container
        own = [machine.gpus[gpu] for gpu in islice(gpus, wanted.gpus)]
        shares = tuple(_share_for(wanted, gpu, rung) for gpu in own)
        containers.append(Held(number=one.number, kind=wanted.kind, gpus=shares, claim=one.claim, request=one.request))
    containers += [
        Held(number=one.number, kind=one.amounts.container.kind, gpus=one.given, claim=one.claim, request=one.request)
        for one in request.joined
    ]
    return Record(
        pod=pod.metadata.uid, node=slot.node, exclusive=request.demand.exclusive, containers=tuple(containers)
    )


def _share_for(wanted: Container, gpu: Gpu, rung: Rung | None) -> Share:
    memory, compute = memory_on(wanted, gpu), min(WHOLE_GPU, compute_on(wanted, gpu))
    most, limit = memory_limit_on(wanted, gpu), compute_limit_on(wanted, gpu)
    if rung in BY_MPS:  # a client of MPS has the limits with which it started
        most, limit = memory, compute
    return Share(
        gpu=gpu.uuid,
        memory=memory,
        compute=compute,
        rung=rung,
        memory_limit=most if most > memory else 0,
        compute_limit=limit if limit > compute else 0,
    )


def encode_record(record: Record) -> str:
    """The value of the annotation; InputError if it could not be read again."""
    text = msgspec.json.encode(record).decode()
    decode_record(text)
    return text


def decode_record(text: str) -> Record:
    """A record from an annotation; InputError if it is none, or of an unknown version."""
    return checked_record(decode_annotation(RECORD, text, Record, VERSION))


def record_of(pod: Pod) -> Record | None:
    """The record of a pod, None if it has none; InputError if its annotation is not about this pod and node.

    A pod with ResourceClaims has its record before it is bound; then kube-scheduler binds it to no other node.
    """
    text = pod.metadata.annotations.get(RECORD)
    if text is None:
        return None
    record = decode_record(text)
    if record.pod != pod.metadata.uid:
        raise InputError(f"annotation {RECORD}: copied from another pod; leave it out")
    if record.node != (pod.spec.node_name or (record.node if pod.spec.resource_claims else "")):
        raise InputError(f"annotation {RECORD}: for another node than the one that the pod is on")
    return record


def valid_record(pod: Pod) -> Record | None:
    """The record of a pod; None if it has none, or one that is not about this pod and node."""
    try:
        return record_of(pod)
    except InputError:
        return None


def tenant_for(record: Record, constraints: Demand, machine: Machine) -> Tenant:
    """The tenant that uses the shares of this record and has these constraints, and no more of a GPU than it has:
    an assignment that another system made may state any amount for a percentage."""
    most = {gpu.uuid: int(gpu.memory_capacity) for gpu in machine.gpus}
    containers = [
        part
        for held in record.containers
        for part in as_containers(held.kind, [_bounded(share, most) for share in held.gpus])
    ]
    if constraints.exclusive != record.exclusive:
        constraints = replace(constraints, exclusive=record.exclusive)
    if (rung := mps_rung(record)) is not None:
        constraints = replace(constraints, rung=rung)
    demand = demand_for(containers, constraints)
    return Tenant(record.pod, demand, gpus_of([share for held in record.containers for share in held.gpus], machine))


def mps_rung(record: Record) -> Rung | None:
    """The rung of a pod that is a client of MPS; None: it is not one."""
    return next((share.rung for held in record.containers for share in held.gpus if share.rung in BY_MPS), None)


def with_shares(record: Record, change: Callable[[Held, Share], Share]) -> Record:
    """The record with each share of each container changed."""
    return msgspec.structs.replace(
        record,
        containers=tuple(
            msgspec.structs.replace(held, gpus=tuple(change(held, share) for share in held.gpus))
            for held in record.containers
        ),
    )


def combined(record: Record, other: Record, choose: Callable[[Share, Share], Share]) -> Record:
    """The record with each share chosen from both; they have the same containers on the same GPUs."""
    both = zip(record.containers, other.containers, strict=True)
    shares = iter([pair for one, two in both for pair in zip(one.gpus, two.gpus, strict=True)])
    return with_shares(record, lambda _held, _share: choose(*next(shares)))


def compute_share(record: Record) -> MilliGpu:
    """The largest compute share of a container that stays; 0: none claims one."""
    return MilliGpu(max((share.compute for held in staying(record) for share in held.gpus), default=0))


def staying(record: Record) -> list[Held]:
    """What the containers have that run on after the init containers have ended."""
    return [held for held in record.containers if held.kind is not ContainerKind.INIT]


def _bounded(share: Share, most: Mapping[str, int]) -> Share:
    capacity = most.get(share.gpu, share.memory)
    return share if share.memory <= capacity else msgspec.structs.replace(share, memory=capacity)


def as_containers(kind: ContainerKind, shares: Sequence[Share]) -> list[Container]:
    """A container as the core knows it; several if its amounts differ between GPUs, which claims the same."""
    return [
        Container(kind=kind, gpus=len(list(alike)), memory=MiB(memory), compute=MilliGpu(compute))
        for (memory, compute), alike in groupby(shares, key=lambda share: (share.memory, share.compute))
    ]


def gpus_of(shares: Sequence[Share], machine: Machine) -> Gpus:
    """The indices of these GPUs. A GPU that is gone gets an index behind the last one, so it claims nothing."""
    places = {gpu.uuid: place for place, gpu in enumerate(machine.gpus)}
    if any(uuid.startswith(INDEX) for uuid in _uuids(shares)):
        places |= {f"{INDEX}{place}": place for place in range(len(machine.gpus))}
    beyond = count(len(machine.gpus))
    for uuid in _uuids(shares):
        if uuid not in places:
            places[uuid] = next(beyond)
    return tuple(places[uuid] for uuid in _uuids(shares))


def _uuids(shares: Sequence[Share]) -> list[str]:
    return [share.gpu for share in shares]


def checked_record(record: Record) -> Record:
    """The record; InputError if it names a container, a request of a claim, or a GPU of one of them twice."""
    named = [(held.claim, held.request) if held.claim else held.number for held in record.containers]
    if len(set(named)) != len(named):
        raise InputError(f"annotation {RECORD}: a container is listed twice")
    for held in record.containers:
        if len(set(_uuids(held.gpus))) != len(held.gpus):
            raise InputError(f"annotation {RECORD}: container {held.number} has a GPU twice")
    return record
