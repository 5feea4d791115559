# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compute shares of a simulated GPU without control groups."""

import signal

from cotenant.local.processes import Tree, signal_job

SLOT_S = 0.1  # length of a slot of the stop-and-continue share


class Share:
    """A compute share by SIGSTOP and SIGCONT: in each slot the tree runs until it has used its part of the CPU time.

    CPU time is counted rather than elapsed time, so a neighbour on the same core may delay a job but cannot use up its
    share, and a job that mostly waits is never stopped. An excess in one slot is subtracted from the next.
    """

    def __init__(self, percent: int, cores: int, now: float) -> None:
        self._quota = percent / 100 * cores * SLOT_S
        self._cores = cores
        self._left = self._quota
        self._slot_ends = now + SLOT_S
        self._used: dict[int, float] = {}
        self.stopped = False
        self.due = now

    def step(self, tree: Tree, leader: int, now: float) -> None:
        """Stops or continues the job, and sets the time of the next call."""
        self._left -= tree.cpu_s(self._used)
        if now >= self._slot_ends:
            self._left = min(max(self._left, -2 * self._quota), 0.0) + self._quota
            self._slot_ends = max(self._slot_ends + SLOT_S, now + SLOT_S / 2)
        stop = self._left <= 0
        if stop != self.stopped:
            self.stopped = stop
            signal_job(tree, leader, signal.SIGSTOP if stop else signal.SIGCONT, SLOT_S / 10)
        self.due = self._slot_ends if stop else min(self._slot_ends, now + max(self._left / self._cores, 0.003))
