# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Viewers of a cluster: a bearer token, checked by the API server, and what the API server lets its user see.

The token comes with each request, or was given once at the sign-in and is kept in a session. There are no passwords and
no users of our own.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cotenant.errors import InputError
from cotenant.web.access import ProblemPage, Viewer
from cotenant.web.forms import is_foreign, small_form
from cotenant.web.kube.picture import Sight
from cotenant.web.kube.reviews import LONGEST_TOKEN, Reviewer, Right, UnansweredError, User
from cotenant.web.kube.sessions import LONGEST_S, Sessions
from cotenant.web.model import Verb

COOKIE = "__Host-cotenant"
"""Browsers accept a cookie with this prefix only if it is Secure, for this host alone and for all paths."""
BEARER = "bearer "
SIGN_IN, SIGN_OUT = "/signin", "/signout"
MOST_NAMESPACES = 1_000
"""Namespaces that are reviewed for one viewer; further ones are not shown."""

LIST_NODES = Right(verb="list", resource="nodes")


@dataclass(frozen=True, slots=True)
class Guest:
    """What the source needs to know about a viewer."""

    user: User
    token: str = field(repr=False)
    sight: Sight


class ClusterAccess:
    """Identifies viewers by tokens of the cluster."""

    hosts: frozenset[str] | None = None

    def __init__(
        self,
        reviewer: Reviewer,
        *,
        namespaces: Callable[[], Collection[str]],
        page: Callable[[Request, str | None], Response],
        actions: bool = False,
        sessions: Sessions | None = None,
    ) -> None:
        """`namespaces` returns those whose pods the pages may show; `page` renders the sign-in, with an error if there
        is one."""
        self._reviewer, self._namespaces, self._page = reviewer, namespaces, page
        self._actions, self._key = actions, secrets.token_bytes(32)
        self._sessions = Sessions() if sessions is None else sessions

    def routes(self, page: ProblemPage) -> Sequence[Route]:
        """Of the sign-in and the sign-out."""
        return [
            Route(SIGN_IN, self._show, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
        ]

    async def viewer(self, request: Request) -> Viewer | None:
        """Return the viewer of a request; None if it has no token that the API server accepts."""
        header = request.headers.get("authorization")
        session = None if header is not None else self._sessions.find(request.cookies.get(COOKIE, ""))
        if header is not None:  # never falls back to the cookie: a request has one credential
            token, csrf = _bearer(header), ""
        elif session is not None:
            token, csrf = session.token, session.csrf
        else:
            return None
        user = await self._reviewer.user(token)
        if user is None:
            if session is not None:
                self._sessions.end(request.cookies.get(COOKIE, ""))
            return None
        sight = await self.sight_of(user)
        verbs = await self._verbs_of(user, sight)
        return Viewer(
            name=user.name,
            groups=user.groups,
            verbs=verbs,
            scope=_scope_of(sight, verbs),
            sign_out=SIGN_OUT if csrf else None,
            csrf=csrf or hmac.digest(self._key, token.encode(), "sha256").hex(),
            details=Guest(user, token, sight),
        )

    async def sight_of(self, user: User) -> Sight:
        """Return what the API server lets this user see."""
        nodes, pods = await asyncio.gather(
            self._reviewer.may(user, LIST_NODES), self._where(user, "list", "pods", self._namespaces())
        )
        events = await self._where(user, "list", "events", self._namespaces() if pods is None else pods)
        return Sight(pods, nodes, events)

    async def _where(self, user: User, verb: str, resource: str, among: Collection[str]) -> frozenset[str] | None:
        """The namespaces in which a user may do something; None: in all."""
        if await self._reviewer.may(user, Right(verb=verb, resource=resource)):
            return None
        names = sorted(among)[:MOST_NAMESPACES]
        rights = [Right(verb=verb, resource=resource, namespace=name) for name in names]
        allowed = await asyncio.gather(*(self._reviewer.may(user, right) for right in rights))
        return frozenset(name for name, may in zip(names, allowed, strict=True) if may)

    async def _verbs_of(self, user: User, sight: Sight) -> frozenset[Verb]:
        """What the pages offer to a user; the API server decides again when it is done."""
        if not self._actions:
            return frozenset()
        among = self._namespaces() if sight.namespaces is None else sight.namespaces
        deletes, holds, patches = await asyncio.gather(
            self._where(user, "delete", "pods", among),
            self._where(user, "patch", "pods", among),
            self._reviewer.may(user, Right(verb="patch", resource="nodes")),
        )
        found = {Verb.CANCEL} if deletes is None or deletes else set()
        found |= {Verb.HOLD, Verb.RELEASE} if holds is None or holds else set()
        return frozenset(found | ({Verb.CORDON, Verb.UNCORDON} if patches else set()))

    def challenge(self, request: Request, page: ProblemPage) -> Response:
        """Send a browser to the sign-in, and tell other programs which credential they need."""
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(SIGN_IN, HTTPStatus.SEE_OTHER)
        return Response(
            "send a token of the cluster: Authorization: Bearer TOKEN\n",
            HTTPStatus.UNAUTHORIZED,
            {"WWW-Authenticate": "Bearer"},
            "text/plain",
        )

    async def _show(self, request: Request) -> Response:
        return self._page(request, None)

    async def _sign_in(self, request: Request) -> Response:
        if is_foreign(request):
            return _refused("the sign-in works only from its own page")
        try:
            token = (await small_form(request, 2 * LONGEST_TOKEN)).get("token", [""])[0].strip()
            user = await self._reviewer.user(token)
        except (InputError, UnansweredError) as error:
            return _status(self._page(request, str(error)), HTTPStatus.BAD_REQUEST)
        if user is None:
            text = "The API server does not accept this token: it is wrong, has expired, or is for another audience."
            return _status(self._page(request, text), HTTPStatus.UNAUTHORIZED)
        self._sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(
            COOKIE,
            self._sessions.start(token, user.name),
            max_age=int(LONGEST_S),
            path="/",
            secure=True,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        if is_foreign(request):
            return _refused("the sign-out works only from its own page")
        self._sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse(SIGN_IN, HTTPStatus.SEE_OTHER)
        answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
        return answer


def _bearer(header: str) -> str:
    return header[len(BEARER) :].strip() if header[: len(BEARER)].lower() == BEARER else ""


def _scope_of(sight: Sight, verbs: frozenset[Verb]) -> str:
    parts: list[list[str]] = [[str(sight.nodes)], [str(verb) for verb in sorted(verbs)]]
    parts += [["*"] if names is None else sorted(names) for names in (sight.namespaces, sight.events)]
    return hashlib.sha256("\n\n".join("\n".join(part) for part in parts).encode()).hexdigest()


def _refused(text: str) -> Response:
    return Response(text, HTTPStatus.FORBIDDEN, media_type="text/plain; charset=utf-8")


def _status(response: Response, status: HTTPStatus) -> Response:
    response.status_code = status
    return response
