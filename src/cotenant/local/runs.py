# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The runs that were started and have not been seen to end: each is begun, watched, and reported once.

Nothing here gives up on an accepted job: a start that a full disk prevents is tried again, an end that cannot be
written down is reported again.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.local import attempts
from cotenant.local.events import complain

LOOK_AGAIN_S = 1.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""between two tries to start a run"""

Seen = Callable[[str, int, attempts.Status], None]
"""job, attempt, and where it stands now"""


class Runs:
    """Called from one event loop. `seen` hears that a run is there, and later that it has ended."""

    def __init__(self, folder: Path, seen: Seen) -> None:
        self.supervisors: dict[str, int] = {}
        """process id of each job's supervisor"""
        self.delayed: dict[str, str] = {}
        """why a job could not be started yet"""
        self._folder, self._seen = folder, seen
        self._starters = ThreadPoolExecutor(2, "start")

    def of_job(self, job: str) -> Path:
        """Where all runs of a job are."""
        return self._folder / job

    def folder(self, job: str, attempt: int) -> Path:
        return self._folder / job / str(max(1, attempt))

    def begin(self, job: str, attempt: int, start: Callable[[], None], pause_s: float = SHORTEST_PAUSE_S) -> None:
        """Calls `start` in a thread, since starting a process takes a while, and again until it works."""
        loop = asyncio.get_running_loop()

        def begun(done: asyncio.Future[None]) -> None:
            problem = None if done.cancelled() else done.exception()
            if problem is None:
                self.delayed.pop(job, None)
                self.look(job, attempt)
                return
            self.delayed[job] = f"cannot be started yet, trying again: {problem}"
            complain(f"{job} cannot be started yet: {problem}")
            loop.call_later(pause_s, self.begin, job, attempt, start, min(2 * pause_s, LONGEST_PAUSE_S))

        asyncio.ensure_future(loop.run_in_executor(self._starters, start)).add_done_callback(begun)

    def look(self, job: str, attempt: int) -> None:
        """Takes note of where a run stands: watches it, reports its end, or looks again later if it cannot tell."""
        loop = asyncio.get_running_loop()
        status = attempts.status(self.folder(job, attempt))
        unclear = status.state == "new" or (status.state == "running" and status.pidfd is None)
        try:
            if not unclear:
                self._seen(job, attempt, status)
        except CotenantError as error:
            complain(f"{job}: {error}")
            unclear = status.state != "running"
        if status.pidfd is not None and status.pid is not None:
            self.supervisors[job] = status.pid
            self._watch(job, attempt, status.pidfd)
        elif unclear:
            loop.call_later(LOOK_AGAIN_S, self.look, job, attempt)
        else:
            self.supervisors.pop(job, None)

    def _watch(self, job: str, attempt: int, pidfd: int) -> None:
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self.look(job, attempt)

        loop.add_reader(pidfd, gone)

    def close(self) -> None:
        """Starts no more."""
        self._starters.shutdown(wait=False, cancel_futures=True)
