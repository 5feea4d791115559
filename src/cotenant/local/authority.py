# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What each caller may do, and what is shown of the jobs of others.

Each route says who may call it (`Endpoint.may`), and `authorise` is the only place that decides. Everybody sees which
user has which GPU and how much of it. Commands, environments, folders, output and errors are for the owner of a job and
for administrators.
"""

from dataclasses import replace

from msgspec.structs import replace as replaced
from starlette.requests import Request

from cotenant.errors import InputError
from cotenant.local.cleaning import Selection
from cotenant.local.endpoint import Endpoint, May
from cotenant.local.engine import Engine
from cotenant.local.events import Event
from cotenant.local.identity import Caller
from cotenant.local.owners import Owner
from cotenant.local.refusals import ForbiddenError, UnknownError
from cotenant.wire.cleaning import CleanRequest
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import WAITING_OR_ACTIVE, JobView, decode_states

NOT_SHOWN = "(not shown)"
PUBLIC = ("gpus", "memory", "compute", "mig", "types", "exclusive", "priority", "isolation", "cpus", "host_memory")
"""fields of a request that everybody sees"""


def authorise(engine: Engine, endpoint: Endpoint, request: Request, caller: Caller) -> None:
    """Raises ForbiddenError if the caller may not call this route; replaces the name of a job by its ID.

    A name means the caller's newest job of that name before any other: no user can take over the names of others.
    """
    owner = _owner(engine, request, caller)
    if caller.administrator or endpoint.may is May.EVERYONE:
        return
    if endpoint.may is not May.OWNER or owner is None:
        raise ForbiddenError(f"{caller.user} is not an administrator of this daemon, and only they may do this")
    if not caller.owns(owner):
        raise ForbiddenError(f"this belongs to {owner.user}: only {owner.user} and administrators may do it")


def _owner(engine: Engine, request: Request, caller: Caller) -> Owner | None:
    """Whom the job, reservation or token in the path belongs to; None: there is none of them in the path."""
    if (job := request.path_params.get("job")) is not None:
        request.path_params["job"], owner = engine.queries.resolve(job, caller.owner.uid)
        return owner
    if (reservation := request.path_params.get("reservation")) is not None:
        return engine.reservations.owner(reservation)
    token = request.path_params.get("token")
    return None if token is None else engine.tokens.owner(token)


def cleaned_by(caller: Caller, engine: Engine, wanted: CleanRequest) -> Selection:
    """The ended jobs that a caller wants to remove; ForbiddenError if one belongs to another user and the caller is
    not an administrator."""
    by = None if caller.administrator else caller.user
    if wanted.jobs:
        if wanted != CleanRequest(jobs=wanted.jobs, dry_run=wanted.dry_run):
            raise InputError("clean: name the jobs, or select them by conditions")
        return Selection(ids=tuple(_own_ended(caller, engine, name) for name in wanted.jobs), by=by)
    own = not wanted.all_users and wanted.user in (None, caller.user)
    if not own and not caller.administrator:
        raise ForbiddenError(
            f"{caller.user} is not an administrator of this daemon, and can remove only their own jobs"
        )
    states, age = decode_states(wanted.state), wanted.older_than_s
    for word in states:
        if word in WAITING_OR_ACTIVE:
            raise InputError(f"--state {word}: only jobs that have ended can be removed")
    uid, user = (caller.owner.uid, None) if own else (None, wanted.user)
    return Selection(states=states, older_than_s=age, uid=uid, user=None if wanted.all_users else user, by=by)


def _own_ended(caller: Caller, engine: Engine, name: str) -> str:
    """The ID of a job or an array of the caller that has ended."""
    found, owner = engine.queries.resolve(name, caller.owner.uid)
    if not caller.owns(owner):
        raise ForbiddenError(f"{found} belongs to {owner.user}: only {owner.user} and administrators may remove it")
    view = engine.queries.job(found)
    if view.array is not None:
        raise InputError(f"{found} is an element of {view.array}, which is removed as a whole: name {view.array}")
    if view.ended is None:
        raise InputError(f"{found} is {view.state}; only jobs that have ended can be removed")
    return found


def shown_to(caller: Caller, job: JobView) -> JobView:
    """A job as a caller sees it."""
    if caller.administrator or job.uid == caller.owner.uid:
        return job
    request = None
    if job.request is not None:
        public = {name: getattr(job.request, name) for name in PUBLIC}
        request = JobRequest(command=(NOT_SHOWN,), cwd="/", **public)
    name = job.name if job.named else job.id  # else it is called after its command
    hidden = None if job.error is None else NOT_SHOWN
    return replaced(job, name=name, request=request, error=hidden, reason=None, enforcement=(), tuning=())


def event_shown_to(caller: Caller, engine: Engine, event: Event) -> Event:
    """An event as a caller sees it: of a job of another user, only that and when something happened to it."""
    if caller.administrator or event.job is None:
        return event
    try:
        owner = engine.queries.find(event.job).owner
    except UnknownError:  # its row in the journal is damaged
        return replace(event, text="")
    return event if caller.owns(owner) else replace(event, text="")
