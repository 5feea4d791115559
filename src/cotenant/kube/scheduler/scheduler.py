# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler: all its parts, what each of them subscribes to, and the routes of its two ports."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NoReturn

from cotenant.history.segments import MemorySegments, Segments
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog, JoinedLines
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Pace
from cotenant.kube.api.server import (
    Routes,
    health_routes,
)
from cotenant.kube.codec.settings import Settings, isolation_in
from cotenant.kube.scheduler import garbage
from cotenant.kube.scheduler.absent import AbsentVendors
from cotenant.kube.scheduler.admitting import NodeAdmission
from cotenant.kube.scheduler.allocator import ClaimAllocator
from cotenant.kube.scheduler.backfill import Backfill
from cotenant.kube.scheduler.binding import Binder
from cotenant.kube.scheduler.bypassing import BypassingPods
from cotenant.kube.scheduler.calls import Calls
from cotenant.kube.scheduler.certificates import WebhookTrust
from cotenant.kube.scheduler.claims import ClaimBook
from cotenant.kube.scheduler.events import EventRecorder
from cotenant.kube.scheduler.extender import Extender
from cotenant.kube.scheduler.foresight import Foresight
from cotenant.kube.scheduler.gangs import Gangs, GangSlots
from cotenant.kube.scheduler.gpu_events import GpuEvents
from cotenant.kube.scheduler.ladder import Ladder
from cotenant.kube.scheduler.latency import ObjectiveKeeper
from cotenant.kube.scheduler.learning import Learning
from cotenant.kube.scheduler.lease import ElectedLeader, Election, Lead, SoleLeader
from cotenant.kube.scheduler.metrics import SchedulerMetrics
from cotenant.kube.scheduler.offers import OfferedNodes
from cotenant.kube.scheduler.operators import OperatorAnswers
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.podgroups import PodGroups
from cotenant.kube.scheduler.preemption import Preemptor
from cotenant.kube.scheduler.preparing import Preparer
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.queue import Queue
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.reclaim import Reclaimer
from cotenant.kube.scheduler.recording import make_recorder
from cotenant.kube.scheduler.release import Releaser
from cotenant.kube.scheduler.resize import Resizer
from cotenant.kube.scheduler.retry import Retrier
from cotenant.kube.scheduler.separation import Separator
from cotenant.kube.scheduler.shared import Shared, Signals
from cotenant.kube.scheduler.templates import TemplateMaker
from cotenant.kube.scheduler.usage import Usage
from cotenant.kube.scheduler.watches import AGAIN_S, Watches
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.cluster import ClusterState

TICK_S = 1.0
"""between two checks for expired holds"""
MOST_LOGGED = 10
"""closed nodes that are logged at a time"""


class Scheduler:
    """All parts of the scheduler. Make it in the event loop that runs it.

    The constructor shows which parts there are and what each of them needs, `_subscribe` which signals it receives.
    """

    def __init__(
        self,
        client: Client,
        settings: KubeSettings,
        errors: ErrorLog,
        *,
        election: Election | None = None,
        recorded: Segments | None = None,
        await_webhook: bool = False,
        pace: Pace = Pace(again_s=AGAIN_S),  # noqa: B008 -- frozen
    ) -> None:
        signals = Signals()
        self.errors, self.profiles, self.calls = errors, Profiles(settings.defaults.memory_margin), Calls()
        self.lines = JoinedLines()
        ladder = Ladder(settings.isolation, lambda: self.state)
        self.admission = NodeAdmission()
        self.claims = self._make_claims(client, settings, pace)
        codec = replace(
            settings.codec(),
            measured_memory=self.profiles.memory_of,
            granted_rung=ladder.granted,
            claimed=self.claims.claimed if settings.claims.enabled else None,
        )
        self.state = ClusterState(codec, scheduler=settings.scheduler.name, freed=signals.freed.send)
        self.groups = PodGroups(client, errors, self._group_changed, pace=pace)
        self.quotas, self.gangs = Quotas(codec), Gangs(self.state, self.groups.size_of)
        self.backfill = Backfill(self.state, self.gangs, settings.queue)
        self.placer = self._make_placer(settings, codec)
        self.watches = Watches(
            client, self.state, self.quotas, errors, signals, pace=pace, wait=self.calls.waiter().wait
        )
        self.lead: Lead = SoleLeader()
        if election is not None:
            own = None if settings.has_extender else settings.lease
            self.lead = ElectedLeader(election, self.watches.pods, errors, won=signals.lead_won, own=own)
        shared = self._shared = self._make_shared(client, settings, signals)
        self.allocator = ClaimAllocator(shared, self.claims, self.admission.excluded)
        self.bypassing = BypassingPods(shared, self.claims)
        self.templates = TemplateMaker(shared)
        queue = self._make_queue(settings, codec)
        self.retrier, self.preemptor, self.absent_vendors = Retrier(shared), Preemptor(shared), AbsentVendors(shared)
        self.releaser = Releaser(shared, queue, self.preemptor, self.allocator)
        self.binder = Binder(shared, self.releaser.join_gang)
        self.resizer = Resizer(shared, self.binder.is_binding, codec)
        self.objectives = ObjectiveKeeper(shared, self.binder.is_binding, codec)
        self.reclaimer = Reclaimer(shared)
        self.learning, self.separator = Learning(shared, self.profiles, pace=pace), Separator(shared, self.profiles)
        self.foresight = Foresight(shared)
        self.decisions = make_recorder(recorded or MemorySegments(), settings, errors, self.state, self.lead)
        self.preparer = Preparer(self.state, self.placer.views, self.unready_reason, self.calls.waiter().wait)
        self._subscribe(signals, queue)
        lengths = {
            "waiting": lambda: self.state.waiting,
            "refused": self.retrier.waiting,
            "binding": self.binder.under_way,
        }
        self.trust = WebhookTrust(client, errors) if await_webhook else None
        self.metrics = SchedulerMetrics(shared=shared, lengths=lengths, lags=self.watches.lags)

    def _make_claims(self, client: Client, settings: KubeSettings, pace: Pace) -> ClaimBook:
        return ClaimBook(
            client,
            self.errors,
            self._claim_changed,
            lambda: self.state,
            enabled=settings.claims.enabled,
            isolation=partial(isolation_in, settings=settings.codec()),
            allow_privileged=settings.webhook.allow_privileged,
            converted=settings.converted_resources,
            pace=pace,
        )

    def _make_placer(self, settings: KubeSettings, codec: Settings) -> Placer:
        part = settings.scheduler
        return Placer(
            self.state,
            self.quotas,
            policy=part.policy,
            shortlist=part.shortlist,
            hold_s=part.hold_s,
            settings=codec,
            belief=self.profiles.belief,
            must_wait=self.gangs.must_wait,
            reserved=self.backfill.reserved_from,
        )

    def _make_shared(self, client: Client, settings: KubeSettings, signals: Signals) -> Shared:
        """What several of the parts that follow need."""
        return Shared(
            client=client,
            settings=settings,
            errors=self.errors,
            signals=signals,
            state=self.state,
            quotas=self.quotas,
            gangs=self.gangs,
            placer=self.placer,
            offers=OfferedNodes(self._admitting),
            events=EventRecorder(client, settings.scheduler.name, self.errors, wait=self.calls.waiter().wait),
            pods=self.watches.pods,
            lead=self.lead,
            state_unready_reason=self.unready_reason,
            log=self.lines.add,
        )

    def _make_queue(self, settings: KubeSettings, codec: Settings) -> Queue:
        return Queue(
            GangSlots(self.state, self.quotas, self.placer),
            self.gangs,
            self.backfill,
            settings.queue,
            hold_s=settings.scheduler.hold_s,
            settings=codec,
            usage=Usage(self.state, settings.queue) if settings.queue.order == "fair" else None,
            avoided=self.allocator.avoided,
        )

    def _subscribe(self, signals: Signals, queue: Queue) -> None:
        """Which part is called when: subscribers are called in this order."""
        signals.pod_changed.subscribe(
            self.groups.pod_changed,
            self.claims.pod_changed,
            self.resizer.pod_changed,
            self.preemptor.pod_changed,
            self.releaser.pod_changed,
            self.allocator.pod_changed,
            self.bypassing.pod_changed,
            self.separator.pod_changed,
            self.objectives.pod_changed,
            self.absent_vendors.pod_changed,
            self.decisions.pod_changed,
            self.preparer.pod_changed,
        )
        part = self._shared.settings.claims
        if part.enabled and part.convert:
            signals.pod_changed.subscribe(self.templates.pod_changed)
        self.placer.considered.subscribe(self.decisions.considered)
        self.placer.refused.subscribe(self.decisions.refused)
        self.profiles.accepted.subscribe(self.decisions.reported)
        signals.node_changed.subscribe(
            self.admission.node_changed,
            self.objectives.node_changed,
            GpuEvents(self._shared).node_changed,
            self.reclaimer.node_changed,
        )
        # A pod that the sharing gate refused may be placed by what is known now.
        signals.learned.subscribe(queue.on_learned, lambda: signals.freed.send(None), self.separator.on_learned)
        signals.freed.subscribe(self.retrier.on_freed, self.releaser.on_freed)
        signals.refused.subscribe(self._shared.offers.on_refused, self.retrier.on_refused, self.preemptor.on_refused)
        # A new leader forgets what it held when it last led, and goes on with what the previous leader had begun.
        signals.lead_won.subscribe(
            self.state.release_holds,
            self.gangs.revoke_all,
            self.preemptor.forget,
            self.placer.views.warm_up,
            self.retrier.on_lead_won,
            self.releaser.on_freed,
            self.decisions.began,
        )

    def _group_changed(self, namespace: str, name: str) -> None:
        self.gangs.group_changed(namespace, name)
        self._shared.signals.freed.send(None)

    def _admitting(self, pod: Pod) -> frozenset[str] | None:
        """The nodes that admit a pod with claims; None for other pods."""
        return frozenset(self.state.vendors) - self.admission.excluded(pod) if pod.spec.resource_claims else None

    def _claim_changed(self, pod: Pod) -> None:
        """A claim of a pod has changed, so the pod may request something else."""
        self.state.pod_changed(None, pod)
        self.releaser.pod_changed(pod, pod)
        self.allocator.pod_changed(pod, pod)

    def for_kube_scheduler(self) -> Routes:
        """The routes of the first port."""
        extender = Extender(self._shared, self.binder, self.preemptor, self.calls)
        return {**extender.routes(), **self.metrics.routes(), **health_routes(self.unready_reason)}

    def for_operators(
        self, why_key: Callable[[], bytes] | None = None, decisions_key: Callable[[], bytes] | None = None
    ) -> Routes:
        """The routes of the second port. Every pod of the cluster can reach it, so all that name pods require a key."""
        answers = OperatorAnswers(
            self._shared,
            self.profiles,
            self.preemptor,
            self.releaser,
            self.foresight,
            self.objectives,
            self.reclaimer,
            self.decisions,
        )
        return {
            **self.metrics.routes(),
            **health_routes(self._unready_for_pods),
            **answers.routes(why_key, decisions_key),
        }

    async def run(self) -> NoReturn:
        """Run all parts until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (
                self.watches,
                self.groups,
                self.claims,
                self.lead,
                self._shared.events,
                self.retrier,
                self.resizer,
                self.preemptor,
                self.releaser,
                self.allocator,
                self.bypassing,
                self.templates,
                self.learning,
                self.separator,
                self.objectives,
                self.reclaimer,
                self.preparer,
            ):
                group.create_task(part.run())
            if self.trust is not None:
                group.create_task(self.trust.run())
            group.create_task(self._tick())
            group.create_task(garbage.collect(self.calls.waiter().wait))
        raise AssertionError("none of the tasks ends")

    def unready_reason(self) -> str | None:
        """Why the scheduler does not know the cluster well enough to place pods; None if it does."""
        return self.watches.unready_reason() or self.claims.unready_reason() or self.learning.unready_reason()

    def _unready_for_pods(self) -> str | None:
        """Why pods with GPUs cannot be created, or not placed."""
        return self.unready_reason() or (None if self.trust is None else self.trust.unready_reason())

    async def _tick(self) -> NoReturn:
        while True:
            await asyncio.sleep(TICK_S)
            self._shared.expire_holds()
            self.absent_vendors.look()
            self.claims.inventory_changed()
            self.claims.nodes_changed(self.admission.version)
            for node, messages in islice(self.state.closed.items(), MOST_LOGGED):
                self.errors.report(f"node {node} takes no new pods", "; ".join(messages.values()))
