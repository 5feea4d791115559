# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The best node for one GPU under policies that compare nodes by room, without rating nodes.

GPUs of one kind of machine with equal free amounts form a group, and fit a demand together or not at all. Each group
lists the nodes that have such a GPU, best first. For each demand we keep the groups that fit, best first; the best node
is then the first one of the first group that has any. A change of a node costs a few insertions, however many kinds of
demands there are; a large cluster has hundreds of groups, not thousands.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Set
from typing import NamedTuple

import numpy as np

from cotenant.core.cluster import Cluster, Node, Seen
from cotenant.core.model import Demand, Slot
from cotenant.core.placement.feasibility import Feasibility
from cotenant.core.placement.scores import Score
from cotenant.core.placement.slots import alone

_SHIFT = 32
_INDEX = (1 << _SHIFT) - 1
"""the part of an entry that is the index of a node; the rest is its room, so that entries are ordered like nodes"""
TRIES = 64
"""so many nodes of fitting GPUs are tried; if all of them lack CPU or memory of the host, nodes are rated instead"""

State = tuple[int, ...]
"""of a GPU: its free compute, memory and share slots, and its index unless all GPUs of its machine are alike"""


class Group:
    """GPUs that nothing tells apart, and the nodes that have one."""

    __slots__ = ("entries", "gpu", "node", "turn")

    def __init__(self, node: Node, gpu: int, turn: int) -> None:
        self.entries: list[int] = []
        """in order, one for each node: the room of the node and its index"""
        self.node, self.gpu = node, gpu
        """an example"""
        self.turn = turn
        """the room of each of these GPUs, or its negative: groups with a smaller number are better"""


def _turn(group: Group) -> int:
    return group.turn


def _moved(entry: int, to: int) -> int:
    """The entry if its node has that index."""
    return (entry >> _SHIFT << _SHIFT) + to


class Fitting:
    """The groups that fit a demand, best first."""

    __slots__ = ("asked", "feasible", "groups")

    def __init__(self, feasible: Feasibility) -> None:
        self.feasible = feasible
        self.forget()

    def forget(self) -> None:
        self.groups: list[Group] = []
        self.asked = 0
        """the number of groups that have been compared with the demand"""

    def compare(self, groups: list[Group]) -> None:
        """Adds those of the new groups that fit."""
        _, _, compute, memory, slots = self.feasible.floors
        for group in groups[self.asked :]:
            node, gpu = group.node, group.gpu
            if node.compute[gpu] >= compute and node.memory[gpu] >= memory and node.slots[gpu] >= slots:
                allowed = self.feasible.allowed(node)
                if allowed is None or gpu in allowed:
                    insort(self.groups, group, key=_turn)
        self.asked = len(groups)


class Answer(NamedTuple):
    """The best slot and its score; None if there is none."""

    found: tuple[Score, Slot] | None
    sure: bool = True
    """False: it would take too long to find"""


class RoomIndex:
    """The groups of the cluster that was looked at last, for one policy."""

    def __init__(self, signs: tuple[int, int], remember: int) -> None:
        """For a policy with these signs (`room_signs`); the groups of the last `remember` demands are kept."""
        self._of_gpu, self._of_node = signs
        self._remember = remember
        self._fitting: dict[Demand, Fitting] = {}
        self._clear(Cluster.of(()))

    def _clear(self, cluster: Cluster) -> None:
        self._names, self._most = cluster.names, 2 * cluster.gpus + 64
        self._seen = Seen(len(cluster))
        self._groups: list[Group] = []
        self._by_kind: dict[object, dict[State, Group]] = {}
        for fitting in self._fitting.values():
            fitting.forget()
        self._listed: list[tuple[int, list[Group]]] = [(0, [])] * len(cluster)
        """of each node: its entry, and the groups that list it"""

    def fitting(self, demand: Demand) -> Fitting | None:
        """What is known of a demand."""
        known = self._fitting.pop(demand, None)
        if known is not None:
            self._fitting[demand] = known  # most recent last
        return known

    def new(self, feasible: Feasibility) -> Fitting:
        """Begins to know a demand. It must be for one GPU, and nothing but amounts and kinds of machines may be
        checked."""
        fitting = self._fitting[feasible.demand] = Fitting(feasible)
        if len(self._fitting) > self._remember:
            del self._fitting[next(iter(self._fitting))]
        return fitting

    def best(
        self, fitting: Fitting, cluster: Cluster, closed: Collection[str] = (), among: Set[str] | None = None
    ) -> Answer:
        """The best slot on one of the named nodes (default: all) that is not closed."""
        self.look(cluster)
        feasible = fitting.feasible
        if fitting.asked < len(self._groups):
            fitting.compare(self._groups)
        cpu, host_memory, *_ = feasible.floors
        best: tuple[int, int] | None = None
        tries = TRIES
        for group in fitting.groups:
            if not group.entries:
                continue
            turn = group.turn
            if best is not None and turn > best[0]:
                break
            for entry in group.entries:
                if best is not None and entry > best[1]:
                    break
                node = cluster.at(entry & _INDEX)
                free_cpu, free_memory = node.cpu, node.host_memory
                if (
                    (free_cpu is None or free_cpu >= cpu)
                    and (free_memory is None or free_memory >= host_memory)
                    and not (closed and node.name in closed)
                    and (among is None or node.name in among)
                ):
                    best = turn, entry
                    break
                tries -= 1
                if not tries:
                    return Answer(None, sure=False)
        return Answer(None if best is None else self._found(feasible, cluster.at(best[1] & _INDEX), best[0]))

    def _found(self, feasible: Feasibility, node: Node, turn: int) -> tuple[Score, Slot]:
        _, _, least_compute, least_memory, least_slots = feasible.floors
        room, allowed = -self._of_gpu * turn, feasible.allowed(node)
        compute, memory, slots = node.compute, node.memory, node.slots
        gpu = next(
            i
            for i, one in enumerate(node.room)
            if one == room
            and compute[i] >= least_compute
            and memory[i] >= least_memory
            and slots[i] >= least_slots
            and (allowed is None or i in allowed)
        )
        return (self._of_gpu * room, self._of_node * sum(node.room)), Slot(node.name, alone(gpu))

    def look(self, cluster: Cluster, most: int | None = None) -> bool:
        """Lists anew what has changed in a cluster, of at most so many nodes; whether there may be more."""
        if self._names is not cluster.names:
            self._align(cluster)
        if len(self._groups) > self._most:  # most of them have no GPU any more
            self._clear(cluster)
        every = self._seen.stale(cluster)
        stale = every if most is None else every[:most]
        for i in stale:
            self._list(i, cluster.at(i))
        self._seen.saw(cluster, stale)
        if len(stale) == len(every):
            self._seen.caught_up(cluster)
        return bool(stale) and len(stale) == most

    def _align(self, cluster: Cluster) -> None:
        """Nodes joined or left: keep what is listed of those that stayed, whose order is the same."""
        old = {name: i for i, name in enumerate(self._names)}
        came_from = [old.get(name, -1) for name in cluster.names]
        self._seen.align(np.array(came_from, dtype=np.int64))
        now = {i: at for at, i in enumerate(came_from)}
        for group in self._groups:
            group.entries = [_moved(one, now[one & _INDEX]) for one in group.entries if one & _INDEX in now]
        listed = self._listed
        self._listed = [
            (_moved(listed[i][0], at), listed[i][1]) if i >= 0 else (0, []) for at, i in enumerate(came_from)
        ]
        self._names, self._most = cluster.names, 2 * cluster.gpus + 64

    def _list(self, i: int, node: Node) -> None:
        before, groups = self._listed[i]
        for group in groups:
            entries = group.entries
            del entries[bisect_left(entries, before)]
        entry = (-self._of_node * sum(node.room) << _SHIFT) + i
        groups = self._groups_of(node)
        for group in groups:
            insort(group.entries, entry)
        self._listed[i] = entry, groups

    def _groups_of(self, node: Node) -> list[Group]:
        machine = node.machine
        amounts = node.compute, node.memory, node.slots
        states: Collection[State]
        if machine.uniform:
            states = set(zip(*amounts, strict=True))
        else:
            states = list(zip(*amounts, range(len(node.compute)), strict=True))
        known = self._by_kind.get(machine.kind)
        if known is None:
            known = self._by_kind[machine.kind] = {}
        groups = []
        for state in states:
            group = known.get(state)
            if group is None:
                gpu = state[3] if len(state) > 3 else list(zip(*amounts, strict=True)).index(state)  # type: ignore[arg-type]
                group = known[state] = Group(node, gpu, -self._of_gpu * node.room[gpu])
                self._groups.append(group)
            groups.append(group)
        return groups
