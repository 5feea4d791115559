# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent says of its node, kept true on the API server: written where it is not so, and only then.

Somebody may remove or overwrite it, a node may be deleted and made anew, kubelet may set totals to nothing: the node is
watched, and what should be there is put back.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import NoReturn

import msgspec

from cotenant.core.model import Gpu, Link, Machine
from cotenant.core.units import Percent
from cotenant.errors import InputError
from cotenant.kube.agent.totals import Totals
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES
from cotenant.kube.api.objects import Node
from cotenant.kube.api.reflector import Pace, Reflector, older
from cotenant.kube.codec.dialect import Vendor
from cotenant.kube.codec.inventory import GPU_TOPOLOGY, INVENTORY, MOST_CARDS, OWN_TOTALS, SAID, inventory_for
from cotenant.kube.codec.quantity import parse_quantity
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.topology import TOPOLOGY
from cotenant.kube.settings import KubeSettings

PATCHES_S = 1.0
"""from one change of the node to the next, at least"""
_NVLINKS = ("Single NVLink", "Two NVLinks", "Three NVLinks", "Four NVLinks", "Five NVLinks", "Six NVLinks")
_WORDS = {
    Link.SYS: "Cross CPU socket",
    Link.NODE: "Same CPU socket",
    Link.PHB: "Host PCI bridge",
    Link.PXB: "Multiple PCI switches",
    Link.PIX: "Single PCI switch",
    Link.PSB: "Same board",
}


# What there is to say


def shared_machine(found: Machine, node: str, settings: KubeSettings, *, simulated: bool = False) -> Machine:
    """The cards that a node hands out, each shared as the settings say; hidden ones are not among them."""
    ways = [settings.sharing_of(node, gpu.uuid, index) for index, gpu in enumerate(found.gpus)]
    shown = [index for index, way in enumerate(ways) if way is not None]
    if len(shown) > MOST_CARDS:
        raise InputError(f"node {node} has {len(shown)} cards, expected at most {MOST_CARDS}; hide some")
    gpus = tuple(
        replace(
            _named_by(node, found.gpus[index]) if simulated else found.gpus[index],
            slots=way.split,
            memory_scaling=Percent(way.memory_scaling),
            compute_scaling=Percent(way.compute_scaling),
        )
        for index, way in enumerate(ways)
        if way is not None
    )
    links = found.links and tuple(tuple(found.links[a][b] for b in shown) for a in shown)
    return Machine(name=node, gpus=gpus, links=links)


def _named_by(node: str, gpu: Gpu) -> Gpu:
    """Simulated cards have the same names on every machine, and those of a cluster must differ."""
    return replace(gpu, uuid=f"SIM-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{gpu.uuid}.{node}')}")


def annotations_for(machine: Machine, vendor: Vendor, settings: Settings) -> dict[str, str | None]:
    """All that a node should carry about its cards; None: it should not be there."""
    topology = any(dialect.name == TOPOLOGY.name and dialect.vendor is vendor for dialect in settings.dialects)
    return {
        INVENTORY: inventory_for(machine, vendor),
        GPU_TOPOLOGY: topology_text(machine) if topology and machine.links is not None else None,
    }


def topology_text(machine: Machine) -> str:
    """How each pair of cards is linked, in the words of the topology dialect, which knows of six NVLinks at most."""
    pairs = {}
    for a, b in combinations(range(len(machine.gpus)), 2):
        score = machine.links[a][b] if machine.links is not None else 0
        short, words = _link(score)
        pairs[f"GPU_{short}_{a}_{b}"] = words
    return msgspec.json.encode(pairs).decode()


def _link(score: int) -> tuple[str, str]:
    if score >= Link.NVLINK:
        several = min(score // Link.NVLINK, len(_NVLINKS))
        return f"NV{several}", _NVLINKS[several - 1]
    best = max((link for link in _WORDS if link <= score), default=None)
    return ("N-A", "N/A") if best is None else (best.name, _WORDS[best])


# Saying it


class OwnNode:
    """The node that an agent stands on: as it is, as it should be, and what makes the one of the other."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        pace: Pace = Pace(),  # noqa: B008 -- frozen
        report: Callable[[str], object],
        patches_s: float = PATCHES_S,
    ) -> None:
        self.name = name
        self.written = 0
        """patches that the API server took"""
        self._client, self._report, self._patches_s = client, report, patches_s
        which = Selection(fields=f"metadata.name={name}")
        self._reflector = Reflector(client, NODES, self._seen, which, pace=pace, report=report)
        self._node: Node | None = None
        self._annotations: dict[str, str | None] = {}
        self._totals: Totals | None = None
        self._changed = asyncio.Event()
        self._as_wanted = asyncio.Event()

    def want(self, annotations: Mapping[str, str | None] | None = None, totals: Totals | None = None) -> None:
        """What should be there from now on, beside what was wanted before."""
        self._annotations |= annotations or {}
        if totals is not None:
            self._totals = totals
            self._annotations[OWN_TOTALS] = ",".join(sorted(totals)) or None
        self._changed.set()
        self._as_wanted.clear()

    async def is_as_wanted(self) -> None:
        """Waits until it is."""
        await self._as_wanted.wait()

    async def run(self) -> None:
        """Keep the node as it should be, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._keep())

    async def _keep(self) -> NoReturn:
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            try:
                await self._make_so()
                failures = 0
            except ApiError as error:
                failures += 1
                self._report(str(error))
                self._changed.set()
                await asyncio.sleep(self._client.limits.pause(failures, error.retry_after))
            await asyncio.sleep(max(0.0, began + self._patches_s - time.monotonic()))

    async def _make_so(self) -> None:
        """Totals go up before the scheduler may place more, and down after it was told to place less."""
        if self._node is None:
            if self._reflector.synced.is_set():
                self._report(f"the cluster has no node {self.name}")
            return
        if raised := self._wrong_totals(raising=True):
            await self._patch_totals(raised)
        names = {OWN_TOTALS: self._names()} if self._former() else {}
        await self._patch_annotations(self._annotations | names)
        if wrong_totals := self._wrong_totals():
            await self._patch_totals(wrong_totals)
        await self._patch_annotations(self._annotations)
        self._as_wanted.set()

    async def _patch_annotations(self, wanted: Mapping[str, str | None]) -> None:
        present = self._node.metadata.annotations if self._node is not None else {}
        if wrong := {key: value for key, value in wanted.items() if present.get(key) != value}:
            await self._patch({"metadata": {"annotations": wrong}})

    async def _patch_totals(self, totals: Mapping[str, int | None]) -> None:
        written = {name: None if amount is None else str(amount) for name, amount in totals.items()}
        await self._patch({"status": {"capacity": written, "allocatable": written}}, part="status")

    async def _patch(self, patch: object, part: str = "") -> None:
        found = await self._client.patch(NODES, self.name, patch, part=part)
        self.written += 1
        # The watch may have been faster, and tell of what somebody else did after it.
        if (
            self._node is not None
            and self._node.metadata.uid == found.metadata.uid
            and not _is_before(found, self._node)
        ):
            self._node = found

    def _names(self) -> str | None:
        return None if self._node is None else _names_in(self._node)

    def _wrong_totals(self, *, raising: bool = False) -> dict[str, int | None]:
        """Totals that the node has otherwise; raising: only those that it has too little of."""
        node = self._node
        if self._totals is None or node is None:
            return {}
        wrong: dict[str, int | None] = {}
        for name, amount in self._totals.items():
            present = [_amount(part.get(name)) for part in (node.status.capacity, node.status.allocatable)]
            if raising and any(one is None or one < amount for one in present):
                wrong[name] = max([amount, *(one for one in present if one is not None)])
            elif not raising and present != [amount, amount]:
                wrong[name] = amount
        return wrong if raising else wrong | dict.fromkeys(self._former())

    def _former(self) -> list[str]:
        """Resources whose totals are ours and not wanted any more."""
        if self._node is None or self._totals is None:
            return []
        return [name for name in (_names_in(self._node) or "").split(",") if name and name not in self._totals]

    def _seen(self, old: Node | None, new: Node | None) -> None:
        if self._node is not None and new is not None and _is_before(new, self._node):
            return  # our last patch came in between
        self._node = new
        self._changed.set()


def _is_before(one: Node, other: Node) -> bool:
    same = one.metadata.uid == other.metadata.uid
    return same and older(one.metadata.resource_version, other.metadata.resource_version)


def _names_in(node: Node) -> str | None:
    return node.metadata.annotations.get(OWN_TOTALS)


def _amount(written: str | int | None) -> int | None:
    try:
        return None if written is None else int(parse_quantity(written))
    except ValueError:
        return None


async def take_back(client: Client, name: str) -> None:
    """Leave a node as if there had been no agent."""
    node = await client.get(NODES, name)
    if gone := {one: None for one in (_names_in(node) or "").split(",") if one}:
        await client.patch(NODES, name, {"status": {"capacity": gone, "allocatable": gone}}, part="status")
    ours = dict.fromkeys(SAID)
    await client.patch(NODES, name, {"metadata": {"annotations": ours}})
