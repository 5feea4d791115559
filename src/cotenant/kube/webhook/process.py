# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The webhook as a process of its own: every pod of the cluster can reach it, so it has no access to the API server."""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import Listener, Routes, application, health_routes, listen, serve_all
from cotenant.kube.settings import KubeSettings, read_settings
from cotenant.kube.webhook.mutation import webhook_routes

DRAIN_S = 2.0
"""How long it still answers after a signal to stop: the API server must learn to call another pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The command-line options of the webhook."""

    listen: tuple[str, int]
    certificate: Path
    key: Path
    settings: Path | None = None
    cdi: bool = False
    """Whether the agents of all nodes give GPUs to containers by CDI."""


def serve(options: WebhookOptions) -> None:
    """Run until stopped by SIGTERM or SIGINT."""
    settings = read_settings(options.settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, settings))


def routes_of(settings: KubeSettings, *, by_cdi: bool = False) -> Routes:
    """The routes of its port. It depends on nothing else, so it is ready as soon as it answers."""
    return {**webhook_routes(settings, by_cdi=by_cdi), **health_routes()}


async def _run(options: WebhookOptions, settings: KubeSettings) -> None:
    errors, signalled, stop = ErrorLog(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    certificates = Certificates(
        options.certificate, options.key, report=lambda text: errors.report("certificate", text)
    )
    routes = routes_of(settings, by_cdi=options.cdi)
    listener = Listener(listen(*options.listen), application(routes, errors), certificates)
    print(f"cotenant: the webhook listens at {listener.address}", flush=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(serve_all([listener], stop))
        await signalled.wait()
        await asyncio.sleep(DRAIN_S)
        stop.set()
