# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's process: all parts put together, two doors, and an end that leaves nothing half done.

kube-scheduler asks at the first door, on loopback; the API server and people at the second, with TLS. What the process
knows is in the API server, so it may be killed at any moment.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from socket import gethostname
from typing import NoReturn

import uvloop

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.error_log import ErrorLog, describe
from cotenant.kube.api.objects import Pod, is_unschedulable
from cotenant.kube.api.reflector import Pace
from cotenant.kube.api.server import (
    GRACE_S,
    Listener,
    Reply,
    Route,
    Routes,
    application,
    json_reply,
    listen,
    serve_all,
    status_reply,
    text_reply,
)
from cotenant.kube.scheduler.binding import Binder
from cotenant.kube.scheduler.events import News
from cotenant.kube.scheduler.explaining import explained
from cotenant.kube.scheduler.extender import Extender
from cotenant.kube.scheduler.gang_slots import Together
from cotenant.kube.scheduler.gangs import Gangs
from cotenant.kube.scheduler.lease import LOOKING, Alone, Elected, Election, Lead
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preemption import Preemptor
from cotenant.kube.scheduler.queue import Line
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.release import Releaser
from cotenant.kube.scheduler.resize_writer import Granter
from cotenant.kube.scheduler.retry import Waker
from cotenant.kube.scheduler.watches import AGAIN_S, Watching
from cotenant.kube.scheduler.why import NO_SUCH_POD
from cotenant.kube.settings import KubeSettings, read_settings
from cotenant.kube.state.books import Books

TICK_S = 1.0
"""between looks for holds that are over"""
READY_S = 0.1
STAYS_S = 2.0
"""the second door is open so long after the first: the API server has yet to hear that others are to be asked"""
MOST_TOLD = 10
"""nodes that are closed, at a time"""
ASKING = Limits(answer_s=10.0, tries=4, longest_pause_s=5.0, concurrency=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How the scheduler was asked to run."""

    settings: Path | None = None
    kubeconfig: Path | None = None
    """none: as any client finds its cluster, the pod it runs in included"""
    extender: tuple[str, int] = ("127.0.0.1", 8888)
    webhook: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    why_key: Path | None = None
    """what those have to show who ask about pods; none: nobody may ask"""
    client_authority: Path | None = None
    """who signs those who may call the extender, where that is not on loopback"""
    lease: tuple[str, str] | None = None
    """namespace and name of the lease of the kube-scheduler beside it; none: there is no other scheduler"""


def serve(options: SchedulerOptions, webhook_routes: Callable[[KubeSettings], Routes]) -> None:
    """Runs until stopped by SIGTERM or SIGINT; serves the webhook's routes beside its own."""
    check(options)
    settings = read_settings(options.settings)
    access = find_access(os.environ, options.kubeconfig)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, settings, access, webhook_routes(settings)))


def check(options: SchedulerOptions) -> None:
    """InputError where the options do not belong together."""
    if (options.certificate is None) != (options.key is None):
        raise InputError("--certificate and --key: expected both, or none")
    if options.webhook is not None and options.certificate is None:
        raise InputError("--webhook: needs --certificate and --key, the API server calls with TLS only")
    host = options.extender[0]
    if not is_loopback(host) and (options.certificate is None or options.client_authority is None):
        raise InputError(
            f"--extender {host}: others could bind pods through it; use 127.0.0.1, or give --certificate, --key and "
            "--client-authority"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Scheduler:
    """All parts, connected. Make it in the event loop that runs it."""

    def __init__(
        self,
        client: Client,
        settings: KubeSettings,
        error_log: ErrorLog,
        *,
        election: Election | None = None,
        pace: Pace = Pace(again_s=AGAIN_S),  # noqa: B008 -- frozen
    ) -> None:
        codec = settings.codec()
        self.error_log = error_log
        self.books = Books(codec, scheduler=settings.scheduler.name, freed=lambda node: self._room())
        self.quotas = Quotas(codec)
        self.gangs = Gangs(self.books)
        self.placer = Placer(
            self.books,
            self.quotas,
            policy=settings.scheduler.policy,
            shortlist=settings.scheduler.shortlist,
            hold_s=settings.scheduler.hold_s,
            settings=codec,
            turn=self.gangs.turn,
        )
        self.news = News(client, settings.scheduler.name, error_log)
        self.watching = Watching(
            client,
            self.books,
            self.quotas,
            error_log,
            then_pod=self._pod_changed,
            then_quota=lambda old, new: self._room(),
            pace=pace,
        )
        self.lead: Lead = Alone()
        if election is not None:
            self.lead = Elected(election, self.watching.pods, error_log, begins=self._begin_to_lead)
        self.waker = Waker(client, self.books, self.placer, error_log, lead=self.lead)
        line = Line(
            Together(self.books, self.quotas, self.placer),
            self.gangs,
            settings.queue,
            scheduler=settings.scheduler.name,
            hold_s=settings.scheduler.hold_s,
            settings=codec,
        )
        self.releaser = Releaser(
            client,
            line,
            self.news,
            error_log,
            lead=self.lead,
            doubt=self.watching.doubt,
            would_displace=lambda pod: self.preemptor.would_help(pod),
        )
        self.granter = Granter(
            client,
            self.books,
            self.quotas,
            self.news,
            error_log,
            codec,
            lead=self.lead,
            doubt=self.watching.doubt,
            is_binding=lambda uid: self.binder.is_binding(uid),
        )
        self.binder = Binder(
            client,
            self.books,
            self.placer,
            self.watching.pods,
            self.news,
            error_log,
            lead=self.lead,
            meet=self.releaser.meet,
        )
        self.preemptor = Preemptor(
            client,
            self.books,
            self.placer,
            self.news,
            error_log,
            settings.scheduler.preemption,
            lead=self.lead,
            doubt=self.watching.doubt,
            starts_together=lambda pod: self.gangs.grant_of(pod.metadata.uid) is not None,
        )

    def for_kube_scheduler(self) -> Routes:
        """The first door."""
        extender = Extender(
            books=self.books,
            placer=self.placer,
            binder=self.binder,
            watching=self.watching,
            lead=self.lead,
            waker=self.waker,
            preemptor=self.preemptor,
            news=self.news,
        )
        return {**extender.routes(), **self._health()}

    def for_api_server(self, webhook: Routes, why_key: Callable[[], bytes] | None = None) -> Routes:
        """The second door. Every pod of the cluster can reach it, so who asks about pods must show a key."""
        routes = {**webhook, **self._health()}
        if why_key is not None:
            routes["why"] = Route(method="GET", answer=self._why, segments=2, refuse=status_reply, key=why_key)
        return routes

    async def run(self) -> NoReturn:
        """Watch, write events, wake pods, answer resizes and make room until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (
                self.watching,
                self.lead,
                self.news,
                self.waker,
                self.granter,
                self.preemptor,
                self.releaser,
            ):
                group.create_task(part.run())
            group.create_task(self._tick())
        raise AssertionError("none of them ends")

    def _begin_to_lead(self) -> None:
        """Forgets what was held for pods when this scheduler last led; not what is being written."""
        self.books.expire(sys.float_info.max)
        self.gangs.revoke_all()
        self.preemptor.forget()
        self.placer.warm_up()
        for pod in filter(is_unschedulable, self.books.waiting.values()):
            self.waker.refused(pod)  # by the one before, perhaps for what it held; kube-scheduler may still be the same
        self._room()  # what the one before had begun is to be finished

    def _room(self) -> None:
        self.waker.room()
        self.releaser.room()

    async def _tick(self) -> NoReturn:
        while True:
            await asyncio.sleep(TICK_S)
            self.books.expire(time.monotonic())
            for node, reasons in islice(self.books.closed.items(), MOST_TOLD):
                self.error_log.report(f"node {node} takes no new pods", "; ".join(reasons.values()))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self.granter.pod_changed(old, new)
        self.preemptor.pod_changed(old, new)
        self.releaser.pod_changed(old, new)

    async def _why(self, words: tuple[str, ...], _body: bytes) -> Reply:
        doubt = self.watching.doubt()
        if doubt is not None:
            return status_reply(503, doubt)
        pod = self.watching.pods.objects.get((words[0], words[1]))
        if pod is None:
            return status_reply(404, "no such pod", NO_SUCH_POD)
        plan, queued = await self.preemptor.plan(pod), self.releaser.words(pod)
        return json_reply(explained(pod, self.books, self.placer, plan, queued))

    def _health(self) -> Routes:
        async def alive(_words: tuple[str, ...], _body: bytes) -> Reply:
            return text_reply(200, "ok")

        async def ready(_words: tuple[str, ...], _body: bytes) -> Reply:
            doubt = self.watching.doubt()
            return text_reply(200, "ok") if doubt is None else text_reply(503, doubt)

        return {"healthz": Route(method="GET", answer=alive), "readyz": Route(method="GET", answer=ready)}


async def _run(options: SchedulerOptions, settings: KubeSettings, access: Access, webhook: Routes) -> None:
    error_log, stop, gone = ErrorLog(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = Client(access, ASKING, agent=settings.scheduler.name)
    looking = Client(access, LOOKING, agent=settings.scheduler.name)
    election = None if options.lease is None else Election(looking, *options.lease, gethostname())
    scheduler = Scheduler(client, settings, error_log, election=election)
    listeners = _listeners(options, scheduler, webhook)
    print(f"cotenant: the scheduler listens at {' and '.join(one.address for one in listeners)}", flush=True)
    try:
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(scheduler.run()), group.create_task(_say_ready(scheduler))]
            group.create_task(serve_all(listeners[1:], gone))
            await serve_all(listeners[:1], stop)
            await asyncio.gather(_finish(scheduler), asyncio.sleep(STAYS_S if listeners[1:] else 0.0))
            gone.set()
            for task in working:
                task.cancel()
    except ExceptionGroup as failed:
        raise CotenantError(f"the scheduler ended: {describe(_first(failed))}") from failed
    finally:
        await client.close()
        await looking.close()


async def _finish(scheduler: Scheduler) -> None:
    await scheduler.binder.finish(GRACE_S)
    await scheduler.lead.let_go()


def _first(failed: BaseException) -> BaseException:
    return _first(failed.exceptions[0]) if isinstance(failed, BaseExceptionGroup) else failed


async def ready(scheduler: Scheduler) -> None:
    """Wait until it knows the cluster, and make it quick from the first question on."""
    while (scheduler.watching.doubt()) is not None:
        await asyncio.sleep(READY_S)
    scheduler.placer.warm_up()
    # What is known now stays: looking through all of it for garbage would keep kube-scheduler waiting, again and again.
    gc.collect()
    gc.freeze()


async def _say_ready(scheduler: Scheduler) -> None:
    await ready(scheduler)
    print("cotenant: the scheduler is ready", flush=True)


def _listeners(options: SchedulerOptions, scheduler: Scheduler, webhook: Routes) -> list[Listener]:
    remote = not is_loopback(options.extender[0])
    doors = [
        Listener(
            listen(*options.extender),
            application(scheduler.for_kube_scheduler(), scheduler.error_log),
            _certificates(options, scheduler.error_log, options.client_authority) if remote else None,
        )
    ]
    if options.webhook is not None:
        doors.append(
            Listener(
                listen(*options.webhook),
                application(scheduler.for_api_server(webhook, _key_in(options.why_key)), scheduler.error_log),
                _certificates(options, scheduler.error_log, None),
            )
        )
    return doors


def _key_in(file: Path | None) -> Callable[[], bytes] | None:
    return None if file is None else lambda: file.read_bytes().strip()  # each time: it may have been replaced


def _certificates(options: SchedulerOptions, error_log: ErrorLog, client_authority: Path | None) -> Certificates:
    assert options.certificate is not None
    assert options.key is not None
    return Certificates(
        options.certificate,
        options.key,
        client_authority=client_authority,
        report=lambda text: error_log.report("certificate", text),
    )
