# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How commands talk to the daemon: over its unix socket, or over TCP with a token."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from cotenant.cli.exchange import Response, exchange
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
    """The daemon will not do it as asked."""


class NeverFitsError(RefusedByDaemonError):
    """The daemon understood, and this machine can never do it."""

    exit_code = 5


def state_folder() -> Path:
    """Where the daemon keeps its journal, logs and sockets: $COTENANT_STATE, or the user's state folder."""
    named = os.environ.get("COTENANT_STATE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "cotenant"


def socket_path(state: Path) -> Path:
    return state / "cotenant.sock"


class Client:
    """Asks the daemon; what it answers is typed, what it refuses is raised."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s

    def get(self, path: str, kind: type[T]) -> T:
        return self._ask("GET", path, kind)

    def post(self, path: str, kind: type[T], body: bytes = b"") -> T:
        return self._ask("POST", path, kind, body)

    def lines(self, path: str) -> Iterator[bytes]:
        """A stream as it comes: log text or events."""
        with self._response("GET", path, b"", timeout=None) as response:
            yield from response.pieces()

    def _ask(self, method: str, path: str, kind: type[T], body: bytes = b"") -> T:
        with self._response(method, path, body, self._timeout_s) as response:
            content = b"".join(response.pieces())
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise CotenantError(f"the daemon answered what this version does not understand: {error}") from None

    @contextmanager
    def _response(self, method: str, path: str, body: bytes, timeout: float | None) -> Iterator[Response]:
        address, headers = _address()
        try:
            with exchange(address, method, path, body, headers, timeout) as response:
                if response.status >= 400:
                    _raise(response.status, b"".join(response.pieces()))
                yield response
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoDaemonError("no daemon is running here; start one with: cotenant up --detach") from None
        except TimeoutError:
            raise NoDaemonError(f"the daemon has not answered within {timeout:g} s") from None
        except (OSError, ValueError) as error:
            raise NoDaemonError(f"the daemon does not answer: {str(error) or type(error).__name__}") from None


def at(job: str) -> str:
    """A job's or GPU's name as part of a path."""
    return quote(job, safe="")


def _address() -> tuple[str | tuple[str, int], dict[str, str]]:
    """Where the daemon answers, and what to send along."""
    url = os.environ.get("COTENANT_URL")
    if not url:
        return str(socket_path(state_folder())), {}
    host, port = _host_and_port(url)
    token_file = os.environ.get("COTENANT_TOKEN_FILE")
    if not token_file:
        raise InputError("COTENANT_URL needs COTENANT_TOKEN_FILE, the file that holds the daemon's token")
    try:
        token = Path(token_file).read_text().strip()
    except OSError as error:
        raise InputError(f"{token_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{token_file}: a token is plain text") from None
    return (host, port), {"Authorization": f"Bearer {token}"}


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:  # a port that is no number
        pass
    raise InputError(f"COTENANT_URL={url[:80]}: expected http://HOST:PORT")


def _raise(status: int, content: bytes) -> None:
    from cotenant.wire.local import Problem

    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.MsgspecError:
        raise CotenantError(f"the daemon answered {status}") from None
    text = ": ".join([problem.error, "; ".join(problem.reasons.values())] if problem.reasons else [problem.error])
    usual = RefusedByDaemonError if status < 500 else CotenantError
    raise {404: NotFoundError, 422: NeverFitsError}.get(status, usual)(text)
