# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How commands talk to the daemon: HTTP over its unix socket, or over TCP with a token.

The standard library's client, because commands run often and a larger one takes longer to import than to answer.
"""

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from cotenant.errors import CotenantError, InputError

T = TypeVar("T")
TIMEOUT_S = 30.0


class NoDaemonError(CotenantError):
    """Nobody answers at the daemon's address."""

    exit_code = 3


class NotFoundError(CotenantError):
    """The daemon knows no such job or GPU."""

    exit_code = 4


class RefusedByDaemonError(InputError):
    """The daemon understood, and will not do it."""


def state_folder() -> Path:
    """Where the daemon keeps its journal, logs and sockets: $COTENANT_STATE, or the user's state folder."""
    named = os.environ.get("COTENANT_STATE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "cotenant"


def socket_path(state: Path) -> Path:
    return state / "cotenant.sock"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Client:
    """Asks the daemon; what it answers is typed, what it refuses is raised."""

    def get(self, path: str, kind: type[T]) -> T:
        return self._ask("GET", path, kind)

    def post(self, path: str, kind: type[T], body: bytes = b"") -> T:
        return self._ask("POST", path, kind, body)

    def lines(self, path: str) -> Iterator[bytes]:
        """A stream as it comes: log text or events."""
        with self._response("GET", path, b"", timeout=None) as response:
            while chunk := response.read1(65_536):
                yield chunk

    def _ask(self, method: str, path: str, kind: type[T], body: bytes = b"") -> T:
        with self._response(method, path, body, TIMEOUT_S) as response:
            content = response.read()
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise CotenantError(f"the daemon answered what this version does not understand: {error}") from None

    @contextmanager
    def _response(
        self, method: str, path: str, body: bytes, timeout: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection, headers = _connection(timeout)
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            if response.status >= 400:
                _raise(response.status, response.read())
            yield response
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoDaemonError("no daemon is running here; start one with: cotenant up --detach") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemonError(f"the daemon does not answer: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()


def at(job: str) -> str:
    """A job's or GPU's name as part of a path."""
    return quote(job, safe="")


def _connection(timeout: float | None) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    url = os.environ.get("COTENANT_URL")
    if not url:
        return _UnixConnection(socket_path(state_folder()), timeout), {}
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise InputError("COTENANT_URL: expected http://HOST:PORT")
    token_file = os.environ.get("COTENANT_TOKEN_FILE")
    if not token_file:
        raise InputError("COTENANT_URL needs COTENANT_TOKEN_FILE, the file that holds the daemon's token")
    try:
        token = Path(token_file).read_text().strip()
    except OSError as error:
        raise InputError(f"{token_file}: {error.strerror}") from None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout), {"Authorization": f"Bearer {token}"}


def _raise(status: int, content: bytes) -> None:
    from cotenant.wire.local import Problem

    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.MsgspecError:
        raise CotenantError(f"the daemon answered {status}") from None
    text = ": ".join([problem.error, "; ".join(problem.reasons.values())] if problem.reasons else [problem.error])
    if status == 404:
        raise NotFoundError(text)
    raise RefusedByDaemonError(text) if status < 500 else CotenantError(text)
