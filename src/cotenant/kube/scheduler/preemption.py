# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Preemption: where a pod of higher priority fits nowhere, those of lower priority leave whose leaving harms least.

kube-scheduler cannot do it: it knows nothing of what is missing on our cards. It tells us in `filter` on which nodes a
pod could be, and only those are looked at. Whoever has to leave is evicted through the API server, so budgets are kept,
and their place is reserved for the pod until they have really ended and it is bound. A reservation is in no object; a
scheduler that starts anew finds who is leaving, counts on it, and evicts nobody twice.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from cotenant.kube.api.client import Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.events import PREEMPTED, PREEMPTING, PREEMPTION_REFUSED, News
from cotenant.kube.scheduler.lease import NOT_LEADING, Alone, Lead
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preemption_search import Movable, Room, best_of
from cotenant.kube.scheduler.retry import stirred
from cotenant.kube.scheduler.victims import Victims, priority_of
from cotenant.kube.settings import PreemptionPart
from cotenant.kube.state.books import Books

TICK_S = 1.0
SWEEP_S = 60.0
"""also where nobody waits for a place, it is forgotten who has left"""
SETTLE_S = 1.0
"""from a refusal to the first look: kube-scheduler may find somebody to evict itself, for what it knows of"""
AGAIN_S, LONGEST_AGAIN_S = 5.0, 60.0
"""from one look in vain to the next for one pod, twice as long after each"""
LASTING_S = 600.0
"""a refusal counts no longer; kube-scheduler asks again within 5 minutes"""
UNKNOWN_S = 10.0
"""the same, of a pod that we do not know of: our watch may be slower"""
SPARED_S = 30.0
"""until it is tried again to evict a pod whose budget forbade it"""
RESERVED_S = 60.0
"""for which a place is reserved, unless it is said again; and in which the pod must be bound once it fits"""
MOST_WISHES = 32
"""pods for which it is remembered where they could be, those of the highest priority"""
MOST_EXPLAINED = 256
"""nodes that are looked at to say what would have to go"""
SHARE = 5
"""of its time, the looking leaves so many parts to others for each that it takes"""
GONE = (404, 409)
"""the pod, or it is another of its name"""


@dataclass(slots=True)
class _Wish:
    """A pod that fits nowhere."""

    told: float
    due: float
    pause_s: float
    names: frozenset[str] = frozenset()
    """of the nodes that would do for it otherwise"""
    musts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """who would have to leave other nodes for what kube-scheduler counts: slots, CPU"""

    def later(self, now: float) -> None:
        self.due, self.pause_s = now + self.pause_s, min(LONGEST_AGAIN_S, 2 * self.pause_s)


@dataclass(slots=True)
class _Reservation:
    """A place that others are leaving for a pod."""

    pod: Pod
    room: Room
    awaited: tuple[str, ...]
    """who is to leave the node, whoever asked them to"""
    fits_since: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Who has to go for a pod."""

    node: str
    pods: tuple[str, ...]
    """as namespace/name"""
    under_way: bool
    """whether its place is reserved and they are leaving; else that is what would have to be done"""


class Preemptor:
    """Is told of refusals and of pods; `run` acts."""

    def __init__(
        self,
        client: Client,
        books: Books,
        placer: Placer,
        news: News,
        error_log: ErrorLog,
        settings: PreemptionPart,
        *,
        lead: Lead = Alone(),  # noqa: B008 -- it has no state
        doubt: Callable[[], str | None] = lambda: None,
        starts_together: Callable[[Pod], bool] = lambda pod: False,
        say: Callable[[str], object] = to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`starts_together` says of which pods none starts without the others: nobody is evicted for one of them."""
        self._client, self._books, self._placer, self._news = client, books, placer, news
        self._error_log, self._settings, self._say, self._clock = error_log, settings, say, clock
        self._lead, self._books_doubt, self._starts_together = lead, doubt, starts_together
        self.tick_s, self.settle_s, self.again_s, self.sweep_s = TICK_S, SETTLE_S, AGAIN_S, SWEEP_S
        self._victims = Victims(settings)
        self._wishes: dict[str, _Wish] = {}
        self._reserved: dict[str, _Reservation] = {}
        self._some = asyncio.Event()
        self._allowed, self._counted = float(settings.most_per_minute), clock()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """After the books were told."""
        self._victims.pod_changed(old, new, self._clock())

    def forget(self) -> None:
        """Who waits for what, and for whom something is reserved: another scheduler may have decided otherwise since.

        kube-scheduler asks again about all pods that wait.
        """
        self._wishes.clear()
        for uid in list(self._reserved):
            self._drop(uid)

    def refused(self, pod: Pod, names: frozenset[str]) -> None:
        """kube-scheduler was told that none of these nodes will do, which would otherwise."""
        if self._may_preempt(pod):
            wish = self._wish(pod)
            wish.names, wish.musts = names, {}

    def would_evict(self, pod: Pod, victims: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """kube-scheduler would evict these from these nodes; on which of them it is to leave that to us.

        Where all of them have GPUs, most likely slots are missing, and perhaps more than it knows of.
        """
        if pod.metadata.uid in self._reserved:
            return frozenset(victims)
        if not self._may_preempt(pod):
            return frozenset()
        ours = {node: uids for node, uids in victims.items() if uids and uids <= self._victims.pods.keys()}
        if len(ours) < len(victims):  # one of us evicts, not both
            self._wishes.pop(pod.metadata.uid, None)
            return frozenset()
        wish = self._wish(pod)
        wish.musts = ours
        return frozenset(ours)

    def _wish(self, pod: Pod) -> _Wish:
        """What is remembered of a pod, of the same attempt to place it."""
        uid, now = pod.metadata.uid, self._clock()
        wish = self._wishes.setdefault(uid, _Wish(now, now + self.settle_s, self.again_s))
        if now > wish.told + SETTLE_S:
            wish.names, wish.musts = frozenset(), {}
        wish.told = now
        if len(self._wishes) > MOST_WISHES:
            del self._wishes[max(self._wishes, key=self._turn)]
        self._some.set()
        return wish

    async def plan(self, pod: Pod) -> Plan | None:
        """Who leaves for a waiting pod, or would have to."""
        kept = self._reserved.get(pod.metadata.uid)
        if kept is not None:
            there = self._books.seats_on(kept.room.node)
            return Plan(kept.room.node, self._names([uid for uid in kept.awaited if uid in there]), True)
        if not self._is_waiting(pod) or not self._may_preempt(pod):
            return None
        wish = self._wishes.get(pod.metadata.uid)
        room = await self._best(pod, wish or _Wish(0.0, 0.0, 0.0, frozenset(self._books.vendors)), MOST_EXPLAINED)
        return None if room is None else Plan(room.node, self._names(room.victims), False)

    async def would_help(self, pod: Pod) -> bool:
        """Whether a pod that waits for its turn could have a place if others left."""
        return await self.plan(pod) is not None

    async def run(self) -> NoReturn:
        """Make room until cancelled."""
        while True:
            if self._wishes or self._reserved:
                self._some.set()
            await stirred(self._some, self.tick_s, self.sweep_s)
            self._some.clear()
            self._victims.forget(self._clock())
            if self._doubt() is None:
                self.tend()
                await self.look()

    def _doubt(self) -> str | None:
        return self._books_doubt() or self._lead.doubt()

    def tend(self) -> None:
        """What is reserved stays so while those leave who are to, and until the pod is bound; not for ever."""
        now = self._clock()
        for uid, kept in list(self._reserved.items()):
            if uid not in self._books.waiting or (self._books.settled(uid) is None and not self._goes_on(kept, now)):
                self._drop(uid)
            elif not self._books.held(uid) or self._books.is_reserved(uid):
                self._books.keep(kept.room.seat, now + RESERVED_S, reserved=True)

    def _goes_on(self, kept: _Reservation, now: float) -> bool:
        node = kept.room.node
        there = self._books.seats_on(node)
        if any(uid in there and self._victims.leaves(uid, now) for uid in kept.awaited):
            return True
        kept.fits_since = now if kept.fits_since is None else kept.fits_since
        return self._placer.would_fit(kept.pod, frozenset((node,))) and now < kept.fits_since + RESERVED_S

    async def look(self) -> None:
        """Make room for one pod, the one of the highest priority that has not been looked at for a while."""
        now = self._clock()
        for uid, wish in list(self._wishes.items()):
            if now > wish.told + (LASTING_S if uid in self._books.waiting else UNKNOWN_S):
                del self._wishes[uid]
        waiting = [uid for uid in self._wishes if uid in self._books.waiting and uid not in self._reserved]
        due = [uid for uid in waiting if self._wishes[uid].due <= now]
        if due:
            uid = min(due, key=self._turn)
            await self._make_room(self._books.waiting[uid], self._wishes[uid])

    async def _make_room(self, pod: Pod, wish: _Wish) -> None:
        guard = self._lead.guard()
        found = await self._best(pod, wish)
        # Others went first meanwhile: what counts is what can be done now, without a pause until it is reserved.
        room = None if found is None else self._best_now(pod, wish, found.node)
        if room is None or not (room.victims or self._is_left_by_lower(pod, room.node)):
            wish.later(self._clock())
            return
        if not self._may_evict(len(room.victims)):
            self._error_log.report("preemption", f"{self._settings.most_per_minute} pods were evicted in a minute")
            wish.due = self._clock() + self.again_s
            return
        victims = [self._victims.pods[uid] for uid in room.victims]
        if not await self._go(pod, victims, guard, dry_run=True):
            return
        if self._best_now(pod, wish, room.node) == room:
            self._reserve(pod, room)
            if not await self._go(pod, victims, guard):
                self._drop(pod.metadata.uid)  # those who leave already are counted on by the next choice

    async def _go(self, pod: Pod, victims: Sequence[Pod], guard: Guard, *, dry_run: bool = False) -> bool:
        """Whether all of them may be evicted, and are unless it was only to be asked."""
        for victim in victims:
            about, gone = victim.metadata, False
            if self._doubt() is not None or not self._is_waiting(pod):
                return False
            try:
                await self._client.evict(
                    about.name, namespace=about.namespace, uid=about.uid, dry_run=dry_run, guard=guard
                )
            except ApiError as error:
                if error.reason == NOT_LEADING:
                    return False
                gone = error.status in GONE
                if not gone:
                    self._refuse(pod, victim, error)
                    return False
                self._victims.leaves_from(about.uid, self._clock())  # we shall hear of it
            if not dry_run and not gone:
                self._evicted(pod, victim)
        return True

    def _refuse(self, pod: Pod, victim: Pod, error: ApiError) -> None:
        self._victims.spare(victim.metadata.uid, self._clock() + SPARED_S)
        who = self._told([victim], pod)
        self._news.tell(
            pod, PREEMPTION_REFUSED, f"cannot evict {who}: {error.summary}; others are looked for", warning=True
        )
        if error.status != 429:
            self._error_log.report("preemption", str(error))

    def _evicted(self, pod: Pod, victim: Pod) -> None:
        self._victims.leaves_from(victim.metadata.uid, self._clock())
        self._allowed -= 1
        mine, its = priority_of(pod), priority_of(victim)
        text = f"evicted from node {victim.spec.node_name} for a pod of priority {mine}; its own is {its}"
        self._news.tell(victim, PREEMPTED, text, warning=True)
        self._say(f"pod {_name(victim)} {text}: {_name(pod)}")

    def _reserve(self, pod: Pod, room: Room) -> None:
        """Instead of what was reserved there for less important pods, which are looked at anew."""
        uid, now = pod.metadata.uid, self._clock()
        for other, kept in list(self._reserved.items()):
            if kept.room.node == room.node and priority_of(kept.pod) < priority_of(pod):
                self._drop(other)
        there = self._books.seats_on(room.node)
        awaited = (*room.victims, *(one for one in there if self._victims.leaves(one, now)))
        self._books.keep(room.seat, now + RESERVED_S, reserved=True)
        self._reserved[uid] = _Reservation(pod, room, awaited)
        victims = [self._victims.pods[one] for one in room.victims]
        if victims:
            text = (
                f"evicts {self._told(victims, pod)} from node {room.node}; its place is reserved until they have ended"
            )
            self._news.tell(pod, PREEMPTING, text)

    def _drop(self, uid: str) -> None:
        if self._reserved.pop(uid, None) is not None and self._books.is_reserved(uid):
            self._books.release(uid)

    async def _best(self, pod: Pod, wish: _Wish, most: int | None = None) -> Room | None:
        """The room that harms least, looked for in the time that others leave."""
        if self._starts_together(pod):
            return None
        found: list[Room | None] = []
        began = self._clock()
        for room in self._placer.rooms(pod, wish.names, self._movable(pod, wish.musts), most):
            found.append(room)
            await asyncio.sleep((self._clock() - began) * SHARE)
            began = self._clock()
        return best_of(found)

    def _best_now(self, pod: Pod, wish: _Wish, node: str) -> Room | None:
        """The same at once, on one node, where the pod still waits."""
        if not self._is_waiting(pod):
            return None
        musts = {name: uids for name, uids in wish.musts.items() if name == node}
        return best_of(self._placer.rooms(pod, wish.names & {node}, self._movable(pod, musts)))

    def _is_waiting(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._books.waiting and self._books.settled(pod.metadata.uid) is None

    def _movable(self, pod: Pod, musts: Mapping[str, frozenset[str]]) -> Movable:
        """Who leaves, and who may be evicted, for this pod."""
        mine, now = priority_of(pod), self._clock()

        def leaves(uid: str) -> bool:
            kept = self._reserved.get(uid)
            return self._victims.leaves(uid, now) or (kept is not None and priority_of(kept.pod) < mine)

        return Movable(leaves, lambda uid: self._victims.stake_of(uid, mine, now), musts)

    def _is_left_by_lower(self, pod: Pod, node: str) -> bool:
        """Whether somebody leaves whom it could have displaced: then the place is its own, else just the next one's."""
        leaves = self._movable(pod, {}).leaves
        known = (self._victims.pods.get(uid) for uid in self._books.seats_on(node) if leaves(uid))
        return any(one is not None and priority_of(one) < priority_of(pod) for one in known)

    def _may_preempt(self, pod: Pod) -> bool:
        wanted = self._settings.enabled and pod.spec.preemption_policy != "Never"
        return wanted and self._victims.any_below(priority_of(pod))

    def _may_evict(self, count: int) -> bool:
        """Whether so many may be evicted now; more than the limit at once, where nobody was for a while."""
        now, most = self._clock(), self._settings.most_per_minute
        self._allowed = min(most, self._allowed + (now - self._counted) * most / 60)
        self._counted = now
        return self._allowed >= min(count, most)

    def _turn(self, uid: str) -> tuple[int, str, str]:
        """The most important first, then the oldest."""
        pod = self._books.waiting.get(uid, Pod())
        return -priority_of(pod), pod.metadata.creation_timestamp or "", uid

    def _names(self, uids: Sequence[str]) -> tuple[str, ...]:
        return tuple(_name(self._victims.pods[uid]) if uid in self._victims.pods else uid for uid in uids)

    def _told(self, victims: Sequence[Pod], pod: Pod) -> str:
        """For the owner of a pod, who may not know other namespaces."""
        own = [one.metadata.name for one in victims if one.metadata.namespace == pod.metadata.namespace]
        others = len(victims) - len(own)
        return ", ".join(own + ([f"{others} pod{'s' * (others > 1)} of other namespaces"] if others else []))


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
