# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster as a source of the pages. What it answers is reduced to the sight of the viewer in every method."""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import NoReturn

from cotenant.errors import CotenantError, InputError
from cotenant.history.store import History
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.queueing import is_gated
from cotenant.kube.scheduler.explaining import describe_allocation
from cotenant.web.access import Viewer
from cotenant.web.kube.access import Guest
from cotenant.web.kube.acting import AsViewer
from cotenant.web.kube.day import day_of, recorded_namespaces
from cotenant.web.kube.details import PodEvents, facts, timeline
from cotenant.web.kube.picture import MOST_SIGHTS, Picture, Sight, visible
from cotenant.web.kube.placing import sentence, verdicts, what_if
from cotenant.web.kube.recording import EVERY_S, Recently, charts_of, samples
from cotenant.web.kube.reviews import Answers
from cotenant.web.kube.watch import ClusterWatch
from cotenant.web.model import (
    Action,
    Charts,
    Day,
    JobDetail,
    JobRow,
    LogPiece,
    Overview,
    State,
    Tenant,
    Verb,
    WhatIf,
    WhatIfAnswer,
)
from cotenant.web.source import AbsentError, ForbiddenError

WAITS = (State.WAITING, State.HELD)
DAY_FRESH_S = 20.0
"""How long the last day counts that viewers with one sight see: with many namespaces it takes seconds to read."""
SUGGESTED_S = 10.0
"""How long the suggestions for a pod count: a search may take some tenths of a second."""
MOST_SUGGESTED = 200
"""Pods whose suggestions are kept."""


class ClusterSource:
    """Implements `Source` for a cluster."""

    group_word = "namespace"

    def __init__(
        self,
        watch: ClusterWatch,
        picture: Picture,
        events: PodEvents,
        as_viewer: AsViewer,
        *,
        errors: ErrorLog,
        history: History | None = None,
        actions: bool = False,
    ) -> None:
        self._watch, self._picture, self._events, self._as_viewer = watch, picture, events, as_viewer
        self._errors, self._history, self._actions = errors, history, actions
        self._suggested: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._days: Answers[Sight, Day] = Answers(fresh_s=DAY_FRESH_S, most=MOST_SIGHTS, clock=time.monotonic)
        self._recorded: Collection[str] = ()

    async def snapshot(self, viewer: Viewer) -> Overview:
        """Return the present state."""
        self._check_ready()
        return await self._picture.overview(_guest(viewer).sight)

    def changes(self) -> AsyncGenerator[None, None]:
        """Yield when something may have changed."""
        return self._watch.changes()

    async def job(self, viewer: Viewer, job: str) -> JobDetail:
        """Return everything about one pod."""
        sight = _guest(viewer).sight
        pod, row = await self._find(sight, job)
        events = await self._events.of(pod) if sight.sees_events(pod.metadata.namespace) else ()
        allocation = self._watch.state.bound(pod.metadata.uid)
        if allocation is not None and row.state is not State.ENDED:
            row = replace(row, reason=f"on node {allocation.node}: {describe_allocation(allocation)}")
        detail = JobDetail(
            row=row,
            facts=facts(pod, allocation, self._watch.settings.scheduler.policy),
            timeline=timeline(pod, events),
            company=self._company(sight, row),
            has_log=row.state not in WAITS,
        )
        if row.state not in WAITS:
            return detail
        why = self._watch.placer.reasons.why(pod)
        seen = self._picture.seen_nodes(sight)
        known = row.state is State.HELD or is_gated(pod.spec.scheduling_gates) or (why.fits and why.waits is None)
        reason = row.reason if known else sentence(why) or row.reason
        return replace(
            detail,
            row=replace(row, reason=reason),
            verdicts=verdicts(why, sight, seen),
            would_fit=await self._would_fit(pod),
        )

    async def charts(self, viewer: Viewer, job: str) -> Charts:
        """Return the charts of one pod."""
        _, row = await self._find(_guest(viewer).sight, job)
        if self._history is None:
            return Charts()
        return await asyncio.to_thread(charts_of, self._history, row.id, row.limit_mib)

    async def logs(self, viewer: Viewer, job: str) -> AsyncGenerator[LogPiece, None]:
        """Yield the output of a pod, read with the viewer's own token."""
        guest = _guest(viewer)
        pod, _ = await self._find(guest.sight, job)
        async with aclosing(self._as_viewer.output(guest.token, pod)) as pieces:
            async for piece in pieces:
                yield piece

    async def whatif(self, viewer: Viewer, wish: WhatIf) -> WhatIfAnswer:
        """Return where a pod would go."""
        self._check_ready()
        await self._picture.refresh()
        sight = _guest(viewer).sight
        namespaces = sorted({key[0] for key in self._picture.rows if sight.sees(key[0])}) or ["default"]
        namespace = wish.group.strip()[:63] or namespaces[0]
        if not sight.sees(namespace):
            raise ForbiddenError(f"you may not list the pods of namespace {namespace!r}; name another one")
        seen = self._picture.seen_nodes(sight)
        return await what_if(wish, namespace, self._watch, sight, seen)

    async def day(self, viewer: Viewer) -> Day | None:
        """Return the last 24 hours."""
        if self._history is None:
            return None
        history, sight = self._history, _guest(viewer).sight
        return await self._days.of(sight, lambda: asyncio.to_thread(day_of, history, sight))

    async def act(self, viewer: Viewer, action: Action) -> str:
        """Do it with the viewer's own token, so the API server decides and its audit log has the viewer's name."""
        guest = _guest(viewer)
        if not self._actions:
            raise ForbiddenError("actions are disabled: start `cotenant kube web` with --actions to enable them")
        if action.verb not in (Verb.CORDON, Verb.UNCORDON):
            return await self._act_on_pod(guest, action)
        name, _, index = action.target.partition("/")
        node = self._picture.node(guest.sight, name)
        if node is None:
            raise AbsentError(f"no node {name[:100]!r} here")
        if not index:
            return await self._as_viewer.cordon_node(guest.token, name, action.verb)
        uuid = next((gpu.uuid for gpu in node.gpus if str(gpu.index) == index), None)
        if uuid is None:
            raise AbsentError(f"node {name} has no GPU {index[:20]}")
        return await self._as_viewer.cordon_gpu(guest.token, name, uuid, action.verb)

    async def _act_on_pod(self, guest: Guest, action: Action) -> str:
        pod, row = await self._find(guest.sight, action.target)
        if action.verb is Verb.CANCEL:
            return await self._as_viewer.delete(guest.token, pod)
        if action.verb is Verb.RELEASE:
            if row.state is not State.HELD:
                raise InputError(f"pod {row.id} is not held")
            return await self._as_viewer.release(guest.token, pod)
        if row.state is State.HELD:
            raise InputError(f"pod {row.id} is already {row.reason}")
        if row.state is not State.WAITING or row.no_hold is not None:
            raise InputError(row.no_hold or f"pod {row.id} does not wait; only a pod in the queue can be held")
        return await self._as_viewer.hold(guest.token, pod, guest.user.name)

    async def record(self) -> NoReturn:
        """Record the cluster until cancelled."""
        recently = Recently()
        while True:
            await asyncio.sleep(EVERY_S)
            if self._history is not None and self._watch.unready_reason() is None:
                await self.record_once(self._history, recently)

    async def record_once(self, history: History, recently: Recently) -> None:
        """Record the cluster as it is now."""
        await self._picture.refresh()
        try:
            now = time.time()
            taken = list(samples(self._picture, recently.names(self._picture, now)))
            await asyncio.to_thread(history.record, now, taken)
            self._recorded = await asyncio.to_thread(recorded_namespaces, history, now)
        except CotenantError as error:
            self._errors.report("history", str(error))

    def namespaces(self) -> set[str]:
        """Return the namespaces with pods that use or request GPUs, now or, as far as it was recorded, in the last
        day."""
        return {namespace for namespace, _ in self._watch.pods}.union(self._recorded)

    async def _would_fit(self, pod: Pod) -> tuple[str, ...]:
        """What would let a pod start, in words that its namespace may read; searched for once in a while."""
        uid, now = pod.metadata.uid, time.monotonic()
        known = self._suggested.pop(uid, None)
        if known is None or now - known[0] > SUGGESTED_S:
            found, _ = await self._watch.foresight.suggestions(pod)
            known = time.monotonic(), tuple(one.text for one in found)
        self._suggested[uid] = known  # the most recent last
        if len(self._suggested) > MOST_SUGGESTED:
            del self._suggested[next(iter(self._suggested))]
        return known[1]

    async def _find(self, sight: Sight, job: str) -> tuple[Pod, JobRow]:
        """The pod of an id; AbsentError also if the viewer may not know that it exists."""
        self._check_ready()
        await self._picture.refresh()
        namespace, _, name = job.partition("/")
        key = namespace, name
        if sight.sees(namespace) and key in self._watch.pods:
            with suppress(KeyError):
                return self._watch.pods[key], self._picture.rows[key]
        raise AbsentError(f"no pod {job[:200]!r} with GPUs, or you may not list the pods of its namespace")

    def _company(self, sight: Sight, row: JobRow) -> tuple[Tenant, ...]:
        tile = self._picture.tiles.get(row.node or "")
        if tile is None or row.state is State.ENDED:
            return ()
        shared = [gpu for gpu in tile.node.gpus if any(one.job == row.id for one in gpu.tenants)]
        found = [one for gpu in shared if len(gpu.tenants) > 1 for one in gpu.tenants]
        return tuple(visible(one, sight) for one in found)

    def _check_ready(self) -> None:
        if (reason := self._watch.unready_reason()) is not None:
            raise CotenantError(f"{reason}; try again in a moment")


def _guest(viewer: Viewer) -> Guest:
    assert isinstance(viewer.details, Guest)
    return viewer.details
