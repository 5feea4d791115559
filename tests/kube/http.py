# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Our HTTP server on real sockets, and a client that can also misbehave."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from queue import Queue
from threading import Event
from typing import Any, TypeVar

from cotenant.kube.api.server import Listener, serve_all

V = TypeVar("V")

BEGINS_S = 120.0
"""For the start of a process on a busy machine."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@asynccontextmanager
async def serving(listeners: Sequence[Listener], **paces: Any) -> AsyncIterator[asyncio.Event]:
    """Run the servers until the end of the block, or until the event is set."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve_all(listeners, stop, **paces))
    try:
        await asyncio.sleep(0.05)
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(60):
            await task


@contextmanager
def beside(opening: AbstractAsyncContextManager[V]) -> Iterator[V]:
    """Run an async context in another thread and return its value, for tests that block."""
    given, over = Queue[V](), Event()

    async def held() -> None:
        async with opening as found:
            given.put(found)
            while not over.is_set():
                await asyncio.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, held())
        try:
            yield given.get(timeout=BEGINS_S)
        finally:
            over.set()
            running.result(20)


async def connect(
    port: int, tls: ssl.SSLContext | None = None, name: str = "localhost"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name if tls else None)


async def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | object = b"",
    *,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request on a new connection."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await connect(port, tls)
    try:
        said = {"Host": "localhost", "Content-Length": len(content), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        return await read_answer(reader)
    finally:
        writer.transport.abort()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    async with asyncio.timeout(60):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split()[1]), headers, body)
