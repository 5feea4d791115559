# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of one kind of objects that follows the API server, whatever happens on the way.

A list gives the state at one moment, a watch all changes after it. Where a watch cannot be trusted any more, the next
list is compared with the copy, so that no deletion is missed. Now and then that is done without need: a watch that
leaves something out cannot be told from one that has nothing to say.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NoReturn

from cotenant.kube.api.client import ALL, TOO_LARGE, Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import CHANGES, Change, Identity, Kind, T, Version

Key = tuple[str, str]
"""namespace and name"""
Handler = Callable[[T | None, T | None], None]
"""gets the object before and after a change: (None, new) when it appears, (old, None) when it is gone"""

RELIST_AFTER = 3
"""failures in a row; the version that we ask for may be what the server cannot answer"""
PAGE_STEP = 4
TURN_S = 0.0005
"""when events come faster than they are handled, others in the loop have their turn after so long"""
GONE = 410
CONTRADICTS = "Contradicts"
"""an event that cannot be by what we know, of the past or of nobody: it is never told, and a list decides"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often, in seconds."""

    lasting_s: int = 300
    """how long the server is asked to keep a watch, less up to a fifth by chance: not all watchers come back at once"""
    silence_s: float = 90.0
    """a watch on which not even a bookmark comes (they come every minute) is dead, and opened anew"""
    watches_s: float = 1.0
    """from the beginning of one watch to the next, at least"""
    lists_s: float = 5.0
    """from one list to the next, at least: they are the expensive part, for the server too"""
    again_s: float = 3600.0
    """from one list to the next, at most, less up to a fifth by chance: so long may a watch deceive us"""


class Reflector(Generic[T]):
    """Follows the objects of a kind from `run` on, and tells a handler what changes.

    The handler is called in the event loop and must not fail: its error ends `run`.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        handler: Handler[T],
        which: Selection = ALL,
        *,
        pace: Pace = Pace(),  # noqa: B008 -- frozen
        tell: Callable[[str], object] = lambda trouble: None,
    ) -> None:
        self.synced = asyncio.Event()
        """set when the first list is complete, and for ever after"""
        self.counts: Counter[str] = Counter()
        """lists, watches, events, failures, undecodable"""
        self._client, self._kind, self._which = client, kind, which
        self._handler, self._pace, self._tell = handler, pace, tell
        self._objects: dict[Key, T] = {}
        self._version: Version | None = None  # None: list before the next watch
        self._told: Version | None = None
        self._telling: Version = ""
        self._page = client.limits.page
        self._heard: float | None = None
        self._listed = float("-inf")
        self._unread: set[Key] = set()
        self._watching: asyncio.Timeout | None = None
        self.listed = float("-inf")
        """when the last list that is complete was asked for (`time.monotonic`)"""
        self.by_list = False
        """whether it is a list by which the handler is being told, or a watch"""

    @property
    def objects(self) -> Mapping[Key, T]:
        """All that is known, by namespace and name; it changes as the server's does."""
        return MappingProxyType(self._objects)

    @property
    def telling(self) -> str:
        """The version of what the handler is being told: of a deletion it is the only trace, `old` is from before."""
        return str(self._telling)

    @property
    def version(self) -> str:
        """Up to which the handler was told of every change; empty before the first list."""
        return "" if self._told is None else str(self._told)

    def silence_s(self) -> float:
        """Seconds since the server last said anything useful; infinite before it ever did."""
        return float("inf") if self._heard is None else time.monotonic() - self._heard

    def relist(self) -> None:
        """Give up the watch for a list, which misses nothing that was so when it was asked for; a watch may lag."""
        if self._watching is not None:
            self._watching.reschedule(asyncio.get_running_loop().time())
            self._watching = None

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        failures = 0
        while True:
            began, known = time.monotonic(), self.counts["events"]
            asked_s = None
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                failed = False
            except ApiError as error:
                failed, asked_s = True, error.retry_after
                self._failed(error)
            # A server that says something new before each failure is alive: it is only held to the pace.
            failures = failures + 1 if failed and self.counts["events"] == known else 0
            if failures and failures % RELIST_AFTER == 0:
                self._version = None
            await asyncio.sleep(self._wait_s(began, failures, asked_s))

    def _failed(self, error: ApiError) -> None:
        self.counts["failures"] += 1
        self._tell(str(error))
        passing = error.status in (0, 429) or error.status >= 500
        if not passing or error.reason == CONTRADICTS:
            self._version = None

    def _wait_s(self, began: float, failures: int, asked_s: float | None) -> float:
        now = time.monotonic()
        due = [began + self._pace.watches_s]
        if self._version is None:
            due.append(self._listed + self._pace.lists_s)
        if failures or asked_s:
            due.append(now + self._client.limits.pause(max(failures, 1), asked_s))
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
            if error.status == GONE:  # it took longer than the server remembers: fewer, larger parts
                self._page *= PAGE_STEP
            elif error.reason == TOO_LARGE:
                self._page = max(1, self._page // PAGE_STEP)
            raise
        if version == "":
            raise ApiError(f"list {self._kind.plural}", 0, "Malformed", "it has no resourceVersion")
        self._telling, self._unread = version, unread
        self._compare(found)
        self._version = self._told = version
        self._heard = time.monotonic()
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
        """An object that cannot be decoded is there all the same: what was known of it stays."""
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
                    self._apply(change)
                    self._heard = time.monotonic()
                    if self._heard >= turn + TURN_S:
                        await asyncio.sleep(0)
                        turn = time.monotonic()
        except TimeoutError:  # a list was asked for, or is due
            self._version, self._listed = None, float("-inf")
        finally:
            self._watching = None
        self._heard = time.monotonic()

    def _due_s(self) -> float:
        return max(0.0, self._listed + self._pace.again_s * random.uniform(0.8, 1.0) - time.monotonic())

    def _apply(self, change: Change[T]) -> None:
        version, key = change.metadata.resource_version, _key(change.metadata)
        if wrong := self._contradiction(change, key):
            raise ApiError(f"watch {self._kind.plural}", 0, CONTRADICTS, wrong)
        self._telling = version
        if change.type == "DELETED":
            self._unread.discard(key)
            self._remove(key)
        elif change.object is not None:
            self._put(key, change.object)
        elif change.type != "BOOKMARK":
            self._unread.add(key)
            self.counts["undecodable"] += 1
        self._version = self._told = version
        self.counts["events"] += 1

    def _contradiction(self, change: Change[T], key: Key) -> str:
        """Why this event cannot be; empty where it can."""
        its = change.metadata
        if its.resource_version == "":
            return "an event has no resourceVersion"
        if older(its.resource_version, self._version):
            return f"version {its.resource_version} after {self._version}"
        if change.type in CHANGES and not (its.name and its.uid and bool(its.namespace) != self._kind.cluster_wide):
            return "half an object, or one of another kind"
        if change.type == "MODIFIED" and key not in self._objects and key not in self._unread:
            return f"{'/'.join(filter(None, key))} changed, and was never there"
        return ""

    def _put(self, key: Key, new: T) -> None:
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != new.metadata.uid:  # its namesake went unnoticed
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
    """Whether both are decimal numbers, as a version of a real API server is, and the first is smaller."""
    one, other = str(version), str(than)
    if not (one.isdecimal() and other.isdecimal()):
        return False
    return (len(one), one) < (len(other), other)
