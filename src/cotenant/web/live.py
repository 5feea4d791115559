# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Live pages: a board is one page as pieces of HTML with revisions, and a stream sends the pieces that are newer.

A viewer is a number, the revision that it has. A slow viewer therefore costs no memory: when its connection takes data
again, it gets the present state of what changed meanwhile. After a restart of the server the epoch is another one, and
the viewer gets everything.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from markupsafe import Markup

from cotenant import __version__
from cotenant.errors import CotenantError
from cotenant.web.access import Viewer
from cotenant.web.model import Overview
from cotenant.web.source import Source

LEAST_PAUSE_S, MOST_PAUSE_S = 0.2, 1.0
"""between two looks at the source"""
SHARE_OF_A_CORE = 0.04
"""that looking and rendering may take, as far as the longest pause permits"""
KEEP_ALIVE_S = 10.0
MOST_BOARDS = 256
MOST_STREAMS, MOST_OF_ONE = 256, 64
"""open at a time, of pages and of output: in all, and of one viewer"""
FORGET_AFTER_S = 30.0
"""after the last viewer of a board has left"""
LOST_AFTER_S = 2.0
"""pause after a failed look, and after the stream of changes ended"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a page: a macro of `pieces.html` and its arguments, which are compared."""

    macro: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Composition:
    """A page as pieces by key, and lists of keys by the name of the element that contains them."""

    pieces: Mapping[str, Piece]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = ""


Compose = Callable[[Overview], Awaitable[Composition]]
Render = Callable[[Piece], Markup]


class Board:
    """One page for all viewers of one scope."""

    def __init__(self, compose: Compose, render: Render) -> None:
        self._compose, self._render = compose, render
        self.epoch = secrets.token_hex(4)
        self.revision = 0
        self.changed = asyncio.Event()
        self.watchers = 0
        self.used = time.monotonic()
        self.title = ""
        self.html: dict[str, Markup] = {}
        """pieces by key"""
        self.lists: dict[str, tuple[str, ...]] = {}
        self._values: dict[str, Piece] = {}
        self._changed_at: dict[str, int] = {}
        """the revision in which each piece changed last; below, each list"""
        self._lists_changed_at: dict[str, int] = {}

    @property
    def id(self) -> str:
        return f"{self.epoch}.{self.revision}"

    def tiles_of(self, node: str) -> list[Markup]:
        """The tiles that belong into the row of a node, by the row's key."""
        return [self.html[key] for key in self.lists[f"gpus-of-{node.removeprefix('node/')}"]]

    async def update(self, overview: Overview) -> None:
        """Renders what differs from the last time."""
        now = await self._compose(overview)
        self.title = now.title
        following, changed = self.revision + 1, False
        for key, piece in now.pieces.items():
            if self._values.get(key) != piece:
                html = self._render(piece)
                if self.html.get(key) != html:
                    self.html[key], self._changed_at[key], changed = html, following, True
        for name, keys in now.lists.items():
            if self.lists.get(name) != keys:
                self.lists[name], self._lists_changed_at[name], changed = keys, following, True
        for key in self._values.keys() - now.pieces.keys():
            del self.html[key], self._changed_at[key]
        self._values = dict(now.pieces)
        if changed:
            self.revision = following
            self.changed.set()
            self.changed = asyncio.Event()

    def since(self, seen: str) -> bytes | None:
        """What is newer than a viewer's revision as an event; None: nothing is. Another epoch gets everything."""
        epoch, _, number = seen.partition(".")
        known = epoch == self.epoch and number.isascii() and number.isdecimal() and len(number) < 19
        after = int(number) if known else -1
        if after == self.revision:
            return None
        update = {
            "all": not known,
            "now": time.time(),
            "version": __version__,
            "pieces": {key: str(self.html[key]) for key, revision in self._changed_at.items() if revision > after},
            "lists": {name: self.lists[name] for name, revision in self._lists_changed_at.items() if revision > after},
        }
        return b"id: %s\ndata: %s\n\n" % (self.id.encode(), msgspec.json.encode(update))


def _key(viewer: Viewer) -> str:
    """Viewers with other rights see other buttons."""
    return " ".join((viewer.scope, *sorted(viewer.verbs)))


class _Scope:
    """The last snapshot for the viewers of one scope."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.overview: Overview | None = None
        self.looked = 0
        """number of the pulse that it has seen"""
        self.at = -MOST_PAUSE_S
        self.lock = asyncio.Lock()
        self.boards: dict[str, Board] = {}


class Hub:
    """All boards of a server. It looks at the source only while pages are open."""

    def __init__(self, source: Source, render: Render) -> None:
        self._source, self._render = source, render
        self._scopes: dict[str, _Scope] = {}
        self._pulse = 1
        self._pulsed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._streams: Counter[str] = Counter()
        """open ones, by viewer"""

    async def board(self, viewer: Viewer, name: str, compose: Compose) -> Board:
        """The board of a page, up to date."""
        scope = self._scope(viewer)
        board = scope.boards.get(name)
        if board is None:
            self._forget()
            board = Board(compose, self._render)
        board.used = time.monotonic()
        await self._look(scope)
        assert scope.overview is not None
        await board.update(scope.overview)
        self._scopes[_key(viewer)] = scope  # it may have been forgotten meanwhile
        return scope.boards.setdefault(name, board)

    async def overview(self, viewer: Viewer) -> Overview:
        """The present state, or one that is at most a fifth of a second old."""
        scope = self._scope(viewer)
        await self._look(scope)
        assert scope.overview is not None
        return scope.overview

    def _scope(self, viewer: Viewer) -> _Scope:
        scope = self._scopes.setdefault(_key(viewer), _Scope(viewer))
        scope.viewer = viewer
        return scope

    @contextmanager
    def admitted(self, viewer: Viewer) -> Iterator[bool]:
        """Counts an open stream; False: there are too many."""
        name = viewer.name
        if self._streams.total() >= MOST_STREAMS or self._streams[name] >= MOST_OF_ONE:
            yield False
            return
        self._streams[name] += 1
        try:
            yield True
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]

    async def stream(self, board: Board, seen: str) -> AsyncIterator[bytes]:
        """Events for one viewer, without end."""
        board.watchers += 1
        self._start()
        try:
            yield b"retry: 1000\n\n"
            while True:
                changed = board.changed  # before the look: a change in between is not missed
                event = board.since(seen)
                if event is not None:
                    seen = board.id
                    yield event
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            board.watchers -= 1
            board.used = time.monotonic()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def _is_watched(self) -> bool:
        return any(board.watchers for scope in self._scopes.values() for board in scope.boards.values())

    async def _run(self) -> None:
        """Looks at the source while pages are open."""
        listening = asyncio.ensure_future(self._listen())
        try:
            while self._is_watched():
                await self._refresh()
        finally:
            self._task = None  # before anything is awaited: the next viewer starts another one
            self._forget()
            listening.cancel()
            await asyncio.wait({listening})

    async def _listen(self) -> None:
        """Passes the source's changes on, as a number and an event."""
        while True:
            with suppress(CotenantError):
                async with aclosing(self._source.changes()) as changes:
                    async for _ in changes:
                        self._pulse += 1
                        self._pulsed.set()
            await asyncio.sleep(LOST_AFTER_S)

    async def _refresh(self) -> None:
        """Looks again after the next change, but not too often."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._pulsed.wait(), KEEP_ALIVE_S)
        self._pulsed.clear()
        began = time.process_time()
        try:
            await self._refresh_watched()
        except CotenantError:
            await asyncio.sleep(LOST_AFTER_S)
        cost = time.process_time() - began
        await asyncio.sleep(min(MOST_PAUSE_S, max(LEAST_PAUSE_S, cost / SHARE_OF_A_CORE)))

    async def _refresh_watched(self) -> None:
        for scope in list(self._scopes.values()):
            watched = [board for board in scope.boards.values() if board.watchers]
            if watched:
                await self._look(scope)
                assert scope.overview is not None
                for board in watched:
                    with suppress(CotenantError):  # its job is gone: the page stays as it was
                        await board.update(scope.overview)

    async def _look(self, scope: _Scope) -> None:
        """Renews the snapshot if something may have changed since; without listeners, changes are not known."""
        async with scope.lock:
            fresh = time.monotonic() - scope.at < LEAST_PAUSE_S
            if fresh or (self._task is not None and scope.looked == self._pulse):
                return
            scope.looked = self._pulse
            scope.overview = await self._source.snapshot(scope.viewer)
            scope.at = time.monotonic()

    def _forget(self) -> None:
        """Drops the boards that were left long ago, and the oldest if there are too many."""
        boards = sorted(
            ((board.used, scope, name) for scope, one in self._scopes.items() for name, board in one.boards.items()),
            key=lambda item: item[0],
        )
        spare = len(boards) - MOST_BOARDS + 1
        now = time.monotonic()
        for number, (used, scope, name) in enumerate(boards):
            unwatched = not self._scopes[scope].boards[name].watchers
            if unwatched and (number < spare or now - used > FORGET_AFTER_S):
                del self._scopes[scope].boards[name]
        for scope in [scope for scope, one in self._scopes.items() if not one.boards]:
            del self._scopes[scope]
