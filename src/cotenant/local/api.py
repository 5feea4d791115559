# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP interface: REST, a live stream of events, and its own description (OpenAPI).

One table of routes both serves the requests and generates the description, so the two cannot differ.
"""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cotenant import __version__
from cotenant.errors import CotenantError, InputError
from cotenant.history.quantities import index_of
from cotenant.history.store import Point
from cotenant.local.admission import RefusedError
from cotenant.local.engine import Engine
from cotenant.local.queries import UnknownError
from cotenant.metrics.page import CONTENT_TYPE
from cotenant.wire.codec import decode
from cotenant.wire.explanation import WhatIf, WhatIfRequest
from cotenant.wire.local import (
    JOB_ID,
    MOST_BYTES,
    DrainRequest,
    GpuView,
    JobRequest,
    JobView,
    MigApplied,
    MigPlan,
    MigPlanRequest,
    Problem,
    Pruned,
    PruneRequest,
    WebLink,
    decode_request,
    decode_states,
)
from cotenant.wire.profile import JobProfile, Profiles, decode_profiles

MOST_LISTED = 20_000
LOG_CHUNK = 256 * 1024
FOLLOW_EVERY_S = 0.3
KEEP_ALIVE_S = 15.0
LOG_OFFSET = "Cotenant-Log-Offset"
"""response header: the offset of the first byte of the answer in the output of the attempt"""
LOG_ATTEMPT = "Cotenant-Log-Attempt"
"""response header: the attempt whose output the answer begins with; 0: there was none yet"""
MOST_TAIL = 100_000
LINES_AT_ONCE = 200
MOST_SERIES, MOST_POINTS = 1_000, 500
"""in one answer about the history"""

Handler = Callable[[Engine, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of the API."""

    method: str
    path: str
    summary: str
    handler: Handler
    answers: Any = None
    """type of a successful answer; None: plain text or a stream"""
    takes: Any = None
    takes_always: bool = True
    """whether a body is required"""
    status: int = 200
    query: tuple[tuple[str, str], ...] = ()
    """(name, JSON type)"""


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def submit(engine: Engine, request: Request) -> Response:
    return json_response(engine.submit(decode_request(await bounded_body(request))), 201)


async def jobs(engine: Engine, request: Request) -> Response:
    states = decode_states(request.query_params.get("state", ""))
    limit = whole(request, "limit", 1000, 1, MOST_LISTED)
    after = request.query_params.get("after") or None
    if after is not None and not JOB_ID.fullmatch(after):
        raise InputError(f"after={after[:40]}: expected a job id, for example j-000017")
    return json_response(engine.queries.jobs(states, limit, after, whole(request, "requests", 0, 0, 1) == 1))


async def show(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.job(request.path_params["job"]))


async def cancel(engine: Engine, request: Request) -> Response:
    return json_response(engine.cancel(request.path_params["job"]))


async def hold(engine: Engine, request: Request) -> Response:
    return json_response(engine.hold(request.path_params["job"]))


async def release(engine: Engine, request: Request) -> Response:
    return json_response(engine.release(request.path_params["job"]))


async def retry(engine: Engine, request: Request) -> Response:
    return json_response(engine.retry(request.path_params["job"]))


async def why(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.why(request.path_params["job"]))


async def what_if(engine: Engine, request: Request) -> Response:
    body = await bounded_body(request)
    wanted = decode(body, WhatIfRequest, "a job that does not exist") if body else WhatIfRequest()
    return json_response(engine.queries.foresight.what_if(wanted))


async def profile(engine: Engine, request: Request) -> Response:
    found = engine.queries.profile(request.path_params["job"], whole(request, "seconds", 1, 1, 86_400))
    return json_response([] if found is None else [found])


async def profiles(engine: Engine, request: Request) -> Response:
    return json_response(profiles_of(engine, request.query_params.get("workload")))


async def keep_profiles(engine: Engine, request: Request) -> Response:
    given = decode_profiles(await bounded_body(request))
    return json_response([engine.profiles.add(one) for one in given.profiles])


async def remove_profiles(engine: Engine, request: Request) -> Response:
    found = profiles_of(engine, request.query_params.get("workload", ""))
    engine.profiles.remove(found)
    return json_response(found)


def profiles_of(engine: Engine, name: str | None) -> list[JobProfile]:
    found = engine.profiles.find(name)
    if name is not None and not found:
        raise UnknownError(f"no profile of {name[:100]!r} here; `cotenant profiles list` lists them")
    return found


async def gpus(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.gpus())


async def cordon(engine: Engine, request: Request) -> Response:
    return json_response(engine.cordon(request.path_params["gpu"], True))


async def uncordon(engine: Engine, request: Request) -> Response:
    return json_response(engine.cordon(request.path_params["gpu"], False))


async def drain(engine: Engine, request: Request) -> Response:
    body = await bounded_body(request)
    options = decode(body, DrainRequest, "a drain") if body else DrainRequest()
    return json_response(engine.drain(request.path_params["gpu"], options.evict))


async def mig_plan(engine: Engine, request: Request) -> Response:
    body = await bounded_body(request)
    options = decode(body, MigPlanRequest, "a request for a plan") if body else MigPlanRequest()
    return json_response(await engine.queries.mig_plan(options))


async def mig_apply(engine: Engine, request: Request) -> Response:
    plan = decode(await bounded_body(request), MigPlan, "a plan of MIG layouts")
    if engine.mig is None:
        raise InputError("these GPUs have no MIG layouts")
    return json_response(await engine.mig.apply(plan))


async def prune(engine: Engine, request: Request) -> Response:
    return json_response(await engine.prune(decode(await bounded_body(request), PruneRequest, "a request to prune")))


async def web_link(engine: Engine, request: Request) -> Response:
    if engine.pages is None:
        raise InputError("this daemon serves no pages; start it with --web PORT")
    act = whole(request, "act", 0, 0, 1) == 1
    return json_response(WebLink(url=engine.pages.link(act=act), act=act), 201)


async def status(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.status())


async def metrics(engine: Engine, request: Request) -> Response:
    return Response(await engine.metrics.page.text(), media_type=CONTENT_TYPE)


async def shut_down(engine: Engine, request: Request) -> Response:
    engine.ask_to_stop()
    return json_response(engine.queries.status())


async def log(engine: Engine, request: Request) -> Response:
    """The log of a job's latest attempt, or of `attempt`, from an offset or its last lines (`tail`); with `follow=1`
    until the job has ended, or the requested attempt has.

    Offsets count all output of the attempt. If the output at the offset was rotated away, the answer begins with the
    oldest output that is kept, and its header contains the offset of that.
    """
    job = engine.queries.job(request.path_params["job"]).id
    latest, _ = engine.queries.progress(job)
    one = whole(request, "attempt", 0, 1, max(1, latest))
    attempt = one or latest
    engine.queries.refuse_pruned_log(job, attempt)
    tail = whole(request, "tail", -1, 0, MOST_TAIL)
    offset = engine.queries.log_tail(job, attempt, tail) if tail >= 0 else whole(request, "offset", 0, 0, 1 << 62)
    follow = whole(request, "follow", 0, 0, 1) == 1
    begin, _ = engine.queries.read_log(job, attempt, offset, 1)
    return StreamingResponse(
        log_chunks(engine, job, attempt, begin, follow, only=one > 0),
        media_type="text/plain; charset=utf-8",
        headers={LOG_OFFSET: str(begin), LOG_ATTEMPT: str(attempt)},
    )


async def log_chunks(
    engine: Engine, job: str, attempt: int, offset: int, follow: bool, only: bool = False
) -> AsyncIterator[bytes]:
    while True:
        latest, ended = engine.queries.progress(job)  # read before the log, so that the last output is still sent
        begin, piece = engine.queries.read_log(job, attempt, offset, LOG_CHUNK)
        while piece:
            offset = begin + len(piece)
            yield piece
            begin, piece = engine.queries.read_log(job, attempt, offset, LOG_CHUNK)
        if not follow or engine.stopping.is_set():
            return
        if only and latest > attempt:
            return
        if latest != attempt:  # the job runs again
            attempt, offset = latest, 0
        elif ended:
            return
        else:
            await asyncio.sleep(FOLLOW_EVERY_S)


async def events(engine: Engine, request: Request) -> Response:
    """Live events after the id `after`, or after the id in the header that browsers send when they reconnect."""
    after = whole(request, "after", -1, -1, 1 << 62)
    seen = request.headers.get("last-event-id", "")
    if "after" not in request.query_params and seen.isascii() and seen.isdecimal() and len(seen) < 19:
        after = int(seen)
    return StreamingResponse(event_stream(engine, after), media_type="text/event-stream")


async def event_stream(engine: Engine, after: int) -> AsyncIterator[bytes]:
    """Server-sent events: the recorded events after `after` (-1: none), then new ones."""
    with engine.events.subscribe(after) as subscription:
        yield b": connected\n\n"
        while not engine.stopping.is_set():
            page = subscription.page()
            for event in page:
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
            if subscription.closed:
                return
            if not page:
                try:
                    await asyncio.wait_for(subscription.changed.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"


async def history(engine: Engine, request: Request) -> Response:
    """A quantity of all entities of a kind over time: by name a list of [time, mean, highest]."""
    kept = engine.history
    if kept is None:
        raise UnknownError("this daemon keeps no history; `cotenant up` without --history 0s does")
    kind, quantity = request.query_params.get("kind", "gpu"), request.query_params.get("quantity", "utilisation")
    now = int(time.time())
    since, until = whole(request, "since", now - 86_400, 0, 1 << 40), whole(request, "until", now, 0, 1 << 40)
    points = whole(request, "points", 100, 1, MOST_POINTS)

    def read() -> dict[str, list[Point]]:
        seen = kept.entities(kind, since)[:MOST_SERIES]
        return {one.entity.name: kept.series(one.entity, quantity, since, until, points) for one in seen}

    try:
        index_of(kind, quantity)
    except ValueError as error:
        raise InputError(str(error)) from None
    return json_response(await asyncio.to_thread(read))


async def decisions(engine: Engine, request: Request) -> Response:
    """The recorded decisions, one line of JSON each; with `since` only parts that reach beyond that time."""
    since = whole(request, "since", 0, 0, 1 << 40)
    recorder = engine.recorded_decisions
    if recorder is None:
        raise UnknownError("this daemon records no decisions; `cotenant up` without --no-decisions does")
    lines = await asyncio.to_thread(recorder.lines, since)
    return StreamingResponse(_pieces(lines), media_type="application/jsonl")


async def _pieces(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The lines as pieces, read in a thread because they come from a disk."""
    while True:
        piece = await asyncio.to_thread(lambda: b"".join(islice(lines, LINES_AT_ONCE)))
        if not piece:
            return
        yield piece


ENDPOINTS = (
    Endpoint("GET", "/v1/status", "Show the daemon: version, policy, devices, number of jobs", status, dict[str, Any]),
    Endpoint("POST", "/v1/jobs", "Submit a job", submit, JobView, JobRequest, status=201),
    Endpoint(
        "GET",
        "/v1/jobs",
        "List jobs, oldest first",
        jobs,
        list[JobView],
        query=(("state", "string"), ("limit", "integer"), ("after", "string"), ("requests", "integer")),
    ),
    Endpoint("GET", "/v1/jobs/{job}", "Show one job, by id or name", show, JobView),
    Endpoint("POST", "/v1/jobs/{job}/cancel", "Cancel a job", cancel, JobView),
    Endpoint("POST", "/v1/jobs/{job}/hold", "Keep a queued job from starting", hold, JobView),
    Endpoint("POST", "/v1/jobs/{job}/release", "Let a held job start", release, JobView),
    Endpoint("POST", "/v1/jobs/{job}/retry", "Run a job again that has ended", retry, JobView),
    Endpoint("GET", "/v1/jobs/{job}/why", "Explain why a job waits, is where it is, or ended", why, dict[str, Any]),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/log",
        "Read the log of a job",
        log,
        query=(("offset", "integer"), ("follow", "integer"), ("attempt", "integer"), ("tail", "integer")),
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/profile",
        "Make a profile of a job that is alone on its GPU; the list is empty until it was measured for `seconds`",
        profile,
        list[JobProfile],
        query=(("seconds", "integer"),),
    ),
    Endpoint(
        "GET", "/v1/profiles", "List profiles of workloads", profiles, list[JobProfile], query=(("workload", "string"),)
    ),
    Endpoint("POST", "/v1/profiles", "Import profiles", keep_profiles, list[JobProfile], Profiles),
    Endpoint(
        "POST",
        "/v1/profiles/remove",
        "Remove the profiles of a workload",
        remove_profiles,
        list[JobProfile],
        query=(("workload", "string"),),
    ),
    Endpoint("GET", "/v1/gpus", "List the GPUs and their tenants", gpus, list[GpuView]),
    Endpoint("POST", "/v1/gpus/{gpu}/cordon", "Place no new jobs on a GPU", cordon, GpuView),
    Endpoint("POST", "/v1/gpus/{gpu}/uncordon", "Place jobs on a GPU again", uncordon, GpuView),
    Endpoint(
        "POST",
        "/v1/gpus/{gpu}/drain",
        "Place no new jobs on a GPU, and evict its tenants or let them end",
        drain,
        GpuView,
        DrainRequest,
        takes_always=False,
    ),
    Endpoint(
        "POST",
        "/v1/mig/plan",
        "Plan other MIG layouts for the jobs that wait; nothing is changed",
        mig_plan,
        MigPlan,
        MigPlanRequest,
        takes_always=False,
    ),
    Endpoint(
        "POST",
        "/v1/whatif",
        "Show where a job would go now, and how slow it and its neighbours would get; nothing is changed",
        what_if,
        WhatIf,
        WhatIfRequest,
        takes_always=False,
    ),
    Endpoint(
        "GET",
        "/v1/history",
        "Show a quantity of GPUs, tenants or the queue over the last day",
        history,
        dict[str, list[Any]],
        query=(
            ("kind", "string"),
            ("quantity", "string"),
            ("since", "integer"),
            ("until", "integer"),
            ("points", "integer"),
        ),
    ),
    Endpoint("GET", "/v1/decisions", "Download the recorded decisions", decisions, query=(("since", "integer"),)),
    Endpoint(
        "POST",
        "/v1/mig/apply",
        "Carry out a plan of MIG layouts, all of it or nothing",
        mig_apply,
        MigApplied,
        MigPlan,
    ),
    Endpoint("POST", "/v1/prune", "Remove the files of jobs that have ended", prune, Pruned, PruneRequest),
    Endpoint(
        "POST",
        "/v1/web",
        "Make a link to the pages, which signs a browser in once",
        web_link,
        WebLink,
        status=201,
        query=(("act", "integer"),),
    ),
    Endpoint("GET", "/v1/events", "Stream events", events, query=(("after", "integer"),)),
    Endpoint("GET", "/metrics", "Metrics for Prometheus, in its text format", metrics),
    Endpoint("POST", "/v1/shutdown", "Stop the daemon; jobs keep running", shut_down, dict[str, Any]),
)


def application(engine: Engine, token: str | None = None) -> ASGIApp:
    """The API as an ASGI application; with a token, every request must carry it."""

    def served(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                return await endpoint.handler(engine, request)
            except UnknownError as error:
                return json_response(Problem(error=str(error)), 404)
            except RefusedError as error:
                return json_response(
                    Problem(error=str(error), reasons=error.reasons, suggestions=error.suggestions), 422
                )
            except InputError as error:
                return json_response(Problem(error=str(error)), 400)
            except CotenantError as error:
                return json_response(Problem(error=str(error)), 503)

        return serve

    async def description(request: Request) -> Response:
        return json_response(openapi())

    routes = [Route(one.path, served(one), methods=[one.method]) for one in ENDPOINTS]
    routes.append(Route("/openapi.json", description))
    app = Starlette(routes=routes, exception_handlers={HTTPException: unroutable})
    app.router.redirect_slashes = False  # the description contains no redirects
    return app if token is None else guarded(app, token)


async def unroutable(request: Request, error: Exception) -> Response:
    """Answers an unknown path or method in the same form as every other error."""
    assert isinstance(error, HTTPException)
    problem = Problem(
        error=f"{request.method} {request.url.path[:100]}: no such endpoint; /openapi.json describes the API"
    )
    answer = json_response(problem, error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Passes on only requests that carry the token, which is compared in constant time."""
    expected = f"Bearer {token}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, expected):
                problem = Problem(error="a valid token is needed: send the header `Authorization: Bearer TOKEN`")
                await json_response(problem, 401)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guard


def openapi() -> dict[str, Any]:
    """The description of the API (OpenAPI 3.1), generated from the table of routes."""
    types = [one for endpoint in ENDPOINTS for one in (endpoint.answers, endpoint.takes) if one is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    schema_of = {id(one): schema for one, schema in zip(types, schemas, strict=False)}
    problem = {"description": "Error", "content": {"application/json": {"schema": schemas[-1]}}}
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        good: dict[str, Any] = {"description": "Success"}
        if endpoint.answers is not None:
            good["content"] = {"application/json": {"schema": schema_of[id(endpoint.answers)]}}
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": endpoint.handler.__name__,
            "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
            "responses": {str(endpoint.status): good, "default": problem},
        }
        if endpoint.takes is not None:
            body = {"application/json": {"schema": schema_of[id(endpoint.takes)]}}
            operation["requestBody"] = {"required": endpoint.takes_always, "content": body}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "cotenant", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "schema": {"type": kind}} for name, kind in endpoint.query]


async def bounded_body(request: Request) -> bytes:
    """The body of a request; InputError if it is larger than the limit."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise InputError(f"the request is larger than {MOST_BYTES} bytes")
    return body


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InputError(f"{name}={text[:40]}: expected a whole number from {least} to {most}")
    return value
