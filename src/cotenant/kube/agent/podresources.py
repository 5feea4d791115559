# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The devices that kubelet gave to containers, and the pods whose records differ from them.

A device ID carries no meaning, so only numbers are compared: which pods have devices, and how many.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cotenant.core.model import ContainerKind
from cotenant.errors import CotenantError
from cotenant.kube.agent.proto import podresources_pb2 as pb
from cotenant.kube.agent.rpc import RpcError, call
from cotenant.kube.codec.assignment import Record

LIST = "/v1.PodResourcesLister/List"
PATIENCE_S = 10.0
MOST_BYTES = 16 * 1024 * 1024

PodKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The devices of one resource that one container has; kubelet does not list plain init containers."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: frozenset[str]

    @property
    def key(self) -> PodKey:
        return self.namespace, self.pod


class PodList(NamedTuple):
    """What kubelet lists at one moment."""

    containers: tuple[Listed, ...]
    """those with devices"""
    pods: frozenset[PodKey]
    """all pods that have not ended"""


async def list_devices(socket: Path, resources: Collection[str], timeout_s: float = PATIENCE_S) -> tuple[Listed, ...]:
    """The containers with devices of these resources; CotenantError if kubelet does not answer."""
    return (await list_pods(socket, resources, timeout_s)).containers


async def list_pods(socket: Path, resources: Collection[str], timeout_s: float = PATIENCE_S) -> PodList:
    """The containers with devices of these resources, and all pods; CotenantError if kubelet does not answer."""
    request = pb.ListPodResourcesRequest()
    try:
        answer = await call(
            socket, LIST, request, pb.ListPodResourcesResponse, timeout_s=timeout_s, most_bytes=MOST_BYTES
        )
    except RpcError as error:
        raise CotenantError(f"{socket}: kubelet does not list devices: {error}") from None
    return PodList(
        tuple(_listed(answer, resources)), frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)
    )


def _listed(answer: pb.ListPodResourcesResponse, resources: Collection[str]) -> Iterable[Listed]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            # Kubelet writes one entry for each NUMA node.
            found: dict[str, set[str]] = {}
            for devices in container.devices:
                if devices.resource_name in resources and devices.device_ids:
                    found.setdefault(devices.resource_name, set()).update(devices.device_ids)
            for resource, ids in found.items():
                yield Listed(
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container.name,
                    resource=resource,
                    devices=frozenset(ids),
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A pod for which kubelet and the record differ."""

    pod: PodKey
    recorded: int
    """Number of GPUs; 0: there is no record."""
    listed: int
    """Number of devices; 0: kubelet gave it none."""


def drift(records: Mapping[PodKey, Record], listed: Iterable[Listed]) -> tuple[Drift, ...]:
    """All pods that differ; `records` has those of pods that run here and have not ended."""
    devices: Counter[PodKey] = Counter()
    for one in listed:
        devices[one.key] += len(one.devices)
    return tuple(
        Drift(pod=key, recorded=recorded, listed=devices[key])
        for key in sorted({*devices, *records})
        if (recorded := _recorded(records.get(key))) != devices[key]
    )


def _recorded(record: Record | None) -> int:
    held = () if record is None else record.containers
    return sum(len(one.gpus) for one in held if one.kind is not ContainerKind.INIT)
