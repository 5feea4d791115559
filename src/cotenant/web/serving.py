# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of one machine as its daemon serves them."""

import socket
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from cotenant.local.engine import Engine
from cotenant.local.identity import Callers
from cotenant.local.owners import Owner
from cotenant.local.pages import MakePages
from cotenant.web.app import application
from cotenant.web.local import OF_JOBS, VERBS, LocalSource
from cotenant.web.sessions import Person, Rights, Sessions, session_key
from cotenant.web.site import Site
from cotenant.web.stopping import ending_streams

HOSTS = frozenset({"127.0.0.1", "localhost"})


class LocalPages:
    """The pages of one daemon: its application, and links to sign in."""

    def __init__(self, reports: Path | None, engine: Engine, state: Path, address: str, callers: Callers) -> None:
        self._address, self._callers, self._tokens = address, callers, engine.tokens
        hosts = HOSTS | {address.partition("//")[2].rpartition(":")[0]}
        self._sessions = Sessions(
            key=session_key(state), hosts=hosts, rights_of=self._rights_of, by_secret=self._by_secret
        )
        source = LocalSource(engine, socket.gethostname())
        self.app: ASGIApp = ending_streams(
            application(Site(source=source, access=self._sessions, reports=reports)), engine.stopping
        )

    def link(self, owner: Owner, *, act: bool, token: str | None = None) -> str:
        return f"{self._address}/enter#{self._sessions.token(Person(owner.user, owner.uid, token), act=act)}"

    def _rights_of(self, person: Person) -> Rights | None:
        """As the API decides for this user now, who may have been removed since the session began."""
        caller = self._callers.of_uid(person.uid)
        if caller.user != person.user or (person.token is not None and person.token not in self._tokens):
            return None
        if caller.administrator:
            return Rights(VERBS, details=caller)
        return Rights(frozenset(OF_JOBS), f"user {person.uid}", caller, sees_reports=False)

    def _by_secret(self, secret: str) -> Person | None:
        token = self._tokens.id_of_secret(f"Bearer {secret}".encode())
        if token is None:
            return None
        owner = self._tokens.owner(token)
        return Person(owner.user, owner.uid, token)


def local_pages(reports: Path | None) -> MakePages:
    """What makes the pages of a daemon."""
    return partial(LocalPages, reports)
