# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a node's agent says of its node, as annotations: the cards that it has, and what still runs there unasked.

The scheduler reads nothing else of a node, so a node without an inventory has no GPUs that we could place on.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node
from cotenant.kube.codec.assignment import Record, Uuid, checked_record
from cotenant.kube.codec.dialect import Vendor
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.versioned import decode_annotation

INVENTORY = own_key("inventory")
ORPHANS = own_key("orphans")
OWN_TOTALS = own_key("totals")
"""the resources whose totals are the agent's, so that they go when their names change"""
GPU_TOPOLOGY = "GPU_TOPOLOGY"
"""of the topology dialect: how each pair of cards is linked"""
AWAY = own_key("away")
"""why kubelet could not start a pod with GPUs on the node just now"""
USED = own_key("used")
"""what is really used of its cards, for people who look: nothing is decided by it"""
SAID = (INVENTORY, AWAY, USED, ORPHANS, OWN_TOTALS, GPU_TOPOLOGY)
"""all that an agent writes on its node"""
CORDONED = (own_key("cordon"), "hami.io/device-cordon")
"""by an administrator: UUIDs of cards that take no new tenants"""
VERSION = 1
MOST_CARDS = 64
MOST_SLOTS = 1000

Scaling = Annotated[int, Meta(ge=1, le=10_000)]
LinkScore = Annotated[int, Meta(ge=0, le=100_000)]


class CardView(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One card, as `core` knows it."""

    uuid: Uuid
    type: Annotated[str, Meta(min_length=1, max_length=200)]
    memory: Annotated[int, Meta(ge=0, le=1_000_000_000)]
    """MiB"""
    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    numa: Annotated[int, Meta(ge=0, le=4096)] | None = None
    healthy: bool = True
    memory_scaling: Scaling = 100
    compute_scaling: Scaling = 100


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """All cards of a node and how they are linked."""

    version: int
    vendor: Vendor
    cards: Annotated[tuple[CardView, ...], Meta(max_length=MOST_CARDS)]
    links: tuple[tuple[LinkScore, ...], ...] | None = None


class Orphans(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pods that the API server no longer has and whose processes have not ended."""

    version: int
    seen: str
    """the resource version of pods up to which the agent knew what was deleted: whatever was by then and is not listed
    has ended"""
    held: tuple[Record, ...]


class CardsInUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much memory of its cards is really used, whoever uses it."""

    version: int
    mib: dict[Uuid, Annotated[int, Meta(ge=0, le=1_000_000_000)]]
    """by UUID; cards of which it is not known are not in it"""


def inventory_for(machine: Machine, vendor: Vendor) -> str:
    """The annotation's value."""
    cards = tuple(
        CardView(
            uuid=gpu.uuid,
            type=gpu.type,
            memory=gpu.memory,
            slots=gpu.slots,
            numa=gpu.numa,
            healthy=gpu.healthy,
            memory_scaling=gpu.memory_scaling,
            compute_scaling=gpu.compute_scaling,
        )
        for gpu in machine.gpus
    )
    return msgspec.json.encode(Inventory(version=VERSION, vendor=vendor, cards=cards, links=machine.links)).decode()


def machine_of(node: Node) -> tuple[Machine, Vendor] | None:
    """A node as `core` knows it, None where no agent has said anything; InputError where it cannot be understood."""
    text = node.metadata.annotations.get(INVENTORY)
    if text is None:
        return None
    said = decode_annotation(INVENTORY, text, Inventory, VERSION)
    _check(said)
    cordoned = cordoned_cards(node.metadata.annotations)
    gpus = tuple(
        Gpu(
            uuid=card.uuid,
            type=card.type,
            memory=MiB(card.memory),
            slots=card.slots,
            numa=card.numa,
            healthy=card.healthy,
            cordoned=card.uuid in cordoned,
            memory_scaling=Percent(card.memory_scaling),
            compute_scaling=Percent(card.compute_scaling),
        )
        for card in said.cards
    )
    from cotenant.core.placement.checks import NODE_LABELS  # not in agents: it needs numpy, and they stay small

    # Other labels tell no policy anything, and equal machines are rated once.
    labels = {key: value for key, value in node.metadata.labels.items() if key in NODE_LABELS}
    return Machine(name=node.metadata.name, gpus=gpus, links=said.links, labels=labels), said.vendor


def cordoned_cards(annotations: Mapping[str, str]) -> frozenset[str]:
    """The cards of a node that an administrator has taken out."""
    words = ",".join(annotations.get(key, "") for key in CORDONED)
    return frozenset(word.strip() for word in words.split(",") if word.strip())


def orphans_for(seen: str, held: Sequence[Record]) -> str:
    """The annotation's value."""
    return msgspec.json.encode(Orphans(version=VERSION, seen=seen, held=tuple(held))).decode()


def orphans_of(node: Node) -> Orphans | None:
    """What runs on without a pod, None where no agent has said anything; InputError where it cannot be understood."""
    text = node.metadata.annotations.get(ORPHANS)
    if text is None:
        return None
    said = decode_annotation(ORPHANS, text, Orphans, VERSION)
    for record in said.held:
        checked_record(record)
    return said


def used_for(mib: Mapping[str, int]) -> str:
    """The annotation's value."""
    return msgspec.json.encode(CardsInUse(version=VERSION, mib=dict(mib)), order="deterministic").decode()


def used_of(node: Node) -> Mapping[str, int]:
    """MiB that are used of each card, by UUID, as far as it is known; InputError where it cannot be understood."""
    text = node.metadata.annotations.get(USED)
    return {} if text is None else decode_annotation(USED, text, CardsInUse, VERSION).mib


def _check(said: Inventory) -> None:
    uuids = [card.uuid for card in said.cards]
    if len(set(uuids)) != len(uuids):
        raise InputError(f"annotation {INVENTORY}: a card is there twice")
    if said.links is not None and {len(said.links), *map(len, said.links)} != {len(uuids)}:
        raise InputError(f"annotation {INVENTORY}: expected one link for each pair of its {len(uuids)} cards")
