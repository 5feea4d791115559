# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A turn on the engines of simulated devices: one step at a time, first come first served, as on real GPUs.

The connection is the lock: it ends with the process, however that dies. Where no answer comes, the step runs anyway.
A job on several devices takes its turn on all of them, always in the same order, so that no two wait for each other.
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
    """The engines of a job's devices as one process sees them; its threads take turns, too."""

    __slots__ = ("_devices", "_held", "_owner", "_patience", "_turn")

    def __init__(self, paths: str, patience: float = PATIENCE) -> None:
        """A line for each device."""
        self._patience = patience
        self._devices = [_Device(path, patience) for path in paths.split("\n")]
        self._held: list[_Device] = []
        self._turn = threading.Lock()
        self._owner: int | None = None

    def acquire(self) -> bool:
        """Wait for a turn; False where the step is to run without one (it is inside another, or nobody answers)."""
        me = threading.get_ident()
        if self._owner == me or not self._turn.acquire(timeout=self._patience):
            return False
        try:
            for device in self._devices:
                if device.ask():
                    self._held.append(device)
        except BaseException:  # an interrupt
            self.release()
            raise
        if not self._held:
            self._turn.release()
            return False
        self._owner = me
        return True

    def release(self) -> None:
        """Let the next one in."""
        for device in self._held:
            device.give_back()
        self._held.clear()
        self._owner = None
        self._turn.release()

    def close(self) -> None:
        for device in self._devices:
            device.close()


class _Device:
    """The engine of one device."""

    __slots__ = ("_link", "_patience", "_stuck")

    def __init__(self, path: str, patience: float) -> None:
        self._patience = patience
        self._stuck = False
        self._link = Link(path)

    def ask(self) -> bool:
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

    def give_back(self) -> None:
        if not self._link.send(RELEASE) and self._link.is_open:
            self._link.drop()

    def close(self) -> None:
        self._link.close()
