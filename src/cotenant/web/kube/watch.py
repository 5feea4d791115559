# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as the scheduler knows it: watched nodes, pods, quotas and profiles, and which nodes and pods changed.

It reads only. What a pod uses is counted by the same `ClusterState` as in the scheduler, and speeds are predicted from
the same profiles.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import NoReturn

from cotenant.core.model import Reason
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.names import AGENT, NAMESPACE, labels_of
from cotenant.kube.api.objects import Node, Pod, containers_of, resources_of
from cotenant.kube.api.reflector import Key, Pace, Reflector
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.profiles import PROFILES, WorkloadProfile
from cotenant.kube.codec.queueing import is_gated
from cotenant.kube.scheduler.backfill import Backfill
from cotenant.kube.scheduler.events import EventRecorder
from cotenant.kube.scheduler.foresight import Foresight
from cotenant.kube.scheduler.gangs import Gangs, GangSlots
from cotenant.kube.scheduler.ladder import Ladder
from cotenant.kube.scheduler.lease import SoleLeader
from cotenant.kube.scheduler.offers import OfferedNodes
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.queue import Queue
from cotenant.kube.scheduler.quota import QUOTAS, Quotas
from cotenant.kube.scheduler.shared import Shared, Signals
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.cluster import ClusterState
from cotenant.web.kube.agents import Agents

AGAIN_S = 600.0
"""Between two full lists."""
LOOK_S = 2.0
"""Between two looks at whether the API server answers."""
PREDICT_S = 15.0
"""Between two updates of the predictions, which change what all nodes show."""
STALE_S = 100.0
"""After so long without a word of the API server, not even a bookmark, the pages say that they may be old."""
BROKEN_S = 5.0
"""The same if a request has failed since the last word."""
RETRIED_S = 12.0
"""Requests that fail are repeated within so long, so if none failed lately, the API server is back."""
UNREAD_GROUP = Reason("gang", "it waits for the pods of its PodGroup, which these pages do not read; see its events")
_OURS = labels_of(AGENT)
WATCH_LIMITS = Limits(connect_s=5.0, longest_pause_s=4.0)


class ClusterWatch:
    """Follows the cluster while `run` runs. Make it in the event loop that runs it."""

    def __init__(
        self,
        client: Client,
        settings: KubeSettings,
        errors: ErrorLog,
        *,
        pace: Pace = Pace(again_s=AGAIN_S),  # noqa: B008 -- frozen
    ) -> None:
        self.settings, self._errors = settings, errors
        self.profiles = Profiles(settings.defaults.memory_margin)
        ladder = Ladder(settings.isolation, lambda: self.state)
        self.codec = replace(settings.codec(), measured_memory=self.profiles.memory_of, granted_rung=ladder.granted)
        self.state = ClusterState(self.codec, scheduler=settings.scheduler.name)
        self.quotas, self.gangs = Quotas(self.codec), Gangs(self.state, lambda namespace, name: UNREAD_GROUP)
        self.placer = Placer(
            self.state,
            self.quotas,
            policy=settings.scheduler.policy,
            settings=self.codec,
            belief=self.profiles.belief,
            must_wait=self.gangs.must_wait,
        )
        self.queue = Queue(
            GangSlots(self.state, self.quotas, self.placer),
            self.gangs,
            Backfill(self.state, self.gangs, settings.queue),
            settings.queue,
            settings=self.codec,
        )
        """The order of the pods that wait at their gates. No pass is made through it here."""
        self.pods: dict[Key, Pod] = {}
        """Pods that request GPUs or have some, by namespace and name."""
        self.version = 0
        """Grows with every change."""
        self.changed_nodes: set[str] = set()
        """Nodes that changed since the reader of this set cleared it."""
        self.changed_pods: set[Key] = set()
        self._agent_addresses: dict[str, str] = {}  # by node
        self._reporting: set[str] = set()  # nodes whose profiles changed since they were last taken in
        self._failed_at = float("-inf")
        self._waiters: set[asyncio.Event] = set()
        self._nodes = Reflector(client, NODES, self._node_changed, pace=pace, report=self._failed)
        self._pods = Reflector(client, PODS, self._pod_changed, pace=pace, report=self._failed)
        self._quotas = Reflector(client, QUOTAS, self.quotas.quota_changed, pace=pace, report=self._failed)
        self._profiles = Reflector(client, PROFILES, self._profile_changed, pace=pace, report=self._log)
        self.foresight = Foresight(self._shared(client))
        self.agents = Agents(lambda: self._agent_addresses, settings.metrics.port, self._read_agents)

    def _shared(self, client: Client) -> Shared:
        """What the scheduler's answers are computed from. Its parts that write are made, but never run."""
        return Shared(
            client=client,
            settings=self.settings,
            errors=self._errors,
            signals=Signals(),
            state=self.state,
            quotas=self.quotas,
            gangs=self.gangs,
            placer=self.placer,
            offers=OfferedNodes(),
            events=EventRecorder(client, self.settings.scheduler.name, self._errors),
            pods=self._pods,
            lead=SoleLeader(),
            state_unready_reason=self.unready_reason,
        )

    @property
    def nodes(self) -> Mapping[Key, Node]:
        """All nodes, by an empty namespace and their name."""
        return self._nodes.objects

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (self._nodes, self._pods, self._quotas, self._profiles):
                group.create_task(reflector.run())
            group.create_task(self._keep_current())
            group.create_task(self.agents.run())
        raise AssertionError("reflectors never end")

    def unready_reason(self) -> str | None:
        """Why nothing can be shown yet; None if the cluster was listed once."""
        for what, reflector in (("nodes", self._nodes), ("pods", self._pods), ("quotas", self._quotas)):
            if not reflector.synced.is_set():
                return f"the {what} of the cluster are not known yet"
        return None

    def stale_reason(self) -> str | None:
        """A sentence if what is shown may be old; None if it is current."""
        silence_s = max(self._nodes.silence_s(), self._pods.silence_s())
        failed_s = time.monotonic() - self._failed_at
        broken = BROKEN_S < silence_s > failed_s and failed_s < RETRIED_S
        if not broken and silence_s < STALE_S:
            return None
        return "The API server does not answer: what you see may be old. The pages go on by themselves."

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield at once, and then after changes; several at once are one."""
        woken = asyncio.Event()
        woken.set()  # there may have been a change before this was called
        self._waiters.add(woken)
        try:
            while True:
                await woken.wait()
                woken.clear()
                yield
        finally:
            self._waiters.discard(woken)

    def wake(self) -> None:
        """Let all who follow `changes` look again."""
        self.version += 1
        for one in self._waiters:
            one.set()

    async def _keep_current(self) -> NoReturn:
        said, predicted, is_due = self.stale_reason(), float("-inf"), False
        while True:
            await asyncio.sleep(LOOK_S)
            is_due = self.profiles.refresh(self.state.types) or is_due
            if is_due and time.monotonic() - predicted >= PREDICT_S:
                predicted, is_due = time.monotonic(), False
                self.changed_nodes.update(self.state.vendors)
                self.wake()
            if self._reporting:  # their profiles count from now on
                self.changed_nodes |= self._reporting
                self._reporting = set()
                self.wake()
            if (now := self.stale_reason()) != said:
                said = now
                self.wake()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        self.state.node_changed(old, new)
        known = new or old
        assert known is not None
        if old is not None and new is not None and _shown_of(old) == _shown_of(new):
            return  # a heartbeat
        self.changed_nodes.add(known.metadata.name)
        self.wake()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self.state.pod_changed(old, new, self._pods.handled_version)
        self.queue.pod_changed(old, new)
        known = new or old
        assert known is not None
        key = known.metadata.namespace, known.metadata.name
        if key[0] == NAMESPACE and _OURS.items() <= known.metadata.labels.items():
            self._agent_changed(old, new)
        if new is not None and self._has_gpus(new):
            self.pods[key] = new
        elif self.pods.pop(key, None) is None:
            return  # a pod without GPUs: nothing of it is shown
        self.changed_pods.add(key)
        self.changed_nodes.update(name for name in {one.spec.node_name for one in (old, new) if one} if name)
        self.wake()

    def _agent_changed(self, old: Pod | None, new: Pod | None) -> None:
        node = (new or old or Pod()).spec.node_name
        if new is not None and new.status.pod_ip and not new.metadata.deletion_timestamp:
            self._agent_addresses[node] = new.status.pod_ip
        elif old is not None and self._agent_addresses.get(node) == old.status.pod_ip:
            del self._agent_addresses[node]

    def _read_agents(self, nodes: set[str]) -> None:
        self.changed_nodes |= nodes
        self.wake()

    def _has_gpus(self, pod: Pod) -> bool:
        # Our gate is removed from a pod with claims to devices of others within a second.
        if RECORD in pod.metadata.annotations or (pod.spec.resource_claims and is_gated(pod.spec.scheduling_gates)):
            return True
        return any(name in self.codec.by_resource for _, one in containers_of(pod) for name in resources_of(one))

    def _profile_changed(self, old: WorkloadProfile | None, new: WorkloadProfile | None) -> None:
        self.profiles.profile_changed(old, new)
        self._reporting.update(one.spec.node for one in (old, new) if one is not None)

    def _failed(self, error: str) -> None:
        self._failed_at = time.monotonic()
        self._log(error)

    def _log(self, error: str) -> None:
        self._errors.report("watch", error)


def _shown_of(node: Node) -> tuple[object, ...]:
    """What matters of a node: kubelet's heartbeats change nothing of it."""
    ready = [one.status for one in node.status.conditions if one.type == "Ready"]
    return node.metadata.annotations, node.metadata.labels, node.spec, ready, node.status.addresses
