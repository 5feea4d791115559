# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who can connect to an HTTP server (uvicorn), how often, and how long a request may take to arrive.

Each connection needs a file descriptor, and uvicorn itself limits neither their number nor the time.
"""

import asyncio
from ipaddress import ip_address
from typing import Any


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def drop_slow_heads(server: Any, every_s: float) -> None:
    """Closes connections whose request head is incomplete for too long; uvicorn itself has no such timeout."""
    before: set[Any] = set()
    while True:
        await asyncio.sleep(every_s)
        now = {one for one in server.server_state.connections if _has_partial_head(one)}
        for connection in now & before:
            connection.transport.abort()
        before = now


async def shed_connections(server: Any, most: int, every_s: float) -> None:
    """Closes connections above the limit, one at a time, always of the client that has the most; idle ones first."""
    while True:
        await asyncio.sleep(every_s)
        connections: list[Any] = sorted(server.server_state.connections, key=_is_idle)
        clients: dict[str, list[Any]] = {}
        for connection in connections:
            clients.setdefault(connection.client[0] if connection.client else "", []).append(connection)
        for _ in range(len(connections) - most):
            max(clients.values(), key=len).pop().transport.abort()


def _has_partial_head(connection: Any) -> bool:
    return _is_idle(connection) and connection.timeout_keep_alive_task is None


def _is_idle(connection: Any) -> bool:
    return connection.cycle is None or bool(connection.cycle.response_complete)
