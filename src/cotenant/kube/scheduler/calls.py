# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of kube-scheduler that are being answered. Other work waits for them, but never long: a bind is answered
before the watch's event about the same bind is handled, and before the pod's Event is written."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LONGEST_S = 0.003
"""for which work waits at a time"""
SHARE = 4
"""after it has waited, the same work does not wait again for this multiple of the time"""


class Calls:
    """Counts calls. Make it in the event loop of the calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._under_way = clock, 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A call is answered within."""
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def waiter(self) -> "Waiter":
        """For one kind of work, which must not be done twice at a time."""
        return Waiter(self._idle, self._clock)


class Waiter:
    """Lets one kind of work wait until no call is being answered."""

    def __init__(self, idle: asyncio.Event, clock: Callable[[], float]) -> None:
        self._idle, self._clock, self._due = idle, clock, float("-inf")

    async def wait(self) -> None:
        """Wait until all calls are answered, `LONGEST_S` at most and a fifth of the time at most."""
        began = self._clock()
        if self._idle.is_set() or began < self._due:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                await self._idle.wait()
        ended = self._clock()
        self._due = ended + SHARE * (ended - began)
