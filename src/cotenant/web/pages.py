# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of routes, and what answers them. Handlers ask the source and render; they decide nothing."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from hmac import compare_digest

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cotenant.errors import CotenantError, InputError
from cotenant.web import reports
from cotenant.web.access import Viewer
from cotenant.web.boards import composer
from cotenant.web.forms import is_foreign, small_form
from cotenant.web.live import KEEP_ALIVE_S, Board
from cotenant.web.model import Action, LogPiece, Verb, WhatIf
from cotenant.web.site import Site
from cotenant.web.source import AbsentError, ForbiddenError

CHECKED_S, MOST_UNCHECKED_S = 15.0, 60.0
"""how often the rights of a stream's viewer are checked, and how long it goes on if they cannot be"""
CSRF = "x-cotenant-csrf"
"""header that carries the secret of the session; a form of another site cannot set it"""

Handler = Callable[[Site, Viewer, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """One route."""

    path: str
    handler: Handler
    title: str | None = None
    """of its section in `docs/howto/pages.md`; None: a part of another page"""
    method: str = "GET"


async def overview(site: Site, viewer: Viewer, request: Request) -> Response:
    board = await _board(site, viewer, "overview")
    return site.page("overview.html", viewer, "/", board=board, live="overview/")


async def queue(site: Site, viewer: Viewer, request: Request) -> Response:
    board = await _board(site, viewer, "queue")
    return site.page("queue.html", viewer, "/queue", board=board, live="queue/")


async def node(site: Site, viewer: Viewer, request: Request) -> Response:
    name = request.path_params["name"]
    board = await _board(site, viewer, "node", name)
    return site.page("node.html", viewer, "", board=board, live=f"node/{name}")


async def job(site: Site, viewer: Viewer, request: Request) -> Response:
    name = request.path_params["name"]
    board = await _board(site, viewer, "job", name)
    own = (await site.source.job(viewer, name)).row.own
    return site.page("job.html", viewer, "", board=board, live=f"job/{name}", job=name, own=own)


async def history(site: Site, viewer: Viewer, request: Request) -> Response:
    return site.page("history.html", viewer, "/history", day=await site.source.day(viewer))


async def history_data(site: Site, viewer: Viewer, request: Request) -> Response:
    day = await site.source.day(viewer)
    return _json({} if day is None else dict(day.charts))


async def whatif(site: Site, viewer: Viewer, request: Request) -> Response:
    given = request.query_params
    wish = WhatIf(
        gpus=given.get("gpus", "1")[:200],
        memory=given.get("memory", "")[:200],
        compute=given.get("compute", "")[:200],
        types=given.get("types", "")[:200],
        workload=given.get("workload", "")[:200],
        exclusive=given.get("exclusive") == "1",
        group=given.get("group", "")[:200],
    )
    answer, problem = None, None
    if given:
        try:
            answer = await site.source.whatif(viewer, wish)
        except InputError as error:
            problem = str(error)
    return site.page(
        "whatif.html", viewer, "/whatif", wish=wish, answer=answer, problem=problem, group=site.source.group_word
    )


def _check_reports(viewer: Viewer) -> None:
    if not viewer.sees_reports:
        raise ForbiddenError("reports are for administrators")


async def list_reports(site: Site, viewer: Viewer, request: Request) -> Response:
    _check_reports(viewer)
    found = () if site.reports is None else await asyncio.to_thread(reports.find, site.reports)
    return site.page("reports.html", viewer, "/reports", reports=found)


async def report(site: Site, viewer: Viewer, request: Request) -> Response:
    _check_reports(viewer)
    name, file = request.path_params["name"], request.path_params["file"]
    if site.reports is None:
        raise AbsentError("there are no reports here")
    content = await asyncio.to_thread(reports.read, site.reports, name, file)
    return Response(content, media_type=reports.type_of(file), headers=reports.HEADERS)


async def live(site: Site, viewer: Viewer, request: Request) -> Response:
    """The stream of one page. Browsers send the id of the last event again when they reconnect."""
    board = await _board(site, viewer, request.path_params["page"], request.path_params["name"])
    seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")
    return _stream(_while_same(site, viewer, request, site.hub.stream(board, seen[:64])))


async def charts(site: Site, viewer: Viewer, request: Request) -> Response:
    found = await site.source.charts(viewer, request.path_params["name"])
    return _json({"speed": found.speed, "batch": found.batch, "memory": found.memory})


async def log(site: Site, viewer: Viewer, request: Request) -> Response:
    name = request.path_params["name"]
    await site.source.job(viewer, name)  # AbsentError before the stream begins
    return _stream(_while_same(site, viewer, request, _log_events(site.source.logs(viewer, name))))


async def _while_same(
    site: Site, viewer: Viewer, request: Request, events: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """The events of a stream until its viewer may see something else than at its start. Then the browser reconnects."""
    checked = time.monotonic()
    with site.hub.admitted(viewer) as admitted:
        if not admitted:
            yield b"retry: 10000\n\n"
            return
        async with aclosing(events) as sending:  # type: ignore[type-var]
            async for event in sending:
                if time.monotonic() - checked >= CHECKED_S:
                    with suppress(CotenantError):
                        now = await site.access.viewer(request)
                        if now is None or now.scope != viewer.scope:
                            return
                        checked = time.monotonic()
                    if time.monotonic() - checked >= MOST_UNCHECKED_S:
                        return
                yield event


async def _log_events(pieces: AsyncGenerator[LogPiece, None]) -> AsyncIterator[bytes]:
    """Events with text; one named `end` when the output is complete."""
    yield b"retry: 1000\n\n"
    try:
        async with aclosing(pieces) as reading:
            following = asyncio.ensure_future(anext(reading, None))
            try:
                while True:
                    done, _ = await asyncio.wait({following}, timeout=KEEP_ALIVE_S)
                    if not done:
                        yield b": still here\n\n"
                        continue
                    piece = following.result()
                    if piece is None:
                        break
                    yield b"data: %s\n\n" % msgspec.json.encode(piece)
                    following = asyncio.ensure_future(anext(reading, None))
            finally:
                following.cancel()
                await asyncio.wait({following})
    except CotenantError as error:
        yield b"data: %s\n\n" % msgspec.json.encode(LogPiece(f"({error})\n"))
    yield b"event: end\ndata: {}\n\n"


async def session(site: Site, viewer: Viewer, request: Request) -> Response:
    """Whether the session is still valid: a stream cannot tell its page why it ended."""
    return _json({"name": viewer.name})


async def act(site: Site, viewer: Viewer, request: Request) -> Response:
    """An action: only with the secret of the session, from our own pages, and if the viewer has the right."""
    if is_foreign(request):
        raise ForbiddenError("this request came from another site")
    if not compare_digest(request.headers.get(CSRF, "").encode(), viewer.csrf.encode()):
        raise ForbiddenError("the secret of the session is missing or wrong; reload the page")
    action = await _action(request)
    if action.verb not in viewer.verbs:
        raise ForbiddenError(f"{viewer.name} may not {action.verb} anything here: the pages are read-only")
    return _json({"text": await site.source.act(viewer, action)})


async def _action(request: Request) -> Action:
    form = await small_form(request)
    verb, target = form.get("verb", [""])[0], form.get("target", [""])[0]
    if verb not in tuple(Verb) or not target:
        raise InputError(f"verb={verb[:40]}: expected one of {', '.join(Verb)}, and a target")
    return Action(verb=Verb(verb), target=target)


PAGES = (
    Page("/", overview, "Overview"),
    Page("/queue", queue, "Queue"),
    Page("/jobs/{name:path}", job, "Job"),
    Page("/nodes/{name}", node, "Node"),
    Page("/history", history, "History"),
    Page("/history.json", history_data),
    Page("/whatif", whatif, "What-if"),
    Page("/reports", list_reports, "Reports"),
    Page("/reports/{name}/{file}", report),
    Page("/live/{page}/{name:path}", live),
    Page("/charts/{name:path}", charts),
    Page("/log/{name:path}", log),
    Page("/session", session),
    Page("/act", act, "Actions", "POST"),
)


async def _board(site: Site, viewer: Viewer, page: str, name: str = "") -> Board:
    compose = composer(site.source, viewer, page, name)
    if compose is None:
        raise AbsentError(f"no live page {page[:40]!r}")
    return await site.hub.board(viewer, f"{page}/{name}", compose)


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
