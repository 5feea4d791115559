# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks what new pods request before kube-scheduler asks about them, while no call is being answered.

A request that was never seen before is compared with every node, which takes as long as all the rest of a call. In a
burst of pods, most of them wait behind others, and are ranked in time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import NoReturn

from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.rankers import MOST_DEMANDS
from cotenant.kube.scheduler.view import Views
from cotenant.kube.state.cluster import ClusterState

MOST_DUE = 256
"""new pods that are to be looked at; the requests of others are ranked when kube-scheduler asks"""
MOST_AT_START, MOST_NEW = 1000, MOST_DEMANDS // 2
"""pods that are looked at when the scheduler starts, and new requests that are ranked then: a ranker forgets the first
of too many"""


class Preparer:
    """Looks once at each new pod."""

    def __init__(
        self,
        state: ClusterState,
        views: Views,
        unready_reason: Callable[[], str | None],
        wait: Callable[[], Awaitable[None]],
    ) -> None:
        """`wait` waits until no call is being answered. Before the cluster is known, pods are not looked at."""
        self._state, self._views, self._unready_reason, self._wait = state, views, unready_reason, wait
        self._due: asyncio.Queue[Pod] = asyncio.Queue(MOST_DUE)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Note a new pod that waits."""
        is_new = old is None and new is not None and new.metadata.uid in self._state.waiting
        if new is not None and is_new and not self._due.full() and self._unready_reason() is None:
            self._due.put_nowait(new)

    async def run(self) -> NoReturn:
        """Rank until cancelled."""
        while True:
            pod = await self._due.get()
            await self._wait()
            self.rank([pod])
            await asyncio.sleep(0)

    def rank_waiting(self) -> None:
        """Ranks what pods request that wait when the scheduler starts."""
        self.rank(islice(self._state.waiting.values(), MOST_AT_START))

    def rank(self, pods: Iterable[Pod]) -> None:
        """Ranks the requests of these pods that are new, if all nodes are compared at once. If nodes must be rated one
        by one, that would delay calls."""
        left = MOST_NEW
        for pod in pods:
            try:
                view = self._views.of(pod)
            except Exception:  # noqa: BLE001 -- `filter` reports it; a defect of the codec must not end every scheduler
                continue
            if view is None:
                continue
            demand, ranker = view.request.demand, view.ranker
            if left and ranker.at_once(demand) and not ranker.knows(demand):
                ranker.shortlist(demand, view.cluster, None, 1)
                left -= 1
