# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who can connect to an HTTP server (uvicorn), how often, and how long handshakes and requests may take to arrive.

Each connection needs a file descriptor, and uvicorn itself limits neither their number nor the time. It does not even
know of a connection before its TLS handshake is complete.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from ipaddress import ip_address
from typing import Any, NoReturn

MOST_HANDSHAKES = 128
"""TLS handshakes of one server at the same time."""
HANDSHAKE_S = 5.0
"""Longest time for a TLS handshake."""
STARTED_S = 0.01
PAUSE_S = 0.1
"""Until the next attempt to accept a connection."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def drop_slow_heads(server: Any, every_s: float) -> NoReturn:
    """Closes connections whose request head is incomplete for too long; uvicorn itself has no such timeout."""
    before: set[Any] = set()
    while True:
        await asyncio.sleep(every_s)
        now = {one for one in server.server_state.connections if _has_partial_head(one)}
        for connection in now & before:
            connection.transport.abort()
        before = now


async def shed_connections(server: Any, most: int, every_s: float) -> NoReturn:
    """Closes connections above the limit, one at a time, always of the client that has the most; idle ones first."""
    while True:
        await asyncio.sleep(every_s)
        connections: list[Any] = sorted(server.server_state.connections, key=_is_idle)
        clients: dict[str, list[Any]] = {}
        for connection in connections:
            clients.setdefault(_client_of(connection), []).append(connection)
        for _ in range(len(connections) - most):
            max(clients.values(), key=len).pop().transport.abort()


async def accept_encrypted(
    server: Any,
    bound: socket.socket,
    context: ssl.SSLContext,
    *,
    most: int = MOST_HANDSHAKES,
    handshake_s: float = HANDSHAKE_S,
) -> NoReturn:
    """Accepts TLS connections for a server (uvicorn.Server) that serves no socket itself, until cancelled.

    If there are too many handshakes, the oldest of the client that has the most is dropped for each new one.
    """
    loop, running = asyncio.get_running_loop(), dict[asyncio.Task[None], _Handshake]()
    bound.listen(server.config.backlog)
    bound.setblocking(False)
    while not server.started:
        await asyncio.sleep(STARTED_S)
    try:
        while True:
            try:
                connection, peer = await loop.sock_accept(bound)
            except OSError:  # too many files are open, or the client is gone already
                await asyncio.sleep(PAUSE_S)
                continue
            if len(running) >= most:
                _drop_one(running)
            handshake = _Handshake(connection, str(peer[0]))
            task = loop.create_task(handshake.complete(server, context, handshake_s))
            running[task] = handshake
            task.add_done_callback(lambda done: running.pop(done, None))
            await asyncio.sleep(0)  # sock_accept does not wait while there are connections to accept
    finally:
        bound.close()
        while running:
            _drop_one(running)


class _Handshake:
    """The TLS handshake of one connection."""

    def __init__(self, connection: socket.socket, client: str) -> None:
        self.client, self._connection = client, connection
        self._begun = False
        """From then on the connection belongs to the loop."""

    async def complete(self, server: Any, context: ssl.SSLContext, most_s: float) -> None:
        """Waits for the end of the handshake; then the server has the connection, or it is closed."""
        self._begun = True
        with contextlib.suppress(OSError):  # it took too long, was no TLS, or the client is gone
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _protocol_of(server), self._connection, ssl=context, ssl_handshake_timeout=most_s
            )

    def close_unused(self) -> None:
        """Closes the connection of a handshake that was cancelled, if it had not begun."""
        if not self._begun:
            self._connection.close()


def _protocol_of(server: Any) -> asyncio.Protocol:
    """What uvicorn makes for each connection."""
    config, state = server.config, server.lifespan.state
    made: asyncio.Protocol = config.http_protocol_class(
        config=config, server_state=server.server_state, app_state=state, _loop=None
    )
    return made


def _drop_one(running: dict[asyncio.Task[None], _Handshake]) -> None:
    """Drops the oldest handshake of the client that has the most."""
    ((client, _),) = Counter(one.client for one in running.values()).most_common(1)
    oldest = next(task for task, one in running.items() if one.client == client)
    oldest.cancel()
    running.pop(oldest).close_unused()


def _client_of(connection: Any) -> str:
    """The address of a client, or the user at the other end of a unix socket."""
    if (peer := getattr(connection, "peer", None)) is not None:
        return f"user {peer.uid}"
    return connection.client[0] if connection.client else ""


def _has_partial_head(connection: Any) -> bool:
    return _is_idle(connection) and connection.timeout_keep_alive_task is None


def _is_idle(connection: Any) -> bool:
    return connection.cycle is None or bool(connection.cycle.response_complete)
