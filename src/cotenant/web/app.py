# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages as an ASGI application: routes, and what holds for every answer."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cotenant.errors import CotenantError, InputError
from cotenant.web.access import Problem
from cotenant.web.pages import PAGES, Page
from cotenant.web.site import Site
from cotenant.web.source import AbsentError, ForbiddenError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""of every answer that does not set them itself"""


def application(site: Site) -> ASGIApp:
    """Serves the pages of one machine or cluster to viewers that its access accepts."""

    def served(page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                viewer = await site.access.viewer(request)
                if viewer is None:
                    return site.access.challenge(request, site.problem)
                return await page.handler(site, viewer, request)
            except CotenantError as error:
                return site.problem(Problem(status_of(error), str(error)))

        return serve

    async def static(request: Request) -> Response:
        return site.static(request.path_params["name"])

    async def unroutable(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path[:100]}: no such page"
        return site.problem(Problem(HTTPStatus(error.status_code), text))

    async def refused(request: Request, error: Exception) -> Response:
        return site.problem(Problem(HTTPStatus.BAD_REQUEST, str(error)))

    routes = [
        Route("/static/{name}", static),
        *site.access.routes(site.problem),
        *(Route(one.path, served(one), methods=[one.method]) for one in PAGES),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: unroutable, InputError: refused})
    app.router.redirect_slashes = False
    return hardened(app, site.access.hosts)


def status_of(error: CotenantError) -> HTTPStatus:
    if isinstance(error, AbsentError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, ForbiddenError):
        return HTTPStatus.FORBIDDEN
    return HTTPStatus.BAD_REQUEST if isinstance(error, InputError) else HTTPStatus.SERVICE_UNAVAILABLE


def hardened(app: ASGIApp, hosts: frozenset[str] | None) -> ASGIApp:
    """Refuses requests for other hosts, which a site gets by rebinding its own name to our address, and adds the
    headers that keep other sites out."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in present)]
            await send(message)

        if scope["type"] != "http":
            return
        if hosts is not None and host_of(Request(scope)) not in hosts:
            text = "this name is not served here; use the address that was printed"
            refused = Response(text, HTTPStatus.MISDIRECTED_REQUEST, media_type="text/plain")
            await refused(scope, receive, send_hardened)
            return
        await app(scope, receive, send_hardened)

    return serve


def host_of(request: Request) -> str:
    """The host that was asked for, without port, in small letters."""
    host = request.headers.get("host", "").lower()
    return host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
