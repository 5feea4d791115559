# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The client of the daemon: requests over its unix socket, or over TCP with a token."""

import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.local.state_folder import system_socket

LONGEST_LINE = 65_536
CHUNK = 65_536


# Below is a minimal HTTP/1.1 client. The standard library's is not used because importing it (with its mail and TLS
# modules) takes a third of the run time of a short command.
class Response:
    """A status, headers (their names in lower case), and a body that is read in chunks as it arrives."""

    def __init__(self, status: int, headers: Mapping[bytes, bytes], stream: BufferedReader) -> None:
        self.status = status
        self.headers, self._stream = headers, stream

    def chunks(self) -> Iterator[bytes]:
        """Yields the body; raises ConnectionError if it ends before it is complete."""
        if self.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            while size := int(_line(self._stream).partition(b";")[0], 16):
                yield from self._read_exactly(size)
                _line(self._stream)
        elif b"content-length" in self.headers:
            yield from self._read_exactly(int(self.headers[b"content-length"]))
        else:
            while chunk := self._stream.read1(CHUNK):
                yield chunk

    def _read_exactly(self, size: int) -> Iterator[bytes]:
        while size:
            chunk = self._stream.read1(min(size, CHUNK))
            if not chunk:
                raise ConnectionError("its answer ended early")
            size -= len(chunk)
            yield chunk


@contextmanager
def exchange(
    address: str | tuple[str, int],
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: float | None,
    tls: "Trust | None" = None,
) -> Iterator[Response]:
    """Sends a request to a unix socket (its path) or to (host, port), with TLS if `tls` is given; raises OSError or
    ValueError if the answer is not valid."""
    with _connected(address, timeout) as plain, _encrypted(plain, tls) as connection:
        connection.sendall(_request(method, path, body, headers))
        with connection.makefile("rb") as stream:
            status = _line(stream).split()
            if len(status) < 2 or not status[0].startswith(b"HTTP/1."):
                raise ConnectionError("its answer is not HTTP")
            yield Response(int(status[1]), dict(_headers(stream)), stream)


def _connected(address: str | tuple[str, int], timeout: float | None) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(address)
        _refuse_foreign_peer(connection)
    except OSError:
        connection.close()
        raise
    return connection


class Trust(NamedTuple):
    """Which certificate a client accepts."""

    host: str
    """the name that the certificate must have, unless its fingerprint is known"""
    fingerprint: str | None = None
    """`sha256:` and 64 hexadecimal digits"""
    authorities: str | None = None
    """PEM file of the authorities, or of the certificate itself; None: those of the system"""


def _encrypted(connection: socket.socket, trust: Trust | None) -> socket.socket:
    """The connection with TLS, after the certificate was verified: nothing is sent to another server."""
    if trust is None:
        return connection
    import hashlib
    import hmac
    import ssl

    context = ssl.create_default_context(cafile=trust.authorities)
    if trust.fingerprint is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        wrapped = context.wrap_socket(connection, server_hostname=trust.host)
    except ssl.SSLCertVerificationError as error:
        raise ConnectionError(
            f"its certificate is not trusted ({error.verify_message}): set COTENANT_TLS_FINGERPRINT to what "
            "`cotenant up --tls` printed, or COTENANT_TLS_CA to the file of its authority"
        ) from None
    except ssl.SSLError as error:
        raise ConnectionError(f"it does not answer with TLS ({error.reason})") from None
    if trust.fingerprint is not None:
        content = wrapped.getpeercert(binary_form=True) or b""
        found = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if not hmac.compare_digest(found, trust.fingerprint.lower()):
            wrapped.close()
            raise ConnectionError(f"its certificate has the fingerprint {found}, not that of COTENANT_TLS_FINGERPRINT")
    return wrapped


def _refuse_foreign_peer(connection: socket.socket) -> None:
    """A socket of another user may be a trap: requests contain environments. Root may use the daemon of any user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    user = struct.unpack("iII", credentials)[1]
    if os.geteuid() not in (user, 0) and user != 0:
        raise ConnectionError(f"its socket belongs to another user (ID {user})")


def _request(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    sent = {"Host": "cotenant", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _headers(stream: BufferedReader) -> Iterator[tuple[bytes, bytes]]:
    while line := _line(stream):
        name, _, value = line.partition(b":")
        yield name.strip().lower(), value.strip()


def _line(stream: BufferedReader) -> bytes:
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("its answer ended early")
    return line.rstrip(b"\r\n")


T = TypeVar("T")
TIMEOUT_S = 30.0
MOST_SUGGESTED = 3
"""changes that are named if the daemon refuses a job"""
FINGERPRINT_VARIABLE, AUTHORITIES_VARIABLE = "COTENANT_TLS_FINGERPRINT", "COTENANT_TLS_CA"
FINGERPRINT = re.compile(r"sha256:[0-9a-fA-F]{64}", re.ASCII)


class NoDaemonError(CotenantError):
    """No daemon answers."""

    exit_code = 3


class NotFoundError(CotenantError):
    """The daemon has no such job or GPU."""

    exit_code = 4


class RefusedByDaemonError(InputError):
    """The daemon rejected the request."""


class NeverFitsError(RefusedByDaemonError):
    """The request is valid, but this machine can never satisfy it."""

    exit_code = 5


def state_folder() -> Path:
    """The folder of the daemon's journal, logs and sockets: $COTENANT_STATE, or the user's state folder."""
    named = os.environ.get("COTENANT_STATE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "cotenant"


def own_socket() -> Path:
    """The socket of this user's own daemon."""
    return state_folder() / "cotenant.sock"


def find_socket() -> Path:
    """The socket of the daemon to use: that of $COTENANT_STATE, else of this user's own daemon if it runs, else of the
    daemon for all users if there is one."""
    own, shared = own_socket(), system_socket()
    if os.environ.get("COTENANT_STATE") or not shared.exists() or _answers(own):
        return own
    return shared


def _answers(path: Path) -> bool:
    """Whether a process listens on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


class Client:
    """Sends requests to the daemon, decodes the answers into types and raises errors."""

    def __init__(self, timeout_s: float = TIMEOUT_S, *, at: Path | None = None) -> None:
        """`at`: the only socket that is tried; None: the daemon is found as `find_socket` says, or by COTENANT_URL."""
        self._timeout_s, self._at = timeout_s, at

    def get(self, path: str, kind: type[T]) -> T:
        return self._request("GET", path, kind)

    def post(self, path: str, kind: type[T], body: bytes = b"") -> T:
        return self._request("POST", path, kind, body)

    def lines(self, path: str, on_headers: Callable[[Mapping[bytes, bytes]], None] | None = None) -> Iterator[bytes]:
        """Yields the chunks of a streamed answer (a log, or events) as they arrive; the headers come first."""
        with self._response("GET", path, b"", timeout=None) as response:
            if on_headers is not None:
                on_headers(response.headers)
            yield from response.chunks()

    def _request(self, method: str, path: str, kind: type[T], body: bytes = b"") -> T:
        with self._response(method, path, body, self._timeout_s) as response:
            content = b"".join(response.chunks())
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise CotenantError(
                f"the daemon's answer cannot be decoded: {error}; is the daemon of another version?"
            ) from None

    @contextmanager
    def _response(self, method: str, path: str, body: bytes, timeout: float | None) -> Iterator[Response]:
        address, headers, tls = _address() if self._at is None else (str(self._at), {}, None)
        try:
            with exchange(address, method, path, body, headers, timeout, tls) as response:
                if response.status >= 400:
                    _raise(response.status, b"".join(response.chunks()))
                yield response
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoDaemonError(_no_daemon(address)) from None
        except PermissionError:
            raise NoDaemonError(
                f"you may not open {address}: ask an administrator of this machine for access, or use a daemon of your "
                "own with `cotenant up --detach`"
            ) from None
        except TimeoutError:
            raise NoDaemonError(f"the daemon did not answer within {timeout:g} s") from None
        except (OSError, ValueError) as error:
            raise NoDaemonError(f"the daemon does not answer: {str(error) or type(error).__name__}") from None


def _no_daemon(address: str | tuple[str, int]) -> str:
    if address == str(system_socket()):
        return (
            "the daemon for all users of this machine does not run: an administrator starts it with "
            "`systemctl start cotenant`, or `cotenant up --system`"
        )
    return "no daemon is running; start it with `cotenant up --detach`"


def at(job: str) -> str:
    """Quotes the name of a job or GPU for use in a URL path."""
    return quote(job, safe="")


def _address() -> tuple[str | tuple[str, int], dict[str, str], Trust | None]:
    """The address of the daemon, the headers to send, and which certificate it must have."""
    url = os.environ.get("COTENANT_URL")
    if not url:
        return str(find_socket()), {}, None
    host, port, encrypted = _parts_of(url)
    token_file = os.environ.get("COTENANT_TOKEN_FILE")
    if not token_file:
        raise InputError("COTENANT_URL is set, so COTENANT_TOKEN_FILE must name the file with the daemon's token")
    try:
        token = Path(token_file).read_text().strip()
    except OSError as error:
        raise InputError(f"{token_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{token_file}: the token is not plain text") from None
    for variable in (FINGERPRINT_VARIABLE, AUTHORITIES_VARIABLE):
        if os.environ.get(variable) and not encrypted:
            raise InputError(
                f"{variable} is set, so COTENANT_URL must begin with https://, or the token is not encrypted"
            )
    trust = _trust(host) if encrypted else None
    return (host, port), {"Authorization": f"Bearer {token}"}, trust


def _trust(host: str) -> Trust:
    fingerprint = os.environ.get(FINGERPRINT_VARIABLE) or None
    if fingerprint is not None and not FINGERPRINT.fullmatch(fingerprint):
        raise InputError(f"{FINGERPRINT_VARIABLE}: expected sha256: and 64 hexadecimal digits")
    authorities = os.environ.get(AUTHORITIES_VARIABLE) or None
    if authorities is not None and not os.access(authorities, os.R_OK):
        raise InputError(f"{AUTHORITIES_VARIABLE}={authorities[:80]}: the file cannot be read")
    return Trust(host, fingerprint, authorities)


def _parts_of(url: str) -> tuple[str, int, bool]:
    """Host, port, and whether the connection is encrypted."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port:
            return parts.hostname, parts.port, parts.scheme == "https"
    except ValueError:  # the port is not a number
        pass
    raise InputError(f"COTENANT_URL={url[:80]}: expected http://HOST:PORT or https://HOST:PORT")


def _raise(status: int, content: bytes) -> None:
    from cotenant.wire.local import Problem

    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.MsgspecError:
        raise CotenantError(f"the daemon answered with HTTP status {status}") from None
    text = ": ".join([problem.error, "; ".join(problem.reasons.values())] if problem.reasons else [problem.error])
    if problem.suggestions:
        text += f"; it would run {', or '.join(problem.suggestions[:MOST_SUGGESTED])}"
    default = RefusedByDaemonError if status < 500 else CotenantError
    raise {404: NotFoundError, 422: NeverFitsError}.get(status, default)(text)
