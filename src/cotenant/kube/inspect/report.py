# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What `kubectl inspect` shows: how much of each GPU is requested, assigned and used.

It is computed from nodes and pods alone, with the same accounting as the scheduler, which is not contacted. Requested
is what pods ask for; assigned is what the scheduler gave them, which differs after a resize; used is what the GPUs
report.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from cotenant.core.cluster import Node as PlacedNode
from cotenant.core.footprint import NOTHING, claims
from cotenant.core.model import Container, Gpu, Machine, Tenant
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.claims import DeviceClass, ResourceClaim
from cotenant.kube.api.objects import Node, Pod, has_ended
from cotenant.kube.codec.annotations import rung_of
from cotenant.kube.codec.assignment import Record, Share, staying, valid_record
from cotenant.kube.codec.automatic_memory import MEMORY
from cotenant.kube.codec.claim_requests import DRIVER, ClaimRequest, Surroundings, read_claim
from cotenant.kube.codec.claimed import Claimed
from cotenant.kube.codec.claims import claimed_by, claims_of
from cotenant.kube.codec.devices import attributes_of
from cotenant.kube.codec.grants import GrantReport, grants_of
from cotenant.kube.codec.inventory import NOT_KNOWN, MemoryInUse, machine_type, used_of
from cotenant.kube.codec.isolation import is_enforced
from cotenant.kube.codec.request import PodRequest, request_of
from cotenant.kube.codec.selecting import Fleet
from cotenant.kube.codec.settings import Settings, isolation_in
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.allocation import peak_of
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU and how much of it is assigned."""

    index: int
    uuid: str
    type: str
    state: str
    """ok, cordoned or unhealthy."""
    memory_mib: int
    """Memory that can be assigned in all, with scaling."""
    assigned_mib: int
    used_mib: int | None
    """Memory in use by all processes; None: unknown."""
    compute_percent: float
    """Compute that is assigned."""
    tenants: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The slice of one GPU that a pod has."""

    gpu: int
    memory_mib: int
    compute_percent: float
    used_mib: int | None = None
    """Memory that the pod uses of it, if that is more than it was assigned."""
    limit_mib: int = 0
    """Memory that the pod may use while others leave it free; 0: no more than it was assigned."""
    granted_mib: int | None = None
    """How much of that it may use at present, as its agent last reported."""


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that requests GPUs or has some."""

    namespace: str
    """Namespace and name are empty for an orphan: a process whose pod is gone."""
    name: str
    uid: str
    gpus: int
    """GPUs that the pod requests, at least."""
    requested_mib: int | None
    """Memory on all GPUs together; None: the request is invalid, or the pod is gone."""
    requested_percent: int = 0
    """Memory requested in percent of GPUs that are not chosen yet, in addition."""
    assigned: tuple[Part, ...] = ()
    enforced: bool = True
    """False: the settings or the pod say that no limit of it is enforced."""
    isolation: str | None = None
    """The rung of the isolation ladder that it has; None: not known, or its GPUs have none."""


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """A node with GPUs."""

    name: str
    address: str | None
    type: str
    """Machine type or instance type from the node's labels, else the types of its GPUs."""
    gpus: tuple[GpuUse, ...]
    links: tuple[tuple[int, ...], ...] | None
    """Link score of each pair of GPUs; None: unknown."""
    pods: tuple[PodUse, ...]
    pending: tuple[PodUse, ...]
    """Pods on the node that request GPUs and have none."""
    closed: tuple[str, ...]
    """Reasons why the node accepts no new pods."""
    vendor: str = ""
    """The vendor of its GPUs."""
    unenforced: str | None = None
    """A sentence on the limits that nothing enforces on these GPUs; None if all are enforced."""

    @property
    def memory_mib(self) -> int:
        return sum(gpu.memory_mib for gpu in self.gpus)

    @property
    def assigned_mib(self) -> int:
        return sum(gpu.assigned_mib for gpu in self.gpus)

    @property
    def used_mib(self) -> int | None:
        known = [gpu.used_mib for gpu in self.gpus if gpu.used_mib is not None]
        return sum(known) if known and len(known) == len(self.gpus) else None

    @property
    def requested_mib(self) -> int:
        return requested(self.pods)


class ClusterUse(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes with GPUs, and the pending pods that request GPUs."""

    nodes: tuple[NodeUse, ...]
    pending: tuple[PodUse, ...]
    """Pods for our scheduler that have no node yet."""
    policy: str | None
    """Placement policy; None: the settings could not be read."""
    namespace: str | None = None
    """If set, only the pods of this namespace were read, and all sums are of these pods."""
    unread: tuple[str, ...] = ()
    """One message for each object that could not be read."""


def requested(pods: Iterable[PodUse]) -> int:
    """Return the MiB that pods request, as far as known."""
    return sum(pod.requested_mib or 0 for pod in pods)


def cluster_use(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    settings: KubeSettings,
    of_claims: tuple[Sequence[ResourceClaim], Sequence[DeviceClass]] | None = None,
) -> ClusterUse:
    """Compute the use of all GPUs from lists of nodes and pods; with the ResourceClaims and device classes of the
    cluster, also what pods request that wait with claims."""
    machines: list[tuple[Machine, Vendor]] = []
    codec = replace(settings.codec(), claimed=None if of_claims is None else _reader(*of_claims, machines))
    state = ClusterState(codec, scheduler=settings.scheduler.name)
    for node in nodes:
        state.node_changed(None, node)
    machines += state.machines()
    requests: dict[str, tuple[Pod, PodRequest | None]] = {}
    for pod in pods:
        state.pod_changed(None, pod)
        try:
            request = request_of(pod, codec)
        except InputError:
            request = None
        # Claims that cannot be read, of a pod on a node, may be to devices of others.
        unread = request is None and not (pod.spec.resource_claims and pod.spec.node_name)
        if unread or valid_record(pod) is not None or (request is not None and request.containers):
            requests[pod.metadata.uid] = pod, request
    pending: dict[str, list[PodUse]] = {}
    for uid, (pod, request) in requests.items():
        if (uid in state.waiting or pod.spec.node_name) and state.bound(uid) is None and not has_ended(pod):
            pending.setdefault(pod.spec.node_name, []).append(_pending(pod, request))
    shown = sorted((node for node in nodes if node.metadata.name in state.cluster.index), key=_name)
    return ClusterUse(
        nodes=tuple(_node(node, state, codec, requests, pending.get(node.metadata.name, ())) for node in shown),
        pending=_sorted(pending.get("", ())),
        policy=settings.scheduler.policy,
        unread=tuple(
            f"node {name}: {why}"
            for name, reasons in sorted(state.closed.items())
            for why in reasons.values()
            if name not in state.cluster.index
        ),
    )


def _reader(
    claims: Sequence[ResourceClaim], classes: Sequence[DeviceClass], machines: Sequence[tuple[Machine, Vendor]]
) -> Callable[[Pod], Claimed]:
    """Reads what a pod requests by these claims, on these machines."""
    by_name = {(one.metadata.namespace, one.metadata.name): one for one in claims}
    class_by_name = {one.metadata.name: one for one in classes}

    @functools.cache
    def fleet() -> Fleet:
        return Fleet(machines, DRIVER, attributes_of)

    def request_by(claim: ResourceClaim) -> ClaimRequest:
        fleet().begin_claim()
        return read_claim(claim.spec.devices, Surroundings(class_by_name.get, fleet))

    def claimed(pod: Pod) -> Claimed:
        own = claims_of(pod, lambda namespace, name: by_name.get((namespace, name)), class_by_name.get)
        return claimed_by(pod, own, request_by)

    return claimed


def _name(node: Node) -> str:
    return node.metadata.name


def _sorted(pods: Iterable[PodUse]) -> tuple[PodUse, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _node(
    node: Node,
    state: ClusterState,
    codec: Settings,
    requests: Mapping[str, tuple[Pod, PodRequest | None]],
    pending: Iterable[PodUse],
) -> NodeUse:
    name, use, granted = node.metadata.name, _used(node), _grants(node)
    placed = state.cluster.node(name)
    machine = placed.machine
    return NodeUse(
        name=name,
        address=next((one.address for one in node.status.addresses if one.type == "InternalIP"), None),
        type=machine_type(node) or ", ".join(sorted(machine.types)),
        gpus=_gpu_uses(placed, use.mib),
        links=machine.links,
        pods=_sorted(
            _placed(tenant, state, placed, requests.get(tenant.job), codec, use.beyond.get(tenant.job, {}), granted)
            for tenant in placed.tenants
        ),
        pending=_sorted(pending),
        closed=tuple(state.closed.get(name, {}).values()),
        vendor=state.vendors[name],
        unenforced=state.vendors[name].row.unenforced(),
    )


def _used(node: Node) -> MemoryInUse:
    try:
        return used_of(node)
    except InputError:  # written by a newer agent
        return NOT_KNOWN


def _grants(node: Node) -> Mapping[str, Sequence[GrantReport]]:
    try:
        return grants_of(node).pods
    except InputError:  # written by a newer agent
        return {}


def _gpu_uses(placed: PlacedNode, used: Mapping[str, int]) -> tuple[GpuUse, ...]:
    gpus = placed.machine.gpus
    taken = [claims(tenant.demand, tenant.gpus, gpus) for tenant in placed.tenants]
    return tuple(
        GpuUse(
            index=index,
            uuid=gpu.uuid,
            type=gpu.type,
            state=_state(gpu),
            memory_mib=gpu.memory_capacity,
            assigned_mib=gpu.memory_capacity - placed.memory[index],
            used_mib=used.get(gpu.uuid) if gpu.healthy else None,  # the value may date from before the GPU failed
            compute_percent=(gpu.compute_capacity - placed.compute[index]) / 10,
            tenants=sum(index in one for one in taken),
        )
        for index, gpu in enumerate(gpus)
    )


def _state(gpu: Gpu) -> str:
    return "unhealthy" if not gpu.healthy else "cordoned" if gpu.cordoned else "ok"


def _placed(
    tenant: Tenant,
    state: ClusterState,
    placed: PlacedNode,
    known: tuple[Pod, PodRequest | None] | None,
    codec: Settings,
    beyond: Mapping[str, int],
    granted: Mapping[str, Sequence[GrantReport]],
) -> PodUse:
    gpus = placed.machine.gpus
    allocation = state.allocations_on(placed.name)[tenant.job]
    request = None if known is None else known[1]
    wanted = None
    if request is not None and sum(one.amounts.container.gpus for one in request.containers) == len(tenant.gpus):
        wanted = sum(claim.memory for claim in claims(request.demand, tenant.gpus, gpus).values())
    return PodUse(
        namespace=allocation.namespace,
        name=allocation.name,
        uid=allocation.uid,
        gpus=_gpus(request) or len(set(tenant.gpus)),
        requested_mib=wanted,
        assigned=tuple(
            Part(
                gpu=gpu,
                memory_mib=claim.memory,
                compute_percent=claim.compute / 10,
                used_mib=beyond.get(gpus[gpu].uuid) if gpu < len(gpus) else None,
                limit_mib=_limit(allocation.record, gpus[gpu].uuid, claim.memory),
                granted_mib=_granted(allocation.record, gpus[gpu].uuid, granted.get(tenant.job, ())),
            )
            for gpu, claim in sorted(claims(tenant.demand, tenant.gpus, gpus).items())
            if claim != NOTHING
        ),
        enforced=known is None or _is_enforced(known[0], codec),
        isolation=None if known is None else rung_of(known[0], allocation.record, allocation.vendor, codec),
    )


def _limit(record: Record, uuid: str, assigned: int) -> int:
    """What a pod may use of a GPU; 0: no more than it was assigned."""
    above = sum(max(0, share.memory_limit - share.memory) for share in _shares_of(record, uuid))
    return assigned + above if above else 0


def _granted(record: Record, uuid: str, reports: Sequence[GrantReport]) -> int | None:
    granted = [one.memory for one in reports if one.gpu == uuid]
    fixed = sum(share.memory for share in _shares_of(record, uuid) if not share.is_elastic)
    return fixed + sum(granted) if granted else None


def _shares_of(record: Record, uuid: str) -> list[Share]:
    return [share for held in staying(record) for share in held.gpus if share.gpu == uuid]


def _is_enforced(pod: Pod, codec: Settings) -> bool:
    about = pod.metadata
    return is_enforced(about.annotations, isolation_in(about.namespace, codec))


def _pending(pod: Pod, request: PodRequest | None) -> PodUse:
    about = pod.metadata
    containers = [] if request is None else [one.amounts.container for one in request.containers]
    return PodUse(
        namespace=about.namespace,
        name=about.name,
        uid=about.uid,
        gpus=_gpus(request),
        # Only the scheduler knows how much a profile says.
        requested_mib=None
        if request is None or MEMORY in about.annotations or any(one.automatic for one in request.containers)
        else _peak((one.memory * one.gpus for one in containers), containers),
        requested_percent=_peak(((one.memory_percent or 0) * one.gpus for one in containers), containers),
    )


def _gpus(request: PodRequest | None) -> int:
    return 0 if request is None else max((one.amounts.container.gpus for one in request.containers), default=0)


def _peak(amounts: Iterable[int], containers: Sequence[Container]) -> int:
    """Return the most that the containers use at any one time, if each uses its amount."""
    parts = zip(amounts, containers, strict=True)
    return peak_of(Container(kind=one.kind, memory=MiB(amount)) for amount, one in parts).memory
