# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Responses in one packet: uvicorn writes the head and the body of a response separately, and each write is a packet at
once. Both programs would make twice as many system calls, and the client would wake up twice."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class JoinedWrites:
    """A transport that sends two writes as one if they follow each other in one turn of the event loop."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._held = transport, b""

    def write(self, data: bytes) -> None:
        """Send this with what is held; if nothing is, hold it until the next write or the next turn."""
        if self._held:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        else:
            self._held = data
            asyncio.get_running_loop().call_soon(self._send_held)

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._send_held()
        self._transport.close()

    def _send_held(self) -> None:
        data, self._held = self._held, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class JoiningProtocol(HttpToolsProtocol):
    """uvicorn's protocol on such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Serve a new connection."""
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]
