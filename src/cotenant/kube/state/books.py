# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine knows of a cluster: the cards of every node, and who takes what of them.

Everything but holds and assumptions follows from the objects of the API server, so a scheduler that starts anew knows
what the one before it knew. Who takes what is decided in one place for each pod and node (`_seat_on`); every event only
says for which of them to look again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from cotenant.core.cluster import Cluster
from cotenant.core.model import MACHINE_TYPE_LABEL, Slot
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod, has_ended
from cotenant.kube.api.reflector import older
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inventory import AWAY, CORDONED, INVENTORY, ORPHANS, machine_of, orphans_of
from cotenant.kube.codec.request import Asked
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.settings import SCHEDULER_NAME
from cotenant.kube.state.accounts import (
    Ghost,
    Hold,
    Remains,
    Seat,
    Used,
    has_stopped,
    is_waiting,
    orphan_seat,
    planned_seat,
    seat_of,
)
from cotenant.kube.state.tally import Tally
from cotenant.node.devices.vendors import Vendor

Freed = Callable[[str], object]
"""is told the name of a node on which there may be more room than before"""

_ABOUT_CARDS = (INVENTORY, AWAY, *CORDONED)


class Books:
    """Follows nodes and pods as reflectors tell them, and what the scheduler itself has just done or means to do."""

    def __init__(
        self,
        settings: Settings = DEFAULTS,
        *,
        scheduler: str = SCHEDULER_NAME,
        freed: Freed = lambda node: None,
    ) -> None:
        self.freed = freed
        self.waiting: dict[str, Pod] = {}
        """pods of ours that are to be placed, by UID"""
        self.vendors: dict[str, Vendor] = {}
        """whose cards each node has; nodes without an inventory are not in it"""
        self._settings, self._scheduler = settings, scheduler
        self.nodes: set[str] = set()
        """the names of all, also of those without GPUs"""
        self._tally = Tally()
        self._closed: dict[str, dict[str, str]] = {}
        self._takers: dict[Vendor, frozenset[str]] = {}
        self._bound: dict[str, Seat] = {}
        self._assumed: dict[str, Seat] = {}
        self._holds: dict[str, Hold] = {}
        self._ghosts: dict[str, dict[str, Ghost]] = {}
        self._remains: dict[str, Remains] = {}
        self._named: dict[tuple[str, str], str] = {}

    # What is known.

    @property
    def cluster(self) -> Cluster:
        """All nodes with an inventory, with everybody who counts: bound, assumed, held, gone but still running."""
        return self._tally.cluster

    @property
    def gpus(self) -> int:
        """Of all nodes together."""
        return self._tally.gpus

    @property
    def closed(self) -> Mapping[str, Mapping[str, str]]:
        """Nodes that take nobody new until something is clear: a sentence for each source, which is the UID of a pod or
        an annotation of the node. Nodes where all is clear are not in it."""
        return MappingProxyType(self._closed)

    def takers(self, vendor: Vendor) -> frozenset[str]:
        """The nodes with cards of this vendor that take newcomers."""
        if vendor not in self._takers:
            names = (name for name, whose in self.vendors.items() if whose is vendor and name not in self._closed)
            self._takers[vendor] = frozenset(names)
        return self._takers[vendor]

    def pod(self, namespace: str, name: str) -> Pod | None:
        """A waiting pod by name."""
        return self.waiting.get(self._named.get((namespace, name), ""))

    def seat_of(self, uid: str) -> Seat | None:
        """Where a pod is that is bound or assumed to be."""
        return self._assumed.get(uid) or self._bound.get(uid)

    def held(self, uid: str) -> Seat | None:
        """The slot that is held for a pod."""
        hold = self._holds.get(uid)
        return None if hold is None else hold.seat

    def settled(self, uid: str) -> str | None:
        """The node that a pod is on or is being bound to right now: where else it might go is not to be asked."""
        hold = self._holds.get(uid)
        seat = hold.seat if hold is not None and hold.binding else self.seat_of(uid)
        return None if seat is None else seat.record.node

    def is_reserved(self, uid: str) -> bool:
        """Whether what is held for a pod is a place that others are still leaving."""
        hold = self._holds.get(uid)
        return hold is not None and hold.reserved

    def seats_on(self, node: str) -> Mapping[str, Seat]:
        """Everybody who counts on a node, by UID."""
        return self._tally.on(node)

    def used(self, namespace: str, vendor: Vendor) -> Used:
        """What the pods of a namespace take of this vendor's cards."""
        return self._tally.used(namespace, vendor)

    def without(self, uid: str) -> Cluster:
        """The cluster as it would be without this pod and what is held for it."""
        return self._tally.without(uid, _nodes_of(self.held(uid), self._assumed.get(uid), self._bound.get(uid)))

    # What the scheduler does.

    def hold(self, pod: Pod, asked: Asked, slot: Slot, until: float) -> Seat:
        """Keep a slot for a pod until that time (`inf`: until `assume` or `release`); it replaces its other hold."""
        seat = planned_seat(pod, asked, slot, self._tally.machine(slot.node))
        self.keep(seat, until)
        return seat

    def keep(self, seat: Seat, until: float, *, reserved: bool = False) -> None:
        """Keep what a seat says for its pod, instead of what was held or recorded for it.

        Where it is reserved, others may still be there: then more is counted than there is, and nobody else fits.
        """
        before = self.held(seat.uid)
        self._holds[seat.uid] = Hold(seat, until, reserved=reserved)
        self._settle(_nodes_of(before, seat), seat.uid)

    def release(self, uid: str) -> None:
        """Give up what is held for a pod: its bind failed, or it is not wanted any more."""
        hold = self._holds.pop(uid, None)
        if hold is not None:
            self._settle(_nodes_of(hold.seat), uid)

    def assume(self, uid: str) -> None:
        """The API server took what was held for a pod: it counts, also until the watch shows it."""
        hold = self._holds.pop(uid, None)
        if hold is None:  # the watch was faster
            return
        if hold.gone is None:
            self._assumed[uid] = hold.seat
            self._forget_waiting(uid)
        else:
            self._mourn(hold.seat.record.node, uid, Ghost(hold.gone, hold.seat))
        self._settle(_nodes_of(hold.seat), uid)

    def expire(self, now: float) -> list[str]:
        """Give up holds whose time is over; the UIDs of their pods."""
        over = [uid for uid, hold in self._holds.items() if hold.until <= now]
        for uid in over:
            self.release(uid)
        return over

    # What the reflectors tell.

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handler of the reflector of nodes."""
        if new is None:
            assert old is not None
            self._node_gone(old.metadata.name)
            return
        self.nodes.add(new.metadata.name)
        if old is None or _words(old, _ABOUT_CARDS) != _words(new, _ABOUT_CARDS):
            self._read_inventory(new)
        if old is None or _words(old, (ORPHANS,)) != _words(new, (ORPHANS,)):
            self._read_orphans(new)

    def pod_changed(self, old: Pod | None, new: Pod | None, at: str = "") -> None:
        """Handler of the reflector of pods: `lambda old, new: books.pod_changed(old, new, pods.handled_version)`.

        `at` is the version of the change; a pod that was deleted while it ran counts until its agent has seen that
        version, or for ever if it is not said.
        """
        if new is None:
            assert old is not None
            self._pod_gone(old, at)
            return
        uid = new.metadata.uid
        if is_waiting(new, self._scheduler) and uid not in self._assumed:
            self.waiting[uid] = new
            self._named[new.metadata.namespace, new.metadata.name] = uid
        else:
            self._forget_waiting(uid)
        if has_ended(new):
            self._pod_ended(new)
        elif new.spec.node_name and (old is None or _placing_words(old) != _placing_words(new)):
            self._read_record(new)

    # Nodes.

    def _read_inventory(self, node: Node) -> None:
        name = node.metadata.name
        machine, vendor = None, None
        try:
            machine, vendor = machine_of(node) or (None, None)
            self._clear(name, INVENTORY)
        except InputError as error:
            self._close(name, INVENTORY, str(error))
        away = node.metadata.annotations.get(AWAY)
        if away is None:
            self._clear(name, AWAY)
        else:
            self._close(name, AWAY, away)
        self._tally.set_machine(name, machine)
        self.vendors.pop(name, None)
        if vendor is not None:
            self.vendors[name] = vendor
        self._takers.clear()
        self.freed(name)

    def _read_orphans(self, node: Node) -> None:
        name = node.metadata.name
        before = self._remains.pop(name, None)
        try:
            said = orphans_of(node)
            self._clear(name, ORPHANS)
        except InputError as error:
            said = None
            self._close(name, ORPHANS, str(error))
        uids = set() if before is None else set(before.held)
        if said is not None:
            held = {record.pod: orphan_seat(record) for record in said.held}
            self._remains[name] = Remains(said.seen, held)
            ended = [uid for uid, ghost in self._ghosts.get(name, {}).items() if self._has_seen(name, ghost.version)]
            for uid in ended:
                self._lay(name, uid)
            uids |= {*held, *ended}
        for uid in sorted(uids):
            self._settle([name], uid)

    def _node_gone(self, name: str) -> None:
        """With all that ran there; its pods are said to be gone one by one."""
        self.nodes.discard(name)
        self._tally.set_machine(name, None)
        self.vendors.pop(name, None)
        gone = {*self._ghosts.get(name, {})}
        for uid in gone:
            self._lay(name, uid)
        remains = self._remains.pop(name, None)
        for source in (INVENTORY, AWAY, ORPHANS):
            self._clear(name, source)
        for uid in gone | (set() if remains is None else set(remains.held)):
            self._settle([name], uid)
        self._takers.clear()

    # Pods.

    def _read_record(self, pod: Pod) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        seat = None
        try:
            seat = seat_of(pod, self._settings)
            self._clear(node, uid)
        except InputError as error:
            self._close(node, uid, f"pod {pod.metadata.namespace}/{pod.metadata.name}: {error}")
        before = self._bound.pop(uid, None)
        if RECORD not in pod.metadata.annotations:  # nobody may take it away: what was told is half a pod
            seat = before
        if seat is not None:
            self._bound[uid] = seat
        if before is None or seat is None or before.record != seat.record:
            # What we meant to do with it has been done, by us or by another.
            meant = (self._assumed.pop(uid, None), self.held(uid))
            self._holds.pop(uid, None)
        else:
            meant = (None, None)
        self._settle(_nodes_of(before, seat, *meant), uid)

    def _pod_ended(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        seats = (self._bound.pop(uid, None), self._assumed.pop(uid, None), self.held(uid))
        self._holds.pop(uid, None)
        self._clear(pod.spec.node_name, uid)
        self._settle(_nodes_of(*seats), uid)

    def _pod_gone(self, pod: Pod, at: str) -> None:
        uid = pod.metadata.uid
        self._forget_waiting(uid)
        bound = self._bound.pop(uid, None)
        seat = self._assumed.pop(uid, None) or bound
        hold = self._holds.get(uid)
        if hold is not None and hold.binding and seat is None:  # only who binds it will know whether it was bound
            self._holds[uid] = replace(hold, gone=at)
            return
        self._holds.pop(uid, None)
        if seat is not None and hold is not None:  # it was being resized: nobody knows how far it came
            seat = hold.seat
        node = pod.spec.node_name if seat is None else seat.record.node
        unclear = uid in self._closed.get(node, {})
        if (seat is not None or unclear) and not has_stopped(pod):
            self._mourn(node, uid, Ghost(at, seat))
        else:
            self._clear(node, uid)
        self._settle(_nodes_of(bound, seat, None if hold is None else hold.seat), uid)

    def _mourn(self, node: str, uid: str, ghost: Ghost) -> None:
        """Count on with a pod that is gone, unless its node is gone too or its agent already knows better."""
        if node in self.nodes and not self._has_seen(node, ghost.version):
            self._ghosts.setdefault(node, {})[uid] = ghost
        else:
            self._clear(node, uid)

    def _lay(self, node: str, uid: str) -> None:
        ghosts = self._ghosts[node]
        del ghosts[uid]
        self._clear(node, uid)
        if not ghosts:
            del self._ghosts[node]

    def _has_seen(self, node: str, version: str) -> bool:
        """Whether the node's agent spoke after that version; of versions that are no numbers nobody knows."""
        remains = self._remains.get(node)
        if remains is None or not (version.isdecimal() and remains.seen.isdecimal()):
            return False
        return not older(remains.seen, version)

    def _forget_waiting(self, uid: str) -> None:
        pod = self.waiting.pop(uid, None)
        if pod is not None and self._named.get((pod.metadata.namespace, pod.metadata.name)) == uid:
            del self._named[pod.metadata.namespace, pod.metadata.name]

    # Who counts.

    def _seat_on(self, node: str, uid: str) -> Seat | None:
        """What a pod takes of a node: as the scheduler last meant it to be, as it is written down, as agents see it."""
        for seat in (self.held(uid), self._assumed.get(uid), self._bound.get(uid)):
            if seat is not None and seat.record.node == node:
                return seat
        ghost = self._ghosts.get(node, {}).get(uid)
        if ghost is not None and ghost.seat is not None:
            return ghost.seat
        remains = self._remains.get(node)
        return None if remains is None else remains.held.get(uid)

    def _settle(self, nodes: Iterable[str], uid: str) -> None:
        for node in nodes:
            if self._tally.seat(node, uid, self._seat_on(node, uid)):
                self.freed(node)

    def _close(self, node: str, source: str, why: str) -> None:
        self._closed.setdefault(node, {})[source] = why
        self._takers.clear()

    def _clear(self, node: str, source: str) -> None:
        error_log = self._closed.get(node, {})
        if source not in error_log:
            return
        del error_log[source]
        if not error_log:
            del self._closed[node]
            self._takers.clear()
            self.freed(node)


def _words(node: Node, keys: Iterable[str]) -> list[str | None]:
    return [node.metadata.labels.get(MACHINE_TYPE_LABEL), *map(node.metadata.annotations.get, keys)]


def _placing_words(pod: Pod) -> tuple[object, ...]:
    return pod.spec.node_name, pod.metadata.annotations


def _nodes_of(*seats: Seat | None) -> list[str]:
    return list(dict.fromkeys(seat.record.node for seat in seats if seat is not None))
