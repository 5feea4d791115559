# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The runs that were started and are not known to have ended: each is started, watched, and its end is reported once.

No accepted job is given up: a start that fails, as on a full disk, is retried, and an end that a listener could not
record is reported again.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.local import attempts
from cotenant.local.events import log_error
from cotenant.signals import Signal

LOOK_AGAIN_S = 1.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""between two attempts to start a run"""


class Runs:
    """Called from one event loop."""

    def __init__(self, folder: Path) -> None:
        self.supervisors: dict[str, int] = {}
        """the process ID of each job's supervisor"""
        self.delayed: dict[str, str] = {}
        """why the start of a job failed so far"""
        self.changed: Signal[[str, int, attempts.Status]] = Signal()
        """sent with job, attempt and status: when a run is found to run, and when it has ended and no process of it is
        left"""
        self._folder = folder
        self._starters, self._killers = ThreadPoolExecutor(2, "start"), ThreadPoolExecutor(2, "kill")

    def of_job(self, job: str) -> Path:
        """The folder that holds the folders of all runs of a job."""
        return self._folder / job

    def folder(self, job: str, attempt: int) -> Path:
        return self._folder / job / str(max(1, attempt))

    def begin(self, job: str, attempt: int, start: Callable[[], None], pause_s: float = SHORTEST_PAUSE_S) -> None:
        """Calls `start` in a thread, because starting a process takes some time, and again until it succeeds."""
        loop = asyncio.get_running_loop()

        def begun(done: asyncio.Future[None]) -> None:
            problem = None if done.cancelled() else done.exception()
            if problem is None:
                self.delayed.pop(job, None)
                self.look(job, attempt)
                return
            self.delayed[job] = f"cannot be started yet, trying again: {problem}"
            log_error(f"{job} cannot be started yet: {problem}")
            loop.call_later(pause_s, self.begin, job, attempt, start, min(2 * pause_s, LONGEST_PAUSE_S))

        asyncio.ensure_future(loop.run_in_executor(self._starters, start)).add_done_callback(begun)

    def look(self, job: str, attempt: int) -> None:
        """Reads the status of a run: watches it if it runs, reports it if it ended, else looks again later."""
        loop = asyncio.get_running_loop()
        try:
            status = attempts.status(self.folder(job, attempt))
        except OSError as error:  # for example no file descriptor is free now; the run must not be forgotten
            log_error(f"{job} cannot be watched now, trying again: {error.strerror}")
            loop.call_later(LOOK_AGAIN_S, self.look, job, attempt)
            return
        if status.state == "lost":
            self._kill_rest(job, attempt, status)
        else:
            self._report(job, attempt, status)

    def _kill_rest(self, job: str, attempt: int, status: attempts.Status) -> None:
        """Kills what is left of a run whose supervisor was killed, and then reports its end. It happens in a thread,
        because processes may take seconds to die, and a container runtime may hang."""

        def killed(done: asyncio.Future[int]) -> None:
            if done.cancelled():  # the daemon ends before the kill began: the next daemon finds the run, and kills it
                return
            if (problem := done.exception()) is not None:
                log_error(f"{job} may have left processes behind: {problem}")
            self._report(job, attempt, status)

        loop = asyncio.get_running_loop()
        rest = loop.run_in_executor(self._killers, attempts.kill_leftovers, self.folder(job, attempt))
        rest.add_done_callback(killed)

    def _report(self, job: str, attempt: int, status: attempts.Status) -> None:
        """Tells the listeners, and watches a run that runs."""
        loop = asyncio.get_running_loop()
        # "new": the supervisor has not written its intent yet. "running" without a handle: it cannot be watched.
        unclear = status.state == "new" or (status.state == "running" and status.pidfd is None)
        try:
            if not unclear:
                self.changed.send(job, attempt, status)
        except (CotenantError, OSError) as error:
            # An end that could not be stored must be reported again; a running run is reported again when it ends.
            log_error(f"{job}: {error}")
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

    async def continue_stopped(self) -> None:
        """Continues supervisors that their jobs stopped: a stopped one enforces no limit and obeys no cancellation."""
        while True:
            for job, pid in list(self.supervisors.items()):
                if attempts.continue_supervisor(pid):
                    log_error(f"{job} stopped its supervisor, which was continued")
            await asyncio.sleep(LOOK_AGAIN_S)

    def close(self) -> None:
        """Starts no further run."""
        for threads in (self._starters, self._killers):
            threads.shutdown(wait=False, cancel_futures=True)
