# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pending pods are tried again as soon as capacity is freed.

What kube-scheduler (read in 1.34) does by itself with a pod that an extender refused: any change of a pod or a node
that it sees, annotations of nodes included, puts the pod back into its queue (after a back-off of 1 s, doubled up to
the configured maximum); otherwise the pod waits 5 minutes. That leaves two gaps. A change may reach kube-scheduler
before it reaches us: it asks, is refused once more, and nothing happens later. And some capacity is freed by things
that it does not watch: a hold that expires, a quota that is raised. A change of the pending pod itself always puts it
back, so the retrier writes an annotation on refused pods that would fit now.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple, NoReturn

from cotenant.kube.api.client import Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Pod, is_unschedulable
from cotenant.kube.codec.keys import own_key
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.table import RETRIES

RETRIED = own_key("tried-again")
"""annotation on a pending pod: when it was last put back into kube-scheduler's queue"""
PAUSE_S = 0.3
"""after capacity was freed: what is freed together is looked at together"""
AGAIN_S = 1.0
"""between two retries of one pod; doubled after each, since the pod may be refused for reasons we do not know"""
LONGEST_AGAIN_S = 16.0
UNKNOWN_S = 10.0
"""how long a pod that our watch has not shown is remembered: kube-scheduler may have seen it first"""
SWEEP_S = 30.0
"""between two looks at all refused pods, whether or not capacity was freed"""
MOST_WRITES = 20
"""in one pass"""
SHARE = 5
"""pause after each look at a pod, as a multiple of the time the look took"""


class _Refused(NamedTuple):
    """When a pod may be retried, and how long to wait after that."""

    due: float
    pause_s: float


class Retrier:
    """Remembers the pods that were refused, and retries them when capacity may have been freed."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.again_s = AGAIN_S
        self.passes = 0
        """how many passes of `run` have ended"""
        self._wake = asyncio.Event()
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    def on_freed(self, node: str | None = None) -> None:
        """Capacity may have been freed."""
        self._wake.set()

    def on_refused(self, pod: Pod, nodes: frozenset[str] = frozenset()) -> None:
        """`filter` refused a pod."""
        self._refused.setdefault(pod.metadata.uid, _Refused(self._shared.clock(), self.again_s))

    def on_lead_won(self) -> None:
        """Retry what the previous leader refused, perhaps for what it held: kube-scheduler may still be the same."""
        for pod in filter(is_unschedulable, self._shared.state.waiting.values()):
            self.on_refused(pod)
        self.on_freed()

    def waiting(self) -> Collection[str]:
        """The pods that were refused, by UID."""
        return self._refused

    async def run(self) -> NoReturn:
        """Look whenever capacity may have been freed, until cancelled."""
        while True:
            await wait_for_change(self._wake, PAUSE_S, SWEEP_S)
            self._wake.clear()
            if self._shared.lead.unready_reason() is None:
                await self._retry()
            self.passes += 1

    async def _retry(self) -> None:
        """Retry the refused pods that would fit, the one that was looked at longest ago first."""
        shared, written, guard = self._shared, 0, self._shared.lead.guard()
        for uid, refused in list(self._refused.items()):
            pod, began = shared.state.waiting.get(uid), shared.clock()
            if pod is None:
                if began > refused.due + UNKNOWN_S:
                    del self._refused[uid]
                continue
            if began < refused.due:
                self._wake.set()  # look again later
                continue
            self._refused.move_to_end(uid)
            if shared.placer.would_fit(pod):
                self._refused[uid] = _Refused(began + refused.pause_s, min(LONGEST_AGAIN_S, 2 * refused.pause_s))
                await self._write(pod, guard)
                written += 1
            if written >= MOST_WRITES:
                self._wake.set()
                return
            await asyncio.sleep((shared.clock() - began) * SHARE)

    async def _write(self, pod: Pod, guard: Guard) -> None:
        about = pod.metadata
        patch = {"metadata": {"uid": about.uid, "annotations": {RETRIED: str(time.time_ns() // 1_000_000)}}}
        try:
            await self._shared.client.patch(PODS, about.name, patch, namespace=about.namespace, guard=guard)
            self._shared.counts.add(RETRIES)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another pod of the same name
                self._shared.errors.report("retry", str(error))


async def wait_for_change(changed: asyncio.Event, pause_s: float, sweep_s: float) -> None:
    """Return `pause_s` after the event is set, or after `sweep_s` without one."""
    try:
        async with asyncio.timeout(sweep_s):
            await changed.wait()
        await asyncio.sleep(pause_s)
    except TimeoutError:
        pass
