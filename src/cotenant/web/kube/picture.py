# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The overview of a cluster, kept up to date node by node and pod by pod, and reduced to what a viewer may see.

A change costs as much as the nodes and pods that changed, however large the cluster is.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cotenant.kube.api.reflector import Key
from cotenant.web.kube.queueing import QueueReasons
from cotenant.web.kube.rows import row_of
from cotenant.web.kube.tiles import Tile, tile_of
from cotenant.web.kube.watch import ClusterWatch
from cotenant.web.model import JobRow, Node, Overview, State, Tenant
from cotenant.wire.text import counted

OTHER = "another tenant"
"""The name of a tenant that the viewer may not see."""
MOST_ENDED = 200
"""Ended pods in the overview: the last."""
ROWS_AT_ONCE = 100
MOST_SIGHTS = 64
"""Sights whose nodes are kept."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a viewer may see."""

    namespaces: frozenset[str] | None
    """Namespaces whose pods the viewer may list; None: all."""
    nodes: bool
    """Whether the viewer may list nodes; otherwise those with pods of the viewer's namespaces are shown."""
    events: frozenset[str] | None = frozenset()
    """Namespaces whose events the viewer may list; None: all."""

    def sees(self, namespace: str) -> bool:
        """Return whether the viewer may see the pods of a namespace."""
        return self.namespaces is None or namespace in self.namespaces

    def sees_events(self, namespace: str) -> bool:
        """Return whether the viewer may see the events of a namespace."""
        return self.events is None or namespace in self.events

    def sees_job(self, job: str) -> bool:
        """Return whether the viewer may see a pod, by the id of its row."""
        return self.namespaces is None or job.partition("/")[0] in self.namespaces


class Picture:
    """All nodes and pods with GPUs as pages show them."""

    def __init__(self, watch: ClusterWatch, name: str) -> None:
        self._watch, self._name = watch, name
        self.tiles: dict[str, Tile] = {}
        """By node; those with GPUs."""
        self.rows: dict[Key, JobRow] = {}
        self._queued = QueueReasons(watch)
        self._turn = asyncio.Lock()
        self._pods_on: dict[str, set[Key]] = {}
        self._shown: dict[Sight, dict[str, tuple[Tile, Node | None]]] = {}  # the most recently used last

    async def refresh(self) -> None:
        """Take in what changed since the last call. Other requests are answered between two nodes."""
        async with self._turn:
            await self._refresh()

    async def _refresh(self) -> None:
        watch = self._watch
        nodes, watch.changed_nodes = watch.changed_nodes, set()
        pods, watch.changed_pods = watch.changed_pods, set()
        pods |= await self._queued.refresh()
        for name in nodes:
            node = watch.nodes.get(("", name))
            tile = None if node is None else tile_of(node, watch)
            if tile is None:
                self.tiles.pop(name, None)
            elif tile != self.tiles.get(name):
                self.tiles[name] = tile
            pods |= self._pods_on.get(name, set())  # the speeds in their rows come from the tile
            await asyncio.sleep(0)
        for number, key in enumerate(pods):
            self._refresh_row(key)
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def overview(self, sight: Sight) -> Overview:
        """Return what a viewer with this sight sees now."""
        await self.refresh()
        hidden = sum(not sight.sees(key[0]) for key in self.rows)
        return Overview(
            name=self._name,
            policy=self._watch.settings.scheduler.policy,
            devices=self._devices(sight),
            nodes=self._nodes(sight),
            jobs=tuple(_ordered((row for key, row in self.rows.items() if sight.sees(key[0])), self._queued.places)),
            notes=tuple(self._notes(sight, hidden)),
        )

    def seen_nodes(self, sight: Sight) -> list[str]:
        """Return the names of the nodes that this viewer sees."""
        return [node.name for node in self._nodes(sight)]

    def node(self, sight: Sight, name: str) -> Node | None:
        """Return one node as this viewer sees it; None if there is none, or the viewer may not see it."""
        tile = self.tiles.get(name)
        return None if tile is None else shown(tile.node, sight)

    def _refresh_row(self, key: Key) -> None:
        before, pod = self.rows.get(key), self._watch.pods.get(key)
        if before is not None and before.node is not None and (pod is None or pod.spec.node_name != before.node):
            self._pods_on.get(before.node, set()).discard(key)
        if pod is None:
            self.rows.pop(key, None)
            return
        node, allocation = pod.spec.node_name, self._watch.state.bound(pod.metadata.uid)
        queued = self._queued.texts.get(key)
        self.rows[key] = row_of(pod, allocation, self.tiles.get(node), self._watch.codec, queued)
        if node:
            self._pods_on.setdefault(node, set()).add(key)

    def _nodes(self, sight: Sight) -> tuple[Node, ...]:
        known = self._shown.pop(sight, {})
        now: dict[str, tuple[Tile, Node | None]] = {}
        for name in sorted(self.tiles):
            tile = self.tiles[name]
            before = known.get(name)
            now[name] = before if before is not None and before[0] is tile else (tile, shown(tile.node, sight))
        self._shown[sight] = now
        if len(self._shown) > MOST_SIGHTS:
            del self._shown[next(iter(self._shown))]
        return tuple(node for _, node in now.values() if node is not None)

    def _devices(self, sight: Sight) -> str:
        if not sight.nodes:
            return ""
        gpus = sum(len(tile.node.gpus) for tile in self.tiles.values())
        return f"{counted(gpus, 'GPU')} in {counted(len(self.tiles), 'node')}"

    def _notes(self, sight: Sight, hidden: int) -> Iterable[str]:
        if (stale := self._watch.stale_reason()) is not None:
            yield stale
        if sight.namespaces == frozenset() and not sight.nodes:
            yield "You may list neither nodes nor the pods of any namespace with GPUs, so there is nothing to show."
            return
        if hidden:
            yield f"{counted(hidden, 'pod')} of namespaces that you may not list: their GPUs show {OTHER}."
        if self._watch.agents.silent and sight.nodes:
            silent, port = counted(self._watch.agents.silent, "agent"), self._watch.settings.metrics.port
            yield f"What pods use is not known on some nodes: {silent} cannot be reached at port {port}."
        if not sight.nodes:
            yield "You may not list nodes, so only nodes with pods of your namespaces are shown."


def shown(node: Node, sight: Sight) -> Node | None:
    """The node without the names that this viewer may not know; None if the viewer may not see the node."""
    own = any(one.job and sight.sees_job(one.job) for gpu in node.gpus for one in gpu.tenants)
    if not sight.nodes and not own:
        return None
    if sight.namespaces is None:
        return node
    gpus = tuple(
        gpu
        if all(one.job == "" or sight.sees_job(one.job) for one in gpu.tenants)
        else replace(gpu, tenants=tuple(visible(one, sight) for one in gpu.tenants))
        for gpu in node.gpus
    )
    return replace(node, gpus=gpus, facts=node.facts if sight.nodes else ())


def visible(tenant: Tenant, sight: Sight) -> Tenant:
    """The tenant, or only its amounts if the viewer may not see it."""
    if tenant.job and sight.sees_job(tenant.job):
        return tenant
    return Tenant(job="", name=OTHER, memory_mib=tenant.memory_mib, compute=tenant.compute)


def _ordered(rows: Iterable[JobRow], places: Mapping[str, int]) -> list[JobRow]:
    """Those that wait, by their place in the queue, or else by priority and time; then those that run; then the last
    that ended."""
    waiting: list[JobRow] = []
    placed: list[JobRow] = []
    ended: list[JobRow] = []
    for row in rows:
        {State.WAITING: waiting, State.HELD: waiting, State.ENDED: ended}.get(row.state, placed).append(row)
    waiting.sort(key=lambda row: (places.get(row.id, len(places)), -row.priority, row.submitted, row.id))
    placed.sort(key=lambda row: (-(row.started or row.submitted), row.id))
    ended.sort(key=lambda row: (-(row.ended or 0.0), row.id))
    return [*waiting, *placed, *ended[:MOST_ENDED]]
