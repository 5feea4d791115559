# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A GPU as a device of Dynamic Resource Allocation: its name, attributes, capacity, counters and taints.

Agents publish devices in ResourceSlices. Attributes follow from the inventory of the node, so the scheduler knows what
a selector sees without reading slices.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cotenant.core.isolation import USUAL, Rung, rungs_of
from cotenant.core.links import LinkMatrix
from cotenant.core.model import Gpu, Link, Machine
from cotenant.kube.api.names import Json
from cotenant.kube.codec.claims import DRIVER, device_name
from cotenant.node.devices.vendors import Vendor

LONGEST_TEXT = 64
"""Characters of an attribute."""
UNHEALTHY, CORDONED = f"{DRIVER}/unhealthy", f"{DRIVER}/cordoned"
"""Taints."""
_RUNGS = {Rung.DRIVER: "isolationDriver", Rung.MPS: "isolationMps", Rung.PRELOAD: "isolationPreload"}
"""Attributes that say whether a GPU has a rung of the isolation ladder."""


def attributes_of(machine: Machine, vendor: Vendor, driver: str | None = None) -> list[Json]:
    """The attributes of each GPU of a node; `driver` is the version of the GPUs' driver.

    A group of GPUs has the lowest index of its members as its number, and a GPU without such links is in none.
    """
    nvlink, pcie = (_groups(machine.links, link) for link in (Link.NVLINK, Link.PXB))
    return [
        {
            "index": {"int": index},
            "type": {"string": gpu.type[:LONGEST_TEXT]},
            "uuid": {"string": gpu.uuid[:LONGEST_TEXT]},
            "vendor": {"string": vendor.value},
            "healthy": {"bool": gpu.healthy},
            "slots": {"int": gpu.slots},
            "mig": {"bool": gpu.mig is not None},
            **_optional("numaNode", "int", gpu.numa),
            **_optional("nvlinkGroup", "int", nvlink.get(index)),
            **_optional("pcieGroup", "int", pcie.get(index)),
            **_optional("migProfile", "string", gpu.mig and gpu.mig[:LONGEST_TEXT]),
            **_optional("parentUuid", "string", gpu.card and gpu.card[:LONGEST_TEXT]),
            **_ladder(gpu),
            **_optional("driverVersion", "version", semantic(driver)),
        }
        for index, gpu in enumerate(machine.gpus)
    ]


def _optional(name: str, kind: str, value: object) -> Json:
    return {} if value is None else {name: {kind: value}}


def _ladder(gpu: Gpu) -> Json:
    offer = gpu.offer
    rungs = USUAL if offer is None else rungs_of(offer)
    found: Json = {name: {"bool": rung in rungs} for rung, name in _RUNGS.items()}
    if offer is not None and offer.capability is not None:
        found["computeCapability"] = {"version": f"{offer.capability[0]}.{offer.capability[1]}.0"}
    if offer is not None and offer.cuda is not None:
        found["cudaVersion"] = {"version": f"{offer.cuda // 1000}.{offer.cuda % 1000 // 10}.0"}
    return found


def semantic(version: str | None) -> str | None:
    """A version of two or three numbers as Kubernetes accepts it: 535.104.05 is 535.104.5. None: it is another text."""
    words = (version or "").split(".")
    if not 1 < len(words) < 4 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    return ".".join(str(int(word)) for word in [*words, "0"][:3])


def _groups(links: LinkMatrix | None, at_least: Link) -> dict[int, int]:
    """The group of each GPU that has such a link to another one: the lowest index among all that it reaches by them."""
    found: dict[int, int] = {}
    for first in range(len(links or ())):
        reached, left = {first}, [first]
        while left and first not in found:
            near = {other for other, score in enumerate((links or ())[left.pop()]) if score >= at_least} - reached
            reached |= near
            left += near
        if first not in found and len(reached) > 1:
            found |= dict.fromkeys(reached, first)
    return found


def device_of(gpu: Gpu, attributes: Mapping[str, Any], *, counted: bool) -> Json:
    """A GPU as a device that several claims may share. `counted`: a MIG instance takes from the counters of its GPU.

    Kubernetes drops the fields that it does not know.
    """
    device: Json = {
        "name": device_name(gpu.uuid),
        "attributes": dict(attributes),
        "capacity": _capacity(gpu),
        "allowMultipleAllocations": True,
    }
    if counted and gpu.card is not None:
        taken = {name: {"value": str(amount)} for name, amount in _counters(gpu).items()}
        device["consumesCounters"] = [{"counterSet": device_name(gpu.card), "counters": taken}]
    effects = [(UNHEALTHY, not gpu.healthy), (CORDONED, gpu.cordoned)]
    if taints := [{"key": key, "value": "true", "effect": "NoSchedule"} for key, is_set in effects if is_set]:
        device["taints"] = taints
    return device


def _capacity(gpu: Gpu) -> Json:
    """Memory in steps of 1 MiB, and compute in percent.

    A request that states none takes none: kube-scheduler allocates only requests of administrators, which it would not
    allocate on a GPU without so much free capacity.
    """
    memory, compute = int(gpu.memory_capacity), int(gpu.compute_capacity) // 10
    found: Json = {"memory": {"value": f"{memory}Mi"}, "compute": {"value": str(compute)}}
    if memory > 1:
        found["memory"]["requestPolicy"] = {"default": "0", "validRange": {"min": "0", "step": "1Mi"}}
    if compute > 0:
        found["compute"]["requestPolicy"] = {"default": "0", "validRange": {"min": "0", "step": "1"}}
    return found


def counter_sets(gpus: Iterable[Gpu]) -> list[Json]:
    """What the MIG instances of each partitioned GPU have together."""
    cards: dict[str, dict[str, int]] = {}
    for gpu in gpus:
        if gpu.card is not None:
            card = cards.setdefault(device_name(gpu.card), {})
            for name, amount in _counters(gpu).items():
                card[name] = card.get(name, 0) + amount
    return [
        {"name": name, "counters": {one: {"value": str(amount)} for one, amount in card.items()}}
        for name, card in sorted(cards.items())
    ]


def _counters(gpu: Gpu) -> dict[str, int]:
    return {"memory-mib": int(gpu.memory), "compute-permille": int(gpu.part)}
