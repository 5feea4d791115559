# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that another system placed before the cluster switched, and that still run: their assignments as our records.

They count on their GPUs until they end. Only a pod that requests GPUs under resources counts, and never for more than
it requests, since every user can write annotations.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from cotenant.core.model import ContainerKind
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, containers_of
from cotenant.kube.codec.assignment import INDEX, Held, Record, Share, encode_record
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.request import ContainerRequest, PodRequest, request_of
from cotenant.kube.codec.settings import Settings

HAMI = tuple(f"{prefix}/vgpu-devices-allocated" for prefix in ("hami.io", "4pd.io"))
"""Of each container, separated by semicolons: `UUID,type,MiB,percent:` for each of its GPUs. Older versions list app
containers only, newer ones init containers first."""
GPUSHARE, GPUSHARE_INDEX = "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_IDX"
"""`{"0":{"2":3}}`: of each app container, the amount on each GPU by its index; or the index of the only GPU."""
TOPOLOGY = "ALIYUN_COM_GPU_GROUP"
"""Indices of its GPUs, separated by commas."""
INHERITED = (*HAMI, GPUSHARE, GPUSHARE_INDEX, TOPOLOGY)
LONGEST = 65536

Found = Mapping[int, list[Share]]
"""The shares of containers by their numbers."""


def inherited_record(pod: Pod, settings: Settings) -> Record | None:
    """The assignment of a pod that another system placed; None if there is none that can be understood."""
    if not pod.spec.node_name or pod.metadata.annotations.keys().isdisjoint(INHERITED):
        return None
    try:
        request = _request_of(pod, settings)
        if any(one.claim for one in request.containers):  # no other system places such pods
            return None
        found = _found(pod, request)
        containers = tuple(_held(one, found[one.number]) for one in request.containers if found.get(one.number))
        if not containers:
            return None
        record = Record(
            pod=pod.metadata.uid,
            node=pod.spec.node_name,
            exclusive=request.demand.exclusive,
            containers=containers,
        )
        encode_record(record)  # checks it
        return record
    except (InputError, ValueError, IndexError, msgspec.MsgspecError):  # users can write anything
        return None


def _request_of(pod: Pod, settings: Settings) -> PodRequest:
    """The request, also if a label or an annotation was changed since to what would be refused."""
    try:
        return request_of(pod, settings)
    except InputError:
        metadata = msgspec.structs.replace(pod.metadata, labels={}, annotations={})
        return request_of(msgspec.structs.replace(pod, metadata=metadata), settings)


def _found(pod: Pod, request: PodRequest) -> Found:
    annotations = pod.metadata.annotations
    init = sum(kind is not ContainerKind.APP for kind, _ in containers_of(pod))
    for key in HAMI:
        if key in annotations:
            listed = _short(annotations[key]).removesuffix(";").split(";")
            first = init if len(listed) == len(pod.spec.containers) else 0
            return dict(enumerate(map(_hami_shares, listed), start=first))
    if GPUSHARE in annotations:
        amounts = msgspec.json.decode(_short(annotations[GPUSHARE]), type=dict[int, dict[int, int]])
        dialects = {one.number: one.amounts.dialect for one in request.containers}
        return {init + app: list(_gpushare_shares(by_gpu, dialects.get(init + app))) for app, by_gpu in amounts.items()}
    words = _short(annotations.get(GPUSHARE_INDEX) or annotations.get(TOPOLOGY, "")).split(",")
    indices = [int(word) for word in words]
    if len(indices) == 1:
        sums = {one.number: one.amounts.container.memory * one.amounts.container.gpus for one in request.containers}
        return {number: [_at(indices[0], memory)] for number, memory in sums.items()}
    gpus = iter(indices)
    return {one.number: list(_at_indices(one, gpus)) for one in request.containers}


def _hami_shares(text: str) -> list[Share]:
    fields = [part.split(",") for part in text.split(":") if part.strip()]
    return [Share(gpu=one[0].strip(), memory=int(one[2]), compute=min(WHOLE_GPU, int(one[3]) * 10)) for one in fields]


def _gpushare_shares(by_gpu: Mapping[int, int], dialect: Dialect | None) -> Iterator[Share]:
    if dialect is not None:
        yield from (_at(gpu, amount * dialect.memory_unit) for gpu, amount in by_gpu.items())


def _at_indices(one: ContainerRequest, gpus: Iterator[int]) -> Iterator[Share]:
    wanted = one.amounts.container
    own = list(islice(gpus, wanted.gpus))
    if len(own) < wanted.gpus:
        raise ValueError("fewer GPUs than it requests")
    yield from (_at(gpu, wanted.memory) for gpu in own)


def _at(gpu: int, memory: int) -> Share:
    """A share of which only the memory is stated: its compute is what the container requests."""
    return Share(gpu=f"{INDEX}{gpu}", memory=memory, compute=WHOLE_GPU)


def _held(one: ContainerRequest, shares: list[Share]) -> Held:
    """The shares of a container, none larger than it requests.

    If a label divides the request among GPUs, what counts is the sum, since the label may have changed.
    """
    wanted = one.amounts.container
    gpus = wanted.gpus if one.amounts.dialect.divided_by is None else len(shares)
    if len(shares) > gpus:
        raise ValueError("more GPUs than it requests")
    memory = wanted.memory * wanted.gpus // gpus
    compute = min(WHOLE_GPU, wanted.compute * wanted.gpus // gpus)
    bounded = tuple(
        msgspec.structs.replace(
            share,
            memory=share.memory if wanted.memory_percent is not None else min(share.memory, memory),
            compute=compute if wanted.memory_percent == WHOLE_MEMORY else min(share.compute, compute),
        )
        for share in shares
    )
    return Held(number=one.number, kind=wanted.kind, gpus=bounded)


def _short(text: str) -> str:
    if len(text) > LONGEST:
        raise ValueError("too long")
    return text
