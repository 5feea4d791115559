# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube web`: the pages of a cluster as one process. Only viewers write, with their own tokens."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cotenant.errors import CotenantError, InputError
from cotenant.history.store import History
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.error_log import ErrorLog, describe
from cotenant.kube.api.reflector import Pace
from cotenant.kube.api.server import Application, Listener, health_routes, key_in, listen, serve_all
from cotenant.kube.api.server import application as plain_application
from cotenant.kube.settings import KubeSettings, read_settings
from cotenant.node.connections import is_loopback
from cotenant.web.app import application
from cotenant.web.kube.access import ClusterAccess
from cotenant.web.kube.acting import AsViewer
from cotenant.web.kube.details import PodEvents
from cotenant.web.kube.picture import Picture
from cotenant.web.kube.reviews import Reviewer
from cotenant.web.kube.source import ClusterSource
from cotenant.web.kube.usage import usage_routes
from cotenant.web.kube.watch import AGAIN_S, WATCH_LIMITS, ClusterWatch
from cotenant.web.rendering import environment
from cotenant.web.site import Site
from cotenant.web.stopping import ending_streams

AGENT = "cotenant-web"
REVIEW_LIMITS = Limits(connect_s=3.0, answer_s=5.0, tries=2, concurrency=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """The command-line options of the pages."""

    listen: tuple[str, int]
    certificate: Path | None = None
    key: Path | None = None
    settings: Path | None = None
    kubeconfig: Path | None = None
    name: str = "cluster"
    """The name of the cluster on the pages."""
    history: Path | None = None
    """The file of the history; None: it is in memory."""
    decisions_key: Path | None = None
    """The file with the key that `usage` requires; None: the endpoint is disabled."""
    actions: bool = False
    """Whether viewers can delete and hold pods, and cordon nodes and GPUs, with their own rights."""


def serve(options: WebOptions) -> None:
    """Run until stopped by SIGTERM or SIGINT."""
    check(options)
    settings = read_settings(options.settings)
    access = find_access(os.environ, options.kubeconfig)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, settings, access))


def check(options: WebOptions) -> None:
    """InputError if the options contradict each other."""
    if (options.certificate is None) != (options.key is None):
        raise InputError("--certificate and --key: give both or neither")
    if options.certificate is None and not is_loopback(options.listen[0]):
        raise InputError(
            f"--listen {options.listen[0]}: tokens must not be sent in clear; give --certificate and --key, or listen "
            "on 127.0.0.1"
        )


class ClusterPages:
    """All parts of the process. Make it in the event loop that runs it."""

    def __init__(
        self,
        access: Access,
        settings: KubeSettings,
        errors: ErrorLog,
        *,
        name: str = "cluster",
        history: History | None = None,
        actions: bool = False,
        decisions_key: Callable[[], bytes] | None = None,
        pace: Pace = Pace(again_s=AGAIN_S),  # noqa: B008 -- frozen
    ) -> None:
        self._errors, self._plain = errors, usage_routes(history, decisions_key)
        self._client, self._reviews = Client(access, WATCH_LIMITS, AGENT), Client(access, REVIEW_LIMITS, AGENT)
        self.watch = ClusterWatch(self._client, settings, errors, pace=pace)
        self.source = ClusterSource(
            self.watch,
            Picture(self.watch, name),
            PodEvents(self._reviews),
            AsViewer(access),
            errors=errors,
            history=history,
            actions=actions,
        )
        self._templates = environment("")
        self.access = ClusterAccess(
            Reviewer(self._reviews),
            namespaces=self.source.namespaces,
            page=self._sign_in_page,
            actions=actions,
        )

    def application(self, stop: asyncio.Event) -> Application:
        """Return the pages, and the answers to kubelet's probes and to `cotenant report`; open pages are let go when
        `stop` is set."""
        pages = ending_streams(application(Site(source=self.source, access=self.access)), stop)
        routes = {**health_routes(self.watch.unready_reason), **self._plain}
        plain = plain_application(routes, self._errors)

        async def serve(scope: object, receive: object, send: object) -> None:
            path = str(scope.get("path")) if isinstance(scope, dict) else ""
            first = path.removeprefix("/").partition("/")[0]
            await (plain if first in routes else pages)(scope, receive, send)  # type: ignore[arg-type]

        return serve

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self.source.record())

    async def close(self) -> None:
        """Close all connections to the API server."""
        await self._client.close()
        await self._reviews.close()

    def _sign_in_page(self, _request: Request, problem: str | None) -> Response:
        return HTMLResponse(self._templates.get_template("signin.html").render(problem=problem))


async def _run(options: WebOptions, settings: KubeSettings, access: Access) -> None:
    errors, stop = ErrorLog(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with History.open(options.history) as history:
        pages = ClusterPages(
            access,
            settings,
            errors,
            name=options.name,
            history=history,
            actions=options.actions,
            decisions_key=key_in(options.decisions_key),
        )
        listener = Listener(listen(*options.listen), pages.application(stop), _certificates(options, errors))
        print(f"cotenant: the server of the pages listens at {listener.address}", flush=True)
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(pages.run())
                await serve_all([listener], stop)
                working.cancel()
        except ExceptionGroup as failed:
            raise CotenantError(f"the pages ended: {describe(failed.exceptions[0])}") from failed
        finally:
            await pages.close()


def _certificates(options: WebOptions, errors: ErrorLog) -> Certificates | None:
    if options.certificate is None or options.key is None:
        return None
    return Certificates(options.certificate, options.key, report=lambda text: errors.report("certificate", text))
