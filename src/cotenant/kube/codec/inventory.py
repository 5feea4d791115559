# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent of a node writes on it as annotations: its GPUs, their use, and its orphans.

The scheduler reads nothing else of a node, so it can place no pod on a node without an inventory.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.core.isolation import USUAL, Offer, Rung, most_clients, obstacle, rungs_of
from cotenant.core.model import MACHINE_TYPE_LABEL, Gpu, Machine
from cotenant.core.units import MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node
from cotenant.kube.codec.agent_report import REPORT
from cotenant.kube.codec.assignment import Identity, Record, Uuid, checked_record
from cotenant.kube.codec.keys import decode_annotation, own_key
from cotenant.node.devices.vendors import Vendor

INVENTORY = own_key("inventory")
ORPHANS = own_key("orphans")
OWN_TOTALS = own_key("totals")
"""Resources whose totals the agent writes, so that it can remove them if their names change."""
GPU_TOPOLOGY = "GPU_TOPOLOGY"
"""Of the topology dialect: how each pair of GPUs is linked."""
HAMI_REGISTER = "hami.io/node-nvidia-register"
"""Of HAMi: the GPUs of the node, for its WebUI."""
AWAY = own_key("away")
"""Why kubelet could not start a pod with GPUs on the node just now."""
CLAIMS_AWAY = own_key("claims-away")
"""Why kubelet could not prepare ResourceClaims on the node just now."""
USED = own_key("used")
"""Memory in use on its GPUs, for people who look; no decision depends on it."""
SERVERS = own_key("servers")
"""How long the requests of pods with a latency objective take, and the compute share that each of them should have."""
CLOSED = own_key("closed")
"""Which GPUs take no pods because of a fault, or of their MPS, and why."""
GRANTS = own_key("grants")
"""What pods are granted whose limits are above their requests (`grants.py`)."""
SAID = (
    *(INVENTORY, AWAY, CLAIMS_AWAY, USED, ORPHANS, SERVERS, CLOSED, GRANTS, OWN_TOTALS),
    *(GPU_TOPOLOGY, HAMI_REGISTER, REPORT),
)
"""All annotations that an agent writes on its node."""
CORDONED = (own_key("cordon"), "hami.io/device-cordon")
"""Written by an administrator: UUIDs of GPUs that take no new tenants."""
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""Written by the cloud provider."""
VERSION = 1
MOST_NODE_GPUS = 64
MOST_SLOTS = 1000
MOST_BEYOND = 64

MOST_SERVERS = 256
LONGEST_MS = 1e9

Scaling = Annotated[int, Meta(ge=1, le=10_000)]
LinkScore = Annotated[int, Meta(ge=0, le=100_000)]


class OfferView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What decides which rungs of the isolation ladder a GPU has. Unknown fields are ignored, as in a `Share`."""

    capability: tuple[Annotated[int, Meta(ge=0, le=1000)], Annotated[int, Meta(ge=0, le=1000)]] | None = None
    """Compute capability."""
    cuda: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    """CUDA version of the driver."""
    mps: bool = False
    """Whether the node can run MPS."""
    preload: bool = False
    """Whether the node has the vGPU library."""
    only: Rung | None = None
    """The rung that the settings reserve the GPU for."""


class GpuView(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One GPU, as `core` knows it."""

    uuid: Uuid
    type: Annotated[str, Meta(min_length=1, max_length=200)]
    memory: Annotated[int, Meta(ge=0, le=1_000_000_000)]
    """MiB"""
    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    numa: Annotated[int, Meta(ge=0, le=4096)] | None = None
    healthy: bool = True
    memory_scaling: Scaling = 100
    compute_scaling: Scaling = 100
    mig: Annotated[str, Meta(min_length=1, max_length=40)] | None = None
    """Profile, if it is a MIG instance."""
    card: Uuid | None = None
    """The GPU that was partitioned, if it is a MIG instance."""
    part: Annotated[int, Meta(ge=1, le=1000)] = 1000
    """Thousandths of the compute of that GPU that it has."""
    isolation: OfferView | None = None
    """None: written by an agent that knows nothing of the isolation ladder."""


class Inventory(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, rename={"gpus": "cards"}
):
    """All GPUs of a node and how they are linked."""

    version: int
    vendor: Vendor
    gpus: Annotated[tuple[GpuView, ...], Meta(max_length=MOST_NODE_GPUS)]
    links: tuple[tuple[LinkScore, ...], ...] | None = None


class ClosedGpu(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A GPU that takes no pods."""

    why: Annotated[str, Meta(max_length=2000)]
    mps: bool = False
    """Whether that is because of its MPS, and not of a fault of the GPU."""
    culprits: Annotated[tuple[Identity, ...], Meta(max_length=64)] = ()
    """UIDs of the pods whose fault ended the others."""


class ClosedGpus(msgspec.Struct, frozen=True, kw_only=True):
    """All such GPUs of a node. Unknown fields are ignored: a later agent may add one."""

    version: int
    closed: Annotated[dict[Uuid, ClosedGpu], Meta(max_length=MOST_NODE_GPUS)]
    """By UUID."""


class Orphans(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pods that the API server no longer has and whose processes have not ended."""

    version: int
    seen: str
    """Resource version of the pods up to which the agent knew all deletions. A pod that was deleted by then and is not
    listed has ended."""
    held: tuple[Record, ...]


Amount = Annotated[int, Meta(ge=0, le=1_000_000_000)]
"""MiB."""


class MemoryInUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory in use on the GPUs of a node. Unknown fields are ignored: a later agent may add an optional field."""

    version: int
    mib: dict[Uuid, Amount]
    """By any process, by UUID; a GPU whose use is not known is left out."""
    beyond: Annotated[dict[Identity, dict[Uuid, Amount]], Meta(max_length=MOST_BEYOND)] = {}
    """By the pods that use more of a GPU than they were assigned: their UIDs, and what they use of it."""


NOT_KNOWN = MemoryInUse(version=VERSION, mib={})


class ServerReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a pod holds its latency objective."""

    percentile: Annotated[int, Meta(ge=1, le=99)]
    objective_ms: Annotated[float, Meta(gt=0, le=LONGEST_MS)]
    latency_ms: Annotated[float, Meta(ge=0, le=LONGEST_MS)]
    """Of that percentile, in the last window."""
    missed: Annotated[int, Meta(ge=0, le=1_000_000_000)]
    """Windows in a row in which the objective was missed."""
    compute: Annotated[int, Meta(ge=0, le=1000)]
    """The share with which it was measured."""
    wanted: Annotated[int, Meta(ge=0, le=1000)]
    """The share that it should have."""


class Servers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All pods of a node that report latencies."""

    version: int
    pods: Annotated[dict[str, ServerReport], Meta(max_length=MOST_SERVERS)]
    """By UID."""


def servers_for(reports: Mapping[str, ServerReport]) -> str:
    """The annotation's value."""
    chosen = dict(sorted(reports.items())[:MOST_SERVERS])
    return msgspec.json.encode(Servers(version=VERSION, pods=chosen), order="deterministic").decode()


def servers_of(node: Node) -> Mapping[str, ServerReport]:
    """The reports about the pods of a node, by UID; InputError if the annotation cannot be understood."""
    text = node.metadata.annotations.get(SERVERS)
    return {} if text is None else decode_annotation(SERVERS, text, Servers, VERSION).pods


def closed_for(closed: Mapping[str, ClosedGpu]) -> str | None:
    """The annotation's value; None: no GPU is closed."""
    chosen = ClosedGpus(version=VERSION, closed=dict(closed))
    return msgspec.json.encode(chosen, order="deterministic").decode() if closed else None


def closed_of(node: Node) -> Mapping[str, ClosedGpu]:
    """The GPUs of a node that take no pods; InputError if the annotation cannot be understood."""
    text = node.metadata.annotations.get(CLOSED)
    return {} if text is None else decode_annotation(CLOSED, text, ClosedGpus, VERSION).closed


def inventory_for(machine: Machine, vendor: Vendor) -> str:
    """The annotation's value."""
    gpus = tuple(
        GpuView(
            uuid=gpu.uuid,
            type=gpu.type,
            memory=gpu.memory,
            slots=gpu.slots,
            numa=gpu.numa,
            healthy=gpu.healthy,
            memory_scaling=gpu.memory_scaling,
            compute_scaling=gpu.compute_scaling,
            mig=gpu.mig,
            card=gpu.card,
            part=gpu.part,
            isolation=None if gpu.offer is None else _view_of(gpu.offer),
        )
        for gpu in machine.gpus
    )
    return msgspec.json.encode(Inventory(version=VERSION, vendor=vendor, gpus=gpus, links=machine.links)).decode()


def machine_of(node: Node) -> tuple[Machine, Vendor] | None:
    """A node as `core` knows it, None if it has no inventory; InputError if the inventory cannot be understood."""
    text = node.metadata.annotations.get(INVENTORY)
    if text is None:
        return None
    inventory = decode_annotation(INVENTORY, text, Inventory, VERSION)
    _check(inventory)
    cordoned = cordoned_gpus(node.metadata.annotations)
    gpus = tuple(
        Gpu(
            uuid=gpu.uuid,
            type=gpu.type,
            memory=MiB(gpu.memory),
            slots=gpu.slots,
            numa=gpu.numa,
            healthy=gpu.healthy,
            cordoned=gpu.uuid in cordoned,
            memory_scaling=Percent(gpu.memory_scaling),
            compute_scaling=Percent(gpu.compute_scaling),
            mig=gpu.mig,
            card=gpu.card,
            part=MilliGpu(gpu.part),
            offer=(offer := _offer_of(gpu)),
            rungs=USUAL if offer is None else rungs_of(offer),
            mps_clients=0
            if offer is None or obstacle(Rung.MPS, offer)
            else most_clients(offer.capability, MilliGpu(gpu.part)),
        )
        for gpu in inventory.gpus
    )
    # Not in agents: these need numpy, and agents stay small.
    from cotenant.core.placement.checks import NODE_LABELS
    from cotenant.core.placement.topology import STATIC_TABLES

    # No check or policy reads other labels, and machines that are equal are rated once.
    labels = {key: value for key, value in node.metadata.labels.items() if key in NODE_LABELS}
    if (kind := machine_type(node)) in STATIC_TABLES:
        labels[MACHINE_TYPE_LABEL] = kind
    return Machine(name=node.metadata.name, gpus=gpus, links=inventory.links, labels=labels), inventory.vendor


def _view_of(offer: Offer) -> OfferView:
    return OfferView(
        capability=offer.capability, cuda=offer.cuda, mps=offer.mps, preload=offer.preload, only=offer.only
    )


def _offer_of(gpu: GpuView) -> Offer | None:
    told = gpu.isolation
    if told is None:
        return None
    return Offer(
        capability=told.capability,
        cuda=told.cuda,
        mps=told.mps,
        preload=told.preload,
        only=told.only,
        failure="agents do not set these limits",
        instance=gpu.card is not None,
    )


def machine_type(node: Node) -> str:
    """The machine type that an administrator or the cloud provider has written on the node; may be empty."""
    labels = node.metadata.labels
    return labels.get(MACHINE_TYPE_LABEL) or labels.get(INSTANCE_TYPE_LABEL, "")


def cordoned_gpus(annotations: Mapping[str, str]) -> frozenset[str]:
    """The GPUs of a node that an administrator has cordoned."""
    words = ",".join(annotations.get(key, "") for key in CORDONED)
    return frozenset(word.strip() for word in words.split(",") if word.strip())


def orphans_for(seen: str, held: Sequence[Record]) -> str:
    """The annotation's value."""
    return msgspec.json.encode(Orphans(version=VERSION, seen=seen, held=tuple(held))).decode()


def orphans_of(node: Node) -> Orphans | None:
    """The orphans of a node, None if no agent has written them; InputError if they cannot be understood."""
    text = node.metadata.annotations.get(ORPHANS)
    if text is None:
        return None
    orphans = decode_annotation(ORPHANS, text, Orphans, VERSION)
    for record in orphans.held:
        checked_record(record)
    return orphans


def used_for(mib: Mapping[str, int], beyond: Mapping[str, Mapping[str, int]] = MappingProxyType({})) -> str:
    """The annotation's value; of more than `MOST_BEYOND` pods, the last are left out."""
    listed = {uid: dict(gpus) for uid, gpus in islice(beyond.items(), MOST_BEYOND)}
    use = MemoryInUse(version=VERSION, mib=dict(mib), beyond=listed)
    return msgspec.json.encode(use, order="deterministic").decode()


def used_of(node: Node) -> MemoryInUse:
    """Memory in use, as far as known; InputError if the annotation cannot be understood."""
    text = node.metadata.annotations.get(USED)
    return NOT_KNOWN if text is None else decode_annotation(USED, text, MemoryInUse, VERSION)


def _check(inventory: Inventory) -> None:
    if not inventory.vendor.row.dialects:
        raise InputError(f"annotation {INVENTORY}: pods cannot request GPUs of the vendor {inventory.vendor}")
    uuids = [gpu.uuid for gpu in inventory.gpus]
    if len(set(uuids)) != len(uuids):
        raise InputError(f"annotation {INVENTORY}: a GPU is listed twice")
    if inventory.links is not None and {len(inventory.links), *map(len, inventory.links)} != {len(uuids)}:
        raise InputError(f"annotation {INVENTORY}: expected one link for each pair of its {len(uuids)} GPUs")
