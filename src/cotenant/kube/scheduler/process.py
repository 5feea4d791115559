# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's process: all its parts, its two ports, and a shutdown that leaves nothing half done.

kube-scheduler calls the first port, on loopback; the API server and users call the second, with TLS. If pods get GPUs
by claims only, there is no first port. Everything that the process knows is in the API server too, so it may be killed
at any moment.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from socket import gethostname
from typing import NoReturn

import uvloop

from cotenant.errors import CotenantError, InputError
from cotenant.history.segments import FolderSegments, MemorySegments, SegmentError, Segments
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.error_log import ErrorLog, describe
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Pace
from cotenant.kube.api.server import (
    GRACE_S,
    Listener,
    Routes,
    application,
    health_routes,
    key_in,
    listen,
    serve_all,
)
from cotenant.kube.codec.settings import Settings, isolation_in
from cotenant.kube.scheduler.absent import AbsentVendors
from cotenant.kube.scheduler.admitting import NodeAdmission
from cotenant.kube.scheduler.allocator import ClaimAllocator
from cotenant.kube.scheduler.backfill import Backfill
from cotenant.kube.scheduler.binding import Binder
from cotenant.kube.scheduler.bypassing import BypassingPods
from cotenant.kube.scheduler.calls import Calls
from cotenant.kube.scheduler.certificates import CertificateKeeper, WebhookTrust
from cotenant.kube.scheduler.claims import ClaimBook
from cotenant.kube.scheduler.events import EventRecorder
from cotenant.kube.scheduler.extender import Extender
from cotenant.kube.scheduler.foresight import Foresight
from cotenant.kube.scheduler.gangs import Gangs, GangSlots
from cotenant.kube.scheduler.gpu_events import GpuEvents
from cotenant.kube.scheduler.ladder import Ladder
from cotenant.kube.scheduler.latency import ObjectiveKeeper
from cotenant.kube.scheduler.learning import Learning
from cotenant.kube.scheduler.lease import LEASE_LIMITS, ElectedLeader, Election, Lead, SoleLeader
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
from cotenant.kube.scheduler.recording import MOST_RECORDED, make_recorder
from cotenant.kube.scheduler.release import Releaser
from cotenant.kube.scheduler.resize import Resizer
from cotenant.kube.scheduler.retry import Retrier
from cotenant.kube.scheduler.separation import Separator
from cotenant.kube.scheduler.shared import Shared, Signals
from cotenant.kube.scheduler.templates import TemplateMaker
from cotenant.kube.scheduler.usage import Usage
from cotenant.kube.scheduler.watches import AGAIN_S, Watches
from cotenant.kube.settings import KubeSettings, read_settings
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.connections import is_loopback

TICK_S = 1.0
"""between two checks for expired holds"""
EVERYTHING_S = 600
"""interval at which garbage is looked for among all objects that were made since the scheduler was ready"""
SWITCH_S = 0.0005
"""for which a call may have to wait for another thread, such as the one that writes recorded decisions; Python's
default is 5 ms"""
GARBAGE_S = 0.02
"""between two searches for garbage among the objects of the last calls: after 0.1 s one takes 0.5 ms, and 1 of 50
calls would wait for it"""
FEW_OBJECTS = 200
"""new objects among which garbage is not worth a search"""
MOST_YOUNG = 20_000
"""new objects at which garbage is looked for in a call; a hundred calls make fewer"""
NEVER = 1_000_000_000
READY_S = 0.1
MOST_LOGGED = 10
"""closed nodes that are logged at a time"""
CLIENT_LIMITS = Limits(answer_s=10.0, tries=4, longest_pause_s=5.0, concurrency=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """The command-line options of the scheduler."""

    settings: Path | None = None
    kubeconfig: Path | None = None
    """None: find the cluster as any client does, which includes the pod it runs in"""
    extender: tuple[str, int] = ("127.0.0.1", 8888)
    status: tuple[str, int] | None = None
    """where `why` and probes are answered, with TLS"""
    certificate: Path | None = None
    key: Path | None = None
    why_key: Path | None = None
    """file with the key that `why` requires; None: the endpoint is disabled"""
    decisions: Path | None = None
    """volume for recorded decisions; None: they are kept in memory"""
    decisions_key: Path | None = None
    """the same for `decisions`, which is about the pods of all namespaces"""
    client_authority: Path | None = None
    """CA of the clients that may call the extender if it does not listen on loopback"""
    lease: tuple[str, str] | None = None
    """namespace and name of the lease, which is that of the kube-scheduler beside it, if there is one; None: there is
    no other scheduler"""
    certificate_days: int | None = None
    """for how long new certificates of the installation are valid; None: another program renews them"""
    await_webhook: bool = False
    """whether the second port says that the scheduler is ready only when the API server trusts the webhook"""


def serve(options: SchedulerOptions) -> None:
    """Run until stopped by SIGTERM or SIGINT."""
    check(options)
    settings = read_settings(options.settings)
    if not settings.has_extender and options.status is None:
        raise InputError("--status: needed with claims.only, since the extender, which kube-scheduler calls, is off")
    access = find_access(os.environ, options.kubeconfig)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, settings, access))


def check(options: SchedulerOptions) -> None:
    """InputError if the options contradict each other."""
    if (options.certificate is None) != (options.key is None):
        raise InputError("--certificate and --key: give both or neither")
    if options.status is not None and options.certificate is None:
        raise InputError("--status: needs --certificate and --key; the key of `cotenant why` must not be sent in clear")
    host = options.extender[0]
    if not is_loopback(host) and (options.certificate is None or options.client_authority is None):
        raise InputError(
            f"--extender {host}: other machines could bind pods through it; use 127.0.0.1, or give --certificate, "
            "--key and --client-authority"
        )


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
            group.create_task(_collect_garbage(self.calls.waiter().wait))
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


async def _run(options: SchedulerOptions, settings: KubeSettings, access: Access) -> None:
    errors, stop = ErrorLog(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = Client(access, CLIENT_LIMITS, agent=settings.scheduler.name)
    lease_client = Client(access, LEASE_LIMITS, agent=settings.scheduler.name)
    election = None if options.lease is None else Election(lease_client, *options.lease, gethostname())
    scheduler = Scheduler(
        client,
        settings,
        errors,
        election=election,
        recorded=_recorded(options.decisions, errors),
        await_webhook=options.await_webhook,
    )
    listeners = _listeners(options, scheduler, has_extender=settings.has_extender)
    print(f"cotenant: the scheduler listens at {' and '.join(one.address for one in listeners)}", flush=True)
    try:
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(scheduler.run()), group.create_task(_report_ready(scheduler))]
            if options.certificate_days is not None:
                keeper = CertificateKeeper(client, scheduler.lead, errors, options.certificate_days)
                working.append(group.create_task(keeper.run()))
            await serve_all(listeners, stop)
            await scheduler.binder.finish(GRACE_S)
            await scheduler.lead.resign()
            for task in working:
                task.cancel()
    except ExceptionGroup as failed:
        raise CotenantError(f"the scheduler ended: {describe(_first(failed))}") from failed
    finally:
        scheduler.decisions.close()
        await client.close()
        await lease_client.close()


def _recorded(folder: Path | None, errors: ErrorLog) -> Segments | None:
    """The files of recorded decisions. Pods are placed also without them."""
    if folder is None:
        return None
    try:
        return FolderSegments(folder / "recorded", total_bytes=MOST_RECORDED, in_volume=True)
    except SegmentError as error:
        errors.report("decisions", f"{error}; they are kept in memory only")
        return None


def _first(failed: BaseException) -> BaseException:
    return _first(failed.exceptions[0]) if isinstance(failed, BaseExceptionGroup) else failed


async def ready(scheduler: Scheduler) -> None:
    """Wait until the scheduler knows the cluster, and prepare it so that its first answer is fast."""
    # Almost all objects that are made now stay. If the garbage collector scanned them again and again, a fourth of the
    # time of the start would be its.
    gc.set_threshold(MOST_YOUNG, NEVER, NEVER)  # older objects: `_collect_garbage`
    while scheduler.unready_reason() is not None:
        await asyncio.sleep(READY_S)
    scheduler.placer.views.warm_up()
    scheduler.preparer.rank_waiting()
    if not scheduler.lead.is_replaced():
        scheduler.decisions.began()
        await asyncio.to_thread(scheduler.decisions.flush)  # the whole cluster is written, which would delay calls
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


async def _collect_garbage(wait: Callable[[], Awaitable[None]]) -> NoReturn:
    """Collects the garbage of the last calls between calls, often, so that it never takes long, and all of it rarely.

    `wait` waits until no call is being answered.
    """
    for number in count(1):
        await asyncio.sleep(GARBAGE_S)
        await wait()
        if number % round(EVERYTHING_S / GARBAGE_S) == 0:
            gc.collect(2)
        elif gc.get_count()[0] > FEW_OBJECTS:
            gc.collect(1)
    raise AssertionError("it counts on")


async def _report_ready(scheduler: Scheduler) -> None:
    await ready(scheduler)
    print("cotenant: the scheduler is ready", flush=True)


def _listeners(options: SchedulerOptions, scheduler: Scheduler, *, has_extender: bool) -> list[Listener]:
    listeners = []
    if has_extender:
        remote = not is_loopback(options.extender[0])
        listeners.append(
            Listener(
                listen(*options.extender),
                application(scheduler.for_kube_scheduler(), scheduler.errors),
                _certificates(options, scheduler.errors, options.client_authority) if remote else None,
            )
        )
    if options.status is not None:
        listeners.append(
            Listener(
                listen(*options.status),
                application(
                    scheduler.for_operators(key_in(options.why_key), key_in(options.decisions_key)), scheduler.errors
                ),
                _certificates(options, scheduler.errors, None),
            )
        )
    return listeners


def _certificates(options: SchedulerOptions, errors: ErrorLog, client_authority: Path | None) -> Certificates:
    assert options.certificate is not None
    assert options.key is not None
    return Certificates(
        options.certificate,
        options.key,
        client_authority=client_authority,
        report=lambda text: errors.report("certificate", text),
    )
