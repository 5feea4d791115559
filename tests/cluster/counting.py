# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What pods request and were given of cards, counted apart from the product: from raw JSON, with its own arithmetic.

Nothing here imports cotenant, so a mistake there is not repeated here. It reads one dialect, that of vGPU.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, NamedTuple

Json = dict[str, Any]

ASSIGNMENT = "cotenant.io/assignment"
NAMES = "cotenant.io/containers"
ALL_COMPUTE = 1000
ISOLATION = "cotenant.io/isolation"
CLAIMED = "example.com/claimed"
"""annotation of a pod with ResourceClaims: what its containers request by them, in the words of limits"""
ENDED = ("Succeeded", "Failed")
WORDS = ("gpu", "gpumem", "gpumem-percentage", "gpucores")


class Capacity(NamedTuple):
    """What a card has."""

    memory: int
    """MiB"""
    slots: int


Cards = Mapping[str, Mapping[str, Capacity]]
"""by node and UUID"""


class Request(NamedTuple):
    """What a container requests of each of some cards."""

    cards: int
    memory: int
    percent: int
    """of the card's memory, if no amount is given"""
    compute: int

    def on(self, capacity: Capacity) -> tuple[int, int]:
        """MiB and thousandths of compute on such a card."""
        return self.memory or capacity.memory * self.percent // 100, self.compute


class Share(NamedTuple):
    """What a container was given of one card."""

    card: str
    memory: int
    compute: int
    mps: bool = False
    """whether it is a client of MPS"""


class Part(NamedTuple):
    """One container's shares."""

    name: str
    kind: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """What a pod was given."""

    pod: str
    node: str
    alone: bool
    parts: tuple[Part, ...]

    def cards_of(self, container: str) -> list[str]:
        return [share.card for part in self.parts if part.name == container for share in part.shares]


class Sum(NamedTuple):
    """Amounts of one card."""

    memory: int = 0
    compute: int = 0
    slots: int = 0

    def plus(self, other: "Sum") -> "Sum":
        return Sum(*(a + b for a, b in zip(self, other, strict=True)))

    def at_least(self, other: "Sum") -> "Sum":
        return Sum(*(max(a, b) for a, b in zip(self, other, strict=True)))


def containers_of(pod: Json) -> Iterator[tuple[str, Json]]:
    """All containers with their kind, in the order in which they start."""
    for one in pod["spec"].get("initContainers", []):
        yield ("sidecar" if one.get("restartPolicy") == "Always" else "init"), one
    for one in pod["spec"]["containers"]:
        yield "app", one


def requests_of(pod: Json) -> list[tuple[str, str, Request]]:
    """Name, kind and request of the containers that request cards."""
    found = []
    claimed = json.loads(pod["metadata"].get("annotations", {}).get(CLAIMED, "{}"))
    for kind, one in containers_of(pod):
        limits = claimed.get(one["name"]) or one.get("resources", {}).get("limits", {})
        amounts = {word: _number(limits.get(f"nvidia.com/{word}", 0)) for word in WORDS}
        if any(amounts.values()):
            percent = amounts["gpumem-percentage"] or 100
            whole = not amounts["gpumem"] and percent == 100
            compute = 10 * amounts["gpucores"] or (ALL_COMPUTE if whole else 0)
            found.append((one["name"], kind, Request(amounts["gpu"] or 1, amounts["gpumem"], percent, compute)))
    return found


def _number(written: str | int) -> int:
    """The API server writes 3000 as 3k."""
    text = str(written)
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


def wants_cards_alone(pod: Json) -> bool:
    """Whether nobody else may be on its cards: it wants all the compute of each."""
    return all(request.compute == ALL_COMPUTE for _, _, request in requests_of(pod))


def wants_mps(pod: Json) -> bool:
    """Whether its containers are to be clients of MPS."""
    return bool(pod["metadata"].get("annotations", {}).get(ISOLATION) == "mps")


def has_claims(pod: Json) -> bool:
    """Whether it requests its cards by ResourceClaims: then kubelet lists no devices, and it has its assignment before
    it is on its node."""
    return bool(pod["spec"].get("resourceClaims"))


def given_to(pod: Json) -> Given | None:
    """What the annotation of a pod assigns; ValueError if it cannot be read."""
    annotations = pod["metadata"].get("annotations", {})
    if ASSIGNMENT not in annotations:
        return None
    try:
        assigned = json.loads(annotations[ASSIGNMENT])
        # The webhook writes the names of containers only for the device plugin.
        all_names = [one["name"] for _, one in containers_of(pod)]
        names = json.loads(annotations[NAMES]) if NAMES in annotations else all_names
        parts = [
            Part(
                names[one["number"]],
                one.get("kind", "app"),
                tuple(
                    Share(share["gpu"], share["memory"], share["compute"], share.get("rung") == "mps")
                    for share in one["gpus"]
                ),
            )
            for one in assigned["containers"]
        ]
        return Given(assigned["pod"], assigned["node"], bool(assigned.get("exclusive")), tuple(parts))
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{error!r} in {annotations[ASSIGNMENT]}") from None


def holds(pod: Json) -> bool:
    """Whether a pod has what it was given, according to the API server."""
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in ENDED


def peak(parts: Iterable[Part]) -> dict[str, Sum]:
    """The most that a pod takes of each card: apps with sidecars, or an init container with the sidecars before it."""
    staying: dict[str, Sum] = {}
    most: dict[str, Sum] = {}
    in_order = sorted(parts, key=lambda part: part.kind == "app")
    for part in in_order:
        now = _added(staying, part)
        most = {card: now.get(card, Sum()).at_least(most.get(card, Sum())) for card in {*now, *most}}
        staying = staying if part.kind == "init" else now
    return most


def _added(sums: Mapping[str, Sum], part: Part) -> dict[str, Sum]:
    total = dict(sums)
    for share in part.shares:
        total[share.card] = total.get(share.card, Sum()).plus(Sum(share.memory, share.compute, 1))
    return total


def overbooked(capacities: Mapping[str, Capacity], holders: Sequence[Given]) -> list[str]:
    """Why these pods cannot all be on the cards of one node, a line for each card and amount."""
    sums: dict[str, Sum] = {}
    tenants: Counter[str] = Counter()
    alone: set[str] = set()
    by_mps: dict[str, set[bool]] = {}
    for one in holders:
        for share in (share for part in one.parts for share in part.shares):
            by_mps.setdefault(share.card, set()).add(share.mps)
        for card, taken in peak(one.parts).items():
            sums[card] = sums.get(card, Sum()).plus(taken)
            tenants[card] += 1
            alone |= {card} if one.alone else set()
    found = []
    for card, taken in sorted(sums.items()):
        capacity = capacities.get(card)
        if capacity is None:
            found.append(f"{card} is not a card of the node")
            continue
        limits = {"MiB": capacity.memory, "compute": ALL_COMPUTE, "slots": capacity.slots}
        found += [
            f"{card}: {used} {what} of {limit}"
            for used, (what, limit) in zip(taken, limits.items(), strict=True)
            if used > limit
        ]
        if card in alone and tenants[card] > 1:
            found.append(f"{card}: {tenants[card]} pods, one of which has it alone")
        if len(by_mps[card]) > 1:
            found.append(f"{card}: clients of MPS and others")
    return found


def fits(pod: Json, capacities: Mapping[str, Capacity], holders: Sequence[Given]) -> bool:
    """Whether some choice of this node's cards would do for a pod, beside those who are there; tries all."""
    requests = requests_of(pod)
    choices = [list(combinations(capacities, request.cards)) for _, _, request in requests]
    possible = (_as_given(pod, requests, capacities, one) for one in product(*choices))
    return any(not overbooked(capacities, [*holders, one]) for one in possible)


def _as_given(
    pod: Json, requests: Sequence[tuple[str, str, Request]], capacities: Mapping[str, Capacity], chosen: Any
) -> Given:
    parts = [
        Part(name, kind, tuple(Share(card, *request.on(capacities[card]), wants_mps(pod)) for card in cards))
        for (name, kind, request), cards in zip(requests, chosen, strict=True)
    ]
    return Given(pod["metadata"]["uid"], "", wants_cards_alone(pod), tuple(parts))
