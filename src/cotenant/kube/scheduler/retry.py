# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting pods are tried again as soon as there is room.

What kube-scheduler (read in 1.34) does by itself with a pod that an extender refused: any change of a pod or a node
that it sees, annotations of nodes included, puts the pod back into its queue (after a back-off of 1 s, doubled up to
the configured most); else it waits 5 minutes. That leaves two holes. A change may reach kube-scheduler before it
reaches us: it asks, is refused once more, and nothing happens later. And some room comes from what it does not watch: a
hold that lapses, a quota that is raised. A change of the waiting pod itself always puts it back, so we write an
annotation on those that we refused and that would fit now.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from cotenant.kube.api.client import Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.keys import own_key
from cotenant.kube.scheduler.lease import Alone, Lead
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.state.books import Books

WOKEN = own_key("tried-again")
"""annotation on a waiting pod: when it was last put back into the queue"""
PAUSE_S = 0.3
"""after room came: what comes together is looked at together"""
AGAIN_S = 1.0
"""from one time to the next for one pod; twice as long after each, for it may be refused for what we do not know of"""
LONGEST_AGAIN_S = 16.0
UNKNOWN_S = 10.0
"""for so long one that we do not know of is remembered: kube-scheduler may have heard of it first"""
SWEEP_S = 30.0
"""a look at all of them, whatever was or was not told"""
MOST_WRITES = 20
"""in one go"""
SHARE = 5
"""of its time, the looking leaves so many parts to others for each that it takes"""


class _Refused(NamedTuple):
    """When a pod may be put back, and how long not after that."""

    due: float
    pause_s: float


class Waker:
    """Knows who was refused, and puts them back when told that there may be room."""

    def __init__(
        self,
        client: Client,
        books: Books,
        placer: Placer,
        error_log: ErrorLog,
        *,
        lead: Lead = Alone(),  # noqa: B008 -- it has no state
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_S,
        again_s: float = AGAIN_S,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._client, self._books, self._placer, self._error_log = client, books, placer, error_log
        self._lead, self._clock, self._pause_s, self.again_s, self._sweep_s = lead, clock, pause_s, again_s, sweep_s
        self._room = asyncio.Event()
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    def room(self) -> None:
        """Something became free somewhere."""
        self._room.set()

    def refused(self, pod: Pod) -> None:
        """kube-scheduler was told that no node will do."""
        self._refused.setdefault(pod.metadata.uid, _Refused(self._clock(), self.again_s))

    async def run(self) -> NoReturn:
        """Look whenever there may be room, until cancelled."""
        while True:
            await stirred(self._room, self._pause_s, self._sweep_s)
            self._room.clear()
            if self._lead.doubt() is None:
                await self._look()

    async def _look(self) -> None:
        """Those who were refused, the one that was looked at longest ago first."""
        written, guard = 0, self._lead.guard()
        for uid, refused in list(self._refused.items()):
            pod, began = self._books.waiting.get(uid), self._clock()
            if pod is None:
                if began > refused.due + UNKNOWN_S:
                    del self._refused[uid]
                continue
            if began < refused.due:
                self._room.set()  # later
                continue
            self._refused.move_to_end(uid)
            if self._placer.would_fit(pod):
                self._refused[uid] = _Refused(began + refused.pause_s, min(LONGEST_AGAIN_S, 2 * refused.pause_s))
                await self._write(pod, guard)
                written += 1
            if written >= MOST_WRITES:
                self._room.set()
                return
            await asyncio.sleep((self._clock() - began) * SHARE)

    async def _write(self, pod: Pod, guard: Guard) -> None:
        patch = {"metadata": {"uid": pod.metadata.uid, "annotations": {WOKEN: str(time.time_ns() // 1_000_000)}}}
        try:
            await self._client.patch(PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace, guard=guard)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another of its name
                self._error_log.report("waking", str(error))


async def stirred(some: asyncio.Event, pause_s: float, sweep_s: float) -> None:
    """Returns a moment after something was told, or after a long time without."""
    try:
        async with asyncio.timeout(sweep_s):
            await some.wait()
        await asyncio.sleep(pause_s)
    except TimeoutError:
        pass
