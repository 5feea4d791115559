# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One request and its answer over HTTP/1.1, for a daemon that is ours.

Not the standard library's client: that one brings mail and certificates along, and to import them takes a third of all
that a short command takes.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader

LONGEST_LINE = 65_536
PIECE = 65_536


class Response:
    """A status, and a body that is read as it comes."""

    def __init__(self, status: int, headers: Mapping[bytes, bytes], stream: BufferedReader) -> None:
        self.status = status
        self._headers, self._stream = headers, stream

    def pieces(self) -> Iterator[bytes]:
        """The body; ConnectionError where it ends before it is complete."""
        if self._headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            while size := int(_line(self._stream).partition(b";")[0], 16):
                yield from self._exactly(size)
                _line(self._stream)
        elif b"content-length" in self._headers:
            yield from self._exactly(int(self._headers[b"content-length"]))
        else:
            while piece := self._stream.read1(PIECE):
                yield piece

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._stream.read1(min(size, PIECE))
            if not piece:
                raise ConnectionError("its answer ended early")
            size -= len(piece)
            yield piece


@contextmanager
def exchange(
    address: str | tuple[str, int],
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: float | None,
) -> Iterator[Response]:
    """Asks at a unix socket's path or at (host, port); OSError or ValueError where no sensible answer comes."""
    with _connected(address, timeout) as connection:
        connection.sendall(_request(method, path, body, headers))
        with connection.makefile("rb") as stream:
            status = _line(stream).split()
            if len(status) < 2 or not status[0].startswith(b"HTTP/1."):
                raise ConnectionError("its answer is not in HTTP")
            yield Response(int(status[1]), dict(_headers(stream)), stream)


def _connected(address: str | tuple[str, int], timeout: float | None) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


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
