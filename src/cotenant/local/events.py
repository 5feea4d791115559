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

from cotenant.local.journal import EVENTS_KEPT, Journal, JournalError

T = TypeVar("T")
REPEATED_AFTER_S = 60.0
MOST_TEXTS = 1000
"""different texts in the log that are remembered"""
MOST_WAITING = 2 * EVENTS_KEPT
"""events that are queued for one slow client"""


@dataclass(frozen=True, slots=True)
class Event:
    """An event as clients receive it."""

    id: int
    at: float
    kind: str
    job: str | None
    text: str


Listener = asyncio.Queue[Event | None]
"""receives None when no more events will come"""


class Events:
    """The event log of one daemon and its subscribers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._listeners: set[Listener] = set()

    def record(self, kind: str, job: str | None, text: str) -> None:
        """Records an event and sends it to every subscriber. Never fails: on a full disk the event is only logged."""
        at = time.time()
        try:
            number = self._journal.record_event(at, kind, job, text)
        except JournalError as error:
            log_error(str(error))
            return
        for listener in self._listeners:
            _put(listener, Event(number, at, kind, job, text))

    def close(self) -> None:
        """Ends the stream of every subscriber."""
        for listener in self._listeners:
            _put(listener, None)

    @contextmanager
    def subscribe(self, after: int) -> Iterator[Listener]:
        """Events with ids greater than `after` (-1: no past events), then new ones; a slow client loses the oldest."""
        listener: Listener = asyncio.Queue(MOST_WAITING)
        if after >= 0:
            for event in self._journal.events(after, EVENTS_KEPT):
                listener.put_nowait(Event(*event))
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


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


def _put(listener: Listener, event: Event | None) -> None:
    if listener.full():
        listener.get_nowait()
    listener.put_nowait(event)


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
