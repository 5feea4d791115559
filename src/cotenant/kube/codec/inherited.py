# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that another system placed before the cluster switched, and that still run: their assignments as our records.

They count on their GPUs until they end. Only a pod that requests GPUs counts, and never for more than it requests,
since every user can write annotations.
"""

from collections.abc import Iterator, Mapping

import msgspec

from cotenant.core.model import ContainerKind
from cotenant.core.units import WHOLE_MEMORY
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, containers_of
from cotenant.kube.codec.assignment import INDEX, Held, Record, Share, encode_record
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.request import ContainerRequest, PodRequest, request_of
from cotenant.kube.codec.settings import MOST_GPUS, Settings

HAMI = tuple(f"{prefix}/vgpu-devices-allocated" for prefix in ("hami.io", "4pd.io"))
"""Of each container, separated by semicolons: `UUID,type,MiB,percent:` for each of its GPUs."""
GPUSHARE, GPUSHARE_INDEX = "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_IDX"
"""`{"0":{"2":3}}`: of each app container, the amount on each GPU by its index; or the index of the only GPU."""
TOPOLOGY = "ALIYUN_COM_GPU_GROUP"
"""Indices of its GPUs, separated by commas."""
LONGEST = 65536

Found = Mapping[int, list[Share]]
"""The shares of containers by their numbers."""


def inherited_record(pod: Pod, settings: Settings) -> Record | None:
    """The assignment of a pod that another system placed; None if there is none that can be understood."""
    annotations = pod.metadata.annotations
    if not pod.spec.node_name or annotations.keys().isdisjoint((*HAMI, GPUSHARE, GPUSHARE_INDEX, TOPOLOGY)):
        return None
    try:
        request = request_of(pod, settings)
        found = _found(pod, request)
        containers = tuple(_held(one, found.get(one.number, [])) for one in request.containers if found.get(one.number))
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
    except (
        InputError,
        ValueError,
        IndexError,
        msgspec.MsgspecError,
    ):  # the annotations are not ours, and may be anything
        return None


def _found(pod: Pod, request: PodRequest) -> Found:
    annotations = pod.metadata.annotations
    for key in HAMI:
        if key in annotations:
            return dict(enumerate(map(_hami_shares, _short(annotations[key]).split(";"))))
    if GPUSHARE in annotations:
        first_app = sum(kind is not ContainerKind.APP for kind, _ in containers_of(pod))
        amounts = msgspec.json.decode(_short(annotations[GPUSHARE]), type=dict[int, dict[int, int]])
        dialects = {one.number: one.amounts.dialect for one in request.containers}
        return {
            first_app + app: list(_gpushare_shares(by_gpu, dialects.get(first_app + app)))
            for app, by_gpu in amounts.items()
        }
    indices = [int(word) for word in _short(annotations.get(GPUSHARE_INDEX) or annotations[TOPOLOGY]).split(",")]
    gpus = iter(indices if len(indices) > 1 else indices * MOST_GPUS)
    return {
        one.number: [_at(next(gpus), one.amounts.container.memory) for _ in range(one.amounts.container.gpus)]
        for one in request.containers
    }


def _hami_shares(text: str) -> list[Share]:
    fields = [part.split(",") for part in text.split(":") if part.strip()]
    return [Share(gpu=one[0].strip(), memory=int(one[2]), compute=min(1000, int(one[3]) * 10)) for one in fields]


def _gpushare_shares(by_gpu: Mapping[int, int], dialect: Dialect | None) -> Iterator[Share]:
    if dialect is not None:
        yield from (_at(gpu, amount * dialect.memory_unit) for gpu, amount in by_gpu.items())


def _at(gpu: int, memory: int) -> Share:
    return Share(gpu=f"{INDEX}{gpu}", memory=memory, compute=0)


def _held(one: ContainerRequest, shares: list[Share]) -> Held:
    wanted = one.amounts.container
    if len(shares) > wanted.gpus:
        raise ValueError("more GPUs than it requests")
    bounded = tuple(
        msgspec.structs.replace(
            share,
            memory=share.memory if wanted.memory_percent is not None else min(share.memory, wanted.memory),
            compute=wanted.compute if wanted.memory_percent == WHOLE_MEMORY else min(share.compute, wanted.compute),
        )
        for share in shares
    )
    return Held(number=one.number, kind=wanted.kind, gpus=bounded)


def _short(text: str) -> str:
    if len(text) > LONGEST:
        raise ValueError("too long")
    return text
