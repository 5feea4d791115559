# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A turn on the engine of a simulated device: one step at a time, first come first served, as on a real GPU.

The connection is the lock: it ends with the process, however that dies. Where no answer comes, the step runs anyway.
"""

from __future__ import annotations

import threading
import time

from cotenant.job.link import Link

PATIENCE = 30.0
"""seconds to wait for a turn; the server hands the engine on long before, so a longer wait means that it is stuck"""
LITTLE_PATIENCE = 3.0
"""seconds, after it was stuck"""

ACQUIRE, GRANTED, RELEASE = b"a", b"g", b"r"


class Engine:
    """The engine as one process sees it; its threads take turns, too."""

    __slots__ = ("_link", "_owner", "_patience", "_stuck", "_turn")

    def __init__(self, path: str, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._stuck = False
        self._link = Link(path)
        self._turn = threading.Lock()
        self._owner: int | None = None

    def acquire(self) -> bool:
        """Wait for a turn; False where the step is to run without one (it is inside another, or nobody answers)."""
        me = threading.get_ident()
        if self._owner == me or not self._turn.acquire(timeout=self._patience):
            return False
        granted = False
        try:
            granted = self._ask()
        finally:
            if granted:
                self._owner = me
            else:
                self._turn.release()
        return granted

    def _ask(self) -> bool:
        link = self._link
        link.open()
        if not link.is_open:
            return False
        try:
            granted = link.send(ACQUIRE) and self._is_granted()
        except BaseException:  # an interrupt; a request left behind would hold up the others
            link.close()
            raise
        self._stuck = not granted and link.is_open
        if self._stuck:
            link.drop(stuck=True)
        return granted

    def _is_granted(self) -> bool:
        link = self._link
        deadline = time.monotonic() + (min(LITTLE_PATIENCE, self._patience) if self._stuck else self._patience)
        while link.is_open and (left := deadline - time.monotonic()) > 0:
            link.wait(left)
            if (answer := link.receive()) is not None:
                return answer == GRANTED
        return False

    def release(self) -> None:
        """Let the next one in."""
        if not self._link.send(RELEASE) and self._link.is_open:
            self._link.drop()
        self._owner = None
        self._turn.release()

    def close(self) -> None:
        self._link.close()
