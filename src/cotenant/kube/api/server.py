# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP for a few known callers: short paths, whole bodies, and a limit on every size and wait.

No framework: a table of routes is all there is, and each call of kube-scheduler pays for what stands before it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from hmac import compare_digest
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.error_log import Troubles, in_words
from cotenant.kube.api.names import WHY_HEADER

BODY_S = 20.0
"""a whole body, from its first byte on"""
HEAD_S = 20.0
"""from connecting to a whole head, twice that at most"""
KEPT_S = 120
"""an unused connection: callers in Go drop theirs after 90 s, and never find one that we are just closing"""
MOST_CONNECTIONS = 1000
"""at which callers are sent away"""
CROWD = MOST_CONNECTIONS * 3 // 4
"""connections from which on the caller with most of them loses some: nobody can shut out the others"""
CROWD_S = 1.0
LARGE = 256 * 1024
"""bytes of a body: what pods and lists of nodes rarely are"""
MOST_LARGE = 16
"""such bodies at a time: anybody may send them, and all of them together must fit into memory"""
MOST_DROPPED = 128 * 1024 * 1024
"""of a body that is too large, before its sender is cut off"""
GRACE_S = 10
"""for requests under way when we are asked to stop"""
LOOK_S = 2.0
"""for new certificates"""

ReceivedEvent = Callable[[], Awaitable[Any]]
SentEvent = Callable[[Any], Awaitable[None]]
Scope = Any
Application = Callable[[Scope, ReceivedEvent, SentEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    body: bytes = b""
    status: int = 200
    kind: bytes = b"application/json"


Refuse = Callable[[int, str], Reply]
"""how a caller is told that something was wrong: status and sentence"""


def text_reply(status: int, text: str) -> Reply:
    """For people and probes."""
    return Reply(f"{text}\n".encode(), status, b"text/plain; charset=utf-8")


def json_reply(value: object, status: int = 200) -> Reply:
    """For programs."""
    return Reply(msgspec.json.encode(value), status)


def status_reply(status: int, text: str, reason: str = "") -> Reply:
    """As an API server refuses, for those who came through one."""
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return json_reply(said | {"reason": reason or HTTPStatus(status).phrase.replace(" ", ""), "message": text}, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What is done at a path."""

    method: str
    answer: Callable[[tuple[str, ...], bytes], Awaitable[Reply]]
    """gets the words of the path after the first, and the body"""
    words: int = 0
    """how many there must be"""
    most_bytes: int = 0
    refuse: Refuse = text_reply
    key: Callable[[], bytes] | None = None
    """what callers have to show; none: anybody may ask"""


Routes = Mapping[str, Route]
"""by the first word of the path"""


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def application(routes: Routes, troubles: Troubles, *, body_s: float = BODY_S) -> Application:
    """Answers at these routes; what is wrong with a request is said to its sender, never how it came about here."""
    large = asyncio.Semaphore(MOST_LARGE)

    async def answer(scope: Scope, receive: ReceivedEvent, send: SentEvent) -> None:
        if scope["type"] != "http":
            return
        first, *words = scope["path"].removeprefix("/").split("/")
        route = routes.get(first)
        if route is None or len(words) != route.words:
            reply = text_reply(404, "there is nothing here")
        elif scope["method"] not in (route.method, "HEAD" if route.method == "GET" else route.method):
            reply = text_reply(405, f"expected {route.method}")
        else:
            reply = await _answered(first, route, tuple(words), scope, receive)
        await _send(send, reply)

    async def _answered(
        first: str, route: Route, words: tuple[str, ...], scope: Scope, receive: ReceivedEvent
    ) -> Reply:
        try:
            if route.key is not None and not _shows(scope, route.key()):
                return route.refuse(403, "not without the key that only those may read who may ask")
            async with _body(receive, route.most_bytes, body_s, large) as body:
                return await route.answer(words, body)
        except _RefusedError as error:
            troubles.tell(f"/{first} refused with {error.status}", str(error))
            return text_reply(error.status, str(error))
        except InputError as error:
            return route.refuse(400, str(error))
        except Exception as error:  # noqa: BLE001 -- the top loop: the next request must find us alive
            kind = type(error).__name__
            troubles.tell(f"/{first} failed with {kind}", in_words(error))
            return route.refuse(500, f"failed inside cotenant ({kind}); its log says more")

    return answer


def _shows(scope: Scope, key: bytes) -> bool:
    shown = dict(scope["headers"]).get(WHY_HEADER.encode(), b"")
    return bool(key) and compare_digest(shown, key)


@asynccontextmanager
async def _body(receive: ReceivedEvent, most: int, within_s: float, large: asyncio.Semaphore) -> AsyncIterator[bytes]:
    """The whole body, while it is answered."""
    async with AsyncExitStack() as kept:
        try:
            async with asyncio.timeout(within_s):
                body = await _read(receive, most, large, kept)
        except TimeoutError:
            raise _RefusedError(408, f"the body was not whole within {within_s:g} s") from None
        yield body


async def _read(receive: ReceivedEvent, most: int, large: asyncio.Semaphore, kept: AsyncExitStack) -> bytes:
    """One that is too large is read on and dropped, or its sender would never hear why."""
    parts, size, more, is_large = [], 0, True, False
    while more and size <= MOST_DROPPED:
        event = await receive()
        if event["type"] != "http.request":
            raise _RefusedError(400, "the sender went away")
        part, more = event.get("body", b""), event.get("more_body", False)
        size += len(part)
        if size > LARGE and not is_large and size <= most:
            await kept.enter_async_context(large)  # nothing is read meanwhile
            is_large = True
        if size <= most:
            parts.append(part)
    if size > most:
        raise _RefusedError(413, f"a body of {'' if not more else 'more than '}{size} bytes, expected at most {most}")
    return b"".join(parts)


async def _send(send: SentEvent, reply: Reply) -> None:
    headers = [(b"content-type", reply.kind), (b"content-length", str(len(reply.body)).encode())]
    if reply.status in (408, 413):  # what is left of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket and what is answered on it."""

    bound: socket.socket
    application: Application
    certificates: Certificates | None = None

    @property
    def address(self) -> str:
        """Where it is reached."""
        host, port = self.bound.getsockname()[:2]
        return f"{'https' if self.certificates else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; CotenantError where it cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CotenantError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise CotenantError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return bound


async def serve_all(
    listeners: Sequence[Listener],
    stop: asyncio.Event,
    *,
    head_s: float = HEAD_S,
    look_s: float = LOOK_S,
    crowd: int = CROWD,
    crowd_s: float = CROWD_S,
) -> None:
    """Answer on all of them until told to stop; requests under way are finished."""
    servers = [_server(listener) for listener in listeners]
    async with asyncio.TaskGroup() as group:
        for server, listener in zip(servers, listeners, strict=True):
            group.create_task(server.serve(sockets=[listener.bound]))
        caring = [group.create_task(_drop_slow_heads(server, head_s)) for server in servers]
        caring += [group.create_task(_thin_out(server, crowd, crowd_s)) for server in servers]
        caring += [
            group.create_task(_renew(listener.certificates, look_s)) for listener in listeners if listener.certificates
        ]
        await stop.wait()
        for server in servers:
            server.should_exit = True
        for task in caring:
            task.cancel()


def _server(listener: Listener) -> uvicorn.Server:
    config = uvicorn.Config(
        listener.application,
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEPT_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    config.load()
    config.ssl = listener.certificates.context if listener.certificates else None
    server = uvicorn.Server(config)
    # It would die of signals before everything is put away.
    server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]
    return server


async def _renew(certificates: Certificates, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        certificates.look()


async def _drop_slow_heads(server: uvicorn.Server, every_s: float) -> None:
    """Connections on which a request is neither awaited nor whole for so long: the server itself would keep them."""
    before: set[Any] = set()
    while True:
        await asyncio.sleep(every_s)
        now = {one for one in server.server_state.connections if _is_half_asked(one)}
        for connection in now & before:
            connection.transport.abort()
        before = now


async def _thin_out(server: uvicorn.Server, most: int, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        connections: list[Any] = sorted(server.server_state.connections, key=_is_unused)
        callers: dict[str, list[Any]] = {}
        for connection in connections:
            callers.setdefault(connection.client[0] if connection.client else "", []).append(connection)
        for _ in range(len(connections) - most):
            max(callers.values(), key=len).pop().transport.abort()


def _is_half_asked(connection: Any) -> bool:
    return _is_unused(connection) and connection.timeout_keep_alive_task is None


def _is_unused(connection: Any) -> bool:
    return connection.cycle is None or bool(connection.cycle.response_complete)
