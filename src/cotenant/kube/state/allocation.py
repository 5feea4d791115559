# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What one pod uses of the GPUs of one node: the assignment in its annotation, and the pod it belongs to."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.core.footprint import NOTHING as NO_CLAIM
from cotenant.core.footprint import by_container, compute_on, container_claims, memory_on
from cotenant.core.model import Container, ContainerKind, Demand, Gpu, Machine, Slot
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, containers_of, has_ended, resources_of
from cotenant.kube.codec.assignment import Record, record_for, record_of
from cotenant.kube.codec.claims import UnknownClaimsError
from cotenant.kube.codec.inherited import inherited_record
from cotenant.kube.codec.queueing import is_gated
from cotenant.kube.codec.request import NOTHING, PodRequest, request_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.node.devices.vendors import Vendor

_ALL_GPUS = (Gpu(uuid="all"),)


class Used(NamedTuple):
    """GPU memory and compute, summed over all GPUs, and the number of GPUs, as Kubernetes counts it."""

    memory: MiB
    compute: MilliGpu
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A pod and what it uses, or is about to use, of one node's GPUs."""

    uid: str
    namespace: str
    name: str
    record: Record
    constraints: Demand
    """the parts of its request that are no amounts but matter to other tenants: groups, the kind of work"""
    vendor: Vendor | None
    """vendor of the GPUs; None if the pod's request can no longer be read"""

    @property
    def node(self) -> str:
        """The node whose GPUs it uses."""
        return self.record.node

    @property
    def peak(self) -> Used:
        """The most it uses at a time. Init containers and sidecars count as in Kubernetes."""
        return peak_of(
            Container(
                kind=held.kind,
                memory=MiB(sum(share.memory for share in held.gpus)),
                compute=MilliGpu(sum(share.compute for share in held.gpus)),
            )
            for held in self.record.containers
        )._replace(gpus=_peak_gpus((held.kind, len(held.gpus)) for held in self.record.containers))


def peak_of(containers: Iterable[Container]) -> Used:
    """The most that containers use at a time, if each states its sum over all its GPUs."""
    demand = Demand(containers=tuple(containers))
    claim = container_claims(demand, (0,) * len(demand.containers), _ALL_GPUS).get(0, NO_CLAIM)
    return Used(claim.memory, claim.compute)


def peak_on(demand: Demand, slot: Slot, machine: Machine) -> Used:
    """The most that a demand uses of a slot at a time."""
    if demand.containers:
        parts = list(by_container(demand, slot.gpus))
    else:
        parts = [(demand.steady, slot.gpus)]
    gpus = machine.gpus
    sums = (
        Container(
            kind=one.kind,
            memory=MiB(sum(memory_on(one, gpus[i]) for i in own)),
            compute=MilliGpu(sum(compute_on(one, gpus[i]) for i in own)),
        )
        for one, own in parts
    )
    return peak_of(sums)._replace(gpus=_peak_gpus((one.kind, len(own)) for one, own in parts))


def _peak_gpus(containers: Iterable[tuple[ContainerKind, int]]) -> int:
    staying = peak = 0
    for kind, gpus in containers:
        peak = max(peak, staying + gpus)
        staying += 0 if kind is ContainerKind.INIT else gpus
    return max(peak, staying)


def planned_allocation(pod: Pod, request: PodRequest, slot: Slot, machine: Machine) -> Allocation:
    """What a pod would use of a slot."""
    return _allocation(pod, record_for(pod, request, slot, machine), request.constraints, request.vendor)


def recorded_allocation(pod: Pod, settings: Settings) -> Allocation | None:
    """What a bound pod uses according to its annotation, or to that of the system that placed it before; None if it
    has none. InputError if ours cannot be read."""
    record = record_of(pod) or inherited_record(pod, settings)
    if record is None:
        return None
    try:
        request = request_of(pod, settings)
    except InputError:
        # The request was valid at the binding. The pod runs, whatever labels, annotations or the settings say now.
        return _allocation(pod, record, NOTHING, _vendor_of(pod, settings))
    return _allocation(pod, record, request.constraints, request.vendor or _vendor_of(pod, settings))


def _vendor_of(pod: Pod, settings: Settings) -> Vendor | None:
    """The vendor by the names of the pod's resources, or because it has claims, both of which are immutable.

    Labels and annotations are not, and claims can be deleted: otherwise an owner could take a pod out of its quota by
    making one invalid.
    """
    amounts = (item for _, container in containers_of(pod) for item in resources_of(container).items())
    named = (settings.by_resource.get(name) for name, amount in amounts if str(amount) != "0")
    by_claims = VGPU.vendor if pod.spec.resource_claims else None
    return next((dialect.vendor for dialect in named if dialect is not None), by_claims)


def orphan_allocation(record: Record) -> Allocation:
    """What a pod uses of which only the record is left, as its node's agent reports it."""
    return Allocation(uid=record.pod, namespace="", name="", record=record, constraints=NOTHING, vendor=None)


def is_unplaced(pod: Pod) -> bool:
    """Whether the pod is still to be placed by some scheduler."""
    return not pod.spec.node_name and not pod.metadata.deletion_timestamp and not has_ended(pod)


def has_claims(pod: Pod, settings: Settings) -> bool:
    """Whether the pod requests GPUs by ResourceClaims, as far as is known."""
    if not pod.spec.resource_claims or settings.claimed is None:
        return False
    try:
        return bool(settings.claimed(pod))
    except UnknownClaimsError:  # it waits at our gate until they are known
        return is_gated(pod.spec.scheduling_gates)
    except InputError:  # it requests GPUs in a way that is refused
        return True


def has_stopped(pod: Pod) -> bool:
    """Whether kubelet has reported that all containers ended. A pod without container statuses may still run."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return has_ended(pod) or (bool(statuses) and all(one.state.terminated is not None for one in statuses))


def _allocation(pod: Pod, record: Record, constraints: Demand, vendor: Vendor | None) -> Allocation:
    about = pod.metadata
    return Allocation(
        uid=about.uid,
        namespace=about.namespace,
        name=about.name,
        record=record,
        constraints=constraints,
        vendor=vendor,
    )
