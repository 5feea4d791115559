# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The access of one machine: links with a token that works once, exchanged for a cookie.

Only a user who can connect to the daemon's unix socket gets a link; over TCP a user is known by a token of the daemon,
which the page accepts as well. The token of a link stands behind the # of the address, which
browsers send to no server and to no other page. The cookie is signed with a key of the state folder, so that sessions
survive a restart of the daemon.
"""

import hmac
import os
import secrets
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cotenant.web.access import Problem, ProblemPage, Viewer
from cotenant.web.forms import is_foreign, small_form
from cotenant.web.model import Verb

TOKEN_S = 600.0
"""how long a link works"""
SESSION_S = 7 * 86_400
MOST_LINKS = 8
"""of one user that were not used yet; a further one replaces the oldest"""
KEY = "web.key"
KEY_BYTES = 32
READ, ACT = "read", "act"
"""rights of a session"""
COMMAND = "cotenant web"


class Person(NamedTuple):
    """A user of the machine."""

    user: str
    uid: int = 0
    token: str | None = None
    """ID of the token of the daemon by which the user signed in: the session ends when it is revoked"""


class Rights(NamedTuple):
    """What a user sees and may do at present."""

    verbs: frozenset[Verb] = frozenset()
    """if the session was made for actions"""
    scope: str = ""
    """as in `Viewer`"""
    details: object = None
    """as in `Viewer`"""
    sees_reports: bool = True


RightsOf = Callable[[Person], Rights | None]
"""the rights of a user; None: the user was removed, or the token of the session was revoked"""


class Sessions:
    """Links and cookies of one daemon."""

    def __init__(
        self,
        *,
        key: bytes,
        hosts: frozenset[str],
        rights_of: RightsOf,
        by_secret: Callable[[str], Person | None] = lambda secret: None,
    ) -> None:
        """`by_secret`: whose token of the daemon this is."""
        self._key, self._hosts, self._rights_of, self._by_secret = key, hosts, rights_of, by_secret
        self._tokens: dict[str, tuple[float, str, Person]] = {}
        """digest -> when it expires, what its session may do, and whose it is"""

    @property
    def hosts(self) -> frozenset[str]:
        return self._hosts

    def token(self, person: Person, *, act: bool) -> str:
        """A new token of a user, which works once."""
        now = time.time()
        self._tokens = {digest: one for digest, one in self._tokens.items() if one[0] > now}
        own = [digest for digest, one in self._tokens.items() if one[2].uid == person.uid]
        for digest in own[: max(0, len(own) + 1 - MOST_LINKS)]:
            del self._tokens[digest]
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = now + TOKEN_S, ACT if act else READ, person
        return token

    def routes(self, page: ProblemPage) -> Sequence[Route]:
        async def ask(request: Request) -> Response:
            """A page whose script sends the token. It changes nothing itself, so a link may be fetched in advance."""
            text = "Paste the token of a link of `cotenant web`, or one of `cotenant token create`."
            return page(Problem(HTTPStatus.OK, text, title="Sign in", script="enter.js"))

        async def enter(request: Request) -> Response:
            found = await self._redeemed(request)
            if found is None:
                text = "This link was used already, or is older than 10 minutes. This prints another one:"
                return page(Problem(HTTPStatus.FORBIDDEN, text, title="Sign in", command=COMMAND))
            return self._entered(request, *found)

        return (Route("/enter", ask, methods=["GET"]), Route("/enter", enter, methods=["POST"]))

    async def viewer(self, request: Request) -> Viewer | None:
        return self._viewer(request.cookies.get(cookie_name(request), ""))

    def challenge(self, request: Request, page: ProblemPage) -> Response:
        text = "These pages show jobs and their output, so they are for users of this machine. This prints a link:"
        return page(Problem(HTTPStatus.UNAUTHORIZED, text, title="Sign in", command=COMMAND))

    async def _redeemed(self, request: Request) -> tuple[str, Person] | None:
        """Rights and owner of the token in a form of ours; None: it is not valid, or the form is another site's."""
        token = (await small_form(request)).get("token", [""])[0].strip()
        expires, rights, person = self._tokens.pop(_digest(token), (0.0, READ, None))
        if is_foreign(request):
            return None
        if person is None or expires < time.time():
            owner = self._by_secret(token)
            return None if owner is None else (ACT, owner)
        return rights, person

    def _entered(self, request: Request, rights: str, person: Person) -> Response:
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(
            cookie_name(request),
            self._cookie(rights, person),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def _cookie(self, rights: str, person: Person) -> str:
        who = f"{person.uid}-{person.user.encode().hex()}-{person.token or ''}"
        text = f"{rights}.{who}.{int(time.time()) + SESSION_S}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._sign('session', text)}"

    def _viewer(self, cookie: str) -> Viewer | None:
        text, _, given = cookie.rpartition(".")
        if not hmac.compare_digest(given.encode(), self._sign("session", text).encode()):
            return None
        kind, who, expires, *_ = (*text.split("."), "", "", "")
        uid, user, token, *_ = (*who.split("-"), "", "")
        if not user or int(expires) < time.time():  # an earlier version named no user
            return None
        person = Person(bytes.fromhex(user).decode(), int(uid), token or None)
        rights = self._rights_of(person)
        if rights is None:
            return None
        return Viewer(
            name=person.user,
            verbs=rights.verbs if kind == ACT else frozenset[Verb](),
            scope=rights.scope,
            csrf=self._sign("csrf", cookie),
            sees_reports=rights.sees_reports,
            details=rights.details,
        )

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), sha256).hexdigest()


def cookie_name(request: Request) -> str:
    """Browsers send a cookie to every port of a host, so that two daemons would overwrite each other's."""
    return f"cotenant-{urlsplit('//' + request.headers.get('host', '')).port or 80}"


def session_key(state: Path) -> bytes:
    """The key in the state folder, made at the first use; only its owner can read it."""
    path = state / KEY
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        found = b""
    if len(found) != KEY_BYTES:
        found = secrets.token_bytes(KEY_BYTES)
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(found)
        fresh.replace(path)
    return found


def _digest(token: str) -> str:
    """Tokens are looked up by their digest, so that the time of the look-up says nothing about them."""
    return sha256(token.encode()).hexdigest()
