# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's seat: what it takes of which cards, and by whose word: a record, a hold, an agent that sees it still run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import msgspec

from cotenant.core.footprint import NOTHING as NO_CLAIM
from cotenant.core.footprint import container_claims
from cotenant.core.model import Container, Demand, Gpu, Machine, Slot
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record, record_for, record_of
from cotenant.kube.codec.request import NOTHING, Asked, asked_of
from cotenant.kube.codec.settings import Settings
from cotenant.node.devices.vendors import Vendor

_ALL_CARDS = (Gpu(uuid="all"),)


class Used(NamedTuple):
    """GPU memory and compute on all cards together."""

    memory: MiB
    compute: MilliGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A pod and what it takes."""

    uid: str
    namespace: str
    name: str
    record: Record
    wishes: Demand
    """what else matters to its neighbours: groups, the kind of its work"""
    vendor: Vendor | None
    """whose cards; None: nobody knows any more"""

    @property
    def peak(self) -> Used:
        """What it takes at most at a time, init containers and sidecars counted as Kubernetes does."""
        return peak_of(
            Container(
                kind=held.kind,
                memory=MiB(sum(share.memory for share in held.gpus)),
                compute=MilliGpu(sum(share.compute for share in held.gpus)),
            )
            for held in self.record.containers
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """A seat that is kept for a pod until some time."""

    seat: Seat
    until: float
    gone: str | None = None
    """the version at which the pod disappeared while it was being bound"""
    reserved: bool = False
    """whether it may not fit yet: others are still to leave for it"""

    @property
    def binding(self) -> bool:
        """Whether it is being written down right now, so that time alone does not end it."""
        return self.until == inf


@dataclass(frozen=True, slots=True)
class Ghost:
    """A pod that was deleted before its containers ended."""

    version: str
    """of its deletion"""
    seat: Seat | None
    """None: what it takes could not be read"""


@dataclass(frozen=True, slots=True)
class Remains:
    """What a node's agent says still runs there although its pod is gone."""

    seen: str
    held: Mapping[str, Seat]


def peak_of(containers: Iterable[Container]) -> Used:
    """What containers take at most at a time of all cards together; each says its sum over its cards."""
    demand = Demand(containers=tuple(containers))
    claim = container_claims(demand, (0,) * len(demand.containers), _ALL_CARDS).get(0, NO_CLAIM)
    return Used(claim.memory, claim.compute)


def planned_seat(pod: Pod, asked: Asked, slot: Slot, machine: Machine) -> Seat:
    """What a pod would take of a slot."""
    return _seat(pod, record_for(pod, asked, slot, machine), asked.wishes, asked.vendor)


def seat_of(pod: Pod, settings: Settings) -> Seat | None:
    """What a bound pod takes, None where it takes nothing of ours; InputError where nobody can say."""
    record = record_of(pod)
    if record is None:
        return None
    try:
        asked = asked_of(pod, settings)
    except InputError:  # it was understood when it came: it is there, whatever it or the settings say now
        return _seat(pod, record, NOTHING, _vendor_of(pod, settings))
    return _seat(pod, record, asked.wishes, asked.vendor)


def _vendor_of(pod: Pod, settings: Settings) -> Vendor | None:
    """By its resources, which nobody can change any more: or its owner could take it out of the quota by a word."""
    silent = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations={}))
    try:
        return asked_of(silent, settings).vendor
    except InputError:
        return None


def orphan_seat(record: Record) -> Seat:
    """What a pod takes of which only the record is left."""
    return Seat(uid=record.pod, namespace="", name="", record=record, wishes=NOTHING, vendor=None)


def is_waiting(pod: Pod, scheduler: str) -> bool:
    """Whether it is for this scheduler to place."""
    ours = pod.spec.scheduler_name == scheduler
    return ours and not pod.spec.node_name and not pod.metadata.deletion_timestamp and not has_ended(pod)


def has_stopped(pod: Pod) -> bool:
    """Whether kubelet has said that all its containers ended; of one that says nothing of them nobody knows."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return has_ended(pod) or (bool(statuses) and all(one.state.terminated is not None for one in statuses))


def _seat(pod: Pod, record: Record, wishes: Demand, vendor: Vendor | None) -> Seat:
    about = pod.metadata
    return Seat(uid=about.uid, namespace=about.namespace, name=about.name, record=record, wishes=wishes, vendor=vendor)
