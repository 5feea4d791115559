# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The custom resource WorkloadProfile: what the agent of one node has measured of one workload on one type of GPU.

An agent writes its own objects only: their names are the name of its node and a small number, so their count is bounded
too. Workloads belong to the namespace of their pods, since names are chosen by users: what the pods of one namespace
report says nothing about the workloads of another.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Condition, Metadata
from cotenant.kube.codec.keys import PREFIX, qualified
from cotenant.wire.agent import Batch
from cotenant.wire.profile import Amount, Share, WorkloadId
from cotenant.wire.text import printable

GROUP, VERSION = PREFIX, "v1alpha1"
API = f"{GROUP}/{VERSION}"
KIND, PLURAL = "WorkloadProfile", "workloadprofiles"
MOST_PER_NODE = 100
"""Objects of one node; the number in a name is smaller."""
MOST_BESIDE = 32
"""Neighbours in one object."""
MOST_PODS = 64
"""Running pods in one object."""
MOST_SEPARATED = 32
"""Controllers in the status of one object: the newest."""
MOST_TIMES = 1_000_000
FASTEST = 1.5
"""Larger speeds are not possible: sharing does not make a workload that much faster."""
LARGEST_GAIN = 1000.0
"""Most that tuning can make of the speed of a pod."""
LARGEST_RATE, LONGEST_STEP = 1e12, 1e6
LONGEST_WORKLOAD, LONGEST_TYPE, LONGEST_NODE = 200, 200, 240
ACCEPTED = "Accepted"
"""Condition: whether the scheduler uses the object."""

_BATCH = re.compile(r"(.+)@([1-9][0-9]{0,7})", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]?", re.ASCII)

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Workload = Annotated[str, Meta(min_length=1, max_length=LONGEST_WORKLOAD)]
Rate = Annotated[float, Meta(gt=0, le=LARGEST_RATE)]
Speed = Annotated[float, Meta(gt=0, le=FASTEST)]
Times = Annotated[int, Meta(ge=1, le=MOST_TIMES)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class Alone(_Part, frozen=True, kw_only=True):
    """The workload alone on a GPU; None: not measured."""

    samples_per_second: Rate | None = None
    step_seconds: Annotated[float, Meta(gt=0, le=LONGEST_STEP)] | None = None
    utilisation: Share | None = None
    bandwidth: Share | None = None
    memory_mi_b: Amount | None = msgspec.field(name="memoryMiB", default=None)
    pcie_mi_b_per_second: Amount | None = msgspec.field(name="pcieMiBPerSecond", default=None)
    times: Times


class Beside(_Part, frozen=True, kw_only=True):
    """Its speed beside one other workload."""

    namespace: Name
    workload: Workload
    speed: Speed
    times: Times


class PodSpeed(_Part, frozen=True, kw_only=True):
    """A running pod of the workload, as it reported last."""

    name: Name
    uid: Name
    batch: Batch
    tuned: bool = False
    """Whether tuning chose the batch size."""
    samples_per_second: Rate
    speed: Annotated[float, Meta(gt=0, le=LARGEST_GAIN)] | None = None
    """Relative to the pod alone at its own batch size, so tuning can make it larger than 1; None: not known."""


class ProfileSpec(_Part, frozen=True, kw_only=True):
    """The measurements."""

    node: Name
    namespace: Name
    workload: Workload
    gpu_type: Annotated[str, Meta(min_length=1, max_length=LONGEST_TYPE)]
    measured_at: Annotated[str, Meta(max_length=40)] = ""
    """Time of the last measurement, as RFC 3339."""
    alone: Alone | None = None
    beside: Annotated[tuple[Beside, ...], Meta(max_length=MOST_BESIDE)] = ()
    pods: Annotated[tuple[PodSpeed, ...], Meta(max_length=MOST_PODS)] = ()

    @property
    def name(self) -> str:
        return qualified(self.namespace, self.workload)


class Separation(_Part, frozen=True, kw_only=True):
    """A pod of the workload whose eviction was requested because it harmed its neighbours."""

    controller: Name
    """UID of the pod's controller, which loses no other pod this way."""
    pod: Name
    at: Annotated[str, Meta(max_length=40)]
    """As RFC 3339."""


class ProfileStatus(_Part, frozen=True, kw_only=True):
    """What the scheduler says about the object."""

    conditions: tuple[Condition, ...] = ()
    separations: tuple[Separation, ...] = ()


class WorkloadProfile(_Part, frozen=True, kw_only=True):
    """One object."""

    metadata: Metadata = Metadata()
    spec: ProfileSpec
    status: ProfileStatus = ProfileStatus()

    @property
    def accepted(self) -> Condition | None:
        """The scheduler's verdict, if there is one yet."""
        return next((one for one in self.status.conditions if one.type == ACCEPTED), None)


PROFILES = Kind(PLURAL, WorkloadProfile, group=f"apis/{API}", cluster_wide=True)


def object_name(node: str, number: int) -> str:
    return f"{node}.{number}"


def number_of(profile: WorkloadProfile) -> int | None:
    """The number in an object's name; None: the name is not one that the agent of its node would give."""
    node, _, number = profile.metadata.name.rpartition(".")
    return int(number) if node == profile.spec.node and _NUMBER.fullmatch(number) else None


def workload_id(name: str) -> WorkloadId:
    """The program and the batch size in the name of a workload, such as `bert@32`."""
    found = _BATCH.fullmatch(name)
    return WorkloadId(name, None) if found is None else WorkloadId(found.group(1), int(found.group(2)))


def problem_with(profile: WorkloadProfile, types: Mapping[str, Collection[str]]) -> str | None:
    """Why an object is not used; None if it is. `types` are the types of the GPUs of each node that has some."""
    if number_of(profile) is None:
        name = printable(profile.metadata.name[:80])
        return f"the name {name!r} is not that of its node and a number below {MOST_PER_NODE}"
    if profile.spec.node not in types:
        return f"no node {printable(profile.spec.node[:80])!r} with GPUs is in the cluster"
    kind = profile.spec.gpu_type
    if kind not in types[profile.spec.node] and not any(kind in here for here in types.values()):
        return f"no node of the cluster has GPUs of type {printable(kind[:80])!r}"
    if not profile.spec.alone and not profile.spec.beside and not profile.spec.pods:
        return "it has neither a measurement nor a running pod"
    return None
