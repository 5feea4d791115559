# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The sums over all accounts: the cluster as the core sees it, and what each namespace uses.

Allocations on a node that does not exist (yet) are kept, and count as soon as the node appears.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

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
        self._counters: dict[tuple[str, str], str] = {}
        """by node and claim, the pod for which the GPUs of the claim count; other pods that use it take nothing more"""
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

    def machine_or_none(self, name: str) -> Machine | None:
        """The hardware of a node; None if it has no GPUs."""
        return self._machines.get(name)

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
                self._uncount(before, current=current)
                del here[uid]
                kept = set() if allocation is None else _claims(allocation)
                for claim in _claims(before) - kept:
                    self._pass_on(claim, before, current=current)
            if allocation is not None:
                here[uid] = allocation
                for claim in _claims(allocation):
                    self._counters.setdefault((node, claim), uid)
                self._count(allocation, current=current)
        if not here:
            del self._allocations[node]
        return before is not None and changed

    def counted(self, allocation: Allocation) -> Allocation:
        """An allocation without the claims that count for another pod."""
        node = allocation.node
        others = {
            claim
            for claim in _claims(allocation)
            if self._counters.get((node, claim), allocation.uid) != allocation.uid
        }
        if not others:
            return allocation
        kept = tuple(held for held in allocation.record.containers if held.claim not in others)
        return replace(allocation, record=msgspec.structs.replace(allocation.record, containers=kept))

    def shares_claims(self, allocation: Allocation | None) -> bool:
        """Whether another pod uses a claim of this allocation, too."""
        claims = set() if allocation is None else _claims(allocation)
        if allocation is None or not claims:
            return False
        others = self._allocations.get(allocation.node, {}).items()
        return any(uid != allocation.uid and claims & _claims(one) for uid, one in others)

    def needed_by(self, allocation: Allocation) -> frozenset[str]:
        """The pods that have to end for what counts for this one to be free: itself, and those that share it."""
        claims = {
            claim for claim in _claims(allocation) if self._counters.get((allocation.node, claim)) == allocation.uid
        }
        if not claims:
            return frozenset((allocation.uid,))
        here = self._allocations.get(allocation.node, {}).items()
        return frozenset(uid for uid, one in here if uid == allocation.uid or claims & _claims(one))

    def _pass_on(self, claim: str, gone: Allocation, *, current: bool) -> None:
        """A claim that counted for a pod that is gone counts for another pod that uses it, if there is one."""
        key = gone.node, claim
        if self._counters.get(key) != gone.uid:
            return
        heir = next((one for one in self._allocations[gone.node].values() if claim in _claims(one)), None)
        if heir is None:
            del self._counters[key]
            return
        self._uncount(heir, current=current)
        self._counters[key] = heir.uid
        self._count(heir, current=current)

    def _count(self, allocation: Allocation, *, current: bool) -> None:
        counted, machine = self.counted(allocation), self._machines.get(allocation.node)
        self._add(counted, +1)
        if current and machine is not None:
            self._cluster = _with_tenant(self._cluster, machine, counted)

    def _uncount(self, allocation: Allocation, *, current: bool) -> None:
        self._add(self.counted(allocation), -1)
        if current:
            self._cluster = without_tenant(self._cluster, allocation.node, allocation.uid)

    def _node(self, machine: Machine) -> Node:
        here = map(self.counted, self.on(machine.name).values())
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


def _claims(allocation: Allocation) -> set[str]:
    return {held.claim for held in allocation.record.containers if held.claim}


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
