# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Asks the API server who a viewer is (TokenReview) and what the viewer may do (SubjectAccessReview).

An answer counts for some seconds. While the API server does not answer, the last one counts for some minutes, as in
kubelet; then the viewer sees nothing. No token is kept here: answers are found by a keyed hash of it.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from cotenant.errors import CotenantError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

TOKEN_S, RIGHT_S = 10.0, 30.0
"""How long the answer about a token and about a right counts."""
KEPT_S = 120.0
"""How long it counts while the API server does not answer."""
MOST_TOKENS, MOST_RIGHTS = 2_000, 100_000
"""Answers that are kept."""
MOST_AT_ONCE = 16
"""Questions at a time."""
MOST_WAITING = 500
"""Questions that wait or are asked, at most: unknown tokens can come from anywhere."""
LONGEST_TOKEN = 16 * 1024
MOST_EXTRA = 100
"""Groups, and extra values, of one user."""


class UnansweredError(CotenantError):
    """The API server cannot say now who a viewer is or what the viewer may do."""


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _TokenReview(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _AccessStatus = _AccessStatus()


TOKEN_REVIEWS = Kind("tokenreviews", _TokenReview, group="apis/authentication.k8s.io/v1", cluster_wide=True)
ACCESS_REVIEWS = Kind("subjectaccessreviews", _AccessReview, group="apis/authorization.k8s.io/v1", cluster_wide=True)


@dataclass(frozen=True, slots=True)
class User:
    """A user as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A request to the API server that a user may or may not make."""

    verb: str
    resource: str
    namespace: str = ""
    """Empty: in all namespaces."""

    def attributes(self) -> dict[str, str]:
        """Return the attributes of the review; all our resources are of the core group."""
        return {"verb": self.verb, "resource": self.resource, "namespace": self.namespace}


class Answers(Generic[K, V]):
    """The most recent answers to questions of one sort. Equal questions at the same time are asked once."""

    def __init__(self, *, fresh_s: float, most: int, clock: Callable[[], float], kept_s: float = KEPT_S) -> None:
        self._fresh_s, self._kept_s, self._most, self._clock = fresh_s, kept_s, most, clock
        self._known: dict[K, tuple[float, V]] = {}  # the oldest first
        self._asking: dict[K, asyncio.Task[V]] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def of(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the answer; UnansweredError if there is none that still counts."""
        known = self._known.get(key)
        if known is not None and self._clock() - known[0] < self._fresh_s:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= MOST_WAITING:
                raise UnansweredError("too many viewers at once; try again in a moment")
            task = self._asking[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(task)  # if one viewer leaves, others may still wait
        except ApiError as error:
            if known is not None and _is_silence(error) and self._clock() - known[0] < self._kept_s:
                return known[1]
            raise UnansweredError(_sentence(error)) from None

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        async with self._slots:
            answer = await ask()
        self._known.pop(key, None)
        self._known[key] = self._clock(), answer
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return answer

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # it was raised to those who waited, if any is left


class Reviewer:
    """Who a viewer is, and what the viewer may do."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._key = client, secrets.token_bytes(32)
        self._users: Answers[bytes, User | None] = Answers(fresh_s=TOKEN_S, most=MOST_TOKENS, clock=clock)
        self._rights: Answers[tuple[User, Right], bool] = Answers(fresh_s=RIGHT_S, most=MOST_RIGHTS, clock=clock)

    async def user(self, token: str) -> User | None:
        """Return the user of a token; None if the API server does not accept it for itself."""
        if not token or len(token) > LONGEST_TOKEN or any(not "!" <= letter <= "~" for letter in token):
            return None
        key = hmac.digest(self._key, token.encode(), "sha256")
        return await self._users.of(key, lambda: self._review_token(token))

    async def may(self, user: User, right: Right) -> bool:
        """Return whether the user may make this request."""
        return await self._rights.of((user, right), lambda: self._review_right(user, right))

    async def _review_token(self, token: str) -> User | None:
        # Without audiences, a token counts only if it is for the API server itself.
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._client.create(TOKEN_REVIEWS, body)).status
        found = status.user
        if not status.authenticated or not found.username:
            return None
        extra = tuple(sorted(found.extra.items())[:MOST_EXTRA])
        return User(found.username, found.uid, found.groups[:MOST_EXTRA], extra)

    async def _review_right(self, user: User, right: Right) -> bool:
        spec = {
            "user": user.name,
            "groups": user.groups,
            "extra": dict(user.extra),
            "resourceAttributes": right.attributes(),
        } | ({"uid": user.uid} if user.uid else {})
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = (await self._client.create(ACCESS_REVIEWS, body)).status
        return status.allowed and not status.denied


def _is_silence(error: ApiError) -> bool:
    return error.status in (0, 429) or error.status >= 500


def _sentence(error: ApiError) -> str:
    if _is_silence(error):
        return "the API server does not answer, so it cannot be checked what you may see; try again in a moment"
    return (
        f"the API server refuses to check what you may see (status {error.status}): the account of these pages needs "
        "the right to create tokenreviews and subjectaccessreviews"
    )
