# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who waits for its turn, and whose turn it is: pods one by one in the order of the queue, gangs as a whole.

They are let go only when a slot is held for each of them, so nobody who comes later takes it.

Times are arguments: `now` of any steady clock, for holds, and `today` in seconds since 1970, for the order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from weakref import WeakValueDictionary

from cotenant.core.model import Job, Reason
from cotenant.core.placement.deciding import turn_of
from cotenant.core.placement.policies import build_policy
from cotenant.core.queueing.overdue import is_overdue
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, is_unschedulable
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.queueing import Gang, attained_of, estimate_of, gang_of, gates_of_others, is_gated
from cotenant.kube.codec.request import asked_of
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.scheduler.gang_slots import NO_ROOM, Together, Waiter, kinds_of
from cotenant.kube.scheduler.gangs import Gangs, GivenUp
from cotenant.kube.scheduler.placement import HOLD_S
from cotenant.kube.settings import SCHEDULER_NAME, QueuePart

MOST_RELEASED = 32
"""pods or gangs in one step; the next comes at once"""
MOST_REFUSED = 100
"""kinds of pods that fit nowhere, after which a step looks no further; the next goes on from there"""
HOPELESS_S = 60.0
"""for so long it is believed that even an empty cluster has no room for some kind of pods"""
UNFIT_S = 5.0
"""for so long a slot is still held for a pod for which kube-scheduler has found no node"""
MOST_WANTING = 8
"""kinds of pods for which it is looked who could be evicted"""


class Kind:
    """Stands for what units have in common that fit or do not fit together; as itself, since to compare what thousands
    ask for takes long."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is let go at once: a pod, or what a gang still needs to be whole."""

    waiters: tuple[Waiter, ...]
    gang: Gang | None
    job: Job
    """as the order of the queue sees it"""
    kind: Kind
    turn: tuple[int, float]
    """smallest first; no order changes while a job waits"""


@dataclass(slots=True)
class Step:
    """What is to be done now."""

    open: list[Pod] = field(default_factory=list)
    """pods that need not wait here: there is no queue for them any more, or they are not ours to place"""
    released: list[Unit] = field(default_factory=list)
    """a slot is held for each of their pods"""
    given_up: list[GivenUp] = field(default_factory=list)
    gathering: list[tuple[Pod, str]] = field(default_factory=list)
    """pods of gangs that have changed and are not complete, and what is missing"""
    wanting: list[Pod] = field(default_factory=list)
    """for which there is no room: the first of their kinds, in order, without gangs"""
    more: bool = False
    """whether another step would find more at once"""


@dataclass(slots=True)
class _Round:
    """How far the line has been gone through, where that takes several steps: or those who are behind many others that
    fit nowhere would never be looked at."""

    refused: set[Kind] = field(default_factory=set)
    kept: list[str] = field(default_factory=list)
    """nodes, for the first that is overdue"""
    wanting: list[Pod] = field(default_factory=list)


class Line:
    """Follows pods as the reflector tells them, after the books."""

    def __init__(
        self,
        together: Together,
        gangs: Gangs,
        queue: QueuePart,
        *,
        scheduler: str = SCHEDULER_NAME,
        hold_s: float = HOLD_S,
        settings: Settings = DEFAULTS,
    ) -> None:
        self._together, self._books, self.gangs = together, together.books, gangs
        self._queue, self._scheduler, self._hold_s, self._settings = queue, scheduler, hold_s, settings
        self._order = build_policy("binpack", queue=queue.order)
        self._gated: dict[str, Pod] = {}
        self._alone: dict[str, Unit | InputError] = {}
        self._kinds: WeakValueDictionary[object, Kind] = WeakValueDictionary()
        self._released: set[str] = set()
        self._given: dict[str, float] = {}
        self._displacing: set[str] = set()
        self._hopeless: dict[Kind, float] = {}
        self._round = _Round()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> bool:
        """Whether that may change whose turn it is."""
        uid = (new or old or Pod()).metadata.uid
        was_known = [self.gangs.forget(uid), *(known.pop(uid, None) for known in (self._gated, self._alone))]
        if new is not None and is_gated(new.spec.scheduling_gates):
            self._gated[uid] = new
        else:
            self._released.discard(uid)
        if uid not in self._books.waiting:
            self._displacing.discard(uid)
        if new is not None and new.spec.scheduler_name == self._scheduler:
            self._read(new, uid)
        return any(was_known) or uid in self._gated or uid in self.gangs

    def words(self, pod: Pod, today: Seconds) -> str | None:
        """What a pod waits for at its gate, None where it does not wait there."""
        uid = pod.metadata.uid
        if uid not in self._gated or uid in self._released:
            return None
        known = self._alone.get(uid)
        if isinstance(known, InputError):
            return str(known)
        for place, unit in enumerate(self._in_order(inf, today)):
            if any(one.uid == uid for one in unit.waiters):
                whose = "its turn" if unit.gang is None else f"the turn of its gang of {unit.gang.size}"
                late = "; it is overdue, so room is kept for it" if is_overdue(unit.job, today) else ""
                return f"it waits for {whose}, with {place} before it in the queue ({self._queue.order}){late}"
        if others := gates_of_others(pod.spec.scheduling_gates):
            return f"its turn comes when it waits for nothing else: scheduling gate {', '.join(others)}"
        turn = self.gangs.turn(pod)
        return "it is not its turn" if turn is None else str(turn)

    def step(self, now: float, today: Seconds) -> Step:
        """Let go whose turn it is, as far as there is room, and hold that for them."""
        step = Step(open=[pod for pod in self._gated.values() if not self._is_to_wait(pod)])
        step.given_up = self.gangs.end(now, self._hold_s)
        self._take_back(now)
        for gathered in self.gangs.changed(now):
            if len(gathered.ready) < gathered.missing:
                step.gathering.extend((pod, str(gathered.turn)) for pod in gathered.ready)
        step.more = self._go_through(step, now, today)
        return step

    def _go_through(self, step: Step, now: float, today: Seconds) -> bool:
        """From where the last step stopped; whether there is more to look at."""
        this = self._round
        this.kept = [name for name in this.kept if name in self._books.cluster.index]
        step.wanting, most = this.wanting, len(this.refused) + MOST_REFUSED
        for unit in self._in_order(now, today):
            if unit.kind in this.refused:  # little frees up during a round, and the next comes soon
                continue
            overdue = not this.kept and is_overdue(unit.job, today)
            why_not = self._hold(unit, now, this.kept, overdue=overdue)
            if why_not is None:
                step.released.append(unit)
            else:
                this.refused.add(unit.kind)
                if why_not.check == NO_ROOM and self._is_gated(unit) and len(step.wanting) < MOST_WANTING:
                    step.wanting.append(unit.waiters[0].pod)
                if overdue and why_not.check == NO_ROOM:
                    this.kept = self._nodes_to_keep(unit, now)
            if len(this.refused) >= most:
                return True
            if len(step.released) >= MOST_RELEASED:
                break
        self._round = _Round()
        return len(step.released) >= MOST_RELEASED

    def undo(self, unit: Unit) -> None:
        """The gate of one of them could not be taken away: all of them wait on."""
        for one in unit.waiters:
            self._released.discard(one.uid)
            if self._books.settled(one.uid) is None:
                self._books.release(one.uid)
        if unit.gang is not None:
            self.gangs.revoke(unit.gang)

    def send(self, pod: Pod) -> bool:
        """Let a pod go for which there is no room, since others may be evicted for it; whether it still waits here.

        Only kube-scheduler knows where else it could not be, so it has to ask first. Until the pod has a place it is
        still its turn: whatever becomes free is its own.
        """
        uid = pod.metadata.uid
        if self._gated.get(uid) is not pod or uid in self._released:
            return False
        self._released.add(uid)
        self._displacing.add(uid)
        return True

    def unsend(self, pod: Pod) -> None:
        """Its gate could not be taken away."""
        self._released.discard(pod.metadata.uid)
        self._displacing.discard(pod.metadata.uid)

    def is_displacing(self, pod: Pod) -> bool:
        """Whether it was sent and has no place yet."""
        return pod.metadata.uid in self._displacing and self._books.held(pod.metadata.uid) is None

    def _read(self, pod: Pod, uid: str) -> None:
        """Pods without GPUs are nobody's member, and have no turn."""
        try:
            gang = gang_of(pod)
            has_gpus = RECORD in pod.metadata.annotations
            if uid in self._books.waiting and (uid in self._gated or uid in self._displacing or gang is not None):
                asked = asked_of(pod, self._settings)
                has_gpus = asked.vendor is not None
                if has_gpus:
                    self._together.placer.ranker(pod)  # says itself when there is no such policy
                    submitted = _moment(pod.metadata.creation_timestamp)
                    waiter = Waiter(pod, asked, submitted, estimate_of(pod), attained_of(pod))
                    self._alone[uid] = self._unit((waiter,), None)
            if gang is not None and has_gpus:
                self.gangs.add(pod, gang)
        except InputError as error:  # it was understood when it came, so somebody has changed it: it waits
            self._alone[uid] = error

    def _is_to_wait(self, pod: Pod) -> bool:
        """Or is leaving anyway, or its gate is being taken away already."""
        uid = pod.metadata.uid
        if uid in self._released or pod.metadata.deletion_timestamp:
            return True
        return uid in self._alone and (uid in self.gangs or self._queue.keeps(pod.metadata.namespace))

    def _hold(self, unit: Unit, now: float, kept: list[str], *, overdue: bool) -> Reason | None:
        until = now + self._hold_s
        why_not = self._together.hold(unit.waiters, until, kept, overdue=overdue)
        if why_not is not None:
            return why_not
        members = {one.uid for one in unit.waiters}
        if unit.gang is not None:
            self.gangs.grant(unit.gang, members, until)
        elif self._is_gated(unit):
            self._given[unit.job.id] = inf
        self._released |= members & self._gated.keys()
        self._displacing -= members
        return None

    def _is_gated(self, unit: Unit) -> bool:
        """Whether it is a pod of its own that nobody has let go yet."""
        return unit.gang is None and unit.job.id in self._gated

    def _take_back(self, now: float) -> None:
        """The slots of pods for which kube-scheduler finds no node, by what we do not know of: others can use them."""
        for uid, until in list(self._given.items()):
            pod = self._books.waiting.get(uid)
            is_its = self._books.held(uid) is not None and not self._books.is_reserved(uid)
            if pod is None or not is_its or self._books.settled(uid) is not None:
                del self._given[uid]
            elif until <= now:
                self._books.release(uid)
                del self._given[uid]
            elif is_unschedulable(pod):
                self._given[uid] = min(until, now + UNFIT_S)

    def _nodes_to_keep(self, unit: Unit, now: float) -> list[str]:
        """For one that is overdue, unless it asks for more than there is: that is looked at only now and then."""
        if self._hopeless.get(unit.kind, now) > now:
            return []
        self._hopeless = {kind: until for kind, until in self._hopeless.items() if until > now}
        kept = self._together.nodes_to_keep(unit.waiters)
        if not kept:
            self._hopeless[unit.kind] = now + HOPELESS_S
        return kept

    def _in_order(self, now: float, today: Seconds) -> list[Unit]:
        return sorted(self._units(now), key=lambda unit: self._turn(unit, today))

    def _turn(self, unit: Unit, today: Seconds) -> tuple[int, bool, float, Seconds, str]:
        """As the core has it. Where its order lets a job wait for ever for better ones, overdue ones are first. Of
        equals the first that came: names of pods say nothing, unlike those of jobs elsewhere."""
        job, (priority, place) = unit.job, unit.turn
        late = self._order.overdue is None and is_overdue(job, today)
        return priority, not late, job.submitted if late else place, job.submitted, job.id

    def _units(self, now: float) -> Iterator[Unit]:
        in_gangs: set[str] = set()
        for gathered in self.gangs.all():
            if not gathered.missing:
                continue
            uids = [pod.metadata.uid for pod in gathered.ready]
            in_gangs.update(uids)  # also those beyond its size: they come when it is whole
            found = map(self._alone.get, uids[: gathered.missing])
            waiters = tuple(one.waiters[0] for one in found if isinstance(one, Unit))
            if len(waiters) == gathered.missing and self.gangs.is_waiting(gathered.gang, now):
                yield self._unit(waiters, gathered.gang)
        sent = {uid for uid in self._displacing if self._books.held(uid) is None}
        for uid in (self._gated.keys() | sent) - self._released - in_gangs:
            unit = self._alone.get(uid)
            if isinstance(unit, Unit) and self._is_ready(unit.waiters[0].pod):
                yield unit

    def _is_ready(self, pod: Pod) -> bool:
        return self._is_to_wait(pod) and not gates_of_others(pod.spec.scheduling_gates)

    def _unit(self, waiters: tuple[Waiter, ...], gang: Gang | None) -> Unit:
        """A gang came when its first pod did, and takes as long as the longest of them."""
        first = kinds_of(waiters)[0][0]
        estimates = [one.estimate for one in waiters if one.estimate is not None]
        job = Job(
            id=first.uid,
            demand=first.asked.demand,
            replicas=len(waiters),
            submitted=min(one.submitted for one in waiters),
            estimate=max(estimates) if len(estimates) == len(waiters) else None,
            attained=Seconds(sum(one.attained * one.asked.demand.steady.gpus for one in waiters)),
        )
        asks = first.pod.metadata.namespace, tuple(one.kind for one in waiters)  # quotas are by namespace
        kind = self._kinds.setdefault(asks, Kind())
        return Unit(waiters, gang, job, kind, turn_of(self._order, job, job.submitted))


def _moment(text: str | None) -> Seconds:
    """Seconds since 1970; 0 of a time that is not understood."""
    try:
        return Seconds(datetime.fromisoformat(text or "").timestamp())
    except ValueError:
        return Seconds(0.0)
