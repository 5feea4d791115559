# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What `kubectl inspect` shows of a cluster: who asks for, was given and uses how much of which card.

It follows from nodes and pods alone, counted by the state of the scheduler, which itself need not be asked. Three sums
are told apart: what pods ask for, what was assigned to them (more or less after a resize), what is really in use.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cotenant.core.cluster import Node as PlacedNode
from cotenant.core.footprint import NOTHING, claims
from cotenant.core.model import MACHINE_TYPE_LABEL, Container, Gpu, Tenant
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod, has_ended
from cotenant.kube.codec.inventory import used_of
from cotenant.kube.codec.request import Asked, asked_of
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.allocation import peak_of
from cotenant.kube.state.cluster import ClusterState


class CardUse(msgspec.Struct, frozen=True, kw_only=True):
    """One card, and what is taken of it."""

    index: int
    uuid: str
    type: str
    state: str
    """ok, cordoned or unhealthy"""
    memory_mib: int
    """that are handed out in all"""
    assigned_mib: int
    used_mib: int | None
    """by whomever; None: nobody has said"""
    compute_percent: float
    """assigned"""
    tenants: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod has of one card."""

    gpu: int
    memory_mib: int
    compute_percent: float


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that asks for cards, or has some."""

    namespace: str
    """empty, as the name: the pod is gone, and what it started is not"""
    name: str
    uid: str
    gpus: int
    """that it asks for, at least"""
    requested_mib: int | None
    """on all cards together; None: what it asks for cannot be understood, or it is gone"""
    requested_percent: int = 0
    """of cards that are not known yet, beside that"""
    assigned: tuple[Part, ...] = ()


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """A node with cards."""

    name: str
    address: str | None
    type: str
    """of the machine, where a label says it, else of its cards"""
    cards: tuple[CardUse, ...]
    links: tuple[tuple[int, ...], ...] | None
    """the score of each pair of cards; None: not known"""
    pods: tuple[PodUse, ...]
    pending: tuple[PodUse, ...]
    """pods on it that ask for cards and have none"""
    closed: tuple[str, ...]
    """why it takes no new pods"""

    @property
    def memory_mib(self) -> int:
        return sum(card.memory_mib for card in self.cards)

    @property
    def assigned_mib(self) -> int:
        return sum(card.assigned_mib for card in self.cards)

    @property
    def used_mib(self) -> int | None:
        known = [card.used_mib for card in self.cards if card.used_mib is not None]
        return sum(known) if known and len(known) == len(self.cards) else None

    @property
    def requested_mib(self) -> int:
        return requested(self.pods)


class ClusterUse(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes with cards, and the pods that wait for some."""

    nodes: tuple[NodeUse, ...]
    pending: tuple[PodUse, ...]
    """pods of ours that are on no node yet"""
    policy: str | None
    """how pods are placed; None: the settings could not be read"""
    namespace: str | None = None
    """the only one whose pods were read, so that all sums are of its pods only"""
    unread: tuple[str, ...] = ()
    """a sentence for each thing that is there and could not be read"""


def requested(pods: Iterable[PodUse]) -> int:
    """MiB that pods ask for, as far as that is known."""
    return sum(pod.requested_mib or 0 for pod in pods)


def cluster_use(nodes: Sequence[Node], pods: Sequence[Pod], settings: KubeSettings) -> ClusterUse:
    """What lists of nodes and pods say."""
    codec = settings.codec()
    state = ClusterState(codec, scheduler=settings.scheduler.name)
    for node in nodes:
        state.node_changed(None, node)
    asking: dict[str, tuple[Pod, Asked | None]] = {}
    for pod in pods:
        state.pod_changed(None, pod)
        try:
            asked = asked_of(pod, codec)
        except InputError:
            asked = None
        if asked is None or asked.containers:
            asking[pod.metadata.uid] = pod, asked
    pending: dict[str, list[PodUse]] = {}
    for uid, (pod, asked) in asking.items():
        if (uid in state.waiting or pod.spec.node_name) and state.bound(uid) is None and not has_ended(pod):
            pending.setdefault(pod.spec.node_name, []).append(_pending(pod, asked))
    shown = sorted((node for node in nodes if node.metadata.name in state.cluster.index), key=_name)
    return ClusterUse(
        nodes=tuple(_node(node, state, asking, pending.get(node.metadata.name, ())) for node in shown),
        pending=_sorted(pending.get("", ())),
        policy=settings.scheduler.policy,
        unread=tuple(
            f"node {name}: {why}"
            for name, reasons in sorted(state.closed.items())
            for why in reasons.values()
            if name not in state.cluster.index
        ),
    )


def _name(node: Node) -> str:
    return node.metadata.name


def _sorted(pods: Iterable[PodUse]) -> tuple[PodUse, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _node(
    node: Node, state: ClusterState, asking: Mapping[str, tuple[Pod, Asked | None]], pending: Iterable[PodUse]
) -> NodeUse:
    name = node.metadata.name
    placed = state.cluster.node(name)
    machine = placed.machine
    return NodeUse(
        name=name,
        address=next((one.address for one in node.status.addresses if one.type == "InternalIP"), None),
        type=machine.labels.get(MACHINE_TYPE_LABEL) or ", ".join(sorted(machine.types)),
        cards=_cards(placed, _used(node)),
        links=machine.links,
        pods=_sorted(_placed(tenant, state, placed, asking.get(tenant.job)) for tenant in placed.tenants),
        pending=_sorted(pending),
        closed=tuple(state.closed.get(name, {}).values()),
    )


def _used(node: Node) -> Mapping[str, int]:
    try:
        return used_of(node)
    except InputError:  # of an agent that is newer than we are
        return {}


def _cards(placed: PlacedNode, used: Mapping[str, int]) -> tuple[CardUse, ...]:
    cards = placed.machine.gpus
    taken = [claims(tenant.demand, tenant.gpus, cards) for tenant in placed.tenants]
    return tuple(
        CardUse(
            index=index,
            uuid=card.uuid,
            type=card.type,
            state=_state(card),
            memory_mib=card.memory_capacity,
            assigned_mib=card.memory_capacity - placed.memory[index],
            used_mib=used.get(card.uuid) if card.healthy else None,  # it may be what was so before it failed
            compute_percent=(card.compute_capacity - placed.compute[index]) / 10,
            tenants=sum(index in one for one in taken),
        )
        for index, card in enumerate(cards)
    )


def _state(card: Gpu) -> str:
    return "unhealthy" if not card.healthy else "cordoned" if card.cordoned else "ok"


def _placed(tenant: Tenant, state: ClusterState, placed: PlacedNode, known: tuple[Pod, Asked | None] | None) -> PodUse:
    cards = placed.machine.gpus
    seat = state.allocations_on(placed.name)[tenant.job]
    asked = None if known is None else known[1]
    wanted = None
    if asked is not None and sum(one.amounts.asked.gpus for one in asked.containers) == len(tenant.gpus):
        wanted = sum(claim.memory for claim in claims(asked.demand, tenant.gpus, cards).values())
    return PodUse(
        namespace=seat.namespace,
        name=seat.name,
        uid=seat.uid,
        gpus=_gpus(asked),
        requested_mib=wanted,
        assigned=tuple(
            Part(gpu=gpu, memory_mib=claim.memory, compute_percent=claim.compute / 10)
            for gpu, claim in sorted(claims(tenant.demand, tenant.gpus, cards).items())
            if claim != NOTHING
        ),
    )


def _pending(pod: Pod, asked: Asked | None) -> PodUse:
    about = pod.metadata
    containers = [] if asked is None else [one.amounts.asked for one in asked.containers]
    return PodUse(
        namespace=about.namespace,
        name=about.name,
        uid=about.uid,
        gpus=_gpus(asked),
        requested_mib=None if asked is None else _peak((one.memory * one.gpus for one in containers), containers),
        requested_percent=_peak(((one.memory_percent or 0) * one.gpus for one in containers), containers),
    )


def _gpus(asked: Asked | None) -> int:
    return 0 if asked is None else max((one.amounts.asked.gpus for one in asked.containers), default=0)


def _peak(amounts: Iterable[int], containers: Sequence[Container]) -> int:
    """The most that containers take together at a time of something of which each takes its amount."""
    parts = zip(amounts, containers, strict=True)
    return peak_of(Container(kind=one.kind, memory=MiB(amount)) for amount, one in parts).memory
