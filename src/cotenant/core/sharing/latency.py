# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The smallest compute share at which a server holds its latency objective, searched while it serves.

Latencies come as counts of requests in buckets. After each window of time the share is judged: it grows if the
objective was missed twice in a row, and shrinks by one step after a while of latencies well below the objective, but
not to a share at which the objective was missed lately.
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
HOLDS_TO_SHRINK = 5
COMFORTABLE = 0.8
"""the share shrinks only if the latency is at most this part of the objective"""
REMEMBERED = 900
"""windows without a miss, half an hour or more, after which a share that did not hold is tried again: each try costs
some windows in which the objective is missed"""


class Objective(NamedTuple):
    """That percentage of the requests is answered within that time."""

    percentile: int
    """50 to 99"""
    seconds: Seconds


def bound_of(bucket: int) -> Seconds:
    """The longest latency in a bucket."""
    return Seconds(FIRST_BOUND_S * 2.0 ** (bucket / BOUNDS_PER_DOUBLING))


def latency_of(counts: Mapping[int, int], percentile: int) -> Seconds | None:
    """The bound below which that percentage of the requests was answered, at most 9 % too large; None: no requests."""
    rank = math.ceil(sum(counts.values()) * percentile / 100)
    below = 0
    for bucket in sorted(counts):
        below += counts[bucket]
        if below >= rank:
            return bound_of(bucket) if rank else None
    return None


@dataclass(frozen=True, slots=True)
class Search:
    """What was seen of one server."""

    missed: int = 0
    """windows in a row in which the objective was missed"""
    held: int = 0
    """windows in a row since the last miss or the last change of the share"""
    too_small: MilliGpu = MilliGpu(0)
    """the largest share at which the objective was missed lately"""
    since: int = 0
    """windows without a miss since then"""

    def at_new_share(self) -> "Search":
        """The same after the share was changed: what was seen at the old one says nothing about the new one."""
        return replace(self, missed=0, held=0)


def judge(search: Search, share: MilliGpu, latency: Seconds, objective: Seconds) -> tuple[Search, MilliGpu]:
    """Takes in a window of requests at a share; returns the share to have from now on."""
    if latency > objective:
        missed = search.missed + 1
        too_small = max(search.too_small, share) if missed >= MISSES_TO_GROW else search.too_small
        after = Search(missed, 0, MilliGpu(too_small), 0)
        return after, _larger(share, latency / objective) if missed >= MISSES_TO_GROW else share
    since = search.since + 1
    too_small = MilliGpu(0) if since > REMEMBERED else search.too_small
    after = Search(0, search.held + 1, too_small, since)
    smaller = MilliGpu(share - STEP)
    if after.held >= HOLDS_TO_SHRINK and latency <= COMFORTABLE * objective and smaller > max(0, too_small):
        return after, smaller
    return after, share


def _larger(share: MilliGpu, excess: float) -> MilliGpu:
    """By as much as the latency is too long, at least one step, at most to twice the share, in whole steps."""
    wanted = STEP * math.ceil(share * min(2.0, excess) / STEP)
    return MilliGpu(min(WHOLE_GPU, max(share + STEP, wanted)))
