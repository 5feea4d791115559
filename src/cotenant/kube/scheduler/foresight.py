# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a pod fit that waits, and what-if. Nothing here changes anything.

A search may judge thousands of nodes, so it lets kube-scheduler's calls in between its steps.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from msgspec.structs import replace as replaced

from cotenant.core.model import Demand, Job, Placement, Slot
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.eviction import Stake
from cotenant.core.queueing.preemption import Holder
from cotenant.core.sharing.unshared import no_share_notes
from cotenant.core.suggestions.changes import Change, Suggestion
from cotenant.core.suggestions.leaving import MOST_HOLDERS
from cotenant.core.suggestions.outlook import outlook
from cotenant.core.suggestions.search import Memory, Search, Steps
from cotenant.core.suggestions.suggesting import gang_standing, ordered, suggestions
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, moment_of
from cotenant.kube.codec.queueing import gang_of
from cotenant.kube.scheduler.gangs import claims_or_uid
from cotenant.kube.scheduler.naming import visible_to
from cotenant.kube.scheduler.preemption_search import priority_of
from cotenant.kube.scheduler.quota import NAMES, Limit, Shortfall
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.scheduler.view import View
from cotenant.kube.state.allocation import peak_on
from cotenant.wire.explanation import GangView, SuggestionView, WhatIf, suggestion_view, what_if

QUOTA_SIZE = 0.25
"""how large the change of a quota is, beside an amount of the request that is lowered by such a part"""
MOST_MEMORIES = 2
"""policies whose arrays are kept"""
MOST_NAMED = 8
"""pods in one sentence"""
NEW = "what-if"
NO_GPU = "it requests no GPU; kube-scheduler alone places such pods"

T = TypeVar("T")
Found = tuple[tuple[SuggestionView, ...], GangView | None]


class Foresight:
    """Asks the core about pods that wait and pods that do not exist."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._memories: dict[str, Memory] = {}

    async def prepare(self, pod: Pod) -> None:
        """Rates all nodes for a pod in steps, so that the reasons of each of them are found quickly after that."""
        try:
            view = self._shared.placer.views.of(pod)
        except InputError:  # it is why the pod waits
            return
        if view is not None:
            for _ in view.ranker.prepare(view.request.demand, view.cluster, every=True):
                await asyncio.sleep(0)

    async def suggestions(self, pod: Pod) -> Found:
        """What would make a waiting pod fit, and how much of its gang would; nothing if it does not wait."""
        shared, uid = self._shared, pod.metadata.uid
        if uid not in shared.state.waiting or shared.state.held(uid) is not None:
            return (), None
        try:
            view = shared.placer.views.of(pod)
            members = None if view is None else self._members(pod, view.request.demand)
        except InputError:  # it is why the pod waits
            return (), None
        if view is None or members is None:
            return (), None
        crowding = shared.placer.feasibility.crowding
        return await self._suggested(pod, self._search(view, members, crowding, shared.offers.of(pod)))

    async def what_if(self, namespace: str, template: Pod, named: Callable[[str], str] | None = None) -> WhatIf:
        """Where a pod like this template would go; InputError if its request is not valid.

        `named` is how a tenant is called, by its UID; without it, pods of other namespaces have no name.
        """
        shared = self._shared
        about = replaced(template.metadata, namespace=namespace, name=NEW, uid=NEW)
        spec = replaced(template.spec, scheduler_name=shared.settings.scheduler.name, node_name="")
        pod = replaced(template, metadata=about, spec=spec)
        view, gang = shared.placer.views.of(pod), gang_of(pod)
        if view is None:
            return WhatIf(policy=shared.placer.views.policy_of(pod), waits=NO_GPU)
        crowding = shared.placer.feasibility.crowding + 1 / max(1, shared.state.gpus)
        search = self._search(view, 1 if gang is None else gang.size, crowding, None)
        found = await _in_steps(outlook(search))
        slots = tuple(one.slot for one in found.placements)
        over = next(iter(self._over_quota(view, search.job.demand, slots)), None) if slots else None
        waits = None if over is None else _describe_quota(over)
        suggested: Found = ((), None) if slots and over is None else await self._suggested(pod, search)
        notes = list(shared.placer.reasons.unenforced(pod))
        for slot in slots:
            notes += no_share_notes(search.job.demand, view.cluster.node(slot.node), slot.gpus)
        return what_if(
            search.policy.name,
            found,
            named or (lambda uid: self._name(uid, namespace)),
            waits=waits,
            suggestions=suggested[0],
            gang=suggested[1],
            notes=tuple(dict.fromkeys(notes)),
        )

    async def _suggested(self, pod: Pod, search: Search) -> Found:
        view = self._shared.placer.views.of(pod)
        assert view is not None
        found: list[Suggestion | None] = []
        stakes = _Stakes(self._shared)
        running = _last_first(search, stakes) if search.job.replicas > 1 else []
        for one in suggestions(search, stakes, running):
            found.append(one)
            await asyncio.sleep(0)
        found.append(await self._raised_quota(view, search))
        gang = None
        if search.job.replicas > 1:
            standing = await _in_steps(gang_standing(search))
            lacks = None if standing.lacks is None else str(standing.lacks)
            gang = GangView(needed=standing.needed, fit=standing.fit, lacks=lacks)
        namespace = pod.metadata.namespace
        return tuple(suggestion_view(self._named(one, namespace)) for one in ordered(found)), gang

    def _search(self, view: View, members: int, crowding: float, offered: frozenset[str] | None) -> Search:
        cluster, uid = view.cluster, view.pod.metadata.uid
        usable = view.nodes if offered is None else view.nodes & offered
        closed = () if len(usable) == len(cluster) else set(cluster.names) - usable

        def allows(demand: Demand, slots: tuple[Slot, ...]) -> bool:
            return not any(True for _ in self._over_quota(view, demand, slots))

        limited = self._shared.quotas.limits(view.pod.metadata.namespace)
        job = Job(id=uid, demand=view.request.demand, replicas=members)
        memory = self._memory(view.ranker)
        return Search(memory, job, cluster, closed=closed, crowding=crowding, allows=allows if limited else None)

    def _memory(self, ranker: Ranker) -> Memory:
        policy = ranker.policy
        kept = self._memories.pop(policy.name, None)
        if kept is None or kept.policy is not policy:
            kept = Memory(policy, ranker)
        self._memories[policy.name] = kept  # most recent last
        if len(self._memories) > MOST_MEMORIES:
            del self._memories[next(iter(self._memories))]
        return kept

    def _members(self, pod: Pod, demand: Demand) -> int | None:
        """How many slots are needed at once; None if the gang is incomplete, or its pods differ."""
        shared = self._shared
        status = shared.gangs.status_of(pod.metadata.uid)
        if status is None or not status.missing:
            return 1
        if len(status.ready) < status.missing:
            return None
        views = [shared.placer.views.of(one) for one in status.ready[: status.missing]]
        alike = [view for view in views if view is not None and view.request.demand == demand]
        return len({claims_or_uid(view.pod, view.request) for view in alike}) if len(alike) == len(views) else None

    def _over_quota(self, view: View, demand: Demand, slots: Sequence[Slot]) -> Iterator[Shortfall]:
        """The limits of the namespace that refuse such pods on these slots."""
        peaks = [peak_on(demand, slot, view.cluster.node(slot.node).machine) for slot in slots]

        def needed(limit: Limit) -> int:
            return sum(map(limit.of, peaks)) if limit.vendor is view.request.vendor else 0

        shared, about = self._shared, view.pod.metadata
        return shared.quotas.shortfalls(shared.state, about.namespace, needed, {about.uid})

    async def _raised_quota(self, view: View, search: Search) -> Suggestion | None:
        """The quotas that would have to be raised, if the pod fits without them."""
        if search.allows is None:
            return None
        free = Search(search.memory, search.job, search.cluster, closed=search.closed, crowding=search.crowding)
        slots = await _in_steps(free.placed(search.job.demand))
        over = [] if slots is None else list(self._over_quota(view, search.job.demand, slots))
        if slots is None or not over:
            return None
        changes = tuple(
            Change(
                "quota",
                f"quota {one.limit.quota} raised from {one.limit.most} to {one.enough} {NAMES[one.limit.field]}",
                one.limit.most,
                one.enough,
                (one.limit.quota,),
            )
            for one in over
        )
        return Suggestion(changes, QUOTA_SIZE * len(changes), slots=slots)

    def _named(self, one: Suggestion, namespace: str) -> Suggestion:
        """A suggestion with the names of pods instead of their UIDs, as far as the namespace may know them."""
        if one.kind != "end":
            return one
        (change,) = one.changes
        known = map(self._allocation_name, change.names)
        own, others = visible_to(namespace, list(known))
        shown = [*own[:MOST_NAMED], *([f"{len(own) - MOST_NAMED} more"] if len(own) > MOST_NAMED else []), *others]
        return replace(one, changes=(change._replace(text=", ".join(shown), names=tuple(own)),))

    def _allocation_name(self, uid: str) -> tuple[str, str] | None:
        allocation = self._shared.state.bound(uid) or self._shared.state.held(uid)
        return None if allocation is None else (allocation.namespace, allocation.name)

    def _name(self, uid: str, namespace: str) -> str:
        if uid == NEW:
            return NEW
        own, other = visible_to(namespace, [self._allocation_name(uid)])
        return (own or other)[0]


class _Stakes(Mapping[str, Stake]):
    """What is lost with each pod that has GPUs; looked up one by one, since there may be thousands."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __getitem__(self, uid: str) -> Stake:
        state = self._shared.state
        allocation = state.bound(uid)
        pod = None if allocation is None else self._shared.pods.objects.get((allocation.namespace, allocation.name))
        if pod is None:
            raise KeyError(uid)
        started = pod.status.start_time or pod.metadata.creation_timestamp
        return Stake(priority_of(pod), moment_of(started))

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _last_first(search: Search, stakes: Mapping[str, Stake]) -> list[Holder]:
    """The pods that may have to end for a gang: the lowest priority first, then those that started last."""
    cluster = search.cluster
    if sum(len(node.tenants) for node in cluster) > MOST_HOLDERS:
        return []
    tenants = [(node.name, one) for node in cluster for one in node.tenants if one.job in stakes]
    tenants.sort(key=lambda item: (stakes[item[1].job].priority, -stakes[item[1].job].since, item[1].job))
    found: list[Holder] = []
    for node, one in tenants:
        job = Job(id=one.job, demand=one.demand)
        found.append((job, (Placement(job, Slot(node, one.gpus), one.replica),)))
    return found


async def _in_steps(steps: Steps[T]) -> T:
    """The result of a search; kube-scheduler's calls are answered between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)


def _describe_quota(over: Shortfall) -> str:
    what = NAMES[over.limit.field]
    return f"needs {over.needed} {what}, quota {over.limit.quota} leaves its namespace {over.available}"
