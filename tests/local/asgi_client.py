# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sends requests to an application in this process, without a socket; returns the answer, whole or as it comes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message

PATIENCE_S = 180.0


@dataclass
class Answer:
    """What has come back so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@asynccontextmanager
async def open_request(
    app: ASGIApp, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Answer, asyncio.Task[None]]]:
    """The answer, and the task that gives it; leaving hangs up."""
    path, _, query = target.partition("?")
    answer, hung_up = Answer(), asyncio.Event()
    sent: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if sent:
            return sent.pop()
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        answer.body += message.get("body", b"")

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "server": ("localhost", 80),
    }

    async def serve() -> None:
        await app(scope, receive, send)

    task = asyncio.create_task(serve())
    try:
        yield answer, task
    finally:
        hung_up.set()
        await asyncio.wait_for(task, PATIENCE_S)


async def request(
    app: ASGIApp, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """The whole answer, of a request that comes to an end."""
    async with open_request(app, method, target, body, headers) as (answer, task):
        await asyncio.wait_for(asyncio.shield(task), PATIENCE_S)
    return answer
