# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Separation: a pod that was measured to slow its neighbours down more than its policy allows is evicted, once.

Only the newest pod of a GPU is judged, only if it was placed a short time ago while this process led, and only if all
its neighbours were measured beside it. "Once" is once for each controller, as long as this process runs. It is written
in the status of a profile of the workload before the eviction, so it holds for the next leader too, for as long as that
profile is kept.

It needs a controller that creates it again: a pod without one would be lost. The new pod is placed with what was
learned, so it does not come back to the same neighbours.
"""

import asyncio
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn

import msgspec

from cotenant.core.model import Gpu, Job, Placement, Reason, Slot, Tenant
from cotenant.core.placement.deciding import judge_again
from cotenant.core.sharing.orders import tenants_on
from cotenant.errors import InputError
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Pod, time_text
from cotenant.kube.codec.profiles import MOST_SEPARATED, PROFILES, Separation
from cotenant.kube.scheduler.events import SEPARATED, SEPARATION_REFUSED
from cotenant.kube.scheduler.lease import NOT_LEADING
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.shared import Shared
from cotenant.wire.text import counted

JUDGED_S = 900.0
"""a pod that was placed longer ago has done too much work to lose it"""
MOST_REMEMBERED = 1000
"""pods that were placed"""
MOST_CONTROLLERS = 10_000


class _Placed(NamedTuple):
    at: float
    crowding: float
    """waiting pods per GPU when it was placed"""
    pod: Pod


class _Found(NamedTuple):
    pod: Pod
    reason: Reason
    neighbours: int
    profile: str
    """name of an object about its workload"""


class Separator:
    """Takes in pods and what was learned; `run` evicts."""

    def __init__(self, shared: Shared, profiles: Profiles) -> None:
        self._shared, self._profiles = shared, profiles
        self._enabled = shared.settings.scheduler.sharing.evict_newcomers
        self._placed: dict[str, _Placed] = {}
        self._separated: dict[str, None] = {}
        """UIDs of the controllers of which this process evicted a pod: a profile goes away with its node"""
        self._wake = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        if not self._enabled:
            return
        if self._shared.lead.unready_reason() is not None:  # a standby judges nothing, so it remembers nothing
            self._placed.clear()
        elif new is None:
            self._placed.pop(old.metadata.uid if old is not None else "", None)
        elif new.metadata.uid in self._placed:
            self._placed[new.metadata.uid] = self._placed[new.metadata.uid]._replace(pod=new)
        elif old is not None and not old.spec.node_name and new.spec.node_name:
            placed = _Placed(self._shared.clock(), self._shared.placer.feasibility.crowding, new)
            self._placed[new.metadata.uid] = placed
            if len(self._placed) > MOST_REMEMBERED:
                del self._placed[next(iter(self._placed))]

    def on_learned(self) -> None:
        """Subscriber of `Signals.learned`."""
        if self._enabled:
            self._wake.set()

    async def run(self) -> NoReturn:
        """Evict until cancelled: at most one pod each time that something was learned."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._shared.unready_reason() is None:
                await self._separate()

    async def _separate(self) -> None:
        now = self._shared.clock()
        self._placed = {uid: one for uid, one in self._placed.items() if now - one.at <= JUDGED_S}
        for uid in list(self._placed):
            found = self._judge(uid) if uid in self._placed else None
            if found is None:
                continue
            try:
                if await self._record(found):
                    await self._evict(found)
                    return
            except ApiError as error:  # of one pod: another may be evicted all the same
                if error.reason == NOT_LEADING:
                    return
                if error.status not in (404, 409):
                    self._refused(found, error.summary)

    async def _evict(self, found: _Found) -> None:
        shared, about = self._shared, found.pod.metadata
        await shared.client.evict(about.name, namespace=about.namespace, uid=about.uid, guard=shared.lead.guard())
        beside = counted(found.neighbours, "neighbour")
        text = f"evicted from node {found.pod.spec.node_name} after it was measured beside {beside}: {found.reason}"
        shared.events.record(found.pod, SEPARATED, text, warning=True)
        shared.log(f"pod {about.namespace}/{about.name} {text}")

    async def _record(self, found: _Found) -> bool:
        """Writes down that the pod's controller loses a pod; False if it has lost one before, or if this is not kept.

        What the API server has is read first, because the watch may be late. If the eviction is refused afterwards, the
        pod stays: one eviction too few is better than a pod that is evicted again and again.
        """
        shared, about = self._shared, found.pod.metadata
        assert about.controller is not None
        profile = await shared.client.get(PROFILES, found.profile)
        before = profile.status.separations
        if any(one.controller == about.controller.uid for one in before):
            return False
        new = Separation(controller=about.controller.uid, pod=about.name, at=time_text(datetime.now(UTC)))
        patch = {"status": {"separations": msgspec.to_builtins((*before, new)[-MOST_SEPARATED:])}}
        after = await shared.client.patch(PROFILES, found.profile, patch, part="status", guard=shared.lead.guard())
        if new not in after.status.separations:  # an older definition of the resource does not have the field
            self._refused(
                found, f"WorkloadProfile {found.profile} does not keep it; update the definition of the resource"
            )
            return False
        self._separated[about.controller.uid] = None
        if len(self._separated) > MOST_CONTROLLERS:
            del self._separated[next(iter(self._separated))]
        return True

    def _refused(self, found: _Found, why: str) -> None:
        text = f"slows its neighbours down, and cannot be evicted: {why}"
        self._shared.events.record(found.pod, SEPARATION_REFUSED, text, warning=True)

    def _judge(self, uid: str) -> _Found | None:
        """Why a pod must leave its neighbours; None if it may stay."""
        shared, placed = self._shared, self._placed[uid]
        allocation, about = shared.state.bound(uid), placed.pod.metadata
        if allocation is None or allocation.node not in shared.state.vendors or about.deletion_timestamp is not None:
            return None
        if about.controller is None or about.controller.uid in self._separated:
            return None
        if self._profiles.was_separated(about.controller.uid):
            return None
        if shared.settings.scheduler.preemption.protects(about.namespace, about.labels):
            return None
        node = shared.state.cluster.node(allocation.node)
        own = next((tenant for tenant in node.tenants if tenant.job == uid), None)
        if own is None or len(set(own.gpus)) != 1:
            return None
        others = [one for one in tenants_on(node, own.gpus[0]) if one.job != uid]
        if not others or not self._is_newest(uid, others) or not self._is_measured(own, others, node.machine.gpus):
            return None
        try:
            policy = shared.placer.views.ranker(placed.pod).policy
        except InputError:
            return None
        placement = Placement(Job(id=uid, demand=own.demand), Slot(node.name, own.gpus), own.replica)
        reason = judge_again(policy, placement, shared.state.cluster, placed.crowding).reason
        profile = self._profiles.object_of(own.demand.workload or "", node.name)
        return None if reason is None or profile is None else _Found(placed.pod, reason, len(others), profile)

    def _is_newest(self, uid: str, others: list[Tenant]) -> bool:
        return all(self._placed[one.job].at < self._placed[uid].at for one in others if one.job in self._placed)

    def _is_measured(self, own: Tenant, others: list[Tenant], gpus: tuple[Gpu, ...]) -> bool:
        names = [one.demand.workload for one in others if one.demand.workload is not None]
        if own.demand.workload is None or len(names) < len(others):
            return False
        return self._profiles.belief.knows(gpus[own.gpus[0]].type, own.demand.workload, names)
