# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sums of what tenants reported of their steps, for counters that must never decrease while a tenant runs."""

from collections.abc import Collection
from typing import NamedTuple

from cotenant.node.agent import JobEvent, Reported


class StepTotal(NamedTuple):
    """All steps of one tenant since it was first seen."""

    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0


NO_STEPS = StepTotal()


class StepTotals:
    """The sums of all tenants of a node."""

    def __init__(self) -> None:
        self._totals: dict[str, StepTotal] = {}

    def handle(self, event: JobEvent) -> None:
        """A message of a tenant."""
        if isinstance(event, Reported):
            before, steps = self.of(event.job), event.steps
            self._totals[event.job] = StepTotal(
                before.steps + steps.n, before.samples + steps.samples, before.busy_s + steps.busy_s
            )

    def of(self, job: str) -> StepTotal:
        return self._totals.get(job, NO_STEPS)

    def retain(self, jobs: Collection[str]) -> None:
        """Forgets all other tenants."""
        self._totals = {job: total for job, total in self._totals.items() if job in jobs}

    def remove(self, job: str) -> None:
        self._totals.pop(job, None)
