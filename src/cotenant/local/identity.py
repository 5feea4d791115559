# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The user who sent a request: the one behind the kernel's credentials of a connection, or behind a token."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import Scope
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from cotenant.local.owners import Account, Owner, account_of
from cotenant.node.sockets import Credentials, credentials_of

PEER, CALLER = "peer", "caller"
"""names in the state of a request"""
KNOWN_S = 10.0
"""how long names and groups of a user are remembered: the user database may be on another machine"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user behind a request."""

    owner: Owner
    """of the jobs that the caller submits"""
    groups: frozenset[str] = frozenset()
    """names of all groups, that of `owner` included"""
    administrator: bool = False
    superuser: bool = False
    """root, or the user of the daemon: who can become the owner of any job anyway"""

    @property
    def user(self) -> str:
        return self.owner.user

    def owns(self, owner: Owner) -> bool:
        """Whether a job of this owner is the caller's own, or the caller is an administrator."""
        return self.administrator or owner.uid == self.owner.uid


Identify = Callable[[Scope], Caller | None]
"""the user behind a request; None: the request is refused"""


class PeerProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, which also tells the application who connected to a unix socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        self.peer = credentials_of(connection) if connection.family == socket.AF_UNIX else None
        self.app_state: dict[str, Any] = {**self.app_state, PEER: self.peer}


class Callers:
    """Identifies callers. Administrators are root, the daemon's own user, and the members of a group."""

    def __init__(self, *, admin_group: str | None = None) -> None:
        self._admin_group = admin_group
        self._known: dict[int, tuple[float, Account]] = {}

    def of_connection(self, scope: Scope) -> Caller:
        """The user at the other end of the unix socket."""
        peer = peer_of(scope)
        return self.own() if peer is None else self.of_uid(peer.uid, peer.gid)

    def own(self) -> Caller:
        """The daemon's own user."""
        return self.of_uid(os.geteuid(), os.getegid())

    def of_uid(self, uid: int, gid: int | None = None) -> Caller:
        """A user by number; `gid` names the primary group of a user that the user database does not have."""
        at, found = self._known.get(uid, (0.0, None))
        if found is None or time.monotonic() - at > KNOWN_S:
            found = account_of(uid, gid)
            self._known[uid] = time.monotonic(), found
        superuser = uid in (os.geteuid(), 0)
        administrator = superuser or self._admin_group in found.groups
        return Caller(owner=found.owner, groups=found.groups, administrator=administrator, superuser=superuser)


def peer_of(scope: Scope) -> Credentials | None:
    """The process that connected to the unix socket; None: it connected over TCP."""
    peer = scope.get("state", {}).get(PEER)
    return peer if isinstance(peer, Credentials) else None


def caller_of(request: Request) -> Caller:
    """The user behind a request. The application has identified it before a handler is called."""
    caller = request.state._state[CALLER]
    assert isinstance(caller, Caller)
    return caller
