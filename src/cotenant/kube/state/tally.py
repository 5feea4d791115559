# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as the core sees it, kept equal to the machines that there are and the seats that count on them.

Seats on a node that is not there (yet) are remembered, and count when it comes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Job, Machine, Placement, Slot
from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.codec.assignment import seated
from cotenant.kube.state.accounts import Seat, Used
from cotenant.node.devices.vendors import Vendor


class Tally:
    """Machines and seats; one seat at most for each node and pod."""

    def __init__(self) -> None:
        self.gpus = 0
        """of all machines"""
        self._cluster = Cluster.of([])
        self._machines: dict[str, Machine] = {}
        self._unsettled: set[str] = set()  # nodes that came or went since the cluster was last asked for
        self._seats: dict[str, dict[str, Seat]] = {}
        self._memory: Counter[tuple[str, Vendor]] = Counter()
        self._compute: Counter[tuple[str, Vendor]] = Counter()

    @property
    def cluster(self) -> Cluster:
        """All machines with everybody who counts."""
        if self._unsettled:  # all at once: each change of the set of nodes costs as much as all of them
            stale, self._unsettled = self._unsettled, set()
            left = [name for name in stale if name in self._cluster.index]
            come = [self._node(self._machines[name]) for name in stale if name in self._machines]
            self._cluster = (self._cluster.leave(*left) if left else self._cluster).join(*come)
        return self._cluster

    def without(self, uid: str, nodes: Iterable[str]) -> Cluster:
        """The cluster as it would be if this pod took nothing of these nodes."""
        cluster = self.cluster
        for name in nodes:
            cluster = _risen(cluster, name, uid) if name in cluster.index else cluster
        return cluster

    def machine(self, name: str) -> Machine:
        return self._machines[name]

    def on(self, node: str) -> Mapping[str, Seat]:
        """Everybody who counts on a node, by UID."""
        return MappingProxyType(self._seats.get(node, {}))

    def used(self, namespace: str, vendor: Vendor) -> Used:
        """What the pods of a namespace take of this vendor's cards."""
        key = namespace, vendor
        return Used(MiB(self._memory[key]), MilliGpu(self._compute[key]))

    def set_machine(self, name: str, machine: Machine | None) -> None:
        """What a node is now; None: it has no cards, or is gone."""
        before = self._machines.pop(name, None)
        self.gpus -= 0 if before is None else len(before.gpus)
        if machine is not None:
            self._machines[name] = machine
            self.gpus += len(machine.gpus)
        if name not in self._unsettled and machine is not None and before is not None and _same_cards(before, machine):
            self._cluster = self._cluster.replace(machine)
        elif machine is not before:
            self._unsettled.add(name)

    def seat(self, node: str, uid: str, seat: Seat | None) -> bool:
        """What a pod takes of a node now; whether it took something else before, which is free again."""
        here = self._seats.setdefault(node, {})
        before = here.get(uid)
        if before != seat:
            settled = node in self._machines and node not in self._unsettled
            if before is not None:
                self._add_up(before, -1)
                del here[uid]
                self._cluster = _risen(self._cluster, node, uid) if settled else self._cluster
            if seat is not None:
                self._add_up(seat, +1)
                here[uid] = seat
                self._cluster = _sat(self._cluster, self._machines[node], seat) if settled else self._cluster
        if not here:
            del self._seats[node]
        return before is not None and before != seat

    def _node(self, machine: Machine) -> Node:
        return Node.of(machine, [seated(one.record, one.wishes, machine) for one in self.on(machine.name).values()])

    def _add_up(self, seat: Seat, sign: int) -> None:
        if seat.vendor is None:
            return
        key, peak = (seat.namespace, seat.vendor), seat.peak
        self._memory[key] += sign * peak.memory
        self._compute[key] += sign * peak.compute
        if not (self._memory[key] or self._compute[key]):
            del self._memory[key], self._compute[key]


def _same_cards(one: Machine, other: Machine) -> bool:
    """Whether tenants that were on a GPU are still on the one of that number."""
    return [gpu.uuid for gpu in one.gpus] == [gpu.uuid for gpu in other.gpus]


def _sat(cluster: Cluster, machine: Machine, seat: Seat) -> Cluster:
    tenant = seated(seat.record, seat.wishes, machine)
    return cluster.seat(Job(id=tenant.job, demand=tenant.demand), Slot(machine.name, tenant.gpus))


def _risen(cluster: Cluster, node: str, uid: str) -> Cluster:
    for tenant in cluster.node(node).tenants:
        if tenant.job == uid:
            return cluster.finish(Placement(Job(id=uid, demand=tenant.demand), Slot(node, tenant.gpus)))
    return cluster
