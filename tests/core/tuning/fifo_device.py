# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A device as an equation: a step holds its engine, input waits happen outside, and who asks first is served first."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Work:
    """What a step of one job takes, in seconds."""

    fixed: float
    """on the engine, whatever the batch size"""
    per_sample: float
    """on the engine"""
    wait: float = 0.0
    """for input, per sample, off the engine"""


def fifo_speeds(works: Sequence[Work], sizes: Sequence[int], seconds: float = 2.0) -> list[float]:
    """Samples per second of each job when all run together."""
    # Long steps are rare; run until everybody has made a good number of them.
    longest = max(w.fixed + (w.per_sample + w.wait) * size for w, size in zip(works, sizes, strict=True))
    end = max(seconds, 40 * longest * len(works))
    asks = [(works[i].wait * sizes[i], i) for i in range(len(works))]
    heapq.heapify(asks)
    free = 0.0
    done = [0] * len(works)
    while asks[0][0] < end:
        asked, i = heapq.heappop(asks)
        free = max(free, asked) + works[i].fixed + works[i].per_sample * sizes[i]
        done[i] += 1
        heapq.heappush(asks, (free + works[i].wait * sizes[i], i))
    return [count * size / end for count, size in zip(done, sizes, strict=True)]


def random_work(chance: np.random.Generator, default: int) -> Work:
    """A step of the default batch takes about 5 to 50 ms on the engine; input takes none of the time, or most of it."""
    step = 0.005 * 10 ** chance.uniform(0, 1)
    fixed = chance.uniform(0.05, 0.8)
    share_of_input = chance.uniform(0, 0.8)
    per_sample = step * (1 - fixed) / default
    return Work(step * fixed, per_sample, step * share_of_input / (1 - share_of_input) / default)
