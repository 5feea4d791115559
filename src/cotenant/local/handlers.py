# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The routes of the daemon's HTTP interface with short answers: jobs, GPUs, profiles, and the daemon itself."""

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from cotenant.errors import InputError
from cotenant.local.authority import cleaned_by, shown_to
from cotenant.local.endpoint import bounded_body, json_response, whole
from cotenant.local.engine import Engine
from cotenant.local.identity import caller_of, peer_of
from cotenant.local.logins import origin_of
from cotenant.local.owners import account_named
from cotenant.local.refusals import ForbiddenError, UnknownError
from cotenant.metrics.page import CONTENT_TYPE
from cotenant.wire.cleaning import CleanRequest
from cotenant.wire.codec import decode
from cotenant.wire.explanation import WhatIfRequest
from cotenant.wire.job_checks import decode_list, decode_request
from cotenant.wire.job_requests import JOB_ID, JobChange
from cotenant.wire.job_views import JobView, decode_states
from cotenant.wire.machine import DrainRequest, WebLink
from cotenant.wire.mig import MigPlan, MigPlanRequest
from cotenant.wire.profile import JobProfile, decode_profiles
from cotenant.wire.pruning import PruneRequest
from cotenant.wire.reservations import ReservationRequest
from cotenant.wire.tokens import TokenRequest

MOST_LISTED = 20_000
MOST_REQUEST_BYTES = 16 * 1024 * 1024
"""of all requests in one list of jobs"""


async def submit(engine: Engine, request: Request) -> Response:
    wanted = decode_request(await bounded_body(request))
    origin = origin_of(peer_of(request.scope)) if engine.serves_all_users else None
    return json_response(engine.submit(wanted, caller_of(request).owner, origin), 201)


async def submit_all(engine: Engine, request: Request) -> Response:
    wanted = decode_list(await bounded_body(request))
    dry_run = whole(request, "dry_run", 0, 0, 1) == 1
    origin = origin_of(peer_of(request.scope)) if engine.serves_all_users else None
    found = engine.submit_all(wanted, caller_of(request).owner, origin, dry_run=dry_run)
    return json_response(found, 200 if dry_run else 201)


async def jobs(engine: Engine, request: Request) -> Response:
    states = decode_states(request.query_params.get("state", ""))
    limit = whole(request, "limit", 1000, 1, MOST_LISTED)
    after = request.query_params.get("after") or None
    if after is not None and not JOB_ID.fullmatch(after):
        raise InputError(f"after={after[:40]}: expected a job id, for example j-000017")
    requests, array = whole(request, "requests", 0, 0, 1) == 1, request.query_params.get("array")
    caller = caller_of(request)
    mine = whole(request, "mine", 0, 0, 1) == 1
    if array:
        found = engine.queries.elements(engine.queries.resolve(array, caller.owner.uid)[0], states, limit)
    elif whole(request, "arrays", 0, 0, 1) == 1:
        found = engine.queries.jobs_and_arrays(states, limit, requests)
    else:
        found = engine.queries.jobs(states, limit, after, requests, uid=caller.owner.uid if mine else None)
    if mine:
        found = [job for job in found if job.uid == caller.owner.uid]
    return json_response(_with_bounded_requests([shown_to(caller, job) for job in found]))


def _with_bounded_requests(views: list[JobView]) -> list[JobView]:
    """The jobs with the requests of the newest ones only, if those of all would be too large: one request may have
    1 MiB."""
    left, found = MOST_REQUEST_BYTES, []
    for view in reversed(views):
        left -= 0 if view.request is None else len(msgspec.json.encode(view.request))
        found.append(view if left >= 0 else replace(view, request=None))
    return found[::-1]


async def show(engine: Engine, request: Request) -> Response:
    return json_response(shown_to(caller_of(request), engine.queries.job(request.path_params["job"])))


async def cancel(engine: Engine, request: Request) -> Response:
    return json_response(engine.cancel(request.path_params["job"]))


async def hold(engine: Engine, request: Request) -> Response:
    return json_response(engine.hold(request.path_params["job"]))


async def release(engine: Engine, request: Request) -> Response:
    return json_response(engine.release(request.path_params["job"]))


async def pause(engine: Engine, request: Request) -> Response:
    return json_response(engine.pause(request.path_params["job"], True))


async def resume(engine: Engine, request: Request) -> Response:
    return json_response(engine.pause(request.path_params["job"], False))


async def retry(engine: Engine, request: Request) -> Response:
    return json_response(engine.retry(request.path_params["job"]))


async def change(engine: Engine, request: Request) -> Response:
    wanted = decode(await bounded_body(request), JobChange, "a change of a job")
    if wanted == JobChange():
        raise InputError("change: give --priority, --memory, --compute, --time or --name")
    return json_response(engine.change(request.path_params["job"], wanted, caller_of(request).owner))


async def rerun(engine: Engine, request: Request) -> Response:
    body = await bounded_body(request)
    wanted = decode(body, JobChange, "a change of a job") if body else JobChange()
    return json_response(engine.rerun(request.path_params["job"], wanted), 201)


async def why(engine: Engine, request: Request) -> Response:
    return json_response(engine.why(request.path_params["job"]))


async def terminal(engine: Engine, request: Request) -> Response:
    """Only for the owner of the job, and root: administrators end and change jobs, but do not type into them."""
    record, caller = engine.queries.find(request.path_params["job"]), caller_of(request)
    if record.uid != caller.owner.uid and not caller.superuser:
        raise ForbiddenError(f"this terminal belongs to {record.user}: only {record.user} may use it")
    if peer_of(request.scope) is None:
        raise InputError(
            f"a terminal can only be reached on its own machine, not over TCP: use `ssh -t MACHINE cotenant attach "
            f"{record.id}`, or read its output with `cotenant logs -f {record.id}`"
        )
    return json_response(engine.queries.terminal(record))


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


async def accounts(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.accounts())


async def reload_accounts(engine: Engine, request: Request) -> Response:
    return json_response(engine.reload_accounts())


async def reserve(engine: Engine, request: Request) -> Response:
    wanted = decode(await bounded_body(request), ReservationRequest, "a reservation")
    return json_response(engine.reserve(wanted, caller_of(request)), 201)


async def reservations(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.reservations())


async def reservation(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.reservation(request.path_params["reservation"]))


async def cancel_reservation(engine: Engine, request: Request) -> Response:
    return json_response(engine.cancel_reservation(request.path_params["reservation"]))


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


async def clean(engine: Engine, request: Request) -> Response:
    wanted = decode(await bounded_body(request), CleanRequest, "a request to clean")
    selection = cleaned_by(caller_of(request), engine, wanted)
    return json_response(await engine.clean(selection, dry_run=wanted.dry_run))


async def web_link(engine: Engine, request: Request) -> Response:
    if engine.pages is None:
        raise InputError("this daemon serves no pages; start it with --web PORT")
    act = whole(request, "act", 0, 0, 1) == 1
    given = request.headers.get("authorization", "") if peer_of(request.scope) is None else ""
    token = engine.tokens.id_of_secret(given.encode())
    return json_response(WebLink(url=engine.pages.link(caller_of(request).owner, act=act, token=token), act=act), 201)


async def create_token(engine: Engine, request: Request) -> Response:
    """Only for a caller on this machine: a stolen token must not make others. Only root makes tokens of other users:
    a token runs commands as its user, and administrators must not be able to become root."""
    body = await bounded_body(request)
    wanted = decode(body, TokenRequest, "a request for a token") if body else TokenRequest()
    caller = caller_of(request)
    if peer_of(request.scope) is None:
        raise ForbiddenError("tokens are made on the machine of the daemon only: run `cotenant token create` there")
    owner = caller.owner if wanted.user is None else account_named(wanted.user).owner
    if owner.uid != caller.owner.uid and not caller.superuser:
        raise ForbiddenError(f"only root can make a token of {owner.user}: use sudo, or let {owner.user} make it")
    return json_response(engine.tokens.create(owner, wanted.label), 201)


async def tokens(engine: Engine, request: Request) -> Response:
    return json_response(engine.tokens.views(caller_of(request)))


async def revoke_token(engine: Engine, request: Request) -> Response:
    return json_response(engine.tokens.revoke(request.path_params["token"]))


async def status(engine: Engine, request: Request) -> Response:
    return json_response(engine.queries.status())


async def metrics(engine: Engine, request: Request) -> Response:
    return Response(await engine.metrics.page.text(), media_type=CONTENT_TYPE)


async def shut_down(engine: Engine, request: Request) -> Response:
    engine.ask_to_stop()
    return json_response(engine.queries.status())
