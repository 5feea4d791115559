# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that were stopped because others needed the memory within their requests: each time again, they wait longer.

Such a job is queued again at once the first time. If it is stopped again, it would soon use more than its request once
more, so it stays out of the queue for a while, which doubles each time. A daemon that is started anew forgets that.
"""

from cotenant.wire.text import counted

FIRST_S, LONGEST_S = 5.0, 300.0
"""out of the queue after the second time, and at most"""


class Backoff:
    """How often each job was stopped, and the jobs that wait outside the queue."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._leaving: set[str] = set()
        self.waiting: dict[str, str] = {}
        """by job, why it is not in the queue"""

    def stopped(self, job: str) -> None:
        """The job was asked to leave its GPU."""
        if job not in self._leaving:
            self._leaving.add(job)
            self._times[job] = self._times.get(job, 0) + 1

    def begin(self, job: str) -> float:
        """Seconds for which a job that has left stays out of the queue; 0: it can be queued at once."""
        times = self._times.get(job, 0)
        if job not in self._leaving or times < 2:
            self._leaving.discard(job)
            return 0.0
        self._leaving.discard(job)
        pause = min(LONGEST_S, FIRST_S * float(1 << min(times - 2, 16)))
        self.waiting[job] = (
            f"waits {pause:g} s: it was stopped {counted(times, 'time')} because others needed memory within their"
            " requests; a larger request prevents that"
        )
        return pause

    def end(self, job: str) -> bool:
        """Whether the job was waiting outside the queue, which it no longer is."""
        return self.waiting.pop(job, None) is not None

    def forget(self, job: str) -> None:
        """The job has ended."""
        self._times.pop(job, None)
        self._leaving.discard(job)
        self.waiting.pop(job, None)
