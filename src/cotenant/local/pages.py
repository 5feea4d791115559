# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The interface to the pages that the daemon serves. Their package is above this one, so the caller passes them in."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from starlette.types import ASGIApp

from cotenant.errors import CotenantError, InputError
from cotenant.local.owners import Owner
from cotenant.node.connections import is_loopback

if TYPE_CHECKING:
    from cotenant.local.engine import Engine
    from cotenant.local.identity import Callers


class Pages(Protocol):
    """The pages of one daemon."""

    @property
    def app(self) -> ASGIApp: ...

    def link(self, owner: Owner, *, act: bool, token: str | None = None) -> str:
        """An address that signs a browser of this user in, once; with `act` the pages can also cancel and hold jobs and
        cordon GPUs, as far as the user may. The session ends when the token with this ID is revoked, by which the user
        asked for it."""


MakePages = Callable[["Engine", Path, str, "Callers"], Pages]
"""makes the pages of an engine, whose sessions are kept in a state folder, for the address at which they are served and
the users that are identified so"""


def address_of(web: str) -> tuple[str, int]:
    """Host and port in PORT or HOST:PORT; only addresses of this machine, because the pages are not encrypted."""
    host, _, port = web.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InputError(f"--web {web}: expected PORT or HOST:PORT")
    if not is_loopback(host) or ":" in host:
        raise InputError(
            f"--web {web}: the pages are served on 127.0.0.1 only; from another machine, use "
            f"`ssh -L {port}:127.0.0.1:{port} HOST`"
        )
    return "127.0.0.1" if host == "localhost" else host, int(port)


def open_socket(web: str, stack: ExitStack) -> socket.socket:
    """The socket on which browsers connect; `stack` closes it."""
    found = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address_of(web))
        found.listen()
    except OSError as error:
        raise CotenantError(f"--web {web}: {error.strerror}") from None
    return found
