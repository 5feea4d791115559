# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Paired comparisons: the difference of two policies on each seed, which both of them ran with the same jobs.

What makes one seed harder than another is the same for both policies and drops out of the difference, so its interval
is narrower than those of the two means.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.sim.report.stats import Estimate, estimate
from cotenant.sim.results import RunResult


@dataclass(frozen=True, slots=True)
class Difference:
    """A policy minus the baseline, over the seeds that both ran."""

    policy: str
    seeds: int
    value: Estimate

    @property
    def parts(self) -> bool:
        """Whether the interval excludes 0. One seed has no interval, and seeds that made no difference have none
        that means anything."""
        return bool(self.value.half) and abs(self.value.mean) > (self.value.half or 0.0)


def value_of(run: RunResult, key: str) -> float | None:
    """A metric of a run; None if it has none."""
    if key == "unallocated_at_100":
        allocated = run.summary.get("allocated_at_100")
        return None if allocated is None else 100.0 - allocated
    return run.summary.get(key)


def difference(policy: Sequence[RunResult], baseline: Sequence[RunResult], key: str) -> Difference | None:
    """The paired difference in one metric; None if no seed has it in both."""
    before = {run.seed: value for run in baseline if (value := value_of(run, key)) is not None}
    both = [
        value - before[run.seed] for run in policy if run.seed in before and (value := value_of(run, key)) is not None
    ]
    found = estimate(both)
    return None if found is None else Difference(policy[0].policy, len(both), found)


def parts_from_all(winner: Sequence[RunResult], others: Sequence[Sequence[RunResult]], key: str) -> bool:
    """Whether a policy differs from each of the others by more than chance explains."""
    found = [difference(other, winner, key) for other in others]
    return all(one is not None and one.parts for one in found)
