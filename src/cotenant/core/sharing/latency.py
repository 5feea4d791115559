# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The smallest compute share at which a server holds its latency objective, searched while it serves.

Latencies come as counts of requests in buckets. A window of requests is judged when there are enough of them to tell
whether the percentile of the objective was missed: the slowest of a few requests say nothing. The share grows if the
objective was missed twice in a row, and shrinks by one step after some windows with latencies well below the objective,
but not to a share at which the objective was missed lately.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cotenant.core.units import WHOLE_GPU, MilliGpu, Seconds

BUCKETS = 256
FIRST_BOUND_S, BOUNDS_PER_DOUBLING = 1e-4, 8
"""bucket b holds latencies of at most FIRST_BOUND_S * 2 ** (b / BOUNDS_PER_DOUBLING), and more than bucket b - 1"""
LEAST_SHARE = MilliGpu(100)
"""the share with which a server begins that requested none, and what is left to neighbours that claim none"""
STEP = MilliGpu(50)
MISSES_TO_GROW = 2
"""windows in a row"""
HOLDS_TO_SHRINK = 3
"""windows in a row"""
COMFORTABLE = 0.8
"""the share shrinks only if the latency is at most this part of the objective"""
REMEMBERED_S = Seconds(1800.0)
"""after which a share that did not hold is tried again: each try costs some windows in which the objective is missed"""
SLOW_ALLOWED = 10
"""a window is complete when so many of its requests may be slower than the objective"""
LEAST_REQUESTS = 20
"""of a window that is judged before it is complete"""
CERTAIN, LIKELY = 4.0, 1.0
"""standard deviations by which there are more slow requests than allowed in a window that is missed before it is
complete, and in a complete one"""


class Objective(NamedTuple):
    """That percentage of the requests is answered within that time."""

    percentile: int
    """50 to 99"""
    seconds: Seconds


def bound_of(bucket: int) -> Seconds:
    """The longest latency in a bucket."""
    return Seconds(FIRST_BOUND_S * 2.0 ** (bucket / BOUNDS_PER_DOUBLING))


def bucket_of(seconds: Seconds) -> int:
    """The bucket that holds a latency."""
    if seconds <= FIRST_BOUND_S:
        return 0
    return min(BUCKETS - 1, math.ceil(BOUNDS_PER_DOUBLING * math.log2(seconds / FIRST_BOUND_S) - 1e-9))


def latency_of(counts: Mapping[int, int], objective: Objective) -> Seconds | None:
    """The time within which the percentage of the objective was answered, at most 9 % too large; None: no requests.

    What is in the bucket of the objective holds it: where in the bucket it was is not known.
    """
    rank = math.ceil(sum(counts.values()) * objective.percentile / 100)
    below = 0
    for bucket in sorted(counts):
        below += counts[bucket]
        if rank and below >= rank:
            bound, is_of_objective = bound_of(bucket), bucket == bucket_of(objective.seconds)
            return min(bound, objective.seconds) if is_of_objective else bound
    return None


def complete_window(percentile: int) -> int:
    """How many requests tell whether the objective is held."""
    return math.ceil(SLOW_ALLOWED * 100 / (100 - percentile))


def is_missed(counts: Mapping[int, int], objective: Objective) -> bool | None:
    """Whether the requests of a window miss the objective; None: they are too few to tell."""
    requests, limit = sum(counts.values()), bucket_of(objective.seconds)
    slow = sum(count for bucket, count in counts.items() if bucket > limit)
    part = 1 - objective.percentile / 100
    allowed, deviation = requests * part, math.sqrt(requests * part * (1 - part))
    if requests >= complete_window(objective.percentile):
        return slow > allowed + LIKELY * deviation
    return True if requests >= LEAST_REQUESTS and slow > allowed + CERTAIN * deviation + 1 else None


@dataclass(frozen=True, slots=True)
class Search:
    """What was seen of one server."""

    missed: int = 0
    """windows in a row in which the objective was missed"""
    comfortable: int = 0
    """windows in a row with latencies well below the objective since the last change of the share"""
    too_small: MilliGpu = MilliGpu(0)
    """the largest share at which the objective was missed lately"""
    since: Seconds = Seconds(0.0)
    """when it was missed there last"""

    def at_new_share(self) -> "Search":
        """The same after the share was changed: what was seen at the old one says nothing about the new one."""
        return replace(self, missed=0, comfortable=0)


class Window(NamedTuple):
    """Requests that were judged."""

    latency: Seconds
    missed: bool
    end: Seconds
    """on a clock that only goes forward"""


def judge(search: Search, share: MilliGpu, window: Window, objective: Seconds) -> tuple[Search, MilliGpu]:
    """Takes in a window of requests at a share; returns the share to have from now on."""
    too_small, since = search.too_small, search.since
    if window.end - since > REMEMBERED_S:
        too_small = MilliGpu(0)
    if window.missed:
        missed = search.missed + 1
        if missed < MISSES_TO_GROW:
            return Search(missed, 0, too_small, since), share
        if share >= too_small:
            too_small, since = share, window.end
        return Search(missed, 0, too_small, since), _larger(share, window.latency / objective)
    comfortable = search.comfortable + 1 if window.latency <= COMFORTABLE * objective else 0
    after, smaller = Search(0, comfortable, too_small, since), MilliGpu(share - STEP)
    if comfortable >= HOLDS_TO_SHRINK and smaller > too_small:
        return after, smaller
    return after, share


def _larger(share: MilliGpu, excess: float) -> MilliGpu:
    """By as much as the latency is too long, at least one step, at most to twice the share, in whole steps."""
    wanted = STEP * math.ceil(share * min(2.0, excess) / STEP)
    return MilliGpu(min(WHOLE_GPU, max(share + STEP, wanted)))
