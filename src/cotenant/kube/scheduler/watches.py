# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The watches of nodes, pods and quotas, and whether what they have shown can be relied on.

The scheduler answers nothing until everything was listed once, nor after a long silence of the server. And it does not
free the GPUs of a running pod because a watch says that the pod is gone: it asks the server for the pod itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.scheduler.quota import QUOTAS, Quotas, ResourceQuota
from cotenant.kube.scheduler.shared import Signals
from cotenant.kube.state.allocation import has_stopped
from cotenant.kube.state.cluster import ClusterState

SILENCE_S = 180.0
"""by then two watches in a row have died without even a bookmark"""
AGAIN_S = 600.0
"""between two full lists, however well the watch works: this bounds how long a missed event can matter"""


class Watches:
    """Keeps the state of the cluster and the quotas up to date while `run` runs."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        quotas: Quotas,
        errors: ErrorLog,
        signals: Signals,
        *,
        pace: Pace = Pace(again_s=AGAIN_S),  # noqa: B008 -- frozen
        wait: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wait` is awaited before a change of a pod is handled."""
        self.pods = Reflector(client, PODS, self._pod_changed, pace=pace, report=self._log, wait=wait)
        self._nodes = Reflector(client, NODES, self._node_changed, pace=pace, report=self._log)
        self._quota_objects = Reflector(client, QUOTAS, self._quota_changed, pace=pace, report=self._log)
        self._client, self._state, self._quotas, self._errors, self._signals = client, state, quotas, errors, signals
        self._deleted: asyncio.Queue[tuple[Pod, str]] = asyncio.Queue()
        self.silence_s = SILENCE_S
        self._settle_s, self._complete = pace.watches_s, float("inf")

    def unready_reason(self) -> str | None:
        """Why the state of the cluster cannot be relied on; None if it can."""
        for what, reflector in (("nodes", self._nodes), ("pods", self.pods), ("quotas", self._quota_objects)):
            if not reflector.synced.is_set():
                return f"the {what} of the cluster are not known yet"
            if reflector.silence_s() > self.silence_s:
                return f"the API server has sent nothing about {what} for {reflector.silence_s():.0f} s"
        # Only the agent knows of a pod that was force-deleted just before our first list, and it needs a moment.
        self._complete = min(self._complete, time.monotonic())
        if time.monotonic() < self._complete + self._settle_s:
            return "agents may not have reported yet which deleted pods still run"
        return None

    def lags(self) -> dict[str, float]:
        """Seconds since the API server last confirmed each of the copies; infinite before the first list."""
        return {
            "nodes": self._nodes.silence_s(),
            "pods": self.pods.silence_s(),
            "quotas": self._quota_objects.silence_s(),
        }

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for run in (self._nodes.run, self.pods.run, self._quota_objects.run, self._confirm_deletions):
                group.create_task(run())
        raise AssertionError("reflectors never end")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        self._state.node_changed(old, new)
        self._signals.node_changed.send(old, new)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None and not self.pods.by_list and self._may_run(old):
            self._deleted.put_nowait((old, self.pods.handled_version))
        else:
            self._state.pod_changed(old, new, self.pods.handled_version, by_list=self.pods.by_list)
        self._signals.pod_changed.send(old, new)

    def _quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        self._quotas.quota_changed(old, new)
        self._signals.freed.send(None)

    def _may_run(self, pod: Pod) -> bool:
        """Whether the deletion of a pod would free GPUs that may be in use."""
        is_placed = self._state.bound(pod.metadata.uid) is not None or RECORD in pod.metadata.annotations
        return is_placed and not has_stopped(pod)

    async def _confirm_deletions(self) -> NoReturn:
        """Ask the server for pods that a watch reported as deleted while they ran; until it agrees, they count."""
        while True:
            pod, version = await self._deleted.get()
            about = pod.metadata
            try:
                there = await get_pod(self._client, about.namespace, about.name, self._log)
            except ApiError as error:
                self._log(str(error))
                there = None
            if there is None or there.metadata.uid != about.uid:
                self._state.pod_changed(pod, None, version)
            else:
                self._log(f"pod {about.namespace}/{about.name} was reported as deleted but exists; listing pods again")
                self.pods.relist()

    def _log(self, error: str) -> None:
        self._errors.report("watch", error)


async def get_pod(client: Client, namespace: str, name: str, log: Callable[[str], object]) -> Pod | None:
    """A pod as the server has it now; None if it has none. Repeats the request until the server answers."""
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
            log(f"{error}; trying again")
            await asyncio.sleep(client.limits.pause(failures, error.retry_after))
