# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A minimal HTTP/1.1 client over a unix socket, TCP or TLS.

The standard library's is not used because importing it (with its mail and TLS modules) takes a third of the run time of
a short command.
"""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from typing import NamedTuple
from urllib.parse import quote

LONGEST_LINE = 65_536
CHUNK = 65_536


def at(job: str) -> str:
    """Quotes the name of a job or GPU for use in a URL path."""
    return quote(job, safe="")


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
