# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection to an API server: h11 speaks the protocol, asyncio moves the bytes."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator

import h11

from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access
from cotenant.wire.text import printable

PIECE = 65_536
LONGEST_MESSAGE = 400

DROP_AT_CLOSE = struct.pack("ii", 1, 0)
"""of SO_LINGER: what was not sent yet is not sent later either"""

Answer = h11.Response
"""the head of one: status, reason, headers"""


class ApiError(CotenantError):
    """What was asked of an API server did not happen; the status is 0 where there was no answer, or half of one."""

    def __init__(
        self, asked: str, status: int, reason: str, message: str = "", retry_after: float | None = None
    ) -> None:
        words = [str(status)] * bool(status) + [printable(reason)[:LONGEST_MESSAGE]]
        said = f": {printable(message)[:LONGEST_MESSAGE]}" if message else ""
        self.said = f"{' '.join(words)}{said}"
        super().__init__(f"{asked}: {self.said}")
        self.status, self.reason, self.retry_after = status, reason, retry_after


class Connection:
    """Carries one request after the other. Whoever uses it sets the limits of time around it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer = reader, writer
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    async def open(cls, access: Access) -> "Connection":
        """OSError where nobody answers there, or where the certificate is not the expected one."""
        name = (access.tls_name or access.host) if access.tls else None
        reader, writer = await asyncio.open_connection(access.host, access.port, ssl=access.tls, server_hostname=name)
        # Else the kernel goes on for minutes: a request that was given up would be heard when the network is back.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DROP_AT_CLOSE)
        host = f"[{access.host}]" if ":" in access.host else access.host
        return cls(reader, writer, f"{host}:{access.port}")

    async def ask(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
        """Send a request and await the head of its answer; OSError where the connection or the answer is broken."""
        length = [("Content-Length", str(len(body)))] if body else []
        request = h11.Request(method=method, target=target, headers=[("Host", self._host), *headers, *length])
        sent = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
        self._writer.write(b"".join(piece or b"" for piece in sent))
        await self._writer.drain()
        while not isinstance(event := await self._event(), h11.Response):
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("closed without an answer")
        return event

    async def pieces(self, silence_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """The body of the answer as it comes; OSError where it ends too early, or where nothing comes for so long."""
        while not isinstance(event := await self._event(silence_s), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _event(self, silence_s: float | None = None) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(silence_s):
                    piece = await self._reader.read(PIECE)
                self._http.receive_data(piece)
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from None
        assert isinstance(event, h11.Event)  # never PAUSED: one request at a time, and no upgrades
        return event

    @property
    def idle(self) -> bool:
        """Whether another request may be sent on it."""
        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """At once: a server that says no goodbye is not waited for."""
        self._writer.transport.abort()
