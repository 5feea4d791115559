# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the annotations and resource totals of the agent's node on the API server as they should be.

Another program may remove or overwrite them, a node may be deleted and created again, and kubelet may set totals to
zero. So the node is watched, and written only if it differs.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from cotenant.kube.agent.totals import Totals
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES
from cotenant.kube.api.objects import Node
from cotenant.kube.api.reflector import Pace, Reflector, older
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.inventory import OWN_TOTALS

PATCHES_S = 1.0
"""Shortest time between two writes of the node."""


class OwnNode:
    """The agent's own node: its present state, its wanted state, and the loop that makes the first equal the second."""

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
        """Number of patches that the API server accepted."""
        self.passes = 0
        """Number of times the node was compared with what is wanted and, if it differed, written."""
        self._client, self._report, self._patches_s = client, report, patches_s
        which = Selection(fields=f"metadata.name={name}")
        self._reflector = Reflector(client, NODES, self._seen, which, pace=pace, report=report)
        self._node: Node | None = None
        self._annotations: dict[str, str | None] = {}
        self._totals: Totals | None = None
        self._changed = asyncio.Event()
        self._as_wanted = asyncio.Event()

    @property
    def uid(self) -> str | None:
        """UID of the node; None: it is not known yet."""
        return None if self._node is None else self._node.metadata.uid

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations that the node has now."""
        return {} if self._node is None else self._node.metadata.annotations

    def want(self, annotations: Mapping[str, str | None] | None = None, totals: Totals | None = None) -> None:
        """Adds to what the node should carry from now on."""
        self._annotations |= annotations or {}
        if totals is not None:
            self._totals = totals
            self._annotations[OWN_TOTALS] = ",".join(sorted(totals)) or None
        self._changed.set()
        self._as_wanted.clear()

    async def is_as_wanted(self) -> None:
        """Returns as soon as the node is as wanted."""
        await self._as_wanted.wait()

    async def run(self) -> None:
        """Keeps the node as it should be, until cancelled."""
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
                await self._write()
                failures = 0
                self.passes += 1
            except ApiError as error:
                failures += 1
                self._report(str(error))
                self._changed.set()
                await asyncio.sleep(self._client.limits.pause(failures, error.retry_after))
            await asyncio.sleep(max(0.0, began + self._patches_s - time.monotonic()))

    async def _write(self) -> None:
        """Makes the node as wanted.

        Totals rise before the scheduler sees more GPUs, and fall after it sees fewer: kubelet fails a pod for good if
        the requests on the node exceed a total.
        """
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
        # The watch may already have delivered a newer state, written by another program.
        if (
            self._node is not None
            and self._node.metadata.uid == found.metadata.uid
            and not _is_before(found, self._node)
        ):
            self._node = found

    def _names(self) -> str | None:
        return None if self._node is None else _names_in(self._node)

    def _wrong_totals(self, *, raising: bool = False) -> dict[str, int | None]:
        """Totals of the node that differ from the wanted ones; with `raising`, only those that are too small."""
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
        """Resources whose totals the agent once wrote and that are no longer wanted."""
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
