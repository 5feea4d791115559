# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Bounded backfill in the queue: what is reserved for the first unit that does not fit, and whom that concerns.

The rule is the core's (`core/queueing/backfill.py`). The queue obeys it when it releases pods, and `Placer` when
kube-scheduler asks about pods that are released: otherwise such a pod could be placed on reserved GPUs, or evict a pod
whose GPUs are reserved. Times are arguments, as in `queue.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cotenant.core.model import Demand, Job, Placement, Reason, Slot
from cotenant.core.queueing.backfill import (
    End,
    Names,
    Reservation,
    Reserver,
    named,
    when,
    why_held_back,
    why_overtook,
)
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, has_ended, moment_of
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.queueing import ESTIMATE, attained_of, estimate_of
from cotenant.kube.scheduler.gangs import Gangs, GangSlots
from cotenant.kube.scheduler.naming import PodName, visible_to
from cotenant.kube.scheduler.queue_entry import Unit, UnitClass
from cotenant.kube.settings import QueuePart
from cotenant.kube.state.cluster import ClusterState

HOPELESS_S = 60.0
"""how long a class of units that does not even fit an empty cluster, or is over its quota, is not examined again"""


class _Length(NamedTuple):
    """What is known about the length of a pod that has GPUs or may get some."""

    started: Seconds | None
    """None if it has not started yet"""
    left: Seconds | None
    """estimated, from its start; None if it has no estimate"""


_UNKNOWN = _Length(None, None)


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A reservation and the unit that owns it."""

    unit: Unit
    reservation: Reservation

    @property
    def namespace(self) -> str:
        return self.unit.pods[0].pod.metadata.namespace

    def is_for(self, uid: str) -> bool:
        """Whether a pod belongs to the unit."""
        return any(one.uid == uid for one in self.unit.pods)


@dataclass(frozen=True, slots=True)
class _Overtaken:
    """How often the unit with the reservation was overtaken, and by whom last."""

    owner: str = ""
    count: int = 0
    last: str = ""


class Backfill:
    """Follows pods as the watch shows them, and the passes of the queue."""

    def __init__(self, state: ClusterState, gangs: Gangs, queue: QueuePart) -> None:
        self._state, self._gangs, self._queue = state, gangs, queue
        self._lengths: dict[str, _Length] = {}
        self._hopeless: dict[UnitClass, tuple[float, Reason]] = {}
        self._found: _Reserved | None = None
        self._current: _Reserved | None = None
        self._overtaken = _Overtaken()
        self._reserver: Reserver | None = None
        self._today = Seconds(0.0)

    @property
    def found(self) -> Reservation | None:
        """The reservation of the round under way; None until a unit does not fit."""
        return None if self._found is None else self._found.reservation

    def pod_changed(self, uid: str, new: Pod | None) -> None:
        """Take in a change of a pod."""
        self._lengths.pop(uid, None)
        if new is not None and not has_ended(new) and not {RECORD, ESTIMATE}.isdisjoint(new.metadata.annotations):
            self._lengths[uid] = _length_of(new)

    @property
    def current(self) -> Reservation | None:
        """The reservation that counts now: the last one that was found, as long as its owner waits without a slot."""
        if self._current is None:
            return None
        uid = self._current.unit.job.id
        waits = uid in self._state.waiting and self._state.held(uid) is None
        return self._current.reservation if waits else None

    # The part of a pass.

    def begin_pass(self, today: Seconds) -> None:
        """A pass goes on with the round under way, or begins a new one."""
        self._today, self._reserver = today, None

    def end_pass(self, *, is_round_over: bool) -> None:
        """What the pass found counts for all pods from now on, and the next pass may begin a new round."""
        self._reserver = None
        if is_round_over:
            self._current, self._found = self._found, None
        else:
            self._current = self._found or self._current

    def allows(self, unit: Unit) -> bool:
        """Whether nothing is reserved in this round that the unit may not use."""
        return self._found is None or self._found.reservation.allows(unit.job, self._today)

    def reserve(self, unit: Unit, slots: GangSlots, now: float, *, overdue: bool) -> None:
        """Reserve slots for a unit that does not fit, unless it is hopeless."""
        if self.why_hopeless(unit, now) is not None:
            return
        if self._reserver is None:
            self._reserver = Reserver(self._ends())
        last = None if self._current is None else self._current.reservation
        found = slots.reserve(unit.job, unit.pods, self._reserver, self._today, last, overdue=overdue)
        if isinstance(found, Reason):
            self.give_up(unit, found, now)
        else:
            self._found = _Reserved(unit, found)

    def give_up(self, unit: Unit, why: Reason, now: float) -> None:
        """Nothing is reserved for units of this class for a while."""
        self._hopeless = {one: seen for one, seen in self._hopeless.items() if seen[0] > now}
        self._hopeless[unit.unit_class] = now + HOPELESS_S, why

    def why_hopeless(self, unit: Unit, now: float) -> Reason | None:
        """Why nothing is reserved for a unit, if that is known since less than `HOPELESS_S`."""
        until, why = self._hopeless.get(unit.unit_class, (now, None))
        return why if until > now else None

    def note_release(self, unit: Unit, *, allowed: bool) -> str | None:
        """Slots are held for a unit; return which unit it overtakes and why, for the owner of its pods."""
        ends = self._ends_of(unit)
        if self._reserver is not None:
            self._reserver.new += ends
        if self._found is None:
            return None
        owner, reservation = self._found, self._found.reservation
        for_owner = why_overtook(reservation, unit.job, allowed, self._today, self._names(owner.namespace))
        count = self._overtaken.count + 1 if self._overtaken.owner == owner.unit.job.id else 1
        last = f"{self._names(owner.namespace)([unit.job.id])} ({for_owner.partition(': ')[2]})"
        self._overtaken = _Overtaken(owner.unit.job.id, count, last)
        reader = unit.pods[0].pod.metadata.namespace
        text = why_overtook(reservation, unit.job, allowed, self._today, self._names(reader))
        for end in ends if allowed else ():
            reservation = reservation.overtaken_by(end)
        self._found = _Reserved(owner.unit, reservation)
        return text

    # What others ask between passes.

    def reserved_from(self, pod: Pod, demand: Demand) -> Reservation | None:
        """What a pod of the queue must leave to another unit; None if nothing is reserved, or not from this pod."""
        about, reservation = pod.metadata, self.current
        if reservation is None or self._current is None or self._current.is_for(about.uid):
            return None
        if not self._queue.takes(about.namespace, about.labels) and about.uid not in self._gangs:
            return None
        job = Job(id=about.uid, demand=demand, estimate=_length_of(pod).left)
        return None if reservation.allows(job, self._today) else reservation

    def outranks(self, unit: Unit) -> bool:
        """Whether GPUs are reserved for a unit of lower priority than this one."""
        return self.current is not None and self.current.yields_to(unit.job)

    def explain(self, unit: Unit, place: int, today: Seconds, slots: GangSlots) -> Iterator[str]:
        """What is reserved for a waiting unit or for another one, and who overtook it."""
        if self._current is None:
            return
        owner, reservation = self._current.unit.job.id, self._current.reservation
        names = self._names(unit.pods[0].pod.metadata.namespace)
        if unit.job.id == owner:
            gpus = ", ".join(f"{name}/{gpu}" for name, gpu in sorted(reservation.gpus))
            yield f"GPUs are reserved for it ({gpus}), and it can start {when(reservation, today, names)}"
            count, last = self._overtaken.count, self._overtaken.last
            if self._overtaken.owner == owner:
                yield f"{count} behind it {'was' if count == 1 else 'were'} released before it, the last: {last}"
        elif place and not reservation.allows(unit.job, today):
            if unit.gang is None and slots.would_fit(unit.pods[0]):
                yield why_held_back(reservation, unit.job, today, names)
            else:
                yield f"GPUs are reserved for {names([owner])}, which can start {when(reservation, today, names)}"

    def _ends(self) -> list[End]:
        """The estimated ends of all pods that use or hold GPUs, the first to end first."""
        ends = []
        for node in self._state.cluster:
            for tenant in node.tenants:
                length = self._lengths.get(tenant.job, _UNKNOWN)
                job = Job(id=tenant.job, demand=tenant.demand, estimate=length.left)
                placement = Placement(job, Slot(node.name, tenant.gpus), tenant.replica)
                ends.append(End.of((placement,), length.started or self._today))
        return sorted(ends)

    def _ends_of(self, unit: Unit) -> list[End]:
        """The estimated ends of a unit for which slots have just been held."""
        uids = {one.uid for one in unit.pods}
        nodes = dict.fromkeys(held.node for uid in uids if (held := self._state.held(uid)) is not None)
        ends = []
        for name in nodes:
            for one in (one for one in self._state.cluster.node(name).tenants if one.job in uids):
                job = replace(unit.job, id=one.job, demand=one.demand, replicas=1)
                ends.append(End.of((Placement(job, Slot(name, one.gpus), one.replica),), self._today))
        return ends

    def _names(self, reader: str) -> Names:
        """How users of a namespace know pods."""

        def names(uids: Sequence[str]) -> str:
            own, others = visible_to(reader, [self._name(uid) for uid in uids])
            return named([*(f"pod {reader}/{name}" for name in own), *others])

        return names

    def _name(self, uid: str) -> PodName | None:
        pod = self._state.waiting.get(uid)
        if pod is not None:
            return pod.metadata.namespace, pod.metadata.name
        allocation = self._state.bound(uid) or self._state.held(uid)
        return None if allocation is None else (allocation.namespace, allocation.name)


def _length_of(pod: Pod) -> _Length:
    try:
        estimate, attained = estimate_of(pod), attained_of(pod)
    except InputError:
        estimate, attained = None, Seconds(0.0)
    left = None if estimate is None else Seconds(max(0.0, estimate - attained))
    return _Length(moment_of(pod.status.start_time) or None, left)
