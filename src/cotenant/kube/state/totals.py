# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The sums over all accounts: the cluster as the core sees it, and what each namespace uses.

Allocations on a node that does not exist (yet) are kept, and count as soon as the node appears.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Job, Machine, Placement, Slot
from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.codec.assignment import mps_rung, tenant_for
from cotenant.kube.state.allocation import Allocation, Used
from cotenant.node.devices.vendors import Vendor


class Totals:
    """Machines and allocations, with at most one allocation for each node and pod."""

    def __init__(self) -> None:
        self.gpus = 0
        """number of GPUs of all machines"""
        self.mps_clients = 0
        """number of allocations whose pods are clients of MPS"""
        self._cluster = Cluster.of([])
        self._machines: dict[str, Machine] = {}
        self._stale: set[str] = set()  # nodes that joined or left since the cluster was last read
        self._allocations: dict[str, dict[str, Allocation]] = {}
        self._memory: Counter[tuple[str, Vendor]] = Counter()
        self._compute: Counter[tuple[str, Vendor]] = Counter()
        self._shares: Counter[tuple[str, Vendor]] = Counter()

    @property
    def cluster(self) -> Cluster:
        """All machines with all tenants."""
        if self._stale:  # all at once: each change of the set of nodes costs as much as a change of all of them
            stale, self._stale = self._stale, set()
            left = [name for name in stale if name in self._cluster.index]
            joined = [self._node(self._machines[name]) for name in stale if name in self._machines]
            self._cluster = (self._cluster.leave(*left) if left else self._cluster).join(*joined)
        return self._cluster

    def machine(self, name: str) -> Machine:
        """The hardware of a node with GPUs."""
        return self._machines[name]

    def on(self, node: str) -> Mapping[str, Allocation]:
        """All allocations on a node, by the UID of their pods."""
        return MappingProxyType(self._allocations.get(node, {}))

    def used(self, namespace: str, vendor: Vendor) -> Used:
        """What the pods of a namespace use of this vendor's GPUs."""
        key = namespace, vendor
        return Used(MiB(self._memory[key]), MilliGpu(self._compute[key]), self._shares[key])

    def set_machine(self, name: str, machine: Machine | None) -> None:
        """Set the hardware of a node; None if it has no GPUs or is gone."""
        before = self._machines.pop(name, None)
        self.gpus -= 0 if before is None else len(before.gpus)
        if machine is not None:
            self._machines[name] = machine
            self.gpus += len(machine.gpus)
        if name not in self._stale and machine is not None and before is not None and _same_gpus(before, machine):
            self._cluster = self._cluster.replace(machine)
        elif machine is not before:
            self._stale.add(name)

    def set_allocation(self, node: str, uid: str, allocation: Allocation | None) -> bool:
        """Set what a pod uses of a node; return whether that frees something it used before."""
        here = self._allocations.setdefault(node, {})
        before = here.get(uid)
        changed = before != allocation
        if changed:
            current = node in self._machines and node not in self._stale
            self.mps_clients += _is_mps_client(allocation) - _is_mps_client(before)
            if before is not None:
                self._add(before, -1)
                del here[uid]
                self._cluster = without_tenant(self._cluster, node, uid) if current else self._cluster
            if allocation is not None:
                self._add(allocation, +1)
                here[uid] = allocation
                machine = self._machines.get(node)
                if current and machine is not None:
                    self._cluster = _with_tenant(self._cluster, machine, allocation)
        if not here:
            del self._allocations[node]
        return before is not None and changed

    def _node(self, machine: Machine) -> Node:
        here = self.on(machine.name).values()
        return Node.of(machine, [tenant_for(one.record, one.constraints, machine) for one in here])

    def _add(self, allocation: Allocation, sign: int) -> None:
        if allocation.vendor is None:
            return
        key, peak = (allocation.namespace, allocation.vendor), allocation.peak
        self._memory[key] += sign * peak.memory
        self._compute[key] += sign * peak.compute
        self._shares[key] += sign * peak.gpus
        if not self._shares[key]:
            del self._memory[key], self._compute[key], self._shares[key]


def _is_mps_client(allocation: Allocation | None) -> bool:
    return allocation is not None and mps_rung(allocation.record) is not None


def _same_gpus(one: Machine, other: Machine) -> bool:
    """Whether each GPU has kept its number, so that tenants stay on the GPUs they are on."""
    return [gpu.uuid for gpu in one.gpus] == [gpu.uuid for gpu in other.gpus]


def _with_tenant(cluster: Cluster, machine: Machine, allocation: Allocation) -> Cluster:
    tenant = tenant_for(allocation.record, allocation.constraints, machine)
    return cluster.seat(Job(id=tenant.job, demand=tenant.demand), Slot(machine.name, tenant.gpus))


def without_tenant(cluster: Cluster, node: str, uid: str) -> Cluster:
    """The cluster as it would be if this pod used nothing of this node."""
    for tenant in cluster.node(node).tenants:
        if tenant.job == uid:
            return cluster.finish(Placement(Job(id=uid, demand=tenant.demand), Slot(node, tenant.gpus)))
    return cluster
