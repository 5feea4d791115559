# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a job did since its last report."""

from __future__ import annotations

from cotenant.job import messages


class Tally:
    """Counts steps, samples and seconds. The caller holds a lock."""

    __slots__ = ("busy", "excluded_s", "largest", "latencies", "samples", "since", "steps")

    since: float | None
    """when the report begins; None: with the next step"""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, now: float | None) -> None:
        """Starts a new report."""
        self.since = now
        self.steps = self.samples = self.largest = 0
        self.busy = self.excluded_s = 0.0
        self.latencies: dict[int, int] = {}

    def add(self, steps: int, samples: int, busy: float, now: float) -> None:
        """Counts steps that ended now and took `busy` seconds together."""
        if self.since is None:
            self.since = now - busy
        self.steps += steps
        self.samples += samples
        self.busy += busy
        self.largest = max(self.largest, samples // steps)

    def add_latency(self, latency: float, requests: int) -> None:
        """Counts requests of a server."""
        bucket = messages.bucket_of(latency)
        self.latencies[bucket] = self.latencies.get(bucket, 0) + requests

    def exclude(self, began: float, now: float) -> None:
        """Leaves out a period that was no training."""
        if self.since is not None:
            self.excluded_s += now - max(began, self.since)

    def message(self, now: float, batch: int | None, noise: tuple[float, float] | None) -> bytes:
        """The report; without a batch size it has the largest number of samples of a step."""
        began = now if self.since is None else self.since
        return messages.steps(
            n=self.steps,
            samples=self.samples,
            busy_s=self.busy,
            wall_s=max(now - began - self.excluded_s, self.busy),
            batch=batch or max(1, self.largest),
            noise=noise,
            latencies=self.latencies,
        )
