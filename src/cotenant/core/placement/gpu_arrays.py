# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is free on every card of a cluster, in arrays: the best nodes for a demand that nobody asked for before.

Where amounts and types are all that a demand asks of each card, and a policy compares nodes by room alone, all nodes
are compared at once, and only those that are answered are rated. What is said here is what rating each would say.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster, Node, Versions
from cotenant.core.model import Demand
from cotenant.core.placement.checks import CHECKS, Check, type_allowed
from cotenant.core.placement.scores import Order, binpack, node_binpack, node_spread, spread
from cotenant.core.placement.shapes import REFUSED, Labels, moved

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]

COMPUTE, MEMORY, SLOTS, ROOM, SIZE, FRESH, USABLE, TYPE = range(8)
"""of each card: what is free of it, how large it is, whether nobody is on it, whether it takes newcomers"""
NO_TYPE = -1
"""where a node has fewer cards than others"""
_CPU, _HOST_MEMORY, _TOTAL_ROOM = range(3)
_PLENTY = np.iinfo(np.int64).max

_SPAN = 1 << 24
"""more than rooms add up to, so that two of them are compared as one number, which a float holds exactly"""
_BY_ROOM: Mapping[Order, Callable[[Amounts, Amounts], Amounts]] = {
    binpack: lambda chosen, total: -chosen,
    spread: lambda chosen, total: chosen,
    node_binpack: lambda chosen, total: -total,
    node_spread: lambda chosen, total: total,
}
"""orders that ask for nothing but the room on the chosen cards and on the whole node"""


class Orders(Protocol):
    """What of a policy matters here."""

    @property
    def nodes(self) -> tuple[Order, ...]: ...
    @property
    def gpus(self) -> tuple[Order, ...]: ...
    @property
    def checks(self) -> tuple[Check, ...]: ...
    @property
    def random(self) -> bool: ...


def compares_rooms(policy: Orders) -> bool:
    """Whether `Cards.labels` can compare nodes as this policy does."""
    by_room = policy.gpus in ((binpack,), (spread,)) and len(policy.nodes) == 2 and set(policy.nodes) <= _BY_ROOM.keys()
    return by_room and policy.checks is CHECKS and not policy.random


def asks_each_card(demand: Demand) -> bool:
    """Whether each card for itself tells if it will do, whoever is on it and whatever it is called."""
    together = demand.one_numa or demand.link is not None or demand.affinity is not None
    return demand.gpus > 0 and not (together or demand.anti_affinity is not None or demand.by_name or demand.containers)


class _Known(NamedTuple):
    """What a demand's labels were, and for which version of each node."""

    labels: Labels
    seen: Versions


class Cards:
    """Remembered by the versions of nodes, for one policy: only what changed is looked at again."""

    def __init__(self, remember: int) -> None:
        self._remember = remember
        self._known: OrderedDict[Demand, _Known] = OrderedDict()
        self._names: tuple[str, ...] = ()
        self._seen: Versions = np.zeros(0, dtype=np.int64)
        self._cards: Amounts = np.zeros((8, 0, 0), dtype=np.int64)
        """a row for each place and a column for each node"""
        self._hosts: Amounts = np.zeros((3, 0), dtype=np.int64)
        self._types: dict[str, int] = {}

    def labels(self, policy: Orders, demand: Demand, cluster: Cluster) -> Labels:
        """Of every node a number that is larger where the policy likes it better; not to be changed."""
        self._look(cluster)
        known = self._known.get(demand)
        if known is None:
            known = self._known[demand] = _Known(np.full(len(cluster), REFUSED), np.zeros(len(cluster), dtype=np.int64))
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        self._known.move_to_end(demand)
        stale = (known.seen != self._seen).nonzero()[0]
        if 2 * len(stale) > len(cluster):  # all of them are quicker found than picked out
            known.labels[:] = self._labels(policy, demand, self._cards, self._hosts)
            known.seen[:] = self._seen
        elif len(stale):
            known.labels[stale] = self._labels(policy, demand, self._cards[:, :, stale], self._hosts[:, stale])
            known.seen[stale] = self._seen[stale]
        return known.labels

    def _labels(self, policy: Orders, demand: Demand, cards: Amounts, hosts: Amounts) -> Labels:
        """Of the nodes whose cards these are."""
        fits: Mask | None = None
        for _, left in self._narrowed(demand, cards):
            fits = left
        assert fits is not None
        tight = policy.gpus[0] is binpack
        room = cards[ROOM]
        rooms = np.where(fits, room, _SPAN) if tight else np.where(fits, -room, _SPAN)
        if demand.gpus > len(rooms):
            return np.full(hosts.shape[1], REFUSED)
        if demand.gpus == 1:
            chosen = rooms.min(axis=0)
            enough = chosen < _SPAN
        else:
            chosen = np.partition(rooms, demand.gpus - 1, axis=0)[: demand.gpus].sum(axis=0)
            enough = fits.sum(axis=0) >= demand.gpus
        enough &= (hosts[_CPU] >= demand.cpu) & (hosts[_HOST_MEMORY] >= demand.host_memory)
        chosen = chosen if tight else -chosen
        first, second = (_BY_ROOM[order](chosen, hosts[_TOTAL_ROOM]) for order in policy.nodes)
        found: Labels = np.where(enough, (first * _SPAN + second).astype(np.float64), REFUSED)
        return found

    def refusers(self, demand: Demand, cluster: Cluster) -> list[str]:
        """For every node the name of the check that refuses the demand, empty where it fits: what `refusal` names."""
        self._look(cluster)
        found, names, _ = self._refused(demand)
        said: list[str] = np.array(names, dtype=object)[found].tolist()
        return said

    def nearest(self, demand: Demand, cluster: Cluster, among: Mask | None) -> list[tuple[int, int]]:
        """For each check that refuses, how many nodes and on which of them least is missing.

        Where some fit, these are among them, as if another check had refused them.
        """
        self._look(cluster)
        found, names, masks = self._refused(demand)
        if among is not None:
            found = np.where(among, found, -1)
        answer = []
        for number, name in enumerate(names):
            here = found == number
            if count := int(here.sum()):
                near = self._nearness(demand, name, masks[number - 1], masks[number])
                answer.append((count, int(np.where(here, near, -np.inf).argmax())))
        return answer

    def _refused(self, demand: Demand) -> tuple[NDArray[np.int8], list[str], list[Mask]]:
        """The number of the check that refuses on each node, the checks' names, and the cards that each leaves."""
        cpu, host_memory, _ = self._hosts
        found = np.zeros(len(self._seen), dtype=np.int8)
        found[host_memory < demand.host_memory] = 2
        found[cpu < demand.cpu] = 1
        everything = self._cards[TYPE] != NO_TYPE
        names, masks = ["", "cpu", "host-memory"], [everything] * 3
        for name, left in self._narrowed(demand, self._cards):
            found[(found == 0) & (left.sum(axis=0) < demand.gpus)] = len(names)
            names.append(name)
            masks.append(left)
        return found, names, masks

    def _nearness(self, demand: Demand, check: str, before: Mask, left: Mask) -> Labels:
        """How near to fitting a check finds each node: by the freest card where one is asked for, else by how many."""
        what = {"memory": MEMORY, "compute": COMPUTE}.get(check)
        if demand.gpus > 1 or what is None:
            many: Labels = left.sum(axis=0).astype(np.float64)
            return many
        free: Labels = np.where(before, self._cards[what], -np.inf).max(axis=0, initial=-np.inf)
        return free

    def _narrowed(self, demand: Demand, cards: Amounts) -> Iterator[tuple[str, Mask]]:
        """The cards that are left after each check, in the order of `filters.CHECKS`."""
        left: Mask = cards[TYPE] != NO_TYPE
        yield "count", left
        if demand.use_types or demand.avoid_types:
            allowed = [type_allowed(name, demand.use_types, demand.avoid_types) for name in self._types]
            left = left & np.array([*allowed, False])[cards[TYPE]]  # the last is NO_TYPE's
            yield "type", left
        left = left & (cards[USABLE] > 0)
        yield "health", left
        if demand.exclusive:
            left = left & (cards[FRESH] > 0)
            yield "exclusive", left
        left = left & (cards[SLOTS] > 0)
        yield "slots", left
        percent = demand.memory_percent
        left = left & (cards[MEMORY] >= (demand.memory if percent is None else cards[SIZE] * percent // 100))
        yield "memory", left
        yield "compute", left & (cards[COMPUTE] >= demand.compute)

    def _look(self, cluster: Cluster) -> None:
        """Takes in what is new in a cluster."""
        if self._names is not cluster.names:
            self._align(cluster)
        stale = (self._seen != cluster.versions).nonzero()[0]
        if len(stale) == 0:
            return
        self._seen[stale] = cluster.versions[stale]
        nodes = [cluster.at(i) for i in stale.tolist()]
        more = max(len(node.compute) for node in nodes) - self._cards.shape[1]
        if more > 0:
            self._cards = np.pad(self._cards, ((0, 0), (0, more), (0, 0)))
            self._cards[TYPE, -more:] = NO_TYPE
        width = self._cards.shape[1]
        columns = [
            [_wide(row, width, NO_TYPE if field == TYPE else 0) for field, row in enumerate(self._of(node))]
            for node in nodes
        ]
        self._cards[:, :, stale] = np.array(columns, dtype=np.int64).transpose(1, 2, 0)
        hosts = [(_or_plenty(node.cpu), _or_plenty(node.host_memory), sum(node.room)) for node in nodes]
        self._hosts[:, stale] = np.array(hosts, dtype=np.int64).T

    def _align(self, cluster: Cluster) -> None:
        """Nodes joined or left: keep what is known of those that stayed."""
        old = {name: i for i, name in enumerate(self._names)}
        came_from = np.array([old.get(name, -1) for name in cluster.names], dtype=np.int64)
        self._seen = moved(self._seen, came_from, 0)
        one_more = np.pad(self._cards, ((0, 0), (0, 0), (0, 1)))
        self._cards, self._hosts = one_more[:, :, came_from], np.pad(self._hosts, ((0, 0), (0, 1)))[:, came_from]
        self._names = cluster.names
        self._known.clear()

    def _of(self, node: Node) -> tuple[Iterable[int], ...]:
        machine, types = node.machine, self._types
        gpus = machine.gpus
        fresh = [free == gpu.slots for free, gpu in zip(node.slots, gpus, strict=True)]
        usable = [i not in machine.unusable for i in range(len(gpus))]
        kinds = [types.setdefault(gpu.type, len(types)) for gpu in gpus]
        return node.compute, node.memory, node.slots, node.room, machine.memory_capacities, fresh, usable, kinds


def _wide(row: Iterable[int], width: int, otherwise: int) -> list[int]:
    wide = list(row)
    return wide + [otherwise] * (width - len(wide))


def _or_plenty(free: int | None) -> int:
    return _PLENTY if free is None else free
