# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the cluster: nodes, pods and quotas followed side by side, and whether that can be relied on.

What is not known for sure is not acted on: until everything was seen once, and after a long silence of the server, the
scheduler answers nothing. And what a pod takes is not given to others because a watch says that it is gone while it
ran: the server is asked for the pod itself.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.scheduler.quota import QUOTAS, Quotas, ResourceQuota
from cotenant.kube.state.accounts import has_stopped
from cotenant.kube.state.books import Books

SILENCE_S = 180.0
"""two watches in a row have died by then, and not even a bookmark came"""
AGAIN_S = 600.0
"""from one list to the next, however well the watch goes: by then the books are right, whatever it told"""

PodHandler = Callable[[Pod | None, Pod | None], object]
QuotaHandler = Callable[[ResourceQuota | None, ResourceQuota | None], object]


class Watching:
    """Keeps books and quotas up to date from `run` on."""

    def __init__(
        self,
        client: Client,
        books: Books,
        quotas: Quotas,
        error_log: ErrorLog,
        *,
        then_pod: PodHandler = lambda old, new: None,
        then_quota: QuotaHandler = lambda old, new: None,
        pace: Pace = Pace(again_s=AGAIN_S),  # noqa: B008 -- frozen
        silence_s: float = SILENCE_S,
    ) -> None:
        def pod_changed(old: Pod | None, new: Pod | None) -> None:
            if new is None and old is not None and not self.pods.by_list and self._counts(old):
                self._gone.put_nowait((old, self.pods.handled_version))
            else:
                books.pod_changed(old, new, self.pods.handled_version)
            then_pod(old, new)

        def quota_changed(old: ResourceQuota | None, new: ResourceQuota | None) -> None:
            quotas.quota_changed(old, new)
            then_quota(old, new)

        self.pods = Reflector(client, PODS, pod_changed, pace=pace, report=self._report)
        self._nodes = Reflector(client, NODES, books.node_changed, pace=pace, report=self._report)
        self._quotas = Reflector(client, QUOTAS, quota_changed, pace=pace, report=self._report)
        self._client, self._books, self._error_log = client, books, error_log
        self._gone: asyncio.Queue[tuple[Pod, str]] = asyncio.Queue()
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
            for run in (self._nodes.run, self.pods.run, self._quotas.run, self._confirm):
                group.create_task(run())
        raise AssertionError("reflectors never end")

    def _counts(self, pod: Pod) -> bool:
        """Whether it would set something free that may be in use."""
        is_placed = self._books.seat_of(pod.metadata.uid) is not None or RECORD in pod.metadata.annotations
        return is_placed and not has_stopped(pod)

    async def _confirm(self) -> NoReturn:
        """Pods that were said to be gone while they ran; until the server itself says so, they count as before."""
        while True:
            pod, at = await self._gone.get()
            about = pod.metadata
            try:
                there = await pod_now(self._client, about.namespace, about.name, self._report)
            except ApiError as error:
                self._report(str(error))
                there = None
            if there is None or there.metadata.uid != about.uid:
                self._books.pod_changed(pod, None, at)
            else:
                self._report(f"pod {about.namespace}/{about.name} was said to be gone, and is there")
                self.pods.relist()

    def _report(self, trouble: str) -> None:
        self._error_log.report("watch", trouble)


async def pod_now(client: Client, namespace: str, name: str, report: Callable[[str], object]) -> Pod | None:
    """A pod as the server has it now, None where it has none; asked until the server answers."""
    failures = 0
    while True:
        try:
            return await client.get(PODS, name, namespace=namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            if 300 <= error.status < 500 and error.status != 429:
                raise
            failures += 1
            report(f"{error}; asked again")
            await asyncio.sleep(client.limits.pause(failures, error.retry_after))
