# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the cluster: nodes, pods and quotas followed side by side, and whether that can be relied on.

What is not known for sure is not acted on: until everything was seen once, and after a long silence of the server, the
scheduler answers nothing.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from cotenant.kube.client import Client
from cotenant.kube.objects import Node, Pod
from cotenant.kube.reading import Kind
from cotenant.kube.reflector import Pace, Reflector
from cotenant.kube.scheduler.books import Books
from cotenant.kube.scheduler.quota import QUOTAS, Quotas, ResourceQuota
from cotenant.kube.troubles import Troubles

NODES = Kind("nodes", Node)
PODS = Kind("pods", Pod)
SILENCE_S = 180.0
"""two watches in a row have died by then, and not even a bookmark came"""

PodHandler = Callable[[Pod | None, Pod | None], object]
QuotaHandler = Callable[[ResourceQuota | None, ResourceQuota | None], object]


class Watching:
    """Keeps books and quotas up to date from `run` on."""

    def __init__(
        self,
        client: Client,
        books: Books,
        quotas: Quotas,
        troubles: Troubles,
        *,
        then_pod: PodHandler = lambda old, new: None,
        then_quota: QuotaHandler = lambda old, new: None,
        pace: Pace = Pace(),  # noqa: B008 -- frozen
        silence_s: float = SILENCE_S,
    ) -> None:
        def tell(trouble: str) -> None:
            troubles.tell("watch", trouble)

        def pod_changed(old: Pod | None, new: Pod | None) -> None:
            books.pod_changed(old, new, self.pods.telling)
            then_pod(old, new)

        def quota_changed(old: ResourceQuota | None, new: ResourceQuota | None) -> None:
            quotas.quota_changed(old, new)
            then_quota(old, new)

        self.pods = Reflector(client, PODS, pod_changed, pace=pace, tell=tell)
        self._nodes = Reflector(client, NODES, books.node_changed, pace=pace, tell=tell)
        self._quotas = Reflector(client, QUOTAS, quota_changed, pace=pace, tell=tell)
        self.silence_s = silence_s
        self._settle_s, self._complete = pace.watches_s, float("inf")

    def doubt(self) -> str | None:
        """Why what we know cannot be relied on, None where it can."""
        for what, reflector in (("nodes", self._nodes), ("pods", self.pods), ("quotas", self._quotas)):
            if not reflector.synced.is_set():
                return f"the {what} of the cluster are not known yet"
            if reflector.silence_s() > self.silence_s:
                return f"nothing was heard of {what} for {reflector.silence_s():.0f} s"
        # Of a pod that was deleted by force just before our first list only its agent knows, and needs a moment.
        self._complete = min(self._complete, time.monotonic())
        if time.monotonic() < self._complete + self._settle_s:
            return "agents may not have told yet what runs without a pod"
        return None

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for run in (self._nodes.run, self.pods.run, self._quotas.run):
                group.create_task(run())
        raise AssertionError("reflectors never end")
