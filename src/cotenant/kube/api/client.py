# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A client of the Kubernetes API with the few calls that the engine needs, typed, and bounded in time and size."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec

from cotenant.kube.api.access import Access
from cotenant.kube.api.connection import Answer, ApiError, Connection
from cotenant.kube.api.decoding import Change, Kind, Page, T, Version, read_change, read_object, read_page, read_status
from cotenant.signals import Signal

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

OK = 200
UNREACHABLE = "Unreachable"
UNTRUSTED = "Untrusted"
INTERRUPTED = "Interrupted"
TOO_LARGE = "TooLarge"

Guard = Callable[[], AbstractAsyncContextManager[object]]
"""A context that is entered right before each attempt to write and left after its response. It may raise ApiError to
forbid the write, or set a timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind; an empty field selects all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        both = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in both.items() if value}


ALL = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Timeouts and sizes of requests."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """For a complete response, or the head of a watch."""
    answer_bytes: int = 64 * 1024 * 1024
    line_bytes: int = 8 * 1024 * 1024
    """Of one event of a watch."""
    page: int = 500
    """Objects per page of a list."""
    concurrency: int = 16
    """Concurrent requests, at most."""
    idle_s: float = 30.0
    """How long an unused connection is kept open."""
    tries: int = 5
    first_pause_s: float = 0.25
    longest_pause_s: float = 30.0

    def pause(self, failures: int, retry_after_s: float | None = None) -> float:
        """Return the seconds to wait after this many failures in a row: exponential backoff with jitter."""
        pause = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 30))
        return max(pause * random.uniform(0.5, 1.0), min(retry_after_s or 0.0, self.longest_pause_s))


class Client:
    """Sends requests to one API server. Close it in the event loop that used it."""

    def __init__(
        self,
        access: Access,
        limits: Limits | None = None,
        agent: str = "cotenant",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._access, self._agent, self._extra_headers = access, agent, list((headers or {}).items())
        self._slots = asyncio.Semaphore(self.limits.concurrency)
        self._idle: list[tuple[float, Connection]] = []
        self.answered: Signal[[str, int, float]] = Signal()
        """sent after each attempt with the method, the status (0: no response) and the seconds that it took"""

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        """Read one object."""
        path = kind.path(namespace=namespace, name=name)
        return read_object(kind.one, await self._ask("GET", path), f"GET {path}")

    async def create(self, kind: Kind[T], body: object, *, namespace: str = "", dry_run: bool = False) -> T:
        """Create an object, and return it as the server stored it; with `dry_run`, as it would store it."""
        path = kind.path(namespace=namespace)
        query = {"dryRun": "All"} if dry_run else {}
        answer = await self._ask("POST", path, msgspec.json.encode(body), query=query)
        return read_object(kind.one, answer, f"POST {path}")

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: object,
        *,
        namespace: str = "",
        part: str = "",
        form: str = MERGE,
        guard: Guard = nullcontext,
    ) -> T:
        """Change an object, or a subresource such as `status`, by a merge patch, and return the new object. With the
        form STRATEGIC, entries of lists are merged by their key."""
        path = kind.path(namespace=namespace, name=name, part=part)
        answer = await self._ask("PATCH", path, msgspec.json.encode(patch), form=form, guard=guard)
        return read_object(kind.one, answer, f"PATCH {path}")

    async def apply(
        self, kind: Kind[T], name: str, body: object, *, manager: str, namespace: str = "", dry_run: bool = False
    ) -> T:
        """Create an object or change it to what `body` says, by a server-side apply of this field manager, and return
        it. Fields that no manager applies any more are removed."""
        path = kind.path(namespace=namespace, name=name)
        query = {"fieldManager": manager, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        answer = await self._ask("PATCH", path, msgspec.json.encode(body), query=query, form=APPLY)
        return read_object(kind.one, answer, f"PATCH {path}")

    async def read(self, path: str) -> bytes:
        """Read a path that is no object, such as /version."""
        return await self._ask("GET", path)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        cascade: Literal["Background", "Foreground"] | None = None,
        grace_s: int | None = None,
        guard: Guard = nullcontext,
    ) -> None:
        """Delete an object; with a uid, only the object with that uid, not a later one of the same name.

        `cascade` also deletes what it owns, first if it is Foreground. `grace_s` replaces the grace period of a pod.
        """
        body: dict[str, object] = {"preconditions": {"uid": uid}} if uid else {}
        for key, value in (("propagationPolicy", cascade), ("gracePeriodSeconds", grace_s)):
            body |= {} if value is None else {key: value}
        await self._ask("DELETE", kind.path(namespace=namespace, name=name), msgspec.json.encode(body), guard=guard)

    async def bind(
        self,
        pod: str,
        node: str,
        *,
        namespace: str,
        uid: str = "",
        annotations: Mapping[str, str] | None = None,
        guard: Guard = nullcontext,
    ) -> None:
        """Bind a pod to a node; the annotations are added to the pod in the same write."""
        metadata = {"name": pod, "namespace": namespace, "annotations": annotations or {}}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | ({"uid": uid} if uid else {}),
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._ask("POST", _subresource(namespace, pod, "binding"), msgspec.json.encode(body), guard=guard)

    async def evict(
        self,
        pod: str,
        *,
        namespace: str,
        uid: str,
        grace_s: int | None = None,
        dry_run: bool = False,
        guard: Guard = nullcontext,
    ) -> None:
        """Evict a pod; ApiError 429, without retries, if a disruption budget does not allow it.

        `grace_s` replaces the grace period of the pod.
        """
        options: dict[str, object] = {"preconditions": {"uid": uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._ask(
            "POST", _subresource(namespace, pod, "eviction"), msgspec.json.encode(body), retry=False, guard=guard
        )

    async def pages(
        self, kind: Kind[T], which: Selection = ALL, *, page: int | None = None
    ) -> AsyncGenerator[Page[T], None]:
        """Yield all objects as of one resource version, page by page.

        ApiError 410 if the server has dropped that version before the last page: discard the pages then.
        """
        path = kind.path(namespace=which.namespace)
        query = which.query() | {"limit": str(page or self.limits.page)}
        while True:
            found = read_page(kind, await self._ask("GET", path, query=query), f"GET {path}")
            yield found
            if not found.more:
                return
            query["continue"] = found.more

    async def watch(
        self, kind: Kind[T], version: Version, which: Selection = ALL, *, lasting_s: int, silence_s: float
    ) -> AsyncGenerator[Change[T], None]:
        """Yield the changes after this version, until the server ends the watch after about `lasting_s`.

        ApiError if the connection breaks, if the server reports an error, or after `silence_s` without data.
        """
        path = kind.path(namespace=which.namespace)
        request = f"watch {path}"
        query = which.query() | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(lasting_s),
        }
        connection = await self._opened(request)
        try:
            with _interrupted(request):
                async with asyncio.timeout(self.limits.answer_s):
                    answer = await connection.ask("GET", self._target(path, query), self._headers(), b"")
                    await self._raise_refusal(request, connection, answer)
            async with aclosing(self._lines(request, connection, silence_s)) as lines:
                async for line in lines:
                    yield read_change(kind, line, request)
        finally:
            connection.close()

    async def log(
        self, pod: str, *, namespace: str, container: str = "", follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the output of a container, of a pod's only one if none is named, as it arrives; with `follow`, until
        the container ends."""
        path = _subresource(namespace, pod, "log")
        query = ({"follow": "true"} if follow else {}) | ({"container": container} if container else {})
        query |= {} if tail is None else {"tailLines": str(tail)}
        connection = await self._opened(f"GET {path}")
        try:
            with _interrupted(f"GET {path}"):
                async with asyncio.timeout(self.limits.answer_s):
                    answer = await connection.ask("GET", self._target(path, query), self._headers(), b"")
                    await self._raise_refusal(f"GET {path}", connection, answer)
                async with aclosing(connection.pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
        finally:
            connection.close()

    async def close(self) -> None:
        """Close all idle connections; a watch ends when its reader stops."""
        while self._idle:
            self._idle.pop()[1].close()
        await asyncio.sleep(0)  # the transport closes in the next iteration of the event loop

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        form: str = JSON,
        retry: bool = True,
        guard: Guard = nullcontext,
    ) -> bytes:
        """Return the body of a successful response; retries if that can help and cannot do harm."""
        failures, began = 0, time.monotonic()
        while True:
            try:
                async with self._slots:
                    began, target = time.monotonic(), self._target(path, query)
                    answer = await self._ask_once(f"{method} {path}", method, target, body, form, guard)
                    self.answered.send(method, OK, time.monotonic() - began)
                    return answer
            except ApiError as error:
                self.answered.send(method, error.status, time.monotonic() - began)
                failures += 1
                if not retry or failures >= self.limits.tries or not _is_retryable(method, error):
                    raise
                pause = self.limits.pause(failures, error.retry_after)
            await asyncio.sleep(pause)

    async def _ask_once(self, request: str, method: str, target: str, body: bytes, form: str, guard: Guard) -> bytes:
        headers = self._headers() + ([("Content-Type", form)] if body else [])
        connection = self._kept() or await self._opened(request)
        keep = False
        try:
            with _interrupted(request):
                async with asyncio.timeout(self.limits.answer_s), guard():
                    answer = await connection.ask(method, target, headers, body)
                    await self._raise_refusal(request, connection, answer)
                    content = await self._content(request, connection)
            keep = connection.idle
            return content
        except ApiError as error:  # a refusal that was read as a whole; a server that fails may not be the only one
            keep = 400 <= error.status < 500 and connection.idle
            raise
        finally:
            if keep:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.close()

    def _kept(self) -> Connection | None:
        """Return the connection used last, unless it was idle so long that the server may have dropped it."""
        while self._idle:
            since, connection = self._idle.pop()
            if connection.idle and time.monotonic() - since < self.limits.idle_s:
                return connection
            connection.close()
        return None

    async def _opened(self, request: str) -> Connection:
        try:
            async with asyncio.timeout(self.limits.connect_s):
                return await Connection.open(self._access)
        except OSError as error:
            where = f"{self._access.host} port {self._access.port}"
            message = (
                f"no connection within {self.limits.connect_s:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            reason = UNTRUSTED if isinstance(error, ssl.SSLCertVerificationError) else UNREACHABLE
            raise ApiError(request, 0, reason, f"{where}: {message}") from None

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._access.prefix + path + (f"?{urlencode(query)}" if query else "")

    def _headers(self) -> list[tuple[str, str]]:
        token = self._access.token()
        headers = [("Accept", JSON), ("User-Agent", self._agent), *self._extra_headers]
        return headers + ([("Authorization", f"Bearer {token}")] if token else [])

    async def _raise_refusal(self, request: str, connection: Connection, answer: Answer) -> None:
        """ApiError with the server's status and message, unless the request succeeded."""
        if 200 <= answer.status_code < 300:
            return
        status = read_status(await self._content(request, connection))
        reason = status.reason or answer.reason.decode("latin-1") or "refused"
        after = dict(answer.headers).get(b"retry-after", b"")
        seconds = float(after) if after.isdigit() else None  # API servers send seconds, never a date
        raise ApiError(request, answer.status_code, reason, status.message, seconds)

    async def _content(self, request: str, connection: Connection) -> bytes:
        content, size = [], 0
        async with aclosing(connection.pieces()) as pieces:
            async for piece in pieces:
                content.append(piece)
                size += len(piece)
                if size > self.limits.answer_bytes:
                    raise ApiError(request, 0, TOO_LARGE, f"a response of more than {self.limits.answer_bytes} bytes")
        return b"".join(content)

    async def _lines(self, request: str, connection: Connection, silence_s: float) -> AsyncGenerator[bytes, None]:
        rest = bytearray()
        with _interrupted(request):
            async with aclosing(connection.pieces(silence_s)) as pieces:
                async for piece in pieces:
                    first, *others = piece.split(b"\n")
                    rest += first
                    for line in others:
                        if rest:
                            yield bytes(rest)
                        rest = bytearray(line)
                    if len(rest) > self.limits.line_bytes:
                        raise ApiError(request, 0, TOO_LARGE, f"an event of more than {self.limits.line_bytes} bytes")
        # An incomplete last line is dropped: the server stopped in the middle of an event.


def connection_problem(error: ApiError, options: str) -> str | None:
    """Return a message if the request never reached an API server that knows us; None if the server refused it."""
    if error.reason in (UNREACHABLE, UNTRUSTED):
        return f"cannot reach the API server: {error}"
    if error.status == 401:
        return f"the API server does not accept your credentials: log in again, or give another {options}"
    return None


def _subresource(namespace: str, pod: str, part: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/{part}"


def _is_retryable(method: str, error: ApiError) -> bool:
    """Return whether to try again: always if the request had no effect, else only if it may be done twice."""
    if error.status == 429 or error.reason == UNREACHABLE or (error.status >= 500 and error.retry_after is not None):
        return True
    return method != "POST" and (error.status >= 500 or error.reason == INTERRUPTED)


@contextmanager
def _interrupted(request: str) -> Iterator[None]:
    """Turn timeouts and broken connections into ApiError."""
    try:
        yield
    except TimeoutError:
        raise ApiError(request, 0, INTERRUPTED, "no response in time") from None
    except OSError as error:
        raise ApiError(request, 0, INTERRUPTED, str(error)) from None
