# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Releases pods from the queue, and binds the pods of a gang at one moment or not at all.

A slot is held before a scheduling gate is removed. If the removal fails, the slot is released, and the pod waits again.
"""

import asyncio
import time
from typing import NoReturn

from cotenant.core.units import Seconds
from cotenant.kube.api.client import Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.queueing import HOLD, gate_patch, is_gated
from cotenant.kube.scheduler.allocator import ClaimAllocator
from cotenant.kube.scheduler.events import GANG_GIVEN_UP, GANG_WAITS, RELEASED
from cotenant.kube.scheduler.preemption import Preemptor
from cotenant.kube.scheduler.queue import Queue
from cotenant.kube.scheduler.queue_entry import Unit
from cotenant.kube.scheduler.queue_events import QueueEvents
from cotenant.kube.scheduler.retry import PAUSE_S, RETRIED, SHARE, wait_for_change
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.table import DECISIONS, STEPS

SWEEP_S = 5.0
"""between two passes through the queue if nothing changes: time alone makes pods overdue and ends holds"""
JOIN_S = 4.0
"""how long a bind waits for those of the other members of its gang; kube-scheduler gets an answer within 6 s"""
PREEMPT_S = 1.0
"""between two searches for a pod for which victims could be evicted"""
PREEMPTING_S = 15.0
"""how long no other pod is released to preempt, unless this one gets its slot before"""


class Releaser:
    """Takes in pods and freed capacity; `run` releases pods."""

    def __init__(
        self,
        shared: Shared,
        queue: Queue,
        preemptor: Preemptor,
        allocator: ClaimAllocator,
    ) -> None:
        self._shared, self._queue, self._preemptor, self._allocator = shared, queue, preemptor, allocator
        self.preempt_s, self.join_s = PREEMPT_S, JOIN_S
        self._events = QueueEvents(shared, queue)
        self._blocked: list[Pod] = []
        self._wake = asyncio.Event()
        self._arrived = asyncio.Condition()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        if self._queue.pod_changed(old, new):
            self._wake.set()
        self._events.pod_changed(old, new)

    def on_freed(self, node: str | None = None) -> None:
        """Capacity may have been freed."""
        self._wake.set()

    def explain(self, pod: Pod) -> str | None:
        """Why a pod waits at its gate; None if it does not."""
        return self._queue.explain(pod, self._shared.clock(), _today())

    async def run(self) -> NoReturn:
        """Release pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._release())
            group.create_task(self._release_to_preempt())
        raise AssertionError("neither task ends")

    async def _release(self) -> NoReturn:
        """Make a pass whenever something has changed."""
        pause_s = PAUSE_S
        while True:
            await wait_for_change(self._wake, pause_s, SWEEP_S)
            has_more = self._shared.unready_reason() is None and await self._pass()
            pause_s = 0.0 if has_more else PAUSE_S

    async def _release_to_preempt(self) -> NoReturn:
        """Release blocked pods one after the other: the search for the next must see the slot of the one before."""
        while True:
            await asyncio.sleep(self.preempt_s)
            await self._place_by_claims()
            for pod in self._blocked:
                guard = self._shared.lead.guard()
                if self._shared.unready_reason() is not None:
                    break
                if self._allocator.takes(pod):
                    self._preempt_by_claims(pod)
                elif await self._preemptor.can_preempt(pod) and self._queue.release_to_preempt(pod):
                    await self._preempt(pod, guard)
                    break

    def _preempt_by_claims(self, pod: Pod) -> None:
        """Have victims evicted for a pod at its gate. kube-scheduler does not try it before its claims are allocated,
        so it does not say on which nodes the pod could be."""
        about = self._shared.state.waiting.get(pod.metadata.uid)
        if about is not None and not self._shared.state.is_reserved(pod.metadata.uid):
            nodes = frozenset(self._shared.state.vendors) - self._allocator.avoided(pod)
            self._preemptor.on_refused(about, nodes)

    async def _place_by_claims(self) -> None:
        """Write the assignments of pods with claims whose victims have ended, so that what they had is really free."""
        for pod in self._preemptor.ready():
            guard = self._shared.lead.guard()
            if self._shared.unready_reason() is None and self._allocator.takes(pod):
                await self._allocator.decide(pod, guard)

    async def _preempt(self, pod: Pod, guard: Guard) -> None:
        if not await self._open(pod, guard):
            self._queue.undo_release_to_preempt(pod)
            return
        text = "released from the queue: no slot is free, but pods of lower priority could be evicted"
        if self._queue.outranks_reservation(pod):
            text += "; it may use GPUs that are reserved for a pod of lower priority"
        self._shared.events.record(pod, RELEASED, text)
        until = self._shared.clock() + PREEMPTING_S
        while self._queue.awaits_preemption(pod) and self._shared.clock() < until:
            await asyncio.sleep(self.preempt_s)

    async def join_gang(self, pod: Pod) -> str:
        """Called before a pod is bound: wait until the binds of its whole gang have arrived.

        Empty if the pod may be bound, otherwise how many are missing.
        """
        grant = self._queue.gangs.grant_of(pod.metadata.uid)
        if grant is None:
            return ""  # it has no gang, or a complete one; otherwise `choose` refuses it with the reason
        async with self._arrived:
            grant.arrive(pod.metadata.uid, self._shared.clock())
            self._arrived.notify_all()
            try:
                async with asyncio.timeout(self.join_s):
                    await self._arrived.wait_for(lambda: grant.complete)
                return ""
            except TimeoutError:
                arrived = len(grant.arrived(self._shared.clock()))
                return f"{arrived} of {len(grant.members)} pods of gang {grant.gang.name} are ready to be bound"

    async def _pass(self) -> bool:
        """Make one pass, and write what follows; return whether the next one would release more at once."""
        shared = self._shared
        began, guard = shared.clock(), shared.lead.guard()
        result = self._queue.run_pass(began, _today())
        took = shared.clock() - began
        shared.counts.observe(STEPS, took, "queue")
        shared.counts.add(DECISIONS, "queue", "released", "", by=sum(len(unit.pods) for unit in result.released))
        self._blocked = result.blocked
        self._wake.clear()  # the pass itself has held and released slots, which needs no other pass
        if result.more:
            self._wake.set()
        for revoked in result.revoked:
            for pod in revoked.pods:
                shared.events.record(pod, GANG_GIVEN_UP, revoked.why, warning=True)
        for pod, text in result.incomplete:
            shared.events.record(pod, GANG_WAITS, text)
        async with asyncio.TaskGroup() as group:
            for unit in result.released:
                group.create_task(self._release_unit(unit, guard, result.overtook.get(unit.job.id)))
            for pod in result.open:
                group.create_task(self._open(pod, guard))
        self._events.on_pass(shared.clock(), _today())
        if result.released and result.more:  # the writes gave other tasks their turns
            return True
        await asyncio.sleep(took * SHARE)
        return False

    async def _release_unit(self, unit: Unit, guard: Guard, overtook: str | None) -> None:
        if not all(await asyncio.gather(*(self._open(one.pod, guard) for one in unit.pods))):
            self._queue.undo_release(unit)
            return
        waited = f"released from the queue after {max(0.0, _today() - unit.job.submitted):.0f} s"
        gang = "" if unit.gang is None else f" with gang {unit.gang.name}: {len(unit.pods)} pods start together"
        before = "" if overtook is None else f", before {overtook}"
        for one in unit.pods:
            self._shared.events.record(one.pod, RELEASED, waited + gang + before)

    async def _open(self, pod: Pod, guard: Guard) -> bool:
        """Whether kube-scheduler will try the pod now: its gate is removed, or it is back in kube-scheduler's queue.

        The gate of a pod with claims is removed when these are allocated.
        """
        if self._allocator.takes(pod):
            return await self._allocator.decide(pod, guard)
        about = pod.metadata
        retried = {RETRIED: str(round(1000 * _today()))}
        patch: dict[str, object] = {"metadata": {"uid": about.uid, "annotations": retried}}
        if is_gated(pod.spec.scheduling_gates):
            patch = gate_patch(pod)
        try:
            await self._shared.client.patch(PODS, about.name, patch, namespace=about.namespace, guard=guard)
        except ApiError as error:
            # It is gone, there is another pod of the same name, or it was held a moment ago.
            if error.status not in (404, 409) and HOLD not in str(error):
                self._shared.errors.report("release", str(error))
            return False
        return True


def _today() -> Seconds:
    return Seconds(time.time())
