# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's state of the cluster: the GPUs of every node, and one account per pod.

Everything except holds and assumed binds follows from the objects of the API server, so a scheduler that restarts knows
what its predecessor knew. The accounts are the only state of pods. Everything else here is derived from them, in one
place (`_apply`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cotenant.core.cluster import Cluster
from cotenant.core.isolation import Offer
from cotenant.core.model import Machine, Slot
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.error_log import describe
from cotenant.kube.api.objects import Node, Pod, has_ended
from cotenant.kube.codec.claims import is_decided
from cotenant.kube.codec.inventory import (
    AWAY,
    CLAIMS_AWAY,
    CORDONED,
    INVENTORY,
    ORPHANS,
    machine_of,
    machine_type,
    orphans_of,
)
from cotenant.kube.codec.request import PodRequest
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.settings import SCHEDULER_NAME
from cotenant.kube.state.accounts import (
    Account,
    AgentReport,
    Assume,
    BeginBinding,
    BeginResize,
    Event,
    Held,
    Hold,
    Lingering,
    NodeGone,
    PodEnded,
    PodEvent,
    PodGone,
    PodIdles,
    PodRecorded,
    PodUnreadable,
    PodUnrecorded,
    PodWaits,
    PodWithdrawn,
    Release,
    step,
)
from cotenant.kube.state.allocation import (
    Allocation,
    Used,
    has_claims,
    has_stopped,
    is_unplaced,
    orphan_allocation,
    planned_allocation,
    recorded_allocation,
)
from cotenant.kube.state.totals import Totals, without_tenant
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import printable

Freed = Callable[[str], object]
"""called with the name of a node on which there may be more free capacity than before"""

_INVENTORY_KEYS = (INVENTORY, AWAY, *CORDONED)
LONGEST_AWAY = 300
"""Characters of what a node says about kubelet there: users read it, and an agent may have been taken over."""
_NEW = Account()


@dataclass(frozen=True, slots=True)
class _Report:
    """What the agent of a node last reported about deleted pods."""

    seen: str
    """resource version of pods up to which the report is complete"""
    running: Mapping[str, Allocation]
    """deleted pods that still run, by UID"""


_NO_REPORT = _Report("", {})


class ClusterState:
    """Follows nodes and pods as the reflectors show them, and what the scheduler does itself."""

    def __init__(
        self,
        settings: Settings = DEFAULTS,
        *,
        scheduler: str = SCHEDULER_NAME,
        freed: Freed = lambda node: None,
        read: Callable[[Pod, Settings], Allocation | None] = recorded_allocation,
    ) -> None:
        self.freed = freed
        self.nodes: set[str] = set()
        """names of all nodes, also of those without GPUs"""
        self.vendors: dict[str, Vendor] = {}
        """vendor of each node with an inventory"""
        self.types: dict[str, dict[str, MiB]] = {}
        """types of the GPUs of each such node, with the memory of the largest GPU of each type"""
        self.offers: dict[str, tuple[Offer, ...]] = {}
        """what decides which rungs of the isolation ladder the GPUs of each node have, if its agent says so"""
        self.offers_version = 0
        """counts the changes of `offers`"""
        self.inventory_version = 0
        """counts the changes of the GPUs of nodes"""
        self._settings, self._scheduler, self._read = settings, scheduler, read
        self._accounts: dict[str, Account] = {}
        self._reports: dict[str, _Report] = {}
        # Derived from the accounts and the nodes; `_apply` keeps them up to date.
        self.waiting: dict[str, Pod] = {}
        """pods that wait to be placed, by UID"""
        self._deadlines: dict[str, float] = {}  # of held slots
        self._lingering: dict[str, dict[str, None]] = {}  # UIDs by node
        self._totals = Totals()
        self.claims_away: dict[str, str] = {}
        """nodes on which kubelet could not prepare claims just now, and why"""
        self._closed: dict[str, dict[str, str]] = {}
        self._open: dict[Vendor, frozenset[str]] = {}

    # Queries.

    @property
    def cluster(self) -> Cluster:
        """All nodes with an inventory, and every pod that uses or may use their GPUs."""
        return self._totals.cluster

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self._totals.gpus

    @property
    def has_mps_clients(self) -> bool:
        """Whether some pod is a client of MPS."""
        return self._totals.mps_clients > 0

    @property
    def closed(self) -> Mapping[str, Mapping[str, str]]:
        """Nodes that accept no new pods: a message by source, which is the UID of a pod or an annotation of the node.
        Open nodes are not in it."""
        return MappingProxyType(self._closed)

    def open_nodes(self, vendor: Vendor) -> frozenset[str]:
        """The nodes with GPUs of this vendor that accept new pods."""
        if vendor not in self._open:
            names = (name for name, its in self.vendors.items() if its is vendor and name not in self._closed)
            self._open[vendor] = frozenset(names)
        return self._open[vendor]

    def machines(self) -> Iterable[tuple[Machine, Vendor]]:
        """The hardware and the vendor of each node with GPUs."""
        return ((self._totals.machine(name), vendor) for name, vendor in self.vendors.items())

    def account(self, uid: str) -> Account:
        """Everything that is known about a pod."""
        return self._accounts.get(uid, _NEW)

    def bound(self, uid: str) -> Allocation | None:
        """What the API server has accepted for a pod."""
        return self.account(uid).bound

    def held(self, uid: str) -> Allocation | None:
        """What the scheduler holds for a pod."""
        return self.account(uid).held

    def node_of(self, uid: str) -> str | None:
        """The node that a pod is bound to or is being bound to: it must not be placed elsewhere."""
        return self.account(uid).node

    def is_reserved(self, uid: str) -> bool:
        """Whether the slot held for a pod is one that its victims are still leaving."""
        state = self.account(uid).state
        return isinstance(state, Held) and state.reserved

    def allocations_on(self, node: str) -> Mapping[str, Allocation]:
        """All that is in use or held on a node, by UID."""
        return self._totals.on(node)

    def used(self, namespace: str, vendor: Vendor) -> Used:
        """What the pods of a namespace use of this vendor's GPUs."""
        return self._totals.used(namespace, vendor)

    def added_by(self, allocation: Allocation) -> Allocation:
        """An allocation without what another pod counts for already, because both use one claim."""
        return self._totals.counted(allocation)

    def shares_claims(self, uid: str) -> bool:
        """Whether another pod uses a claim of this one, so that its GPUs are not free when this one has ended."""
        return self._totals.shares_claims(self.bound(uid))

    def needed_by(self, uid: str) -> frozenset[str]:
        """The pods that have to end for what counts for this one to be free: others may share its claims."""
        bound = self.bound(uid)
        return frozenset((uid,)) if bound is None else self._totals.needed_by(bound)

    def places(self, pod: Pod) -> bool:
        """Whether this scheduler places a pod: it has our schedulerName, or requests GPUs by claims."""
        return pod.spec.scheduler_name == self._scheduler or self.awaits_claims(pod)

    def awaits_claims(self, pod: Pod) -> bool:
        """Whether a pod requests GPUs by claims that only this scheduler allocates."""
        return has_claims(pod, self._settings)

    def without(self, uid: str, of: Cluster | None = None) -> Cluster:
        """The cluster, or what a view `of` it shows, as it would be without this pod and what is held for it."""
        account = self._accounts.get(uid)
        allocation = None if account is None else account.held or account.bound
        cluster = self.cluster if of is None else of
        if allocation is None or allocation.node not in cluster.index:
            return cluster
        return without_tenant(cluster, allocation.node, uid)

    # Acts of the scheduler.

    def hold_slot(self, pod: Pod, request: PodRequest, slot: Slot, until: float) -> Allocation:
        """Hold a slot for a pod until that time, instead of the slot held before."""
        allocation = planned_allocation(pod, request, slot, self._totals.machine(slot.node))
        self.hold(allocation, until)
        return allocation

    def hold(self, allocation: Allocation, until: float, *, reserved: bool = False) -> None:
        """Hold an allocation for its pod until that time, instead of what was held before.

        A reserved slot may still have its victims on it. Then more is counted than the node has, and no other pod fits.
        """
        self._apply(allocation.uid, Hold(allocation, until, reserved))

    def begin_binding(self, allocation: Allocation) -> None:
        """Hold an allocation while its pod's bind is written, until `assume` or `release`."""
        self._apply(allocation.uid, BeginBinding(allocation))

    def begin_resize(self, allocation: Allocation) -> None:
        """Count an allocation for a bound pod while its new assignment is written, until `assume` or `release`."""
        self._apply(allocation.uid, BeginResize(allocation))

    def release(self, uid: str) -> None:
        """Give up what is held for a pod."""
        self._apply(uid, Release())

    def assume(self, uid: str) -> None:
        """The API server accepted what was held for a pod."""
        self._apply(uid, Assume())

    def count(self, allocation: Allocation) -> None:
        """Count an allocation for a pod that is on its node and has no assignment."""
        self._apply(allocation.uid, PodRecorded(allocation))

    def expire(self, now: float) -> list[str]:
        """Release the holds whose time is over; return the UIDs of their pods. Binds under way are not affected."""
        over = [uid for uid, until in self._deadlines.items() if until <= now]
        for uid in over:
            self.release(uid)
        return over

    @property
    def holds(self) -> int:
        """The number of slots that are held for a time."""
        return len(self._deadlines)

    def release_holds(self) -> None:
        """Release all holds, whatever their time. Binds and resizes under way are not affected."""
        for uid in list(self._deadlines):
            self.release(uid)

    # Changes that the reflectors show.

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handler of the reflector of nodes."""
        if new is None:
            assert old is not None
            self._remove_node(old.metadata.name)
            return
        self.nodes.add(new.metadata.name)
        if (away := new.metadata.annotations.get(CLAIMS_AWAY)) is None:
            self.claims_away.pop(new.metadata.name, None)
        else:
            self.claims_away[new.metadata.name] = printable(away[:LONGEST_AWAY])
        if old is None or _values(old, _INVENTORY_KEYS) != _values(new, _INVENTORY_KEYS):
            self._read_inventory(new)
        if old is None or _values(old, (ORPHANS,)) != _values(new, (ORPHANS,)):
            self._read_report(new)

    def pod_changed(self, old: Pod | None, new: Pod | None, version: str = "", *, by_list: bool = False) -> None:
        """Handler of the reflector of pods; `version` is the resource version of the change.

        A pod that was deleted while it ran counts until the agent of its node has seen that version. Without a version
        it counts until its node is gone. With `by_list`, changes between `old` and `new` may have been missed.
        """
        changed = new or old
        assert changed is not None
        self._apply(changed.metadata.uid, self._pod_event(old, new, version, by_list))

    def _pod_event(self, old: Pod | None, new: Pod | None, version: str, by_list: bool) -> PodEvent:
        if new is None:
            assert old is not None
            never_ran = is_decided(old) and not by_list  # if only a list shows it, the pod may have been bound before
            return PodGone(version, has_stopped(old) or never_ran)
        if is_decided(new):
            return self._read_assignment(new)
        if is_unplaced(new) and old is not None and is_decided(old):
            return PodWithdrawn(new)
        if is_unplaced(new) and self.places(new):
            return PodWaits(new)
        if has_ended(new):
            return PodEnded()
        if new.spec.node_name and (old is None or _assignment(old) != _assignment(new)):
            return self._read_assignment(new)
        return PodIdles()

    def _read_assignment(self, pod: Pod) -> PodEvent:
        try:
            allocation = self._read(pod, self._settings)
        except Exception as error:  # noqa: BLE001 -- a defect of the codec must not end every scheduler
            text = str(error) if isinstance(error, InputError) else f"unexpected {describe(error)}"
            return PodUnreadable(pod.spec.node_name, f"pod {pod.metadata.namespace}/{pod.metadata.name}: {text}")
        return PodUnrecorded() if allocation is None else PodRecorded(allocation)

    # Nodes.

    def _read_inventory(self, node: Node) -> None:
        name = node.metadata.name
        machine, vendor = None, None
        try:
            machine, vendor = machine_of(node) or (None, None)
            self._reopen(name, INVENTORY)
        except InputError as error:
            self._close(name, INVENTORY, str(error))
        away = node.metadata.annotations.get(AWAY)
        if away is None:
            self._reopen(name, AWAY)
        else:
            self._close(name, AWAY, printable(away[:LONGEST_AWAY]))
        self._set_machine(name, machine)
        self._set_offers(name, machine)
        self.vendors.pop(name, None)
        self.types.pop(name, None)
        if machine is not None and vendor is not None:
            self.vendors[name] = vendor
            # In order of their sizes, so that the largest of a type counts.
            by_size = sorted(machine.gpus, key=lambda gpu: gpu.memory_capacity)
            self.types[name] = {gpu.type: gpu.memory_capacity for gpu in by_size}
        self._open.clear()
        self.freed(name)

    def _set_machine(self, name: str, machine: Machine | None) -> None:
        if machine != self._totals.machine_or_none(name):
            self.inventory_version += 1
        self._totals.set_machine(name, machine)

    def _set_offers(self, name: str, machine: Machine | None) -> None:
        gpus = () if machine is None else machine.gpus
        offers = tuple(gpu.offer for gpu in gpus if gpu.offer is not None)
        if offers != self.offers.get(name, ()):
            self.offers_version += 1
            self.offers[name] = offers
            if not offers:
                del self.offers[name]

    def _read_report(self, node: Node) -> None:
        name = node.metadata.name
        before = self._reports.pop(name, _NO_REPORT)
        report = _NO_REPORT
        try:
            orphans = orphans_of(node)
            self._reopen(name, ORPHANS)
            if orphans is not None:
                report = _Report(orphans.seen, {record.pod: orphan_allocation(record) for record in orphans.held})
                self._reports[name] = report
        except InputError as error:
            self._close(name, ORPHANS, str(error))
        for uid in sorted({*before.running, *report.running, *self._lingering.get(name, ())}):
            self._apply(uid, AgentReport(name, report.seen, report.running.get(uid)))

    def _remove_node(self, name: str) -> None:
        """Remove a node with all that ran there. The reflector reports its pods as gone one by one."""
        self.nodes.discard(name)
        self.claims_away.pop(name, None)
        self._set_machine(name, None)
        self._set_offers(name, None)
        self.vendors.pop(name, None)
        self.types.pop(name, None)
        report = self._reports.pop(name, _NO_REPORT)
        for source in (INVENTORY, AWAY, ORPHANS):
            self._reopen(name, source)
        for uid in {*report.running, *self._lingering.get(name, ())}:
            self._apply(uid, NodeGone(name))
        self._open.clear()

    # Accounts and what is derived from them.

    def _apply(self, uid: str, event: Event) -> None:
        """Step one account, and bring everything that is derived from it up to date."""
        before = self._accounts.get(uid, _NEW)
        after = self._confirm(uid, step(before, event))
        if after is before:
            return
        if after.is_empty:
            self._accounts.pop(uid, None)
        else:
            self._accounts[uid] = after
        self._index(uid, before, after)
        if before.closes != after.closes:
            if before.closes is not None:
                self._reopen(before.closes[0], uid)
            if after.closes is not None:
                self._close(after.closes[0], uid, after.closes[1])
        for node in dict.fromkeys((*before.nodes, *after.nodes)):
            if self._totals.set_allocation(node, uid, after.allocation_on(node)):
                self.freed(node)

    def _confirm(self, uid: str, account: Account) -> Account:
        """End a lingering pod at once if its node is gone or its agent has reported on the deletion already."""
        if not isinstance(account.state, Lingering):
            return account
        node = account.state.node
        if node not in self.nodes:
            return step(account, NodeGone(node))
        report = self._reports.get(node, _NO_REPORT)
        return step(account, AgentReport(node, report.seen, report.running.get(uid)))

    def _index(self, uid: str, before: Account, after: Account) -> None:
        if after.pod is None:
            self.waiting.pop(uid, None)
        else:
            self.waiting[uid] = after.pod
        if isinstance(after.state, Held):
            self._deadlines[uid] = after.state.until
        else:
            self._deadlines.pop(uid, None)
        if isinstance(before.state, Lingering):
            here = self._lingering[before.state.node]
            del here[uid]
            if not here:
                del self._lingering[before.state.node]
        if isinstance(after.state, Lingering):
            self._lingering.setdefault(after.state.node, {})[uid] = None

    def _close(self, node: str, source: str, why: str) -> None:
        self._closed.setdefault(node, {})[source] = why
        self._open.clear()

    def _reopen(self, node: str, source: str) -> None:
        reasons = self._closed.get(node, {})
        if source not in reasons:
            return
        del reasons[source]
        if not reasons:
            del self._closed[node]
            self._open.clear()
            self.freed(node)


def _values(node: Node, keys: Iterable[str]) -> list[str | None]:
    return [machine_type(node), *map(node.metadata.annotations.get, keys)]


def _assignment(pod: Pod) -> tuple[object, ...]:
    return pod.spec.node_name, pod.metadata.annotations
