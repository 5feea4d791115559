# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Lets pods go whose turn has come, and has the pods of a gang bound at one moment or not at all.

A slot is held before a gate is taken away. When that fails the slot is given up, and the pod's turn comes again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from cotenant.core.units import Seconds
from cotenant.kube.api.client import Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.queueing import GATE, is_gated
from cotenant.kube.scheduler.events import GANG_GIVEN_UP, GANG_WAITS, RELEASED, News
from cotenant.kube.scheduler.lease import Alone, Lead
from cotenant.kube.scheduler.queue import Line, Unit
from cotenant.kube.scheduler.retry import PAUSE_S, SHARE, WOKEN, stirred

SWEEP_S = 5.0
"""a look at the line, whatever was or was not told: time alone makes pods overdue and ends holds"""
MEETING_S = 4.0
"""how long a bind waits for those of the other members; kube-scheduler hears within 6 s what became of it"""


DISPLACE_S = 1.0
"""between looks for somebody for whom others may be evicted"""
DISPLACED_S = 15.0
"""for so long nobody else is let go for that, unless this one has its place before"""


async def _nobody(pod: Pod) -> bool:
    return False


class Releaser:
    """Takes pods as they change, and hints that there is room; `run` lets go who may."""

    def __init__(
        self,
        client: Client,
        line: Line,
        news: News,
        error_log: ErrorLog,
        *,
        lead: Lead = Alone(),  # noqa: B008 -- it has no state
        doubt: Callable[[], str | None] = lambda: None,
        would_displace: Callable[[Pod], Awaitable[bool]] = _nobody,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_S,
        sweep_s: float = SWEEP_S,
        meeting_s: float = MEETING_S,
    ) -> None:
        self._client, self._line, self._news, self._error_log = client, line, news, error_log
        self._lead, self._books_doubt, self._clock = lead, doubt, clock
        self._would_displace, self.displace_s = would_displace, DISPLACE_S
        self._wanting: list[Pod] = []
        self._pause_s, self._sweep_s, self.meeting_s = pause_s, sweep_s, meeting_s
        self._some = asyncio.Event()
        self._met = asyncio.Condition()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """After the books were told."""
        if self._line.pod_changed(old, new):
            self._some.set()

    def room(self) -> None:
        """Something became free somewhere."""
        self._some.set()

    def words(self, pod: Pod) -> str | None:
        """What a pod waits for at its gate, None where it does not wait there."""
        return self._line.words(pod, _today())

    async def run(self) -> NoReturn:
        """Let go until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._release())
            group.create_task(self._displace())
        raise AssertionError("none of them ends")

    def _doubt(self) -> str | None:
        return self._books_doubt() or self._lead.doubt()

    async def _release(self) -> NoReturn:
        """Look whenever something has changed."""
        while True:
            await stirred(self._some, self._pause_s, self._sweep_s)
            if self._doubt() is None:
                await self._step()

    async def _displace(self) -> NoReturn:
        """One after the other: what is found for the next has to count with the place of the one before."""
        while True:
            await asyncio.sleep(self.displace_s)
            for pod in self._wanting:
                guard = self._lead.guard()
                if self._doubt() is None and await self._would_displace(pod) and self._line.send(pod):
                    await self._sent(pod, guard)
                    break

    async def _sent(self, pod: Pod, guard: Guard) -> None:
        if not await self._written(pod, guard):
            self._line.unsend(pod)
            return
        self._news.tell(pod, RELEASED, "its turn came: there is no room, but others of lower priority could leave")
        until = self._clock() + DISPLACED_S
        while self._line.is_displacing(pod) and self._clock() < until:
            await asyncio.sleep(self.displace_s)

    async def meet(self, pod: Pod) -> str:
        """Called before a pod is bound: empty where it may be, at once or when all of its gang were about to be."""
        grant = self._line.gangs.grant_of(pod.metadata.uid)
        if grant is None:
            return ""  # of no gang, or of one that is whole; else it is refused later, with the reason
        async with self._met:
            grant.arrives(pod.metadata.uid, self._clock())
            self._met.notify_all()
            try:
                async with asyncio.timeout(self.meeting_s):
                    await self._met.wait_for(lambda: grant.whole)
                return ""
            except TimeoutError:
                there = len(grant.there(self._clock()))
                return f"{there} of {len(grant.members)} pods of gang {grant.gang.name} could be bound by now"

    async def _step(self) -> None:
        began, guard = self._clock(), self._lead.guard()
        step = self._line.step(began, _today())
        took = self._clock() - began
        self._wanting = step.wanting
        self._some.clear()  # what the step itself did is no news
        if step.more:
            self._some.set()
        for given_up in step.given_up:
            for pod in given_up.pods:
                self._news.tell(pod, GANG_GIVEN_UP, given_up.why, warning=True)
        for pod, text in step.gathering:
            self._news.tell(pod, GANG_WAITS, text)
        async with asyncio.TaskGroup() as group:
            for unit in step.released:
                group.create_task(self._let_go(unit, guard))
            for pod in step.open:
                group.create_task(self._written(pod, guard))
        await asyncio.sleep(took * SHARE)

    async def _let_go(self, unit: Unit, guard: Guard) -> None:
        if not all(await asyncio.gather(*(self._written(one.pod, guard) for one in unit.waiters))):
            self._line.undo(unit)
            return
        waited = f"after {max(0.0, _today() - unit.job.submitted):.0f} s"
        text = f"its turn came {waited}"
        if unit.gang is not None:
            text = f"the turn of gang {unit.gang.name} came {waited}: {len(unit.waiters)} pods start together"
        for one in unit.waiters:
            self._news.tell(one.pod, RELEASED, text)

    async def _written(self, pod: Pod, guard: Guard) -> bool:
        """Whether kube-scheduler will look at it now: its gate is gone, or it has been put back into the queue."""
        about = pod.metadata
        patch: dict[str, object] = {"metadata": {"uid": about.uid, "annotations": {WOKEN: str(round(1000 * _today()))}}}
        if is_gated(pod.spec.scheduling_gates):
            # Gates can only ever become fewer: where another has gone meanwhile, this is refused and tried again.
            others = [{"name": gate.name} for gate in pod.spec.scheduling_gates if gate.name != GATE]
            patch = {"metadata": {"uid": about.uid}, "spec": {"schedulingGates": others}}
        try:
            await self._client.patch(PODS, about.name, patch, namespace=about.namespace, guard=guard)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another of its name
                self._error_log.report("releasing", str(error))
            return False
        return True


def _today() -> Seconds:
    return Seconds(time.time())
