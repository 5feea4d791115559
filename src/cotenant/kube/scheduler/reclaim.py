# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reclaim: if a pod waits for memory within its request, the pod furthest above its own is evicted.

The agents say which pods these are (`codec/grants.py`), after the pods above their requests could not free enough by
themselves. An agent may name pods of its own node only, and a pod within its request is never evicted. If a disruption
budget forbids an eviction, the next pod is tried. If that does not free enough, the pod is deleted in spite of its
budget: every user can create one, and memory that was only lent must come back. Kubelet does the same if the memory
of a node is short.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from cotenant.core.units import MiB, format_memory
from cotenant.errors import InputError
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.assignment import Record
from cotenant.kube.codec.grants import GRACE_S, NO_GRANTS, GrantReport, Grants, Lack, grants_of, leaves_soon
from cotenant.kube.scheduler.events import RECLAIM_REFUSED, RECLAIMED
from cotenant.kube.scheduler.lease import NOT_LEADING
from cotenant.kube.scheduler.naming import visible_to
from cotenant.kube.scheduler.shared import Shared

AGAIN_S = 2.0
"""between two attempts for a pod that still lacks something"""
SPARED_S = 30.0
"""until an eviction that was refused is tried again, and until one that was granted counts as failed"""
GONE = (404, 409)
"""the pod is gone, or it is another pod of the same name"""


class _Refused(NamedTuple):
    until: float
    why: str
    by_budget: bool


class Reclaimer:
    """Takes in what agents report; `run` evicts."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.again_s = AGAIN_S
        self._reports: dict[str, Grants] = {}
        """by node"""
        self._evicted: dict[str, float] = {}
        """until when each pod counts as leaving, by UID"""
        self._refused: dict[str, _Refused] = {}
        self._wake = asyncio.Event()

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Subscriber of `Signals.node_changed`."""
        if new is None:
            self._reports.pop(old.metadata.name if old is not None else "", None)
            return
        try:
            report = grants_of(new)
        except InputError as error:
            self._shared.errors.report("reclaim", f"node {new.metadata.name}: {error}")
            report = NO_GRANTS
        if report == NO_GRANTS:
            self._reports.pop(new.metadata.name, None)
        else:
            self._reports[new.metadata.name] = report
        if report.lacks:
            self._wake.set()

    async def run(self) -> NoReturn:
        """Evict until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self.again_s if self._is_lacking() else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if self._shared.unready_reason() is None:
                await self.reclaim()

    def _is_lacking(self) -> bool:
        return any(report.lacks for report in self._reports.values())

    async def reclaim(self) -> None:
        """Evict as many pods as free what pods lack at present."""
        now = self._shared.clock()
        self._evicted = {uid: until for uid, until in self._evicted.items() if now < until}
        self._refused = {uid: one for uid, one in self._refused.items() if now < one.until}
        for node, report in list(self._reports.items()):
            for lack in report.lacks:
                await self._answer(node, lack)

    async def _answer(self, node: str, lack: Lack) -> None:
        # The report may be older than an eviction: what a pod gives back that is gone by now counts, too.
        missing = lack.missing - sum(above for uid, above in lack.above.items() if uid in self._evicted)
        named = [(self._pod(uid, node, lack), above) for uid, above in lack.above.items() if uid not in self._evicted]
        pods = [(pod, above) for pod, above in named if pod is not None]
        left = sum(above for _, above in pods)
        spared: list[tuple[Pod, int]] = []
        for pod, above in pods:
            if missing <= 0:
                return
            left -= above
            if leaves_soon(pod) or await self._evict(pod, lack):
                missing -= above
            elif (refused := self._refused.get(pod.metadata.uid)) is not None and refused.by_budget:
                spared.append((pod, above))
            while spared and left < missing:  # the pods that follow cannot free enough
                pod, above = spared.pop(0)
                if await self._delete(pod, lack):
                    missing -= above

    async def _evict(self, pod: Pod, lack: Lack) -> bool:
        """Whether the pod leaves."""
        shared, about = self._shared, pod.metadata
        if about.uid in self._refused:
            return False
        if shared.settings.scheduler.preemption.protects(about.namespace, about.labels):
            self._refuse(pod, lack, "the settings protect it from preemption")
            return False
        try:
            await shared.client.evict(
                about.name, namespace=about.namespace, uid=about.uid, grace_s=GRACE_S, guard=shared.lead.guard()
            )
        except ApiError as error:
            by_budget = error.status == 429
            if error.reason != NOT_LEADING and error.status not in GONE:
                why = "a disruption budget forbids it" if by_budget else error.summary
                self._refuse(pod, lack, why, by_budget=by_budget)
            return error.status in GONE
        self._leaves(pod, f"evicted from node {pod.spec.node_name}: {self._why(pod, lack)}")
        return True

    async def _delete(self, pod: Pod, lack: Lack) -> bool:
        """Whether a pod leaves that a disruption budget protects."""
        shared, about = self._shared, pod.metadata
        try:
            await shared.client.delete(
                PODS, about.name, namespace=about.namespace, uid=about.uid, grace_s=GRACE_S, guard=shared.lead.guard()
            )
        except ApiError as error:
            if error.reason != NOT_LEADING and error.status not in GONE:
                shared.errors.report("reclaim", f"pod {about.namespace}/{about.name}: {error.summary}")
            return error.status in GONE
        where = f"deleted from node {pod.spec.node_name} in spite of its disruption budget"
        self._leaves(pod, f"{where}: {self._why(pod, lack)}, which no other pod can give back")
        return True

    def _leaves(self, pod: Pod, text: str) -> None:
        shared, about = self._shared, pod.metadata
        self._evicted[about.uid] = shared.clock() + SPARED_S
        shared.events.record(pod, RECLAIMED, text, warning=True)
        shared.log(f"pod {about.namespace}/{about.name} {text}")

    def _refuse(self, pod: Pod, lack: Lack, why: str, *, by_budget: bool = False) -> None:
        text = f"cannot be evicted ({why}), though {self._why(pod, lack)}"
        self._refused[pod.metadata.uid] = _Refused(self._shared.clock() + SPARED_S, text, by_budget)
        self._shared.events.record(pod, RECLAIM_REFUSED, text, warning=True)

    def _why(self, pod: Pod, lack: Lack) -> str:
        above = format_memory(MiB(lack.above.get(pod.metadata.uid, 0)))
        return f"it uses {above} above its request on GPU {lack.gpu}, and {self._needs(pod, lack)}"

    def _needs(self, pod: Pod, lack: Lack) -> str:
        waiting = self._shared.state.bound(lack.pod)
        own, other = visible_to(pod.metadata.namespace, [] if waiting is None else [(waiting.namespace, waiting.name)])
        name = f"pod {own[0]}" if own else other[0] if other else "another pod"
        return f"{name} needs {format_memory(MiB(lack.missing))} more of its request there"

    # Answers

    def notes(self, pod: Pod) -> Iterable[str]:
        """Sentences for `why`: what a pod is granted, and what is reclaimed from it or for it."""
        report = self._reports.get(pod.spec.node_name, NO_GRANTS)
        record = self._record(pod.metadata.uid)
        if record is not None:
            yield from describe_grants(record, report.pods.get(pod.metadata.uid, ()))
        for lack in report.lacks:
            if lack.pod == pod.metadata.uid:
                amount = format_memory(MiB(lack.missing))
                yield f"it waits for {amount} of its request on GPU {lack.gpu}, which pods above theirs give back"
            elif pod.metadata.uid in lack.above:
                yield f"its memory may not grow on GPU {lack.gpu}: {self._needs(pod, lack)}"
        if pod.metadata.uid in self._refused:
            yield f"it {self._refused[pod.metadata.uid].why}"

    def _pod(self, uid: str, node: str, lack: Lack) -> Pod | None:
        """A pod that may be evicted for another one on this node, whatever the agent of the node reports."""
        bound = self._shared.state.bound(uid)
        if bound is None or bound.node != node or uid == lack.pod or not _is_elastic_on(bound.record, lack.gpu):
            return None
        pod = self._shared.pods.objects.get((bound.namespace, bound.name))
        return pod if pod is not None and pod.metadata.uid == uid else None

    def _record(self, uid: str) -> Record | None:
        bound = self._shared.state.bound(uid)
        return None if bound is None else bound.record


def describe_grants(record: Record, reports: Iterable[GrantReport]) -> Iterable[str]:
    """What each container requests, may use and is granted of each GPU, if that differs."""
    granted = {(one.container, one.gpu): one for one in reports}
    for held in record.containers:
        for share in held.gpus:
            now = granted.get((held.number, share.gpu))
            where = f"of container {held.number} on GPU {share.gpu}"
            if share.memory_limit > share.memory:
                has = "not granted yet" if now is None else f"{format_memory(MiB(now.memory))} granted now"
                requested, most = format_memory(MiB(share.memory)), format_memory(MiB(share.memory_limit))
                yield f"memory {where}: {requested} requested, at most {most}, {has}"
            if share.compute_limit > share.compute:
                has = "not granted yet" if now is None else f"{now.compute / 10:g} % granted now"
                requested, most = f"{share.compute / 10:g} %", f"{share.compute_limit / 10:g} %"
                yield f"compute {where}: {requested} requested, at most {most}, {has}"


def _is_elastic_on(record: Record, gpu: str) -> bool:
    return any(share.gpu == gpu and share.is_elastic for held in record.containers for share in held.gpus)
