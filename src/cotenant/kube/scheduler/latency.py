# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Latency objectives: a server that misses its objective gets more of its GPU's compute, and one that holds it easily
less, as the agent of its node measured.

A server never has less than it requested, or than its owner last wrote as a resize, and never more than the shares of
the other pods on its GPUs leave. While it is alone, it claims no more than that, since no share would make it faster;
without an objective, it has what it requested again. Pods that claim no compute have no share to lose: beside a server,
they are limited to equal parts of what all shares leave, but never to less than a tenth of the GPU each, and when the
server is gone, they are not limited any more.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from typing import NoReturn

import msgspec

from cotenant.core.model import ContainerKind, Reason
from cotenant.core.sharing.latency import LEAST_SHARE, MISSES_TO_GROW
from cotenant.core.units import WHOLE_GPU, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.error_log import describe
from cotenant.kube.api.objects import Node, Pod, has_ended
from cotenant.kube.codec.assignment import Held, Record, Share, compute_share, gpus_of, staying, with_shares
from cotenant.kube.codec.inventory import SERVERS, ServerReport, servers_of
from cotenant.kube.codec.objective import has_objective
from cotenant.kube.codec.request import placed_request_of
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.scheduler.events import LATENCY_MISSED, LATENCY_SHARE
from cotenant.kube.scheduler.resize import growth_refusal, least_compute
from cotenant.kube.scheduler.rewriting import begin_rewrite, rewrite_for, write
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState

AGAIN_S = 1.0
"""after a write that failed or a bind that was not known yet, and while the state of the cluster is not reliable"""
NOTED_S = 60.0
"""between two events about one pod that misses its objective"""


# Deciding.


def granted_share(now: Allocation, wanted: int, least: int, state: ClusterState) -> MilliGpu:
    """The share that a server gets if it should have `wanted`, requested `least`, and has `now`."""
    node, has = state.without(now.uid).node(now.node), compute_share(now.record)
    gpus = gpus_of([share for held in staying(now.record) for share in held.gpus], node.machine)
    unclaimed = Counter(
        gpu
        for one in _neighbours(now, state)
        for held in staying(state.added_by(one).record)
        for gpu, share in zip(gpus_of(held.gpus, node.machine), held.gpus, strict=True)
        if not share.compute
    )
    present = [gpu for gpu in gpus if gpu < len(node.machine.gpus)]
    free = min((node.compute[gpu] - LEAST_SHARE * unclaimed[gpu] for gpu in present), default=0)
    return MilliGpu(max(least, min(wanted, WHOLE_GPU, max(has, free))))


def left_on(node: str, state: ClusterState, servers: Collection[str]) -> dict[str, MilliGpu]:
    """What is left of the compute of each GPU with a server for each container that claims none, by UUID."""
    claimed: Counter[str] = Counter()
    unclaimed: Counter[str] = Counter()
    shared = set()
    for uid, allocation in state.allocations_on(node).items():
        for held in staying(state.added_by(allocation).record):
            for share in held.gpus:
                claimed[share.gpu] += share.compute
                unclaimed[share.gpu] += not share.compute
                if uid in servers:
                    shared.add(share.gpu)
    return {gpu: MilliGpu(max(LEAST_SHARE, (WHOLE_GPU - claimed[gpu]) // max(1, unclaimed[gpu]))) for gpu in shared}


def limited(record: Record, left: Mapping[str, int]) -> Record:
    """The record with what is left as the limit of each container that claims no compute."""
    return with_shares(
        record,
        lambda _, share: msgspec.structs.replace(share, most=0 if share.compute else left.get(share.gpu, 0)),
    )


def _with_share(record: Record, compute: int) -> Record:
    def change(held: Held, share: Share) -> Share:
        return share if held.kind is ContainerKind.INIT else msgspec.structs.replace(share, compute=compute)

    return with_shares(record, change)


def _neighbours(now: Allocation, state: ClusterState) -> list[Allocation]:
    own = {share.gpu for held in now.record.containers for share in held.gpus}
    return [
        one
        for uid, one in state.allocations_on(now.node).items()
        if uid != now.uid and any(share.gpu in own for held in one.record.containers for share in held.gpus)
    ]


def least_share(pod: Pod, now: Allocation, settings: Settings) -> MilliGpu:
    """What a pod has at least: what its owner wrote as a resize, once it has it, or else what it requested."""
    resized = least_compute(pod, now.record)
    if resized is not None:
        return MilliGpu(min(resized, compute_share(now.record)))
    containers = (one.amounts.container for one in placed_request_of(pod, settings).containers)
    return MilliGpu(max((one.compute for one in containers if one.kind is not ContainerKind.INIT), default=0))


# Writing.


class Outcome(Enum):
    """What became of a change of a pod."""

    WRITTEN = auto()
    LATER = auto()
    """It has to be tried again."""
    NEVER = auto()
    """There is nothing to write, or it would be refused again."""


class ObjectiveKeeper:
    """Takes in the reports of agents and the pods; `run` changes shares and limits, node by node."""

    def __init__(self, shared: Shared, is_binding: Callable[[str], bool], settings: Settings = DEFAULTS) -> None:
        """`is_binding` tells whether the outcome of a pod's bind is still unknown."""
        self._shared, self._is_binding, self._settings = shared, is_binding, settings
        self._reports: dict[str, Mapping[str, ServerReport]] = {}
        """By node, then by UID."""
        self._servers: set[str] = set()
        """UIDs of the placed pods with an objective."""
        self._former: set[str] = set()
        """UIDs of those that no longer have one, and may still have the share that was found for it."""
        self._limited: set[str] = set()
        """UIDs of the pods with a limit."""
        self._nodes: Counter[str] = Counter()
        """How many of both are on each node."""
        self._noted: dict[str, float] = {}
        self._due: dict[str, float] = {}
        """When each node is looked at next, by the clock of the event loop."""
        self._wake = asyncio.Event()

    def report_of(self, pod: Pod) -> ServerReport | None:
        """What the agent of its node last measured of a pod."""
        return self._reports.get(pod.spec.node_name, {}).get(pod.metadata.uid)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Subscriber of `Signals.node_changed`."""
        name = (new or old or Node()).metadata.name
        if new is None:
            self._reports.pop(name, None)
        elif old is None or old.metadata.annotations.get(SERVERS) != new.metadata.annotations.get(SERVERS):
            try:
                self._reports[name] = servers_of(new)
            except InputError as error:
                self._reports.pop(name, None)
                self._log(f"node {name}: {error}")
            self._add(name)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        pod = new or old
        if pod is None or not pod.spec.node_name:
            return
        uid, node = pod.metadata.uid, pod.spec.node_name
        gone = new is None or has_ended(new)
        was = node in self._nodes
        is_server, has_limit = has_objective(pod.metadata.annotations), self._has_limit(uid)
        if uid in self._servers and not is_server:
            self._former.add(uid)
        elif is_server:
            self._former.discard(uid)
        for found, known in ((is_server and not gone, self._servers), (has_limit and not gone, self._limited)):
            if found and uid not in known:
                known.add(uid)
                self._nodes[node] += 1
            elif not found and uid in known:
                known.remove(uid)
                self._nodes[node] -= 1
        if not self._nodes[node]:
            del self._nodes[node]
        if gone:
            self._former.discard(uid)
            self._noted.pop(uid, None)
        if was or node in self._nodes:
            self._add(node)

    def _has_limit(self, uid: str) -> bool:
        bound = self._shared.state.bound(uid)
        return bound is not None and any(share.most for held in bound.record.containers for share in held.gpus)

    def _add(self, node: str) -> None:
        self._due[node] = float("-inf")
        self._wake.set()

    async def run(self) -> NoReturn:
        """Keep the objectives until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            ready = [node for node, at in self._due.items() if at <= clock()]
            if not ready:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(self._due.values(), default=None)):
                        await self._wake.wait()
                continue
            if self._shared.unready_reason() is not None:
                await asyncio.sleep(AGAIN_S)
                continue
            for node in ready:
                self._due.pop(node, None)
                if not await self._settled(node):
                    self._due.setdefault(node, clock() + AGAIN_S)

    async def _settled(self, node: str) -> bool:
        """Whether nothing of a node has to be tried again."""
        try:
            return await self._settle(node)
        except Exception as error:  # noqa: BLE001 -- a defect about one node must not end the scheduler
            self._log(f"node {node}: unexpected {describe(error)}")
            return False

    async def _settle(self, node: str) -> bool:
        """Give the servers of a node their shares, then its other pods their limits; False if a write failed."""
        if not (self._former or node in self._reports or node in self._nodes):
            return True  # as most nodes; after a start, all of them are due
        state, done = self._shared.state, True
        for uid, report in self._reports.get(node, {}).items():
            now = self._bound(uid, node) if uid in self._servers else None
            done &= now is None or await self._adjust(now, report) is not Outcome.LATER
        for uid in list(self._former.intersection(state.allocations_on(node))):
            now = self._bound(uid, node)
            done &= now is None or await self._give_back(now) is not Outcome.LATER
        left = left_on(node, state, self._servers)
        for uid in list(state.allocations_on(node)):
            now = self._bound(uid, node)
            record = None if now is None else limited(now.record, left)
            if now is not None and record is not None and record != now.record:
                done &= await self._rewrite(now, record) is not Outcome.LATER
        return done

    def _bound(self, uid: str, node: str) -> Allocation | None:
        """What a pod has of the GPUs of this node. None if it is elsewhere, whatever the agent of this node reports, or
        if the node is gone, which may happen during each write."""
        state, now = self._shared.state, self._shared.state.bound(uid)
        return now if now is not None and now.node == node and node in state.vendors else None

    async def _adjust(self, now: Allocation, report: ServerReport) -> Outcome:
        shared, pod = self._shared, self._pod(now)
        has, alone = compute_share(now.record), not _neighbours(now, shared.state)
        is_old = has != report.compute  # measured with another share than it has by now
        if pod is None or (is_old and not alone) or shared.state.shares_claims(now.uid):
            return Outcome.NEVER
        try:
            least = least_share(pod, now, self._settings)
        except InputError:  # the settings were changed since it was placed
            return Outcome.NEVER
        share = MilliGpu(min(has, least)) if alone else granted_share(now, report.wanted, least, shared.state)
        record = _with_share(now.record, share)
        refusal = None
        if share > has:
            refusal = growth_refusal(now, replace(now, record=record), shared.state, shared.quotas)
        if share == has or refusal is not None:
            if report.missed >= MISSES_TO_GROW and not is_old:
                self._note_miss(pod, report, alone, refusal)
            return Outcome.NEVER
        outcome = await self._rewrite(now, record)
        if outcome is Outcome.WRITTEN:
            why = "it has its GPU to itself" if alone else describe_report(report)
            shared.events.record(pod, LATENCY_SHARE, _describe_change(has, share, why))
        return outcome

    async def _give_back(self, now: Allocation) -> Outcome:
        """Give a pod that no longer has an objective the share that it requested."""
        pod, has = self._pod(now), compute_share(now.record)
        try:
            share = has if pod is None else least_share(pod, now, self._settings)
        except InputError:  # the settings were changed since it was placed
            share = has
        less = pod is not None and share < has
        outcome = await self._rewrite(now, _with_share(now.record, share)) if less else Outcome.NEVER
        if outcome is not Outcome.LATER:
            self._former.discard(now.uid)
        if pod is not None and outcome is Outcome.WRITTEN:
            text = _describe_change(has, share, "it has no latency objective any more")
            self._shared.events.record(pod, LATENCY_SHARE, text)
        return outcome

    def _note_miss(self, pod: Pod, report: ServerReport, alone: bool, refusal: Reason | None) -> None:
        now = self._shared.clock()
        if now < self._noted.get(pod.metadata.uid, float("-inf")) + NOTED_S:
            return
        self._noted[pod.metadata.uid] = now
        why = "it has its GPU to itself" if alone else "the shares of its neighbours leave no more"
        if refusal is not None:
            why = str(refusal)
        share = f"{report.compute / 10:g}% of its GPU's compute"
        text = f"misses its objective with {share}: {describe_report(report)}; {why}"
        self._shared.events.record(pod, LATENCY_MISSED, text, warning=True)

    async def _rewrite(self, now: Allocation, record: Record) -> Outcome:
        """Write another record of a pod that has `now`."""
        shared, pod = self._shared, self._pod(now)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return Outcome.NEVER
        if shared.state.held(now.uid) is not None or self._is_binding(now.uid):
            return Outcome.LATER
        guard, machine = shared.lead.guard(), shared.state.cluster.node(now.node).machine
        try:
            rewrite = rewrite_for(pod, now, record, machine, moment=time.time_ns(), settings=self._settings)
        except InputError as error:
            self._log(f"pod {now.namespace}/{now.name}: {error}")
            return Outcome.NEVER
        begin_rewrite(shared.state, now, rewrite)
        return Outcome.WRITTEN if await write(shared, pod, rewrite, guard, self._log) else Outcome.LATER

    def _pod(self, allocation: Allocation) -> Pod | None:
        pod = self._shared.pods.objects.get((allocation.namespace, allocation.name))
        return pod if pod is not None and pod.metadata.uid == allocation.uid else None

    def _log(self, text: str) -> None:
        self._shared.errors.report("latency", text)


def _describe_change(had: int, has: int, why: str) -> str:
    return f"has {has / 10:g}% of its GPU's compute, had {had / 10:g}%: {why}"


def describe_report(report: ServerReport) -> str:
    """The latency and the objective, in words."""
    return f"p{report.percentile} is {report.latency_ms:.4g} ms, the objective is {report.objective_ms:g} ms"
