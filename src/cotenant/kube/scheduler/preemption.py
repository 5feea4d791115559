# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Preemption: if a pod of higher priority fits nowhere, the pods of lower priority whose loss does least harm leave.

kube-scheduler cannot do this, because it does not know what is missing on our GPUs. It tells us in `filter` on which
nodes the pod could be, and only those are searched. Victims are evicted through the API server, so disruption budgets
are kept, and their slot is reserved for the pod until they have ended and it is bound. A reservation is in no object: a
scheduler that restarts finds the pods that are leaving, counts on them, and evicts no pod twice.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from cotenant.core.queueing.eviction import Stake, harm_of
from cotenant.kube.api.client import Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.events import PREEMPTED, PREEMPTING, PREEMPTION_REFUSED
from cotenant.kube.scheduler.lease import NOT_LEADING
from cotenant.kube.scheduler.naming import PodName, visible_to
from cotenant.kube.scheduler.preemption_search import Candidate, Evictable, Victims, best_candidate, priority_of
from cotenant.kube.scheduler.retry import wait_for_change
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.table import PREEMPTIONS, STEPS

TICK_S = 1.0
SWEEP_S = 60.0
"""between two clean-ups of what is remembered if no pod waits for a slot"""
SETTLE_S = 1.0
"""from a refusal to the first search: kube-scheduler may evict pods itself, for a resource that it counts"""
AGAIN_S, LONGEST_AGAIN_S = 5.0, 60.0
"""between two searches for one pod that found nothing, doubled after each"""
LASTING_S = 600.0
"""how long a refusal is remembered; kube-scheduler asks again within 5 minutes"""
UNKNOWN_S = 10.0
"""the same for a pod that our watch has not shown yet"""
SPARED_S = 30.0
"""until an eviction that a disruption budget forbade is tried again"""
RESERVED_S = 60.0
"""how long a slot stays reserved unless that is renewed, and how long the pod may take to be bound once it fits"""
MOST_REFUSALS = 32
"""refused pods that are remembered: those of the highest priority"""
MOST_EXPLAINED = 256
"""nodes that are searched for an explanation"""
SHARE = 5
"""pause after each step of the search, as a multiple of the time the step took"""
MOST_PRIORITY = 1 << 31
"""above the priority of any pod"""
GONE = (404, 409)
"""the pod is gone, or it is another pod of the same name"""


@dataclass(slots=True)
class _Refusal:
    """A pod that fits nowhere, and when to search for victims."""

    at: float
    due: float
    pause_s: float
    nodes: frozenset[str] = frozenset()
    """nodes that kube-scheduler found feasible"""
    required: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """by node, the victims that kube-scheduler needs for what it counts: share slots, CPU"""

    def postpone(self, now: float) -> None:
        """Search again after a pause, which doubles each time."""
        self.due, self.pause_s = now + self.pause_s, min(LONGEST_AGAIN_S, 2 * self.pause_s)


@dataclass(slots=True)
class _Reservation:
    """A slot that victims are leaving for a pod."""

    pod: Pod
    candidate: Candidate
    awaited: tuple[str, ...]
    """UIDs of all pods that are to leave the node, for whatever reason"""
    fits_since: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The pods that must leave for a pod."""

    node: str
    pods: tuple[str, ...]
    """those of the pod's own namespace as namespace/name, and how many others there are"""
    under_way: bool
    """whether the slot is reserved and they are leaving; otherwise this is what would have to be done"""


class Preemptor:
    """Takes in refusals and pods; `run` evicts victims."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._settings = shared, shared.settings.scheduler.preemption
        self.tick_s, self.settle_s, self.again_s, self.sweep_s = TICK_S, SETTLE_S, AGAIN_S, SWEEP_S
        self.passes = 0
        """how many passes of `run` have ended"""
        self._victims = Victims(self._settings)
        self._refusals: dict[str, _Refusal] = {}
        self._reservations: dict[str, _Reservation] = {}
        self._wake = asyncio.Event()
        self._budget, self._budget_at = float(self._settings.most_per_minute), shared.clock()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        self._victims.pod_changed(old, new, self._shared.clock())

    def forget(self) -> None:
        """Forget refusals and reservations, because another scheduler may have decided otherwise since.

        kube-scheduler asks again about all pods that wait.
        """
        self._refusals.clear()
        for uid in list(self._reservations):
            self._cancel(uid)

    def on_refused(self, pod: Pod, nodes: frozenset[str]) -> None:
        """`filter` refused a pod on all these nodes, which kube-scheduler found feasible."""
        if self._may_preempt(pod):
            refusal = self._remember(pod)
            refusal.nodes, refusal.required = nodes, {}

    def take_over_evictions(self, pod: Pod, victims: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """The nodes on which kube-scheduler must not evict these victims because this scheduler does it.

        If all victims have GPUs, most likely share slots are missing, and perhaps more that kube-scheduler does not
        count. Only one of the two schedulers evicts, never both.
        """
        if pod.metadata.uid in self._reservations:
            return frozenset(victims)
        if not self._may_preempt(pod):
            return frozenset()
        ours = {node: uids for node, uids in victims.items() if uids and uids <= self._victims.pods.keys()}
        if len(ours) < len(victims):
            self._refusals.pop(pod.metadata.uid, None)
            return frozenset()
        refusal = self._remember(pod)
        refusal.required = ours
        return frozenset(ours)

    def _remember(self, pod: Pod) -> _Refusal:
        """The refusal of a pod, without what belongs to an earlier attempt of kube-scheduler to place it."""
        uid, now = pod.metadata.uid, self._shared.clock()
        refusal = self._refusals.setdefault(uid, _Refusal(now, now + self.settle_s, self.again_s))
        if now > refusal.at + SETTLE_S:
            refusal.nodes, refusal.required = frozenset(), {}
        refusal.at = now
        if len(self._refusals) > MOST_REFUSALS:
            del self._refusals[max(self._refusals, key=self._order)]
        self._wake.set()
        return refusal

    async def plan(self, pod: Pod) -> Plan | None:
        """The pods that leave for a waiting pod, or would have to."""
        state = self._shared.state
        kept = self._reservations.get(pod.metadata.uid)
        if kept is not None:
            there = state.allocations_on(kept.candidate.node)
            return Plan(kept.candidate.node, self._names(pod, [uid for uid in kept.awaited if uid in there]), True)
        if not self._is_waiting(pod) or not self._may_preempt(pod):
            return None
        offered = self._shared.offers.of(pod)
        nodes = frozenset(state.vendors) if offered is None else offered
        refusal = self._refusals.get(pod.metadata.uid) or _Refusal(0.0, 0.0, 0.0, nodes)
        best = await self._search(pod, refusal, MOST_EXPLAINED)
        return None if best is None else Plan(best.node, self._names(pod, best.victims), False)

    async def can_preempt(self, pod: Pod) -> bool:
        """Whether a queued pod could have a slot if victims were evicted."""
        return await self.plan(pod) is not None

    def ready(self) -> list[Pod]:
        """The pods whose slots are reserved and free: all victims have ended."""
        state, placer = self._shared.state, self._shared.placer
        waiting = [(state.waiting.get(uid), kept.candidate.node) for uid, kept in self._reservations.items()]
        return [
            pod
            for pod, node in waiting
            if pod is not None and self._is_waiting(pod) and placer.would_fit(pod, frozenset((node,)))
        ]

    async def run(self) -> NoReturn:
        """Evict until cancelled."""
        while True:
            if self._refusals or self._reservations:
                self._wake.set()
            await wait_for_change(self._wake, self.tick_s, self.sweep_s)
            self._wake.clear()
            self._victims.forget(self._shared.clock())
            if self._shared.unready_reason() is None:
                self.renew_reservations()
                await self.preempt_next()
            self.passes += 1

    def renew_reservations(self) -> None:
        """Keep a slot reserved while its victims leave and until the pod is bound, but not forever."""
        state, now = self._shared.state, self._shared.clock()
        for uid, kept in list(self._reservations.items()):
            if uid not in state.waiting or (state.node_of(uid) is None and not self._is_needed(kept, now)):
                self._cancel(uid)
            elif not state.held(uid) or state.is_reserved(uid):
                state.hold(kept.candidate.allocation, now + RESERVED_S, reserved=True)

    def _is_needed(self, kept: _Reservation, now: float) -> bool:
        node = kept.candidate.node
        there = self._shared.state.allocations_on(node)
        if any(uid in there and self._victims.is_leaving(uid, now) for uid in kept.awaited):
            return True
        kept.fits_since = now if kept.fits_since is None else kept.fits_since
        return self._shared.placer.would_fit(kept.pod, frozenset((node,))) and now < kept.fits_since + RESERVED_S

    async def preempt_next(self) -> None:
        """Evict for one pod: the one of the highest priority whose search is due."""
        waiting, now = self._shared.state.waiting, self._shared.clock()
        for uid, refusal in list(self._refusals.items()):
            if now > refusal.at + (LASTING_S if uid in waiting else UNKNOWN_S):
                del self._refusals[uid]
        pending = [uid for uid in self._refusals if uid in waiting and uid not in self._reservations]
        due = [uid for uid in pending if self._refusals[uid].due <= now]
        if due:
            uid = min(due, key=self._order)
            await self._preempt(waiting[uid], self._refusals[uid])

    # The search pauses, so the cluster may have changed when it ends. The invariants:
    # - The decision is made again without an await (`_search_node`) before the dry run, and once more before the slot
    #   is reserved. Between that last decision and the reservation there is no await, so no other pod gets the slot.
    # - The slot is reserved before the first eviction. So a pod that is evicted leaves its slot to this pod.
    # - All evictions are tried as a dry run first: if a disruption budget forbids one of them, no victim is evicted.
    # - If an eviction fails after all, the reservation is dropped. Victims that leave already count in the next search.
    async def _preempt(self, pod: Pod, refusal: _Refusal) -> None:
        shared = self._shared
        guard = shared.lead.guard()
        with shared.counts.timed(STEPS, "victims"):
            found = await self._search(pod, refusal)
        best = None if found is None else self._search_node(pod, refusal, found.node)
        if best is None or not (best.victims or self._is_left_by_lower(pod, best.node)):
            refusal.postpone(shared.clock())
            return
        if not self._is_within_budget(len(best.victims)):
            most = self._settings.most_per_minute
            text = f"paused: the limit of {most} eviction{'s' * (most > 1)} per minute is reached"
            shared.errors.report("preemption", text)
            refusal.due = shared.clock() + self.again_s
            return
        victims = [self._victims.pods[uid] for uid in best.victims]
        if not await self._evict(pod, victims, guard, dry_run=True):
            return
        if self._search_node(pod, refusal, best.node) == best:
            self._reserve(pod, best)
            if not await self._evict(pod, victims, guard):
                self._cancel(pod.metadata.uid)

    async def _evict(self, pod: Pod, victims: Sequence[Pod], guard: Guard, *, dry_run: bool = False) -> bool:
        """Evict all victims, or only ask whether that is possible; False if one of them cannot be evicted."""
        shared = self._shared
        for victim in victims:
            about, gone = victim.metadata, False
            if shared.unready_reason() is not None or not self._is_waiting(pod):
                return False
            try:
                await shared.client.evict(
                    about.name, namespace=about.namespace, uid=about.uid, dry_run=dry_run, guard=guard
                )
            except ApiError as error:
                if error.reason == NOT_LEADING:
                    return False
                gone = error.status in GONE
                if not gone:
                    self._report_refusal(pod, victim, error)
                    return False
                self._victims.mark_leaving(about.uid, shared.clock())  # the watch will show it
            if not dry_run and not gone:
                self._report_eviction(pod, victim)
        return True

    def _report_refusal(self, pod: Pod, victim: Pod, error: ApiError) -> None:
        shared = self._shared
        self._victims.spare(victim.metadata.uid, shared.clock() + SPARED_S)
        # The server's message names the victim and its disruption budget.
        is_own = victim.metadata.namespace == pod.metadata.namespace
        why = error.summary if is_own else "a disruption budget forbids it" if error.status == 429 else "it failed"
        text = f"cannot evict {_describe([victim], pod)}: {why}; looking for other victims"
        shared.events.record(pod, PREEMPTION_REFUSED, text, warning=True)
        if error.status != 429:
            shared.errors.report("preemption", str(error))

    def _report_eviction(self, pod: Pod, victim: Pod) -> None:
        shared = self._shared
        self._victims.mark_leaving(victim.metadata.uid, shared.clock())
        self._budget -= 1
        shared.counts.add(PREEMPTIONS)
        mine, its = priority_of(pod), priority_of(victim)
        where = f" from node {victim.spec.node_name}" if victim.spec.node_name else ""
        text = f"evicted{where} for a pod of priority {mine}; its own is {its}"
        shared.events.record(victim, PREEMPTED, text, warning=True)
        shared.log(f"pod {'/'.join(_name(victim))} {text}: {'/'.join(_name(pod))}")

    def _reserve(self, pod: Pod, candidate: Candidate) -> None:
        """Reserve a slot. Reservations of pods of lower priority on the node are dropped and searched again."""
        state, now, node = self._shared.state, self._shared.clock(), candidate.node
        for other, kept in list(self._reservations.items()):
            if kept.candidate.node == node and priority_of(kept.pod) < priority_of(pod):
                self._cancel(other)
        there = state.allocations_on(node)
        awaited = (*candidate.victims, *(one for one in there if self._victims.is_leaving(one, now)))
        state.hold(candidate.allocation, now + RESERVED_S, reserved=True)
        self._reservations[pod.metadata.uid] = _Reservation(pod, candidate, awaited)
        victims = [self._victims.pods[one] for one in candidate.victims]
        if victims:
            text = f"evicts {_describe(victims, pod)} from node {node}; its slot is reserved until they have ended"
            self._shared.events.record(pod, PREEMPTING, text)

    def _cancel(self, uid: str) -> None:
        state = self._shared.state
        if self._reservations.pop(uid, None) is not None and state.is_reserved(uid):
            state.release(uid)

    async def _search(self, pod: Pod, refusal: _Refusal, most: int | None = None) -> Candidate | None:
        """The candidate that does least harm. Pauses after each step, so that other work goes first."""
        shared = self._shared
        if shared.gangs.grant_of(pod.metadata.uid) is not None:  # pods of a gang start together: never evict for one
            return None
        found: list[Candidate | None] = []
        began = shared.clock()
        evictable = self._evictable(pod, refusal.required)
        for candidate in shared.placer.preemption_candidates(pod, refusal.nodes, evictable, most):
            found.append(candidate)
            await asyncio.sleep((shared.clock() - began) * SHARE)
            began = shared.clock()
        return self._best(found)

    def _search_node(self, pod: Pod, refusal: _Refusal, node: str) -> Candidate | None:
        """The same on one node, without an await; None if the pod no longer waits."""
        if not self._is_waiting(pod):
            return None
        evictable = self._evictable(pod, {name: uids for name, uids in refusal.required.items() if name == node})
        return self._best(self._shared.placer.preemption_candidates(pod, refusal.nodes & {node}, evictable))

    def _is_waiting(self, pod: Pod) -> bool:
        state, uid = self._shared.state, pod.metadata.uid
        return uid in state.waiting and state.node_of(uid) is None

    def _evictable(self, pod: Pod, required: Mapping[str, frozenset[str]]) -> Evictable:
        """The tenants that leave, or may be evicted, for this pod."""
        mine, now = priority_of(pod), self._shared.clock()

        def is_leaving(uid: str) -> bool:
            kept = self._reservations.get(uid)
            return self._victims.is_leaving(uid, now) or (kept is not None and priority_of(kept.pod) < mine)

        # What pods have by one claim is free after the last of them, so they leave together or not at all.
        def all_leave(uid: str) -> bool:
            return all(map(is_leaving, self._shared.state.needed_by(uid)))

        def stake_of(uid: str) -> Stake | None:
            stakes = [
                self._victims.stake_of(one, mine, now)
                for one in self._shared.state.needed_by(uid)
                if not is_leaving(one)
            ]
            known = [stake for stake in stakes if stake is not None]
            if not known or len(known) < len(stakes):
                return None
            return Stake(max(stake.priority for stake in known), min(stake.since for stake in known))

        return Evictable(all_leave, stake_of, required)

    def _best(self, candidates: Iterable[Candidate | None]) -> Candidate | None:
        """The candidate that does least harm, with all pods that have to leave for its slot."""
        return best_candidate(None if one is None else self._with_sharers(one) for one in candidates)

    def _with_sharers(self, candidate: Candidate) -> Candidate:
        now, state = self._shared.clock(), self._shared.state
        needed = {one for uid in candidate.victims for one in state.needed_by(uid)}
        # A pod that waits with a reservation may share a claim, too: it has nothing yet, and loses the reservation.
        there = needed & self._victims.pods.keys()
        victims = tuple(sorted(uid for uid in there if not self._victims.is_leaving(uid, now)))
        if victims == candidate.victims:
            return candidate
        stakes = (self._victims.stake_of(uid, MOST_PRIORITY, now) for uid in victims)
        harm = harm_of(stake for stake in stakes if stake is not None)
        return replace(candidate, victims=victims, harm=harm)

    def _is_left_by_lower(self, pod: Pod, node: str) -> bool:
        """Whether a pod that this one could have evicted leaves: then the slot is its own, else it is the next pod's in
        the queue."""
        is_leaving = self._evictable(pod, {}).is_leaving
        leaving = (uid for uid in self._shared.state.allocations_on(node) if is_leaving(uid))
        pods = (self._victims.pods.get(uid) for uid in leaving)
        return any(one is not None and priority_of(one) < priority_of(pod) for one in pods)

    def _may_preempt(self, pod: Pod) -> bool:
        wanted = self._settings.enabled and pod.spec.preemption_policy != "Never"
        return wanted and self._victims.any_below(priority_of(pod))

    def _is_within_budget(self, count: int) -> bool:
        """Whether so many pods may be evicted now. The budget refills evenly, up to the limit per minute."""
        now, most = self._shared.clock(), self._settings.most_per_minute
        self._budget = min(most, self._budget + (now - self._budget_at) * most / 60)
        self._budget_at = now
        return self._budget >= min(count, most)

    def _order(self, uid: str) -> tuple[int, str, str]:
        """Sort key: the highest priority first, then the oldest."""
        pod = self._shared.state.waiting.get(uid, Pod())
        return -priority_of(pod), pod.metadata.creation_timestamp or "", uid

    def _names(self, pod: Pod, uids: Sequence[str]) -> tuple[str, ...]:
        pods = [self._victims.pods.get(uid) for uid in uids]
        own, others = visible_to(pod.metadata.namespace, [None if one is None else _name(one) for one in pods])
        return (*(f"{pod.metadata.namespace}/{name}" for name in own), *others)


def _describe(victims: Sequence[Pod], pod: Pod) -> str:
    own, others = visible_to(pod.metadata.namespace, [_name(one) for one in victims])
    return ", ".join((*own, *others))


def _name(pod: Pod) -> PodName:
    return pod.metadata.namespace, pod.metadata.name
