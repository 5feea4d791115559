# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Bounds the connections of an HTTP server (uvicorn): their number, and the time until a request is complete.

Each connection needs a file descriptor, and uvicorn itself limits neither.
"""

import asyncio
from typing import Any


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
