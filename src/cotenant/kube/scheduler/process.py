# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's process: its options, its two ports, and a shutdown that leaves nothing half done.

kube-scheduler calls the first port, on loopback; the API server and users call the second, with TLS. If pods get GPUs
by claims only, there is no first port. Everything that the process knows is in the API server too, so it may be killed
at any moment.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

import uvloop

from cotenant.errors import CotenantError, InputError
from cotenant.history.segments import FolderSegments, SegmentError, Segments
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.error_log import ErrorLog, describe
from cotenant.kube.api.server import (
    GRACE_S,
    Listener,
    application,
    key_in,
    listen,
    serve_all,
)
from cotenant.kube.scheduler import garbage
from cotenant.kube.scheduler.certificates import CertificateKeeper
from cotenant.kube.scheduler.lease import LEASE_LIMITS, Election
from cotenant.kube.scheduler.recording import MOST_RECORDED
from cotenant.kube.scheduler.scheduler import Scheduler
from cotenant.kube.settings import KubeSettings, read_settings
from cotenant.node.connections import is_loopback

SWITCH_S = 0.0005
"""for which a call may have to wait for another thread, such as the one that writes recorded decisions; Python's
default is 5 ms"""
READY_S = 0.1
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
        scheduler.lines.flush()
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
    garbage.limit_to_new_objects()
    while scheduler.unready_reason() is not None:
        await asyncio.sleep(READY_S)
    scheduler.placer.views.warm_up()
    scheduler.preparer.rank_waiting()
    if not scheduler.lead.is_replaced():
        scheduler.decisions.began()
        await asyncio.to_thread(scheduler.decisions.flush)  # the whole cluster is written, which would delay calls
    garbage.freeze()
    sys.setswitchinterval(SWITCH_S)


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
