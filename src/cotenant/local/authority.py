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

from cotenant.errors import CotenantError
from cotenant.local.endpoint import Endpoint, May
from cotenant.local.engine import Engine
from cotenant.local.events import Event
from cotenant.local.identity import Caller
from cotenant.local.owners import Owner
from cotenant.local.queries import UnknownError
from cotenant.wire.local import JobRequest, JobView

NOT_SHOWN = "(not shown)"
PUBLIC = ("gpus", "memory", "compute", "mig", "types", "exclusive", "priority", "isolation")
"""fields of a request that everybody sees"""


class ForbiddenError(CotenantError):
    """The caller is known, and may not do this."""


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
    """Whom the job or the token in the path belongs to; None: there is neither in the path."""
    if (job := request.path_params.get("job")) is not None:
        request.path_params["job"], owner = engine.queries.resolve(job, caller.owner.uid)
        return owner
    token = request.path_params.get("token")
    return None if token is None else engine.tokens.owner(token)


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
