# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of one machine as its daemon serves them."""

import socket
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from cotenant.local.engine import Engine
from cotenant.local.owners import own_account
from cotenant.local.pages import MakePages
from cotenant.web.app import application
from cotenant.web.local import VERBS, LocalSource
from cotenant.web.sessions import Sessions, session_key
from cotenant.web.site import Site
from cotenant.web.stopping import ending_streams

HOSTS = frozenset({"127.0.0.1", "localhost"})


class LocalPages:
    """The pages of one daemon: its application, and links to sign in."""

    def __init__(self, reports: Path | None, engine: Engine, state: Path, address: str) -> None:
        self._address = address
        hosts = HOSTS | {address.partition("//")[2].rpartition(":")[0]}
        self._sessions = Sessions(user=own_account().owner.user, key=session_key(state), hosts=hosts, verbs=VERBS)
        source = LocalSource(engine, socket.gethostname())
        self.app: ASGIApp = ending_streams(
            application(Site(source=source, access=self._sessions, reports=reports)), engine.stopping
        )

    def link(self, *, act: bool) -> str:
        return f"{self._address}/enter#{self._sessions.token(act=act)}"


def local_pages(reports: Path | None) -> MakePages:
    """What makes the pages of a daemon."""
    return partial(LocalPages, reports)
