# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes with their tenants, and a cluster of them, as values.

A `Cluster` never changes: placing a job makes a new one that shares all but one row of nodes with the old, so a
tentative placement costs a few microseconds and dropping it costs nothing. Every new node value gets a version number
that no other value has, so what was computed for a version is true forever.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.core.footprint import claims
from cotenant.core.model import Claim, Demand, Gpus, Job, Machine, Placement, Slot, Tenant
from cotenant.core.units import MiB, MilliCpu, MilliGpu

Versions = NDArray[np.int64]
Amounts = NDArray[np.int32]
Groups = Mapping[str, tuple[tuple[str, int], ...]]

ROW = 128
"""nodes per row: replacing one copies two short tuples instead of one long one"""

_next_version = count(1).__next__


class Node(NamedTuple):
    """A machine, its tenants and what is free. Build with `Node.of`; the derived fields follow from the tenants.

    Free amounts may be negative if tenants hold more than the machine has, for instance after a GPU was replaced by a
    smaller one. A named tuple, because one is built at every change of a cluster and frozen dataclasses are slow to
    build.
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
    distinct: Gpus
    """the first of each set of GPUs with equal hardware and equal free amounts"""
    sorted_room: tuple[int, ...]
    grouped: bool
    """whether checks or orders can depend on which GPUs the tenants use"""

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
        at = next(i for i, one in enumerate(self.tenants) if one.job == job and one.replica == replica)
        left = self.tenants[:at] + self.tenants[at + 1 :]
        return self._changed(left, self.tenants[at], +1, self.grouped and any(one.demand.grouped for one in left))

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
    def widest(self) -> int:
        """The most free milli-GPU on one GPU."""
        return max(self.compute, default=0)

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
        _distinct(machine, compute, memory, slots, grouped),
        tuple(sorted(room)),
        grouped,
    )


def room_of(machine: Machine, gpu: int, compute: int, memory: int, slots: int) -> int:
    """The scarcer of free compute and memory, in thousandths of the GPU; 0 without a free share slot."""
    if slots <= 0:
        return 0
    by_compute = compute * 1000 // machine.compute_capacities[gpu]
    size = machine.memory_capacities[gpu]
    return max(0, min(by_compute, memory * 1000 // size)) if size else max(0, by_compute)


def _distinct(machine: Machine, compute: list[int], memory: list[int], slots: list[int], grouped: bool) -> Gpus:
    """One GPU of each kind. With links or grouped tenants, every GPU is its own kind."""
    if grouped or not machine.uniform:
        return tuple(range(len(compute)))
    states = list(zip(compute, memory, slots, strict=True))
    # A dictionary keeps the last value of equal keys: built backwards, that is the first GPU.
    first = dict(zip(reversed(states), range(len(states) - 1, -1, -1), strict=True))
    return tuple(sorted(first.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Nodes in name order: the order is the tie-break."""

    names: tuple[str, ...]
    index: Mapping[str, int]
    rows: tuple[tuple[Node, ...], ...]
    versions: Versions
    """one number per node; the same number means the same value"""
    widest: Amounts
    """the most free milli-GPU on one GPU of each node: a demand for more need not be tried there"""
    groups: Groups
    """for each affinity group, the nodes of its members: (node, number of members)"""
    has_instances: bool = False
    """whether a machine has, or had, MIG instances"""

    @classmethod
    def of(cls, nodes: Iterable[Node | Machine]) -> "Cluster":
        """A cluster of these nodes; nodes that a policy cannot tell apart start with one version."""
        values = sorted((Node.of(one) if isinstance(one, Machine) else one for one in nodes), key=lambda one: one.name)
        names = tuple(node.name for node in values)
        if len(set(names)) != len(names):
            raise ValueError("two nodes have the same name")
        known: dict[object, int] = {}
        versions = [
            _next_version() if node.tenants else known.setdefault(node.machine.kind, _next_version()) for node in values
        ]
        groups: Groups = {}
        for node in values:
            for tenant in node.tenants:
                groups = _regroup(groups, tenant.demand, node.name, +1)
        return cls(
            names,
            {name: i for i, name in enumerate(names)},
            tuple(tuple(values[i : i + ROW]) for i in range(0, len(values), ROW)),
            np.array(versions, dtype=np.int64),
            np.array([node.widest for node in values], dtype=np.int32),
            groups,
            any(node.machine.has_instances for node in values),
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gpus(self) -> int:
        """Number of GPUs in all nodes."""
        return sum(len(node.compute) for node in self)

    def __iter__(self) -> Iterator[Node]:
        for row in self.rows:
            yield from row

    def node(self, name: str) -> Node:
        return self.at(self.index[name])

    def at(self, i: int) -> Node:
        return self.rows[i // ROW][i % ROW]

    def place(self, placement: Placement) -> "Cluster":
        """The cluster with that job on that slot."""
        return self.seat(placement.job, placement.slot, placement.replica)

    def seat(self, job: Job, slot: Slot, replica: int = 0) -> "Cluster":
        tenant = Tenant(job.id, job.demand, slot.gpus, replica)
        groups = _regroup(self.groups, job.demand, slot.node, +1)
        return self._replaced(self.index[slot.node], lambda node: node.with_tenant(tenant), groups)

    def finish(self, placement: Placement) -> "Cluster":
        """The cluster after that job left that slot."""
        job, slot = placement.job, placement.slot
        groups = _regroup(self.groups, job.demand, slot.node, -1)
        return self._replaced(
            self.index[slot.node], lambda node: node.without_tenant(job.id, placement.replica), groups
        )

    def replace(self, machine: Machine) -> "Cluster":
        """The cluster with that machine changed (health, a cordon, a new GPU); its tenants stay."""
        return self._replaced(self.index[machine.name], lambda node: Node.of(machine, node.tenants), self.groups)

    def with_node(self, node: Node) -> "Cluster":
        """The cluster with another value of that node; the members of affinity groups must be the same."""
        return self._replaced(self.index[node.name], lambda _: node, self.groups)

    def join(self, *new: Node | Machine) -> "Cluster":
        """The cluster with more nodes; the others keep their versions."""
        return self._with_nodes([*self, *(Node.of(one) if isinstance(one, Machine) else one for one in new)])

    def leave(self, *names: str) -> "Cluster":
        """The cluster without these nodes and their tenants."""
        return self._with_nodes([node for node in self if node.name not in names])

    def _replaced(self, i: int, change: Callable[[Node], Node], groups: Groups) -> "Cluster":
        r, c = divmod(i, ROW)
        row = self.rows[r]
        node = change(row[c])
        versions, widest = self.versions.copy(), self.widest.copy()
        versions[i], widest[i] = _next_version(), node.widest
        rows = (*self.rows[:r], (*row[:c], node, *row[c + 1 :]), *self.rows[r + 1 :])
        has_instances = self.has_instances or node.machine.has_instances
        return Cluster(self.names, self.index, rows, versions, widest, groups, has_instances)

    def _with_nodes(self, nodes: list[Node]) -> "Cluster":
        cluster = Cluster.of(nodes)
        kept = [(i, self.index[name]) for i, name in enumerate(cluster.names) if name in self.index]
        for i, old in kept:
            if cluster.at(i) is self.at(old):
                cluster.versions[i] = self.versions[old]
        return cluster


def _regroup(groups: Groups, demand: Demand, node: str, change: int) -> Groups:
    if demand.affinity is None:
        return groups
    members = dict(groups.get(demand.affinity, ()))
    members[node] = members.get(node, 0) + change
    left = tuple(sorted((name, n) for name, n in members.items() if n > 0))
    others = {group: where for group, where in groups.items() if group != demand.affinity}
    return {**others, demand.affinity: left} if left else others
