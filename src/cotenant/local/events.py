# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What happened, told to those who listen now and kept for those who ask later."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cotenant.local.journal import EVENTS_KEPT, Journal, JournalError

MOST_WAITING = 2 * EVENTS_KEPT
"""events that one slow reader may be behind"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as it is told to those who listen."""

    id: int
    at: float
    kind: str
    job: str | None
    text: str


Listener = asyncio.Queue[Event | None]
"""None: no more will come"""


class Events:
    """The listeners of one daemon, and the journal behind them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._listeners: set[Listener] = set()

    def tell(self, kind: str, job: str | None, text: str) -> None:
        """Never fails: what happened has happened, and a full disk only loses the note of it."""
        at = time.time()
        try:
            number = self._journal.record_event(at, kind, job, text)
        except JournalError as error:
            complain(str(error))
            return
        for listener in self._listeners:
            _put(listener, Event(number, at, kind, job, text))

    def close(self) -> None:
        """Tells every listener that nothing more will come."""
        for listener in self._listeners:
            _put(listener, None)

    @contextmanager
    def subscribe(self, after: int) -> Iterator[Listener]:
        """Events since `after` (-1: none of the past), then new ones; a slow reader loses the oldest."""
        listener: Listener = asyncio.Queue(MOST_WAITING)
        if after >= 0:
            for event in self._journal.events(after, EVENTS_KEPT):
                listener.put_nowait(Event(*event))
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


def _put(listener: Listener, event: Event | None) -> None:
    if listener.full():
        listener.get_nowait()
    listener.put_nowait(event)


def complain(text: str) -> None:
    """One line in the daemon's own log, for whoever looks after it; on a full disk not even that."""
    with suppress(OSError):
        print(f"cotenant: {text}", file=sys.stderr, flush=True)
