# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's events: recorded in the journal, and streamed to the clients that are connected."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError

T = TypeVar("T")
REPEATED_AFTER_S = 60.0
MOST_TEXTS = 1000
"""different texts in the log that are remembered"""
PAGE = 100
"""events that are read from the journal at a time for one client"""


@dataclass(frozen=True, slots=True)
class Event:
    """An event as clients receive it."""

    id: int
    at: float
    kind: str
    job: str | None
    text: str


class Subscription:
    """One reader of events. It holds a position in the journal and no events, so a client that reads nothing costs
    nothing; it loses only events that the journal no longer has."""

    def __init__(self, journal: Journal, after: int) -> None:
        self._journal, self._after = journal, after
        self.changed = asyncio.Event()
        self.closed = False

    def page(self) -> list[Event]:
        """The next events, at most PAGE; empty if there are none now."""
        self.changed.clear()
        found = [Event(*one) for one in self._journal.events(self._after, PAGE)]
        self._after = found[-1].id if found else self._after
        return found


class Events:
    """The event log of one daemon and its subscribers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._subscriptions: set[Subscription] = set()

    def record(self, kind: str, job: str | None, text: str) -> None:
        """Records an event and sends it to every subscriber. Never fails: on a full disk the event is only logged."""
        at = time.time()
        try:
            self._journal.record_event(at, kind, job, text)
        except JournalError as error:
            log_error(str(error))
            return
        for one in self._subscriptions:
            one.changed.set()

    def close(self) -> None:
        """Ends the stream of every subscriber."""
        for one in self._subscriptions:
            one.closed = True
            one.changed.set()

    @contextmanager
    def subscribe(self, after: int) -> Iterator[Subscription]:
        """Events with ids greater than `after` (-1: no past events), then new ones."""
        one = Subscription(self._journal, self._journal.last_event() if after < 0 else after)
        self._subscriptions.add(one)
        try:
            yield one
        finally:
            self._subscriptions.discard(one)


def stored_setting(journal: Journal, key: str, kind: type[T], default: T) -> T:
    """A setting that the journal stores as JSON; a damaged one is reported in the log and replaced by the default."""
    text = journal.recall(key)
    if text is None:
        return default
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeError) as error:
        log_error(f"the stored setting {key!r} cannot be read and is ignored: {error}")
        return default


_logged: dict[str, float] = {}
"""when each text was last written"""


def log_error(text: str) -> None:
    """Writes one line to the daemon's log, but a repeated one only once a minute, or it could fill the disk.

    It is ignored if even that fails, as on a full disk.
    """
    now = time.monotonic()
    if now - _logged.get(text, -REPEATED_AFTER_S) < REPEATED_AFTER_S:
        return
    if len(_logged) >= MOST_TEXTS:
        _logged.clear()
    _logged[text] = now
    with suppress(OSError):
        print(f"cotenant: {text}", file=sys.stderr, flush=True)
