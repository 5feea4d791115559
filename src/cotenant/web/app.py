# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages as an ASGI application: one table of routes, and what holds for every answer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cotenant.errors import CotenantError, InputError
from cotenant.web.access import Access, Viewer
from cotenant.web.source import AbsentError, Source

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""of every answer that does not set them itself"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What one server of pages is made of."""

    source: Source
    access: Access


Handler = Callable[[Site, Viewer, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """One route. `docs/howto/pages.md` has a section for each page with a title."""

    path: str
    handler: Handler
    title: str | None = None
    """in the navigation and the documentation; None: not a page of its own"""
    method: str = "GET"


async def overview(site: Site, viewer: Viewer, request: Request) -> Response:
    found = await site.source.snapshot(viewer)
    return Response(f"{found.name}: {len(found.nodes)} nodes", media_type="text/plain; charset=utf-8")


PAGES = (Page("/", overview, "Overview"),)


def application(site: Site) -> ASGIApp:
    """Serves the pages of one machine or cluster to viewers that its access accepts."""

    def served(page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            viewer = await site.access.viewer(request)
            if viewer is None:
                return site.access.challenge(request)
            try:
                return await page.handler(site, viewer, request)
            except AbsentError as error:
                return problem(HTTPStatus.NOT_FOUND, str(error))
            except InputError as error:
                return problem(HTTPStatus.BAD_REQUEST, str(error))
            except CotenantError as error:
                return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

        return serve

    routes = [*site.access.routes(), *(Route(one.path, served(one), methods=[one.method]) for one in PAGES)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: unroutable})
    app.router.redirect_slashes = False
    return hardened(app, site.access.hosts)


async def unroutable(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(HTTPStatus(error.status_code), f"{request.method} {request.url.path[:100]}: no such page")


def problem(status: HTTPStatus, text: str) -> Response:
    return Response(text, status_code=status, media_type="text/plain; charset=utf-8")


def hardened(app: ASGIApp, hosts: frozenset[str] | None) -> ASGIApp:
    """Refuses requests for other hosts, which a site gets by rebinding its own name to our address, and adds the
    headers that keep other sites out."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if hosts is not None and host_of(request) not in hosts:
            refused = problem(HTTPStatus.MISDIRECTED_REQUEST, "this name is not served here; use the printed address")
            await refused(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in present)]
            await send(message)

        await app(scope, receive, send_hardened)

    return serve


def host_of(request: Request) -> str:
    """The host that was asked for, without port, in small letters."""
    host = request.headers.get("host", "").lower()
    return host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
