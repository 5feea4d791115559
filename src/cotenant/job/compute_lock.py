# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The compute lock of simulated GPUs: one step at a time in order of arrival, as kernels run on a real GPU.

The connection is the lock, so it is released when the process dies. If the server does not answer, the step runs
without the lock. A job on several GPUs locks all of them in the same order as every other job, so none can deadlock.
"""

from __future__ import annotations

import threading
import time

from cotenant.job.link import Link

PATIENCE = 30.0
"""seconds to wait for the lock; the server takes it from a slow holder long before, so after them it is stuck"""
LITTLE_PATIENCE = 3.0
"""seconds to wait after the server was stuck"""

ACQUIRE, GRANTED, RELEASE = b"a", b"g", b"r"


class ComputeLock:
    """The locks of all GPUs of a job, for one process; its threads exclude each other, too."""

    __slots__ = ("_gpus", "_held", "_owner", "_patience", "_threads")

    def __init__(self, paths: str, patience: float = PATIENCE) -> None:
        """`paths` has one line for each GPU: the path of its socket."""
        self._patience = patience
        self._gpus = [_GpuLock(path, patience) for path in paths.split("\n")]
        self._held: list[_GpuLock] = []
        self._threads = threading.Lock()
        self._owner: int | None = None

    def acquire(self) -> bool:
        """Waits for the lock; False if the step must run without it: it is nested in another, or no server answers."""
        me = threading.get_ident()
        if self._owner == me or not self._threads.acquire(timeout=self._patience):
            return False
        try:
            for gpu in self._gpus:
                if gpu.acquire():
                    self._held.append(gpu)
        except BaseException:  # an interrupt
            self.release()
            raise
        if not self._held:
            self._threads.release()
            return False
        self._owner = me
        return True

    def release(self) -> None:
        """Releases the lock."""
        for gpu in self._held:
            gpu.release()
        self._held.clear()
        self._owner = None
        self._threads.release()

    def close(self) -> None:
        for gpu in self._gpus:
            gpu.close()


class _GpuLock:
    """The lock of one GPU."""

    __slots__ = ("_link", "_patience", "_stuck")

    def __init__(self, path: str, patience: float) -> None:
        self._patience = patience
        self._stuck = False
        self._link = Link(path)

    def acquire(self) -> bool:
        link = self._link
        link.open()
        if not link.is_open:
            return False
        try:
            granted = link.send(ACQUIRE) and self._is_granted()
        except BaseException:  # an interrupt; a pending request would block the other jobs
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
        if not self._link.send(RELEASE) and self._link.is_open:
            self._link.drop()

    def close(self) -> None:
        self._link.close()
