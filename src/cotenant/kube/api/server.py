# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for a few known clients: short paths, whole bodies, and a limit on every size and every wait.

It uses no web framework. A table of routes is enough, and every layer in front of it delays kube-scheduler's calls.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.error_log import ErrorLog, describe
from cotenant.kube.api.joined_writes import JoiningProtocol
from cotenant.kube.api.names import WHY_HEADER
from cotenant.node.connections import accept_encrypted, drop_slow_heads, shed_connections

BODY_S = 20.0
"""Time for a whole body, from its first byte."""
HEAD_S = 20.0
"""Time from connecting to a whole request head; the check may be late by as much again."""
KEPT_S = 120
"""Keep-alive time. Go clients drop idle connections after 90 s, so they never use one that we are just closing."""
MOST_CONNECTIONS = 1000
"""Connections at which new requests are refused."""
CROWD = MOST_CONNECTIONS * 3 // 4
"""Connections above which the client with the most loses some, so that no client can shut out the others."""
CROWD_S = 1.0
LARGE = 256 * 1024
"""Size of a body in bytes above which it counts as large; pods and lists of nodes rarely are."""
MOST_LARGE = 16
"""Large bodies at a time: every pod of the cluster can send them, and all together must fit into memory."""
MOST_DROPPED = 128 * 1024 * 1024
"""Bytes of a too large body that are read and dropped before the connection is closed."""
GRACE_S = 10
"""Time for running requests when the server stops."""
RELOAD_S = 2.0
"""Interval between two looks for a new certificate."""

ReceivedEvent = Callable[[], Awaitable[Any]]
SentEvent = Callable[[Any], Awaitable[None]]
Scope = Any
Application = Callable[[Scope, ReceivedEvent, SentEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response."""

    body: bytes = b""
    status: int = 200
    kind: bytes = b"application/json"


Refuse = Callable[[int, str], Reply]
"""Builds the response for an error from an HTTP status and a message."""


def text_reply(status: int, text: str) -> Reply:
    """Return a plain-text response, for people and probes."""
    return Reply(f"{text}\n".encode(), status, b"text/plain; charset=utf-8")


def json_reply(value: object, status: int = 200) -> Reply:
    """Return a JSON response."""
    return Reply(msgspec.json.encode(value), status)


def status_reply(status: int, text: str, reason: str = "") -> Reply:
    """Return an error as a Kubernetes Status object, for clients that call through the API server's proxy."""
    base = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return json_reply(base | {"reason": reason or HTTPStatus(status).phrase.replace(" ", ""), "message": text}, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How requests to a path are answered."""

    method: str
    answer: Callable[[tuple[str, ...], bytes], Awaitable[Reply]]
    """Called with the segments of the path after the first, and the body."""
    segments: int = 0
    """Number of segments that must follow the first."""
    optional_segments: int = 0
    """Number of segments that may follow those."""
    most_bytes: int = 0
    refuse: Refuse = text_reply
    key: Callable[[], bytes] | None = None
    """Returns the key that a request must carry in its header; None: the route is open."""


Routes = Mapping[str, Route]
"""Routes by the first segment of the path."""


def health_routes(unready_reason: Callable[[], str | None] = lambda: None) -> Routes:
    """Return the routes of kubelet's probes: the process answers, and it is ready unless there is a reason."""

    async def alive(_words: tuple[str, ...], _body: bytes) -> Reply:
        return text_reply(200, "ok")

    async def ready(_words: tuple[str, ...], _body: bytes) -> Reply:
        reason = unready_reason()
        return text_reply(200, "ok") if reason is None else text_reply(503, reason)

    return {"healthz": Route(method="GET", answer=alive), "readyz": Route(method="GET", answer=ready)}


def key_in(file: Path | None) -> Callable[[], bytes] | None:
    """Return what reads a key of a route from its file; None without a file."""
    return None if file is None else lambda: file.read_bytes().strip()  # each time: it may have been replaced


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def application(routes: Routes, error_log: ErrorLog, *, body_s: float = BODY_S) -> Application:
    """Return the ASGI application for these routes. Clients get the message of an error, never its traceback."""
    large = asyncio.Semaphore(MOST_LARGE)

    async def answer(scope: Scope, receive: ReceivedEvent, send: SentEvent) -> None:
        if scope["type"] != "http":
            return
        first, *segments = scope["path"].removeprefix("/").split("/")
        route = routes.get(first)
        if route is None or not 0 <= len(segments) - route.segments <= route.optional_segments:
            reply = text_reply(404, "not found")
        elif scope["method"] not in (route.method, "HEAD" if route.method == "GET" else route.method):
            reply = text_reply(405, f"expected {route.method}")
        else:
            reply = await _answered(first, route, tuple(segments), scope, receive)
        await _send(send, reply)

    async def _answered(
        first: str, route: Route, segments: tuple[str, ...], scope: Scope, receive: ReceivedEvent
    ) -> Reply:
        try:
            if route.key is not None and not _has_key(scope, route.key()):
                return route.refuse(
                    403,
                    f"expected the key of this installation in the header {WHY_HEADER}",
                )
            async with _body(receive, route.most_bytes, body_s, large) as body:
                return await route.answer(segments, body)
        except _RefusedError as error:
            error_log.report(f"/{first} refused with {error.status}", str(error))
            return text_reply(error.status, str(error))
        except InputError as error:
            return route.refuse(400, str(error))
        except Exception as error:  # noqa: BLE001 -- the top loop: the next request must be answered
            kind = type(error).__name__
            error_log.report(f"/{first} failed with {kind}", describe(error))
            return route.refuse(500, f"internal error in cotenant ({kind}); see its log")

    return answer


def _has_key(scope: Scope, key: bytes) -> bool:
    sent = dict(scope["headers"]).get(WHY_HEADER.encode(), b"")
    return bool(key) and compare_digest(sent, key)


@asynccontextmanager
async def _body(receive: ReceivedEvent, most: int, within_s: float, large: asyncio.Semaphore) -> AsyncIterator[bytes]:
    """Read the whole body, and count it as large until the request is answered."""
    async with AsyncExitStack() as kept:
        try:
            async with asyncio.timeout(within_s):
                body = await _read(receive, most, large, kept)
        except TimeoutError:
            raise _RefusedError(408, f"the body was not complete within {within_s:g} s") from None
        yield body


async def _read(receive: ReceivedEvent, most: int, large: asyncio.Semaphore, kept: AsyncExitStack) -> bytes:
    """Read a body. A too large one is read to its end and dropped, else the client would never read the response."""
    parts, size, more, is_large = [], 0, True, False
    while more and size <= MOST_DROPPED:
        event = await receive()
        if event["type"] != "http.request":
            raise _RefusedError(400, "the client disconnected")
        part, more = event.get("body", b""), event.get("more_body", False)
        size += len(part)
        if size > LARGE and not is_large and size <= most:
            await kept.enter_async_context(large)  # the client has to wait: nothing more is read from it
            is_large = True
        if size <= most:
            parts.append(part)
    if size > most:
        raise _RefusedError(413, f"a body of {'' if not more else 'more than '}{size} bytes, expected at most {most}")
    return b"".join(parts)


async def _send(send: SentEvent, reply: Reply) -> None:
    headers = [(b"content-type", reply.kind), (b"content-length", str(len(reply.body)).encode())]
    if reply.status in (408, 413):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket and the application that serves it."""

    bound: socket.socket
    application: Application
    certificates: Certificates | None = None

    @property
    def address(self) -> str:
        """The URL of the listener."""
        host, port = self.bound.getsockname()[:2]
        return f"{'https' if self.certificates else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket; CotenantError if the address cannot be used."""
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
    reload_s: float = RELOAD_S,
    crowd: int = CROWD,
    crowd_s: float = CROWD_S,
) -> None:
    """Serve all listeners until `stop` is set; running requests are completed."""
    servers = [_server(listener) for listener in listeners]
    async with asyncio.TaskGroup() as group:
        for server, listener in zip(servers, listeners, strict=True):
            group.create_task(server.serve(sockets=[] if listener.certificates else [listener.bound]))
        maintenance: list[asyncio.Task[None]] = [
            group.create_task(accept_encrypted(server, listener.bound, listener.certificates.context))
            for server, listener in zip(servers, listeners, strict=True)
            if listener.certificates
        ]
        maintenance += [group.create_task(drop_slow_heads(server, head_s)) for server in servers]
        maintenance += [group.create_task(shed_connections(server, crowd, crowd_s)) for server in servers]
        maintenance += [
            group.create_task(_renew(listener.certificates, reload_s))
            for listener in listeners
            if listener.certificates
        ]
        await stop.wait()
        for server in servers:
            server.should_exit = True
        for task in maintenance:
            task.cancel()


def _server(listener: Listener) -> uvicorn.Server:
    config = uvicorn.Config(
        listener.application,
        http=JoiningProtocol,
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
    server = uvicorn.Server(config)
    # Its own signal handlers would end the process before the shutdown is complete.
    server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]
    return server


async def _renew(certificates: Certificates, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        certificates.reload()
