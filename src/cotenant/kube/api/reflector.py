# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A local copy of all objects of one kind, kept up to date with the API server.

A list gives the state at one resource version, a watch all changes after it. If a watch can no longer be trusted, the
next list is compared with the copy, so that no deletion is missed. The copy is also compared periodically without a
reason, because a watch that lost an event looks like one without events.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NoReturn

from cotenant.kube.api.client import ALL, TOO_LARGE, Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import CHANGES, Change, Identity, Kind, T, Version

Key = tuple[str, str]
"""Namespace and name."""
Handler = Callable[[T | None, T | None], None]
"""Called with the object before and after a change: (None, new) if it was added, (old, None) if it was deleted."""

RELIST_AFTER = 3
"""Failures in a row after which to list: the server may be unable to serve the version that we watch from."""
PAGE_STEP = 4
TURN_S = 0.0005
"""If events arrive faster than they are handled, yield to the event loop after this time."""
GONE = 410
CONTRADICTS = "Contradicts"
"""Reason of an error for an event that contradicts the copy: it is not handled, and a list decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals in seconds."""

    lasting_s: int = 300
    """Duration of a watch, less up to a fifth at random, so that not all watchers reconnect at once."""
    silence_s: float = 90.0
    """A watch without any data for this long is dead: bookmarks arrive every minute. It is then opened again."""
    watches_s: float = 1.0
    """From the start of one watch to the next, at least."""
    lists_s: float = 5.0
    """From one list to the next, at least: lists are expensive, for the server too."""
    again_s: float = 3600.0
    """From one list to the next, at most, less up to a fifth at random. A lost event goes unnoticed for this long."""


class Reflector(Generic[T]):
    """Follows the objects of a kind while `run` runs, and calls a handler for each change.

    Invariant: whenever another task runs, `objects` is the state of the server at `version`, as far as events and lists
    are true, and the handler was called for every difference. Objects that cannot be decoded keep their last known
    state. An event that contradicts the copy is not applied; a list follows, and is compared with the copy.

    The handler is called in the event loop and must not raise: its error would end `run`.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        handler: Handler[T],
        which: Selection = ALL,
        *,
        pace: Pace = Pace(),  # noqa: B008 -- frozen
        report: Callable[[str], object] = lambda error: None,
        wait: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wait` is awaited before each event is handled: events may wait for more urgent work."""
        self.synced = asyncio.Event()
        """Set from the end of the first list on."""
        self.counts: Counter[str] = Counter()
        """Numbers of lists, watches, events, failures and undecodable objects."""
        self._client, self._kind, self._which = client, kind, which
        self._handler, self._pace, self._report, self._wait = handler, pace, report, wait
        self._objects: dict[Key, T] = {}
        self._version: Version | None = None  # None: list before the next watch
        self._handled: Version | None = None
        self._handling: Version = ""
        self._page = client.limits.page
        self._last_heard: float | None = None
        self._listed = float("-inf")
        self._unread: set[Key] = set()
        self._watching: asyncio.Timeout | None = None
        self.listed = float("-inf")
        """When the last complete list was requested (`time.monotonic`)."""
        self.by_list = False
        """Whether the change that the handler is called for comes from a list, not from a watch."""

    @property
    def objects(self) -> Mapping[Key, T]:
        """The copy, by namespace and name; a live view."""
        return MappingProxyType(self._objects)

    @property
    def handled_version(self) -> str:
        """The resource version of the change that the handler is called for; that of a deletion is in no object."""
        return str(self._handling)

    @property
    def version(self) -> str:
        """The version up to which the handler was called for every change; empty before the first list."""
        return "" if self._handled is None else str(self._handled)

    def silence_s(self) -> float:
        """Return the seconds since the last valid response or event; infinite before the first."""
        return float("inf") if self._last_heard is None else time.monotonic() - self._last_heard

    def relist(self) -> None:
        """End the watch and list instead. A list includes everything up to its request; a watch may lag behind."""
        if self._watching is not None:
            self._watching.reschedule(asyncio.get_running_loop().time())
            self._watching = None

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        failures = 0
        while True:
            began, known = time.monotonic(), self.counts["events"]
            retry_after_s = None
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                failed = False
            except ApiError as error:
                failed, retry_after_s = True, error.retry_after
                self._failed(error)
            # A server that sent an event before it failed is alive: no backoff, only the usual intervals.
            failures = failures + 1 if failed and self.counts["events"] == known else 0
            if failures and failures % RELIST_AFTER == 0:
                self._version = None
            await asyncio.sleep(self._wait_s(began, failures, retry_after_s))

    def _failed(self, error: ApiError) -> None:
        self.counts["failures"] += 1
        self._report(str(error))
        passing = error.status in (0, 429) or error.status >= 500
        if not passing or error.reason == CONTRADICTS:
            self._version = None

    def _wait_s(self, began: float, failures: int, retry_after_s: float | None) -> float:
        now = time.monotonic()
        due = [began + self._pace.watches_s]
        if self._version is None:
            due.append(self._listed + self._pace.lists_s)
        if failures or retry_after_s:
            due.append(now + self._client.limits.pause(max(failures, 1), retry_after_s))
        return max(0.0, max(due) - now)

    async def _list(self) -> None:
        self._listed = time.monotonic()
        self.counts["lists"] += 1
        found: dict[Key, T] = {}
        unread: set[Key] = set()
        version: Version = ""
        try:
            async with aclosing(self._client.pages(self._kind, self._which, page=self._page)) as pages:
                async for page in pages:
                    found.update((_key(one.metadata), one) for one in page.items)
                    self._keep_unread(page.unread, found)
                    unread.update(map(_key, page.unread))
                    version = page.version
        except ApiError as error:
            if error.status == GONE:  # the version expired before the last page: use fewer, larger pages
                self._page *= PAGE_STEP
            elif error.reason == TOO_LARGE:
                self._page = max(1, self._page // PAGE_STEP)
            raise
        if version == "":
            raise ApiError(f"list {self._kind.plural}", 0, "Malformed", "the list has no resourceVersion")
        self._handling, self._unread = version, unread
        self._compare(found)
        self._version = self._handled = version
        self._last_heard = time.monotonic()
        self.listed = self._listed
        self.synced.set()

    def _compare(self, found: Mapping[Key, T]) -> None:
        self.by_list = True
        try:
            for key in [key for key in self._objects if key not in found]:
                self._remove(key)
            for key, one in found.items():
                self._put(key, one)
        finally:
            self.by_list = False

    def _keep_unread(self, unread: Sequence[Identity], found: dict[Key, T]) -> None:
        """Keep the last known state of objects that cannot be decoded: they exist all the same."""
        self.counts["undecodable"] += len(unread)
        for identity in unread:
            key = _key(identity)
            if key in self._objects:
                found[key] = self._objects[key]

    async def _watch(self) -> None:
        assert self._version is not None
        self.counts["watches"] += 1
        lasting_s = max(1, round(self._pace.lasting_s * random.uniform(0.8, 1.0)))
        watch = self._client.watch(
            self._kind, self._version, self._which, lasting_s=lasting_s, silence_s=self._pace.silence_s
        )
        turn = time.monotonic()
        try:
            async with asyncio.timeout(self._due_s()) as self._watching, aclosing(watch) as changes:
                async for change in changes:
                    if self._wait is not None:
                        await self._wait()
                    self._apply(change)
                    self._last_heard = time.monotonic()
                    if self._last_heard >= turn + TURN_S:
                        await asyncio.sleep(0)
                        turn = time.monotonic()
        except TimeoutError:  # a list was requested, or is due
            self._version, self._listed = None, float("-inf")
        finally:
            self._watching = None
        self._last_heard = time.monotonic()

    def _due_s(self) -> float:
        return max(0.0, self._listed + self._pace.again_s * random.uniform(0.8, 1.0) - time.monotonic())

    def _apply(self, change: Change[T]) -> None:
        version, key = change.metadata.resource_version, _key(change.metadata)
        if wrong := self._contradiction(change, key):
            raise ApiError(f"watch {self._kind.plural}", 0, CONTRADICTS, wrong)
        self._handling = version
        if change.type == "DELETED":
            self._unread.discard(key)
            self._remove(key)
        elif change.object is not None:
            self._put(key, change.object)
        elif change.type != "BOOKMARK":
            self._unread.add(key)
            self.counts["undecodable"] += 1
        self._version = self._handled = version
        self.counts["events"] += 1

    def _contradiction(self, change: Change[T], key: Key) -> str:
        """Return why this event contradicts the copy; empty if it does not."""
        its = change.metadata
        if its.resource_version == "":
            return "an event has no resourceVersion"
        if older(its.resource_version, self._version):
            return f"version {its.resource_version} after {self._version}"
        if change.type in CHANGES and not (its.name and its.uid and bool(its.namespace) != self._kind.cluster_wide):
            return "an object without identity, or of another kind"
        if change.type == "MODIFIED" and key not in self._objects and key not in self._unread:
            return f"{'/'.join(filter(None, key))} was modified, but never added"
        return ""

    def _put(self, key: Key, new: T) -> None:
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != new.metadata.uid:  # the deletion of the old object was missed
            self._remove(key)
            old = None
        if old is not None and old.metadata.resource_version == new.metadata.resource_version:
            return
        self._objects[key] = new
        self._handler(old, new)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._handler(old, None)


def _key(identity: Identity) -> Key:
    return identity.namespace, identity.name


def older(version: Version, than: Version | None) -> bool:
    """Return whether both are decimal numbers, as the versions of a real API server are, and the first is smaller."""
    one, other = str(version), str(than)
    if not (one.isdecimal() and other.isdecimal()):
        return False
    return (len(one), one) < (len(other), other)
