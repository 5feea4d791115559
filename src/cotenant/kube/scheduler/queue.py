# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue of pods that wait at a scheduling gate, and the order in which they are released.

Pods are released one by one in the queue order, gangs as a whole. A pod is released only if a slot is held for it, so
no pod that comes later takes the slot. Times are arguments: `now` of any steady clock for holds, and `today` in seconds
since 1970 for the order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from weakref import WeakKeyDictionary, WeakValueDictionary

from cotenant.core.model import Job, Reason
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.queue import queue_position
from cotenant.core.queueing.fair import Standing
from cotenant.core.queueing.overdue import is_overdue
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, is_unschedulable, moment_of
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.automatic_memory import MEMORY
from cotenant.kube.codec.claims import is_decided
from cotenant.kube.codec.queueing import Gang, attained_of, estimate_of, gang_of, gates_of_others, hold_of, is_gated
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.scheduler.backfill import Backfill
from cotenant.kube.scheduler.gangs import (
    NEVER_FITS,
    NO_CAPACITY,
    Gangs,
    GangSlots,
    QueuedPod,
    RevokedGang,
    by_shape,
    without_sharers,
)
from cotenant.kube.scheduler.placement import HOLD_S
from cotenant.kube.scheduler.queue_entry import (
    PREEMPTING,
    PREEMPTS,
    QUEUED,
    Entry,
    EntryEvent,
    PodSeen,
    ReleaseFailed,
    SentToPreempt,
    SlotEnded,
    SlotHeld,
    SlotSuspect,
    Unit,
    UnitClass,
    step,
)
from cotenant.kube.scheduler.usage import Usage, fair_order
from cotenant.kube.settings import QueuePart

MOST_RELEASED = 32
"""pods or gangs in one pass; the next pass follows at once"""
MOST_REFUSED = 100
"""classes of units that fit nowhere, after which a pass ends; the next pass goes on from there"""
UNSCHEDULABLE_S = 5.0
"""how long a slot is still held for a pod for which kube-scheduler has found no node"""
MOST_BLOCKED = 8
"""classes of pods for which preemption is considered"""

_NEW = Entry()


@dataclass(slots=True)
class Pass:
    """The result of one pass through the queue."""

    open: list[Pod] = field(default_factory=list)
    """pods whose gate is to be removed without a slot: their namespace has no queue, or they need no GPU"""
    released: list[Unit] = field(default_factory=list)
    """units for which all slots are held"""
    revoked: list[RevokedGang] = field(default_factory=list)
    incomplete: list[tuple[Pod, str]] = field(default_factory=list)
    """pods of gangs that have changed and are not complete, and what is missing"""
    blocked: list[Pod] = field(default_factory=list)
    """pods without a free slot: the first of each class, in order, without gangs"""
    more: bool = False
    """whether another pass would release more at once"""
    overtook: dict[str, str] = field(default_factory=dict)
    """for units that are released before one that waits: which one, and why"""


@dataclass(slots=True)
class _Round:
    """The progress through the queue over several passes. Without it, units behind many that fit nowhere would never be
    examined."""

    refused: set[tuple[UnitClass, bool]] = field(default_factory=set)
    """classes of units that fit nowhere, and whether that holds for the reserved GPUs too"""
    kept: list[str] = field(default_factory=list)
    """nodes that are kept free for the first overdue unit, if no GPUs are reserved"""
    blocked: list[Pod] = field(default_factory=list)


class Queue:
    """Follows pods as the watch shows them, after the state of the cluster."""

    def __init__(
        self,
        slots: GangSlots,
        gangs: Gangs,
        backfill: Backfill,
        queue: QueuePart,
        *,
        hold_s: float = HOLD_S,
        settings: Settings = DEFAULTS,
        usage: Usage | None = None,
        avoided: Callable[[Pod], frozenset[str]] = lambda pod: frozenset(),
    ) -> None:
        """`usage` is needed by the order `fair` only. `avoided` returns the nodes that a pod is not placed on."""
        self._slots, self._state, self.gangs, self._backfill = slots, slots.state, gangs, backfill
        self._usage, self._avoided = usage, avoided
        self._queue, self._hold_s, self._settings = queue, hold_s, settings
        self._policy = build_policy("binpack", queue=queue.order)
        self._entries: dict[str, Entry] = {}
        self._classes: WeakValueDictionary[object, UnitClass] = WeakValueDictionary()
        self._over_quota: WeakKeyDictionary[UnitClass, Reason] = WeakKeyDictionary()
        """units that fitted when they were last examined, and were refused all the same"""
        self._round = _Round()

    def on_learned(self) -> None:
        """Subscriber of `Signals.learned`: reads the requests of pods whose memory is that of a profile again."""
        for entry in list(self._entries.values()):
            if entry.pod is not None and MEMORY in entry.pod.metadata.annotations:
                self.pod_changed(entry.pod, entry.pod)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> bool:
        """Take in a change of a pod; return whether it may change which pod is next."""
        uid = (new or old or Pod()).metadata.uid
        before = self._entries.pop(uid, _NEW)
        was_known = self.gangs.remove(uid) or before.is_gated or before.unit is not None
        self._backfill.pod_changed(uid, new)
        if self._usage is not None:
            self._usage.pod_changed(old, new)
        if new is None:
            return was_known
        waits = uid in self._state.waiting
        entry = step(before, PodSeen(self._has_gate(new, waits=waits), waits))
        unit = self._read(new, uid, entry) if self._state.places(new) else None
        entry = Entry(entry.state, entry.slot_until, new, unit)
        if not entry.is_empty:
            self._entries[uid] = entry
        return was_known or entry.is_gated or uid in self.gangs

    def explain(self, pod: Pod, now: float, today: Seconds) -> str | None:
        """Why a pod waits at its gate; None if it does not."""
        uid = pod.metadata.uid
        entry = self._entries.get(uid, _NEW)
        if entry.state is not QUEUED:
            return None
        if (hold := hold_of(pod)) is not None:
            return f"{hold}; it keeps its place in the queue and does not start until it is released"
        if entry.obstacle is not None:
            return entry.obstacle
        for place, unit in enumerate(self._in_order(inf, today)):
            if any(one.uid == uid for one in unit.pods):
                said = self._describe(unit, place, now, today)
                standing = self._standing(list(self._units(inf)), today)
                said += "" if standing is None else f"; {standing.explain(unit.job.account)}"
                return "; ".join((said, *self._backfill.explain(unit, place, today, self._slots)))
        reason = self.gangs.must_wait(pod)
        return "it waits in the queue" if reason is None else str(reason)

    def in_order(self, now: float, today: Seconds) -> Iterator[tuple[Unit, str]]:
        """All that wait, the first of the queue first, each with the sentence that says where in the queue it is."""
        for place, unit in enumerate(self._in_order(inf, today)):
            yield unit, self._describe(unit, place, now, today)

    def not_in_order(self) -> Iterator[tuple[Pod, str]]:
        """Those at their gates that wait for something else than their turn, and for what; held ones are left out."""
        for status in self.gangs.all():
            yield from status.incomplete
        for entry in self._entries.values():
            if entry.state is QUEUED and entry.pod is not None and entry.obstacle is not None:
                yield entry.pod, entry.obstacle

    def invalid(self) -> Iterator[tuple[Pod, str]]:
        """Those at their gates whose requests cannot be satisfied as they are written, and why."""
        for entry in self._entries.values():
            if entry.state is QUEUED and entry.pod is not None and isinstance(entry.unit, InputError):
                yield entry.pod, str(entry.unit)

    def _describe(self, unit: Unit, place: int, now: float, today: Seconds) -> str:
        what = "it waits" if unit.gang is None else f"its gang of {unit.gang.size} waits"
        parts = [f"{what} with {place} before it in the queue ({self._queue.order})"]
        if is_overdue(unit.job, today):
            parts.append("it is overdue" + ", so nodes are kept free for it" * (not self._queue.backfill))
        refused = self._over_quota.get(unit.unit_class) or self._backfill.why_hopeless(unit, now)
        return "; ".join(parts if refused is None else [*parts, str(refused)])

    # The invariants of a pass:
    # - Units are examined strictly in the queue order, and a unit is released only if slots for all its pods are held
    #   before the first gate is removed. So no unit takes the slot of one before it, and no gang starts in part.
    # - GPUs are reserved for the first unit that does not fit, and those behind it are released only if they do not
    #   delay it (`core/queueing/backfill.py`). So a large unit is not starved by small ones forever.
    # - Little is freed during a round, so each class of units is examined once per round, or twice if its short units
    #   may use the reserved GPUs: a refused class is skipped until the next round. This bounds a pass by MOST_REFUSED
    #   classes instead of thousands of pods.
    def run_pass(self, now: float, today: Seconds) -> Pass:
        """Hold slots for the next units, as far as there are free ones, and return what is to be released."""
        result = Pass(
            open=[one.pod for one in self._entries.values() if one.is_gated and one.pod and not self._must_queue(one)]
        )
        result.revoked = self.gangs.expire(now, self._hold_s)
        self._take_back_slots(now)
        for status in self.gangs.changed(now):
            result.incomplete.extend(status.incomplete)
        result.more = self._continue_round(result, now, today)
        return result

    def _continue_round(self, result: Pass, now: float, today: Seconds) -> bool:
        """Go on where the last pass stopped; return whether there is more to examine at once."""
        this, backfill = self._round, self._backfill
        this.kept = [name for name in this.kept if name in self._state.cluster.index]
        result.blocked, most = this.blocked, len(this.refused) + MOST_REFUSED
        backfill.begin_pass(today)
        is_over = True
        units = list(self._units(now))
        standing = self._standing(units, today)
        for unit in self._sorted(units, today, standing, assume_release=False):
            allowed = backfill.allows(unit)
            if (unit.unit_class, True) in this.refused or (unit.unit_class, allowed) in this.refused:
                continue
            overdue = not this.kept and is_overdue(unit.job, today)
            why_not = self._hold(unit, now, this, overdue=overdue, allowed=allowed)
            if why_not is None:
                result.released.append(unit)
                if self._usage is not None and standing is not None:
                    account = unit.job.account
                    standing.give(account, self._usage.held([one.uid for one in unit.pods], account))
                overtook = backfill.note_release(unit, allowed=allowed)
                if overtook is not None:
                    result.overtook[unit.job.id] = overtook
            else:
                this.refused.add((unit.unit_class, allowed))
                self._note_refusal(unit, why_not, now, this, overdue=overdue)
            if len(this.refused) >= most:
                is_over = False
                break
            if len(result.released) >= MOST_RELEASED:
                break
        backfill.end_pass(is_round_over=is_over)
        self._round = _Round() if is_over else this
        return not is_over or len(result.released) >= MOST_RELEASED

    def _note_refusal(self, unit: Unit, why_not: Reason, now: float, this: _Round, *, overdue: bool) -> None:
        """A unit was refused: GPUs or nodes may be kept for it, and pods may be evicted for it."""
        if why_not.check != NO_CAPACITY:
            self._over_quota[unit.unit_class] = why_not
            return
        if self._is_gated_pod(unit) and len(this.blocked) < MOST_BLOCKED:
            this.blocked.append(unit.pods[0].pod)
        if self._queue.backfill and self._backfill.found is None:
            self._backfill.reserve(unit, self._slots, now, overdue=overdue)
        elif overdue and not self._queue.backfill:
            this.kept = self._nodes_to_keep(unit, now)

    def undo_release(self, unit: Unit) -> None:
        """One of the gates could not be removed: all pods of the unit wait again."""
        for one in unit.pods:
            self._apply(one.uid, ReleaseFailed())
            if self._state.node_of(one.uid) is None:
                self._state.release(one.uid)
        if unit.gang is not None:
            self.gangs.revoke(unit.gang)

    def release_to_preempt(self, pod: Pod) -> bool:
        """Release a pod without a slot, because victims could be evicted for it; False if it no longer waits here.

        Only kube-scheduler knows on which nodes the pod could be otherwise, so it must ask first. The pod keeps its
        place in the queue until it has a slot: whatever is freed meanwhile is its own.
        """
        uid = pod.metadata.uid
        entry = self._entries.get(uid, _NEW)
        if entry.pod is not pod or entry.state is not QUEUED:
            return False
        self._apply(uid, SentToPreempt())
        return True

    def undo_release_to_preempt(self, pod: Pod) -> None:
        """The gate could not be removed."""
        self._apply(pod.metadata.uid, ReleaseFailed())

    def outranks_reservation(self, pod: Pod) -> bool:
        """Whether GPUs are reserved for a pod or gang of lower priority, so that this pod may use them."""
        unit = self._entries.get(pod.metadata.uid, _NEW).unit
        return isinstance(unit, Unit) and self._backfill.outranks(unit)

    def awaits_preemption(self, pod: Pod) -> bool:
        """Whether a pod was released to preempt and has no slot yet."""
        uid = pod.metadata.uid
        return self._entries.get(uid, _NEW).state in PREEMPTS and self._state.held(uid) is None

    def _apply(self, uid: str, event: EntryEvent) -> None:
        entry = step(self._entries.get(uid, _NEW), event)
        if entry.is_empty:
            self._entries.pop(uid, None)
        else:
            self._entries[uid] = entry

    def _read(self, pod: Pod, uid: str, entry: Entry) -> Unit | InputError | None:
        """The pod as a unit, and as a member of its gang. Pods without GPUs belong to no gang and do not queue."""
        unit = None
        try:
            gang = gang_of(pod)
            has_gpus = RECORD in pod.metadata.annotations
            if uid in self._state.waiting and (entry.is_gated or entry.state in PREEMPTS or gang is not None):
                request = request_of(pod, self._settings)
                has_gpus = request.vendor is not None
                if has_gpus:
                    self._slots.placer.views.ranker(pod, request)  # raises if the pod's policy does not exist
                    submitted = moment_of(pod.metadata.creation_timestamp)
                    queued = QueuedPod(pod, request, submitted, estimate_of(pod), attained_of(pod), self._avoided(pod))
                    unit = self._unit((queued,), None)
            if gang is not None and has_gpus:
                self.gangs.add(pod, gang)
        except InputError as error:  # the request was valid at creation, so it was changed since: the pod waits
            return error
        return unit

    def _must_queue(self, entry: Entry) -> bool:
        """Whether the gate stays for now: the pod waits, is leaving, or its gate is being removed already."""
        assert entry.pod is not None
        about = entry.pod.metadata
        if (entry.is_gated and entry.state is not QUEUED) or about.deletion_timestamp or hold_of(entry.pod) is not None:
            return True
        claims = bool(entry.pod.spec.resource_claims)  # they are allocated only for a slot that is held
        return entry.unit is not None and (claims or about.uid in self.gangs or self._queue.keeps(about.namespace))

    def _has_gate(self, pod: Pod, *, waits: bool) -> bool:
        """Whether a pod cannot be bound yet: it has our gate, or claims that are not allocated, which is the same."""
        if not pod.spec.resource_claims:
            return is_gated(pod.spec.scheduling_gates)
        return not is_decided(pod) and (
            is_gated(pod.spec.scheduling_gates) or (waits and self._state.awaits_claims(pod))
        )

    def _hold(self, unit: Unit, now: float, this: _Round, *, overdue: bool, allowed: bool) -> Reason | None:
        until, reservation = now + self._hold_s, None if allowed else self._backfill.found
        self._over_quota.pop(unit.unit_class, None)
        why_not = self._slots.hold(unit.pods, until, this.kept, overdue=overdue, reservation=reservation)
        if why_not is not None:
            return why_not
        if unit.gang is not None:
            self.gangs.grant(unit.gang, {one.uid for one in unit.pods}, until)
        for one in unit.pods:
            self._apply(one.uid, SlotHeld(alone=unit.gang is None))
        return None

    def _is_gated_pod(self, unit: Unit) -> bool:
        """Whether the unit is a single pod that still has its gate, without which kube-scheduler would try it."""
        return unit.gang is None and self._entries.get(unit.job.id, _NEW).is_gated

    def _take_back_slots(self, now: float) -> None:
        """Take back the slots of pods for which kube-scheduler finds no node: other pods can use them."""
        state = self._state
        for uid, entry in [(uid, one) for uid, one in self._entries.items() if one.slot_until is not None]:
            pod = state.waiting.get(uid)
            is_its = state.held(uid) is not None and not state.is_reserved(uid)
            if pod is None or not is_its or state.node_of(uid) is not None:
                self._apply(uid, SlotEnded())
            elif entry.slot_until is not None and entry.slot_until <= now:
                state.release(uid)
                self._apply(uid, SlotEnded())
            elif is_unschedulable(pod):
                self._apply(uid, SlotSuspect(now + UNSCHEDULABLE_S))

    def _nodes_to_keep(self, unit: Unit, now: float) -> list[str]:
        """The nodes to keep free for an overdue unit; none if it does not even fit an empty cluster, which is checked
        every `HOPELESS_S`."""
        if self._backfill.why_hopeless(unit, now) is not None:
            return []
        kept = self._slots.nodes_to_keep(unit.pods)
        if not kept:
            self._backfill.give_up(unit, NEVER_FITS, now)
        return kept

    def _in_order(self, now: float, today: Seconds) -> Iterable[Unit]:
        """The units in the order in which they will be released if each fits."""
        units = list(self._units(now))
        return self._sorted(units, today, self._standing(units, today), assume_release=True)

    def _standing(self, units: Sequence[Unit], today: Seconds) -> Standing | None:
        """How the accounts stand that have GPUs or wait; None: the order does not compare accounts."""
        return None if self._usage is None else self._usage.standing({unit.job.account for unit in units}, today)

    def _sorted(
        self, units: Sequence[Unit], today: Seconds, standing: Standing | None, *, assume_release: bool
    ) -> Iterable[Unit]:
        if standing is None:
            return sorted(units, key=lambda unit: self._order(unit, today))
        return fair_order(units, standing, assume_release=assume_release)

    def _order(self, unit: Unit, today: Seconds) -> tuple[int, bool, float, Seconds, str]:
        """The core's sort key. If its order could let a job wait forever, overdue jobs come first. Equal jobs are
        sorted by submission: the names of pods mean nothing, unlike those of jobs elsewhere."""
        job, (priority, place) = unit.job, unit.order
        late = self._policy.overdue is None and is_overdue(job, today)
        return priority, not late, job.submitted if late else place, job.submitted, job.id

    def _units(self, now: float) -> Iterator[Unit]:
        in_gangs: set[str] = set()
        for status in self.gangs.all():
            if not status.missing:
                continue
            uids = [pod.metadata.uid for pod in status.ready]
            in_gangs.update(uids)  # also those beyond the gang's size: they follow when it is complete
            found = (self._entries.get(uid, _NEW).unit for uid in uids[: status.missing])
            pods = tuple(one.pods[0] for one in found if isinstance(one, Unit))
            if len(pods) == status.missing and self.gangs.can_be_released(status.gang, now):
                yield self._unit(without_sharers(pods), status.gang)
        for uid, entry in self._entries.items():
            if uid not in in_gangs and isinstance(entry.unit, Unit) and self._is_next(uid, entry):
                yield entry.unit

    def _is_next(self, uid: str, entry: Entry) -> bool:
        """Whether a pod can be released on its own as soon as there is a slot."""
        assert entry.pod is not None
        if entry.state is PREEMPTING:
            if self._state.held(uid) is not None or self._state.node_of(uid) is not None:
                return False
        elif entry.state is not QUEUED:
            return False
        if hold_of(entry.pod) is not None or gates_of_others(entry.pod.spec.scheduling_gates):
            return False
        return self._must_queue(entry)

    def _unit(self, pods: tuple[QueuedPod, ...], gang: Gang | None) -> Unit:
        """A gang was submitted when its first pod was, and takes as long as the longest of its pods."""
        first = by_shape(pods)[0][0]
        estimates = [one.estimate for one in pods if one.estimate is not None]
        job = Job(
            id=first.uid,
            demand=first.request.demand,
            replicas=len(pods),
            submitted=min(one.submitted for one in pods),
            estimate=max(estimates) if len(estimates) == len(pods) else None,
            attained=Seconds(sum(one.attained * one.request.demand.steady.gpus for one in pods)),
            account=() if self._usage is None else self._usage.account_of(first.pod),
        )
        shapes = first.pod.metadata.namespace, tuple(one.shape for one in pods)  # quotas are by namespace
        unit_class = self._classes.setdefault(shapes, UnitClass())
        return Unit(pods, gang, job, unit_class, queue_position(self._policy, job, job.submitted))
