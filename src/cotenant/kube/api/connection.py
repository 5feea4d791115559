# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection to an API server: h11 implements the protocol, asyncio the transport."""

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
FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 403, 404, 409, 422
"""statuses of refusals"""

DROP_AT_CLOSE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER: closing the socket discards data that was not sent yet."""

Answer = h11.Response
"""The head of a response: status, reason, headers."""


class ApiError(CotenantError):
    """A request to an API server failed; the status is 0 if there was no complete response."""

    def __init__(
        self, request: str, status: int, reason: str, message: str = "", retry_after: float | None = None
    ) -> None:
        words = [str(status)] * bool(status) + [printable(reason)[:LONGEST_MESSAGE]]
        detail = f": {printable(message)[:LONGEST_MESSAGE]}" if message else ""
        self.summary = f"{' '.join(words)}{detail}"
        super().__init__(f"{request}: {self.summary}")
        self.status, self.reason, self.retry_after = status, reason, retry_after


class Connection:
    """Sends one request after the other. Its users set the timeouts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer = reader, writer
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    async def open(cls, access: Access) -> "Connection":
        """Connect; OSError if the server does not answer, or if its certificate is not valid."""
        name = (access.tls_name or access.host) if access.tls else None
        reader, writer = await asyncio.open_connection(access.host, access.port, ssl=access.tls, server_hostname=name)
        # Otherwise the kernel resends for minutes, and a request that timed out could take effect much later.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DROP_AT_CLOSE)
        host = f"[{access.host}]" if ":" in access.host else access.host
        return cls(reader, writer, f"{host}:{access.port}")

    async def ask(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
        """Send a request and await the head of the response; OSError if the connection or the response is broken."""
        length = [("Content-Length", str(len(body)))] if body else []
        request = h11.Request(method=method, target=target, headers=[("Host", self._host), *headers, *length])
        sent = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
        self._writer.write(b"".join(piece or b"" for piece in sent))
        await self._writer.drain()
        while not isinstance(event := await self._event(), h11.Response):
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("closed without a response")
        return event

    async def pieces(self, silence_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the response's body as it arrives; OSError if it is truncated, or after `silence_s` without data."""
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
        """Whether another request can be sent."""
        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """Close at once, without waiting for the server to close its side."""
        self._writer.transport.abort()
