# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A minimal HTTP/1.1 client: one request and its answer over a unix socket or TCP.

The standard library's client is not used because importing it (with its mail and TLS modules) takes a third of the run
time of a short command.
"""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader

LONGEST_LINE = 65_536
CHUNK = 65_536


class Response:
    """A status, and a body that is read in chunks as it arrives."""

    def __init__(self, status: int, headers: Mapping[bytes, bytes], stream: BufferedReader) -> None:
        self.status = status
        self._headers, self._stream = headers, stream

    def chunks(self) -> Iterator[bytes]:
        """Yields the body; raises ConnectionError if it ends before it is complete."""
        if self._headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            while size := int(_line(self._stream).partition(b";")[0], 16):
                yield from self._read_exactly(size)
                _line(self._stream)
        elif b"content-length" in self._headers:
            yield from self._read_exactly(int(self._headers[b"content-length"]))
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
) -> Iterator[Response]:
    """Sends a request to a unix socket (its path) or to (host, port); raises OSError or ValueError if the answer is not
    valid."""
    with _connected(address, timeout) as connection:
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


def _refuse_foreign_peer(connection: socket.socket) -> None:
    """A socket of another user may be a trap: requests contain environments. Root may use the daemon of any user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user = struct.unpack("3i", credentials)[1]
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
