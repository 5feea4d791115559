# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP interface: REST, a live stream of events, and its own description (OpenAPI).

One table of routes both serves the requests and generates the description, so the two cannot differ.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cotenant.errors import CotenantError, InputError
from cotenant.local import handlers, streams
from cotenant.local.admission import RefusedError
from cotenant.local.authority import authorise
from cotenant.local.endpoint import Endpoint, May, json_response
from cotenant.local.engine import Engine
from cotenant.local.identity import CALLER, Callers, Identify, caller_of
from cotenant.local.openapi import describe
from cotenant.local.refusals import ForbiddenError, UnknownError
from cotenant.local.submissions import ListedError
from cotenant.wire.cleaning import Cleaned, CleanRequest
from cotenant.wire.explanation import WhatIf, WhatIfRequest
from cotenant.wire.job_requests import JobChange, JobList, JobRequest
from cotenant.wire.job_views import JobView, TerminalView
from cotenant.wire.machine import AccountView, DrainRequest, GpuView, WebLink
from cotenant.wire.mig import MigApplied, MigPlan, MigPlanRequest
from cotenant.wire.profile import JobProfile, Profiles
from cotenant.wire.protocol import Problem
from cotenant.wire.pruning import Pruned, PruneRequest
from cotenant.wire.reservations import ReservationRequest, ReservationView
from cotenant.wire.tokens import NewToken, TokenRequest, TokenView

NO_TOKEN = "a token is needed: send the header `Authorization: Bearer TOKEN`"
WRONG_TOKEN = (
    "the token is not valid: it is not one of this daemon, or it was revoked. `cotenant token create` on the machine of"
    " the daemon makes another one; that of `cotenant up --token-file` is in its file"
)
ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/status",
        "Show the daemon: version, policy, devices, number of jobs",
        handlers.status,
        dict[str, Any],
        may=May.EVERYONE,
    ),
    Endpoint("POST", "/v1/jobs", "Submit a job", handlers.submit, JobView, JobRequest, status=201, may=May.EVERYONE),
    Endpoint(
        "POST",
        "/v1/submissions",
        "Submit several jobs: all are accepted or none; with `dry_run=1` nothing is stored",
        handlers.submit_all,
        list[JobView],
        JobList,
        status=201,
        query=(("dry_run", "integer"),),
        may=May.EVERYONE,
    ),
    Endpoint(
        "GET",
        "/v1/jobs",
        "List jobs, oldest first",
        handlers.jobs,
        list[JobView],
        query=(
            ("state", "string"),
            ("limit", "integer"),
            ("after", "string"),
            ("requests", "integer"),
            ("arrays", "integer"),
            ("array", "string"),
            ("mine", "integer"),
        ),
        may=May.EVERYONE,
    ),
    Endpoint("GET", "/v1/jobs/{job}", "Show one job, by id or name", handlers.show, JobView, may=May.EVERYONE),
    Endpoint("POST", "/v1/jobs/{job}/cancel", "Cancel a job", handlers.cancel, JobView, may=May.OWNER),
    Endpoint("POST", "/v1/jobs/{job}/hold", "Keep a queued job from starting", handlers.hold, JobView, may=May.OWNER),
    Endpoint("POST", "/v1/jobs/{job}/release", "Let a held job start", handlers.release, JobView, may=May.OWNER),
    Endpoint("POST", "/v1/jobs/{job}/pause", "Stop the processes of a job", handlers.pause, JobView, may=May.OWNER),
    Endpoint("POST", "/v1/jobs/{job}/resume", "Let a paused job go on", handlers.resume, JobView, may=May.OWNER),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/change",
        "Give a job that waits or runs another priority, memory, compute share, time limit or name",
        handlers.change,
        JobView,
        JobChange,
        may=May.OWNER,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/rerun",
        "Submit a copy of a job as a new job, maybe with other values",
        handlers.rerun,
        JobView,
        JobChange,
        takes_always=False,
        status=201,
        may=May.OWNER,
    ),
    Endpoint("POST", "/v1/jobs/{job}/retry", "Run a job again that has ended", handlers.retry, JobView, may=May.OWNER),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/why",
        "Explain why a job waits, is where it is, or ended",
        handlers.why,
        dict[str, Any],
        may=May.OWNER,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/log",
        "Read the log of a job",
        streams.log,
        query=(("offset", "integer"), ("follow", "integer"), ("attempt", "integer"), ("tail", "integer")),
        may=May.OWNER,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/terminal",
        "Find the socket of the terminal of an interactive job that runs on this machine",
        handlers.terminal,
        TerminalView,
        may=May.OWNER,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/profile",
        "Make a profile of a job that is alone on its GPU; the list is empty until it was measured for `seconds`",
        handlers.profile,
        list[JobProfile],
        query=(("seconds", "integer"),),
        may=May.OWNER,
    ),
    Endpoint(
        "GET",
        "/v1/profiles",
        "List profiles of workloads",
        handlers.profiles,
        list[JobProfile],
        query=(("workload", "string"),),
        may=May.EVERYONE,
    ),
    Endpoint("POST", "/v1/profiles", "Import profiles", handlers.keep_profiles, list[JobProfile], Profiles),
    Endpoint(
        "POST",
        "/v1/profiles/remove",
        "Remove the profiles of a workload",
        handlers.remove_profiles,
        list[JobProfile],
        query=(("workload", "string"),),
    ),
    Endpoint("GET", "/v1/gpus", "List the GPUs and their tenants", handlers.gpus, list[GpuView], may=May.EVERYONE),
    Endpoint(
        "GET",
        "/v1/accounts",
        "List users and groups with what they use, their shares and their limits",
        handlers.accounts,
        list[AccountView],
        may=May.EVERYONE,
    ),
    Endpoint(
        "POST",
        "/v1/accounts/reload",
        "Read the file of accounts again; if it is not valid, nothing is changed",
        handlers.reload_accounts,
        list[AccountView],
    ),
    Endpoint(
        "POST",
        "/v1/reservations",
        "Reserve GPUs for a user or a group",
        handlers.reserve,
        ReservationView,
        ReservationRequest,
        status=201,
        may=May.EVERYONE,
    ),
    Endpoint(
        "GET",
        "/v1/reservations",
        "List reservations that have not ended, the first to start first",
        handlers.reservations,
        list[ReservationView],
        may=May.EVERYONE,
    ),
    Endpoint(
        "GET",
        "/v1/reservations/{reservation}",
        "Show one reservation",
        handlers.reservation,
        ReservationView,
        may=May.EVERYONE,
    ),
    Endpoint(
        "POST",
        "/v1/reservations/{reservation}/cancel",
        "Cancel a reservation",
        handlers.cancel_reservation,
        ReservationView,
        may=May.OWNER,
    ),
    Endpoint("POST", "/v1/gpus/{gpu}/cordon", "Place no new jobs on a GPU", handlers.cordon, GpuView),
    Endpoint("POST", "/v1/gpus/{gpu}/uncordon", "Place jobs on a GPU again", handlers.uncordon, GpuView),
    Endpoint(
        "POST",
        "/v1/gpus/{gpu}/drain",
        "Place no new jobs on a GPU, and evict its tenants or let them end",
        handlers.drain,
        GpuView,
        DrainRequest,
        takes_always=False,
    ),
    Endpoint(
        "POST",
        "/v1/mig/plan",
        "Plan other MIG layouts for the jobs that wait; nothing is changed",
        handlers.mig_plan,
        MigPlan,
        MigPlanRequest,
        takes_always=False,
    ),
    Endpoint(
        "POST",
        "/v1/whatif",
        "Show where a job would go now, and how slow it and its neighbours would get; nothing is changed",
        handlers.what_if,
        WhatIf,
        WhatIfRequest,
        takes_always=False,
        may=May.EVERYONE,
    ),
    Endpoint(
        "GET",
        "/v1/history",
        "Show a quantity of GPUs, tenants or the queue over the last day",
        streams.history,
        dict[str, list[Any]],
        query=(
            ("kind", "string"),
            ("quantity", "string"),
            ("since", "integer"),
            ("until", "integer"),
            ("points", "integer"),
        ),
        may=May.EVERYONE,
    ),
    Endpoint(
        "GET", "/v1/decisions", "Download the recorded decisions", streams.decisions, query=(("since", "integer"),)
    ),
    Endpoint(
        "POST",
        "/v1/mig/apply",
        "Carry out a plan of MIG layouts, all of it or nothing",
        handlers.mig_apply,
        MigApplied,
        MigPlan,
    ),
    Endpoint("POST", "/v1/prune", "Remove the files of jobs that have ended", handlers.prune, Pruned, PruneRequest),
    Endpoint(
        "POST",
        "/v1/clean",
        "Remove ended jobs from the list, with their files; by default those of the caller",
        handlers.clean,
        Cleaned,
        CleanRequest,
        may=May.EVERYONE,
    ),
    Endpoint(
        "POST",
        "/v1/web",
        "Make a link to the pages, which signs a browser in once",
        handlers.web_link,
        WebLink,
        status=201,
        query=(("act", "integer"),),
        may=May.EVERYONE,
    ),
    Endpoint(
        "POST",
        "/v1/tokens",
        "Make a token, by which a user is known over TCP",
        handlers.create_token,
        NewToken,
        TokenRequest,
        takes_always=False,
        status=201,
        may=May.EVERYONE,
    ),
    Endpoint("GET", "/v1/tokens", "List tokens", handlers.tokens, list[TokenView], may=May.EVERYONE),
    Endpoint("POST", "/v1/tokens/{token}/revoke", "Revoke a token", handlers.revoke_token, TokenView, may=May.OWNER),
    Endpoint("GET", "/v1/events", "Stream events", streams.events, query=(("after", "integer"),), may=May.EVERYONE),
    Endpoint("GET", "/metrics", "Metrics for Prometheus, in its text format", handlers.metrics, may=May.EVERYONE),
    Endpoint("POST", "/v1/shutdown", "Stop the daemon; jobs keep running", handlers.shut_down, dict[str, Any]),
)


def application(engine: Engine, identify: Identify | None = None) -> ASGIApp:
    """The API as an ASGI application; a request whose user `identify` does not know is refused. By default, every
    connection is one to the unix socket of a daemon with one user."""

    def served(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                authorise(engine, endpoint, request, caller_of(request))
                return await endpoint.handler(engine, request)
            except ListedError as error:
                return problem_response(error.problem, error.number)
            except CotenantError as error:
                return problem_response(error)

        return serve

    async def description(request: Request) -> Response:
        return json_response(describe(ENDPOINTS))

    routes = [Route(one.path, served(one), methods=[one.method]) for one in ENDPOINTS]
    routes.append(Route("/openapi.json", description))
    app = Starlette(routes=routes, exception_handlers={HTTPException: unroutable})
    app.router.redirect_slashes = False  # the description contains no redirects
    return identified(app, identify or Callers().of_connection)


STATUSES: tuple[tuple[type[CotenantError], int], ...] = (
    (UnknownError, 404),
    (ForbiddenError, 403),
    (RefusedError, 422),
    (InputError, 400),
    (CotenantError, 503),
)
"""the status of an answer to a request that was not carried out; the first kind of error that matches counts"""


def problem_response(error: CotenantError, item: int | None = None) -> Response:
    """The answer to a request, or to one of several, that was not carried out."""
    status = next(status for kind, status in STATUSES if isinstance(error, kind))
    if isinstance(error, RefusedError):
        return json_response(
            Problem(error=str(error), reasons=error.reasons, suggestions=error.suggestions, item=item), status
        )
    return json_response(Problem(error=str(error), item=item), status)


async def unroutable(request: Request, error: Exception) -> Response:
    """Answers an unknown path or method in the same form as every other error."""
    assert isinstance(error, HTTPException)
    problem = Problem(
        error=f"{request.method} {request.url.path[:100]}: no such endpoint; /openapi.json describes the API"
    )
    answer = json_response(problem, error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def identified(app: ASGIApp, identify: Identify) -> ASGIApp:
    """Passes on only requests of users whom the daemon knows."""

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            caller = identify(scope)
            if caller is None:
                has_one = any(name == b"authorization" for name, _ in scope["headers"])
                await json_response(Problem(error=WRONG_TOKEN if has_one else NO_TOKEN), 401)(scope, receive, send)
                return
            scope.setdefault("state", {})[CALLER] = caller
        await app(scope, receive, send)

    return pass_on
