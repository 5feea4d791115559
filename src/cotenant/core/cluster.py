# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes with their tenants, and a cluster of them, as values.

A `Cluster` never changes: placing a job makes a new one that shares all but one row of nodes with the old, so a
tentative placement costs a few microseconds and dropping it costs nothing. Every new node value gets a version number
that no other value has, so what was computed for a version is true forever.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cotenant.core.footprint import claims
from cotenant.core.model import Claim, Demand, Gpus, Job, Machine, Placement, Slot, Tenant
from cotenant.core.units import MiB, MilliCpu, MilliGpu
from cotenant.core.values import value

Versions = NDArray[np.int64]
T = TypeVar("T")
Groups = Mapping[str, tuple[tuple[str, int], ...]]

ROW_BITS = 5
ROW = 1 << ROW_BITS
"""Nodes per row, and rows per block. Replacing a node copies a row, a block and the tuple of blocks instead of one long
tuple. To copy a row, the processor fetches each node of it, which is most of the cost in a large cluster."""

_next_version = count(1).__next__


@dataclass(slots=True, eq=False)
class Node:
    """A machine, its tenants and what is free. Build with `Node.of`; the derived fields follow from the tenants.

    Free amounts may be negative if tenants hold more than the machine has, for instance after a GPU was replaced by a
    smaller one. A node is a value, though not declared one: some fields are derived when they are first read.
    """

    machine: Machine
    tenants: tuple[Tenant, ...]
    compute: tuple[int, ...]
    """free milli-GPU of each GPU"""
    memory: tuple[int, ...]
    """free MiB of each GPU"""
    slots: tuple[int, ...]
    """free share slots of each GPU; 0 if it takes no new tenants"""
    room: tuple[int, ...]
    """the scarcer of free compute and free memory, in thousandths of the GPU"""
    cpu: MilliCpu | None
    host_memory: MiB | None
    grouped: bool
    """whether checks or orders can depend on which GPUs the tenants use"""
    version: int
    """the version of this value; two values have the same only if a policy cannot tell them apart"""
    widest: int
    """the most free milli-GPU on one GPU: a demand for more need not be tried"""
    _distinct: Gpus | None = None
    _sorted_room: tuple[int, ...] | None = None

    @classmethod
    def of(cls, machine: Machine, tenants: Iterable[Tenant] = ()) -> "Node":
        """The node after all its tenants took their claims."""
        slots = [0 if i in machine.unusable else gpu.slots for i, gpu in enumerate(machine.gpus)]
        compute, memory = list(machine.compute_capacities), list(machine.memory_capacities)
        cpu, host_memory, present = machine.cpu, machine.host_memory, tuple(tenants)
        for tenant in present:
            demand = tenant.demand
            for i, claim in claims(demand, tenant.gpus, machine.gpus).items():
                compute[i] -= claim.compute
                memory[i] -= claim.memory
                slots[i] -= claim.slots
            cpu = None if cpu is None else MilliCpu(cpu - demand.cpu)
            host_memory = None if host_memory is None else MiB(host_memory - demand.host_memory)
        room = [room_of(machine, i, compute[i], memory[i], slots[i]) for i in range(len(slots))]
        grouped = any(tenant.demand.grouped for tenant in present)
        return _node(machine, present, compute, memory, slots, room, cpu, host_memory, grouped)

    @property
    def name(self) -> str:
        return self.machine.name

    def with_tenant(self, tenant: Tenant) -> "Node":
        return self._changed((*self.tenants, tenant), tenant, -1, self.grouped or tenant.demand.grouped)

    def without_tenant(self, job: str, replica: int = 0) -> "Node":
        """The node after that tenant left; StopIteration if there is no such tenant."""
        tenants = self.tenants
        at = next(i for i, one in enumerate(tenants) if one.job == job and one.replica == replica)
        left = tenants[:at] + tenants[at + 1 :]
        return self._changed(left, tenants[at], +1, self.grouped and any(one.demand.grouped for one in left))

    def _changed(self, tenants: tuple[Tenant, ...], tenant: Tenant, sign: int, grouped: bool) -> "Node":
        demand = tenant.demand
        machine = self.machine
        compute, memory, slots, room = list(self.compute), list(self.memory), list(self.slots), list(self.room)
        for i, claim in claims(demand, tenant.gpus, machine.gpus).items():
            compute[i] += sign * claim.compute
            memory[i] += sign * claim.memory
            slots[i] += sign * claim.slots
            room[i] = room_of(machine, i, compute[i], memory[i], slots[i])
        cpu = None if self.cpu is None else MilliCpu(self.cpu + sign * demand.cpu)
        host_memory = None if self.host_memory is None else MiB(self.host_memory + sign * demand.host_memory)
        return _node(machine, tenants, compute, memory, slots, room, cpu, host_memory, grouped)

    def after(self, demand: Demand, gpus: Gpus) -> "Node":
        """What the node would be with one more such tenant."""
        return self.with_tenant(Tenant("", demand, gpus))

    @property
    def distinct(self) -> Gpus:
        """The first of each set of GPUs with equal hardware and equal free amounts."""
        if self._distinct is None:
            self._distinct = _distinct(self)
        return self._distinct

    @property
    def sorted_room(self) -> tuple[int, ...]:
        if self._sorted_room is None:
            self._sorted_room = tuple(sorted(self.room))
        return self._sorted_room

    def free(self, gpu: int) -> Claim:
        return Claim(MiB(self.memory[gpu]), MilliGpu(self.compute[gpu]), self.slots[gpu])


def _node(
    machine: Machine,
    tenants: tuple[Tenant, ...],
    compute: list[int],
    memory: list[int],
    slots: list[int],
    room: list[int],
    cpu: MilliCpu | None,
    host_memory: MiB | None,
    grouped: bool,
) -> Node:
    return Node(
        machine,
        tenants,
        tuple(compute),
        tuple(memory),
        tuple(slots),
        tuple(room),
        cpu,
        host_memory,
        grouped,
        _next_version(),
        max(compute, default=0),
    )


def room_of(machine: Machine, gpu: int, compute: int, memory: int, slots: int) -> int:
    """The scarcer of free compute and memory, in thousandths of the GPU; 0 without a free share slot."""
    if slots <= 0:
        return 0
    by_compute = compute * 1000 // machine.compute_capacities[gpu]
    size = machine.memory_capacities[gpu]
    return max(0, min(by_compute, memory * 1000 // size)) if size else max(0, by_compute)


def _distinct(node: Node) -> Gpus:
    """One GPU of each kind. With links or grouped tenants, every GPU is its own kind."""
    if node.grouped or not node.machine.uniform:
        return tuple(range(len(node.compute)))
    states = list(zip(node.compute, node.memory, node.slots, strict=True))
    # A dictionary keeps the last value of equal keys: built backwards, that is the first GPU.
    first = dict(zip(reversed(states), range(len(states) - 1, -1, -1), strict=True))
    return tuple(sorted(first.values()))


class Changes:
    """A log of changed nodes. A cluster and the clusters that are made from it share one log.

    Each cluster knows how many entries of the log it includes. Only a change to the newest cluster appends an entry. A
    change to an older cluster starts a new log, so the entries of a cluster stay valid. A change also starts a new log
    if the old one is longer than the cluster, so logs are bounded. A log holds numbers, so it keeps no cluster alive.

    Other threads may read clusters that share a log, but only one thread may change them.
    """

    __slots__ = ("known", "nodes", "widest")

    def __init__(self, versions: Versions) -> None:
        self.nodes: list[int] = []
        """the index of the node, for each change"""
        self.widest: list[int] = []
        """for each change, the most free milli-GPU on one GPU of the node: the larger of before and after"""
        self.known = 0, versions
        """a number of changes, and the versions of all nodes after them; always replaced as a whole"""


@value(eq=False)
class Cluster:
    """Nodes in name order: the order is the tie-break."""

    names: tuple[str, ...]
    index: Mapping[str, int]
    blocks: tuple[tuple[tuple[Node, ...], ...], ...]
    """blocks of rows of nodes"""
    groups: Groups
    """for each affinity group, the nodes of its members: (node, number of members)"""
    has_instances: bool
    """whether a machine has, or had, MIG instances"""
    changes: Changes
    made: int = 0
    """how many of the changes this cluster contains"""

    @classmethod
    def of(cls, nodes: Iterable[Node | Machine]) -> "Cluster":
        """A cluster of these nodes; nodes that a policy cannot tell apart start with one version."""
        return cls._of(_alike(nodes))

    @classmethod
    def _of(cls, nodes: Iterable[Node]) -> "Cluster":
        values = sorted(nodes, key=lambda one: one.name)
        names = tuple(node.name for node in values)
        if len(set(names)) != len(names):
            raise ValueError("two nodes have the same name")
        groups: Groups = {}
        for node in values:
            for tenant in node.tenants:
                groups = _regroup(groups, tenant.demand, node.name, +1)
        return cls(
            names,
            {name: i for i, name in enumerate(names)},
            _rows(_rows(values)),
            groups,
            any(node.machine.has_instances for node in values),
            Changes(np.array([node.version for node in values], dtype=np.int64)),
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gpus(self) -> int:
        """Number of GPUs in all nodes."""
        return sum(len(node.compute) for node in self)

    def __iter__(self) -> Iterator[Node]:
        for block in self.blocks:
            for row in block:
                yield from row

    def node(self, name: str) -> Node:
        return self.at(self.index[name])

    def at(self, i: int) -> Node:
        return self.blocks[i >> 2 * ROW_BITS][i >> ROW_BITS & ROW - 1][i & ROW - 1]

    @property
    def versions(self) -> Versions:
        """The versions of all nodes, read-only. For a few nodes, read `Node.version`."""
        at, versions = self.changes.known
        if at != self.made:
            first, last = sorted((at, self.made))
            differing = list(set(self.changes.nodes[first:last]))
            versions = versions.copy()
            versions[differing] = [self.at(i).version for i in differing]
            self.changes.known = self.made, versions
        return versions

    def place(self, placement: Placement) -> "Cluster":
        """The cluster with that job on that slot."""
        return self.seat(placement.job, placement.slot, placement.replica)

    def seat(self, job: Job, slot: Slot, replica: int = 0) -> "Cluster":
        i = self.index[slot.node]
        groups = _regroup(self.groups, job.demand, slot.node, +1)
        return self._replaced(i, self.at(i).with_tenant(Tenant(job.id, job.demand, slot.gpus, replica)), groups)

    def finish(self, placement: Placement) -> "Cluster":
        """The cluster after that job left that slot."""
        job, name = placement.job, placement.slot.node
        i = self.index[name]
        groups = _regroup(self.groups, job.demand, name, -1)
        return self._replaced(i, self.at(i).without_tenant(job.id, placement.replica), groups)

    def replace(self, machine: Machine) -> "Cluster":
        """The cluster with that machine changed (health, a cordon, a new GPU); its tenants stay."""
        i = self.index[machine.name]
        return self._replaced(i, Node.of(machine, self.at(i).tenants), self.groups)

    def with_node(self, node: Node) -> "Cluster":
        """The cluster with another value of that node; the members of affinity groups must be the same."""
        return self._replaced(self.index[node.name], node, self.groups)

    def join(self, *new: Node | Machine) -> "Cluster":
        """The cluster with more nodes; the others keep their versions."""
        return Cluster._of([*self, *_alike(new)])

    def leave(self, *names: str) -> "Cluster":
        """The cluster without these nodes and their tenants."""
        return Cluster._of([node for node in self if node.name not in names])

    def _replaced(self, i: int, node: Node, groups: Groups) -> "Cluster":
        b, r, c = i >> 2 * ROW_BITS, i >> ROW_BITS & ROW - 1, i & ROW - 1
        block = self.blocks[b]
        row = block[r]
        blocks = _with(self.blocks, b, _with(block, r, _with(row, c, node)))
        changes, made = self.changes, self.made
        if made != len(changes.nodes) or made > len(self.names) + ROW:  # this is not the newest, or the log is long
            changes, made = Changes(self.versions), 0
        changes.nodes.append(i)
        changes.widest.append(max(row[c].widest, node.widest))
        has_instances = self.has_instances or node.machine.has_instances
        return Cluster(self.names, self.index, blocks, groups, has_instances, changes, made + 1)


def _rows(items: Sequence[T]) -> tuple[tuple[T, ...], ...]:
    return tuple(tuple(items[i : i + ROW]) for i in range(0, len(items), ROW))


def _with(items: tuple[T, ...], at: int, new: T) -> tuple[T, ...]:
    return items[:at] + (new,) + items[at + 1 :]  # noqa: RUF005 (with stars it takes twice as long)


def _alike(nodes: Iterable[Node | Machine]) -> Iterator[Node]:
    """Yields nodes; those that a policy cannot tell apart get the same version."""
    known: dict[object, int] = {}
    for one in nodes:
        node = Node.of(one) if isinstance(one, Machine) else one
        if not node.tenants:
            node = replace(node, version=known.setdefault(node.machine.kind, node.version))
        yield node


class Seen:
    """Remembers the node versions for which something was computed, and finds the nodes that have changed since."""

    def __init__(self, nodes: int) -> None:
        self.versions: Versions = np.zeros(nodes, dtype=np.int64)
        self._changes: Changes | None = None
        self._made = 0

    def stale(self, cluster: Cluster, least: int = 0) -> list[int]:
        """The nodes whose version differs. A node that had, and has, less than `least` milli-GPU free on every GPU may
        be left out."""
        changes, first, last = cluster.changes, self._made, cluster.made
        same = changes is self._changes and first <= last
        self._changes = None  # until the caller calls `caught_up`
        if not same:
            differing: list[int] = (self.versions != cluster.versions).nonzero()[0].tolist()
            return differing
        nodes = changes.nodes[first:last]
        if least > 0:
            nodes = [i for i, widest in zip(nodes, changes.widest[first:last], strict=True) if widest >= least]
        return list(dict.fromkeys(nodes))

    def saw(self, cluster: Cluster, nodes: list[int]) -> None:
        """Records that these nodes were computed for this cluster."""
        every = len(nodes) == len(self.versions)
        self.versions[nodes] = cluster.versions if every else [cluster.at(i).version for i in nodes]

    def saw_all(self, cluster: Cluster) -> None:
        """Records that all nodes were computed for this cluster."""
        self.versions[:] = cluster.versions

    def caught_up(self, cluster: Cluster) -> None:
        """Records that all stale nodes of this cluster were computed."""
        self._changes, self._made = cluster.changes, cluster.made

    def forget(self) -> None:
        self.versions[:] = 0
        self._changes = None

    def align(self, came_from: NDArray[np.int64]) -> None:
        """Nodes joined or left: `came_from` has the old index of each, -1 for a new one."""
        self.versions = np.append(self.versions, 0)[came_from]
        self._changes = None


def _regroup(groups: Groups, demand: Demand, node: str, change: int) -> Groups:
    if demand.affinity is None:
        return groups
    members = dict(groups.get(demand.affinity, ()))
    members[node] = members.get(node, 0) + change
    left = tuple(sorted((name, n) for name, n in members.items() if n > 0))
    others = {group: where for group, where in groups.items() if group != demand.affinity}
    return {**others, demand.affinity: left} if left else others
