# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The few things that the engine asks of a Kubernetes API server: typed calls with a limit on every wait and size."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import msgspec

from cotenant.kube.api.access import Access
from cotenant.kube.api.connection import Answer, ApiError, Connection
from cotenant.kube.api.decoding import Change, Kind, Page, T, Version, read_change, read_object, read_page, read_status

JSON = "application/json"
MERGE = "application/merge-patch+json"

UNREACHABLE = "Unreachable"
UNTRUSTED = "Untrusted"
INTERRUPTED = "Interrupted"
TOO_LARGE = "TooLarge"

Guard = Callable[[], AbstractAsyncContextManager[object]]
"""entered right before each try to write, and left with its answer; may refuse by an ApiError, or limit the time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind; empty: all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """As the server is asked."""
        both = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in both.items() if value}


ALL = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how much."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """a whole answer, or the beginning of a watch"""
    answer_bytes: int = 64 * 1024 * 1024
    line_bytes: int = 8 * 1024 * 1024
    """one event of a watch"""
    page: int = 500
    """objects in one part of a list"""
    together: int = 16
    """requests at one time"""
    idle_s: float = 30.0
    """how long an unused connection is kept"""
    tries: int = 5
    first_pause_s: float = 0.25
    longest_pause_s: float = 30.0

    def pause(self, failures: int, asked_s: float | None = None) -> float:
        """How long to wait after so many failures in a row: each time twice as long, less some of it by chance."""
        pause = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 30))
        return max(pause * random.uniform(0.5, 1.0), min(asked_s or 0.0, self.longest_pause_s))


class Client:
    """Asks one API server. Close it in the event loop that used it."""

    def __init__(
        self,
        access: Access,
        limits: Limits | None = None,
        agent: str = "cotenant",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._access, self._agent, self._more = access, agent, list((headers or {}).items())
        self._turns = asyncio.Semaphore(self.limits.together)
        self._idle: list[tuple[float, Connection]] = []

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        """One object."""
        path = kind.path(namespace=namespace, name=name)
        return read_object(kind.one, await self._ask("GET", path), f"GET {path}")

    async def create(self, kind: Kind[T], body: object, *, namespace: str = "") -> T:
        """A new object, as the server made it."""
        path = kind.path(namespace=namespace)
        return read_object(kind.one, await self._ask("POST", path, msgspec.json.encode(body)), f"POST {path}")

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: object,
        *,
        namespace: str = "",
        part: str = "",
        guard: Guard = nullcontext,
    ) -> T:
        """An object after a change of it, or of a part such as `status`."""
        path = kind.path(namespace=namespace, name=name, part=part)
        answer = await self._ask("PATCH", path, msgspec.json.encode(patch), form=MERGE, guard=guard)
        return read_object(kind.one, answer, f"PATCH {path}")

    async def delete(self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "") -> None:
        """Ask for its deletion; with a uid, of that very object and of none that has its name since."""
        body = {"preconditions": {"uid": uid}} if uid else {}
        await self._ask("DELETE", kind.path(namespace=namespace, name=name), msgspec.json.encode(body))

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
        """Give a pod its node; the annotations reach the pod in the same write."""
        metadata = {"name": pod, "namespace": namespace, "annotations": annotations or {}}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | ({"uid": uid} if uid else {}),
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._ask("POST", _part(namespace, pod, "binding"), msgspec.json.encode(body), guard=guard)

    async def evict(
        self, pod: str, *, namespace: str, uid: str, dry_run: bool = False, guard: Guard = nullcontext
    ) -> None:
        """Ask a pod to leave, as far as its disruption budgets allow; ApiError 429 where they do not, at once."""
        options = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._ask("POST", _part(namespace, pod, "eviction"), msgspec.json.encode(body), again=False, guard=guard)

    async def pages(
        self, kind: Kind[T], which: Selection = ALL, *, page: int | None = None
    ) -> AsyncGenerator[Page[T], None]:
        """All objects as they were at one moment, some at a time.

        ApiError 410 where the server forgot that moment before the last page: what came so far is then of no use.
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
        """What changes after this version, until the server ends it, as it is asked to do after a while.

        ApiError where it breaks, where the server says that it cannot go on, or where nothing at all comes for so long.
        """
        path = kind.path(namespace=which.namespace)
        asked = f"watch {path}"
        query = which.query() | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(lasting_s),
        }
        connection = await self._opened(asked)
        try:
            with _interrupted(asked):
                async with asyncio.timeout(self.limits.answer_s):
                    answer = await connection.ask("GET", self._target(path, query), self._headers(), b"")
                    await self._raise_refusal(asked, connection, answer)
            async with aclosing(self._lines(asked, connection, silence_s)) as lines:
                async for line in lines:
                    yield read_change(kind, line, asked)
        finally:
            connection.close()

    async def close(self) -> None:
        """Ends what is kept open; watches end with whoever reads them."""
        while self._idle:
            self._idle.pop()[1].close()
        await asyncio.sleep(0)  # a connection is gone when the loop has come round

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        form: str = JSON,
        again: bool = True,
        guard: Guard = nullcontext,
    ) -> bytes:
        """The body of a good answer; asks again where that may help and cannot harm."""
        failures = 0
        while True:
            try:
                async with self._turns:
                    target = self._target(path, query)
                    return await self._ask_once(f"{method} {path}", method, target, body, form, guard)
            except ApiError as error:
                failures += 1
                if not again or failures >= self.limits.tries or not _worth_repeating(method, error):
                    raise
                pause = self.limits.pause(failures, error.retry_after)
            await asyncio.sleep(pause)

    async def _ask_once(self, asked: str, method: str, target: str, body: bytes, form: str, guard: Guard) -> bytes:
        headers = self._headers() + ([("Content-Type", form)] if body else [])
        connection = self._kept() or await self._opened(asked)
        keep = False
        try:
            with _interrupted(asked):
                async with asyncio.timeout(self.limits.answer_s), guard():
                    answer = await connection.ask(method, target, headers, body)
                    await self._raise_refusal(asked, connection, answer)
                    content = await self._content(asked, connection)
            keep = connection.idle
            return content
        finally:
            if keep:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.close()

    def _kept(self) -> Connection | None:
        """The connection used last, unless it has been waiting so long that the server may have dropped it."""
        while self._idle:
            since, connection = self._idle.pop()
            if connection.idle and time.monotonic() - since < self.limits.idle_s:
                return connection
            connection.close()
        return None

    async def _opened(self, asked: str) -> Connection:
        try:
            async with asyncio.timeout(self.limits.connect_s):
                return await Connection.open(self._access)
        except OSError as error:
            where = f"{self._access.host} port {self._access.port}"
            said = "no connection in time" if isinstance(error, TimeoutError) else str(error)
            reason = UNTRUSTED if isinstance(error, ssl.SSLCertVerificationError) else UNREACHABLE
            raise ApiError(asked, 0, reason, f"{where}: {said}") from None

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._access.prefix + path + (f"?{urlencode(query)}" if query else "")

    def _headers(self) -> list[tuple[str, str]]:
        token = self._access.token()
        headers = [("Accept", JSON), ("User-Agent", self._agent), *self._more]
        return headers + ([("Authorization", f"Bearer {token}")] if token else [])

    async def _raise_refusal(self, asked: str, connection: Connection, answer: Answer) -> None:
        """ApiError with what the server said, unless it said yes."""
        if 200 <= answer.status_code < 300:
            return
        status = read_status(await self._content(asked, connection))
        reason = status.reason or answer.reason.decode("latin-1") or "refused"
        after = dict(answer.headers).get(b"retry-after", b"")
        seconds = float(after) if after.isdigit() else None  # API servers send no dates
        raise ApiError(asked, answer.status_code, reason, status.message, seconds)

    async def _content(self, asked: str, connection: Connection) -> bytes:
        content, size = [], 0
        async with aclosing(connection.pieces()) as pieces:
            async for piece in pieces:
                content.append(piece)
                size += len(piece)
                if size > self.limits.answer_bytes:
                    raise ApiError(asked, 0, TOO_LARGE, f"an answer of more than {self.limits.answer_bytes} bytes")
        return b"".join(content)

    async def _lines(self, asked: str, connection: Connection, silence_s: float) -> AsyncGenerator[bytes, None]:
        rest = bytearray()
        with _interrupted(asked):
            async with aclosing(connection.pieces(silence_s)) as pieces:
                async for piece in pieces:
                    first, *others = piece.split(b"\n")
                    rest += first
                    for line in others:
                        if rest:
                            yield bytes(rest)
                        rest = bytearray(line)
                    if len(rest) > self.limits.line_bytes:
                        raise ApiError(asked, 0, TOO_LARGE, f"an event of more than {self.limits.line_bytes} bytes")
        # What is left over has no end: the server stopped within a line.


def unheard(error: ApiError, naming: str) -> str | None:
    """A sentence for who could not even ask, and what else to name; None where the server has said why."""
    if error.reason in (UNREACHABLE, UNTRUSTED):
        return f"the API server cannot be asked: {error}"
    if error.status == 401:
        return f"the API server does not know who asks: log in again, or name another {naming}"
    return None


def _part(namespace: str, pod: str, part: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/{part}"


def _worth_repeating(method: str, error: ApiError) -> bool:
    """Always where nothing was done yet; where something may have been, only what may be done twice."""
    if error.status == 429 or error.reason == UNREACHABLE or (error.status >= 500 and error.retry_after is not None):
        return True
    return method != "POST" and (error.status >= 500 or error.reason == INTERRUPTED)


@contextmanager
def _interrupted(asked: str) -> Iterator[None]:
    """A connection that breaks or falls silent, as an ApiError."""
    try:
        yield
    except TimeoutError:
        raise ApiError(asked, 0, INTERRUPTED, "nothing came in time") from None
    except OSError as error:
        raise ApiError(asked, 0, INTERRUPTED, str(error)) from None
