# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Latency objectives as demands: the more compute a job is given, the more its neighbours may slow it down.

A server that answers in 20 ms alone and promises 50 ms needs a smaller share on an idle GPU than beside others. Each
share that can hold the objective becomes a demand with the speed that must be left to it; the smallest that fits is
taken.
"""

import math
from dataclasses import replace

from cotenant.core.model import Demand
from cotenant.core.units import WHOLE_GPU, MilliGpu, Percent, Seconds

SHARES = tuple(MilliGpu(share) for share in range(100, WHOLE_GPU + 1, 100))
"""the shares of compute that are tried, smallest first"""


def latency_at(share: MilliGpu, alone: Seconds, utilisation: float) -> Seconds:
    """Latency of a request on an otherwise idle GPU, limited to a share of its compute.

    A job that keeps a GPU busy for part of the time is slowed only if its share is below that part.
    """
    return Seconds(alone * max(1.0, utilisation * WHOLE_GPU / share))


def demands_for(demand: Demand, objective: Seconds, alone: Seconds, utilisation: float = 1.0) -> tuple[Demand, ...]:
    """The demand with each share of compute that can hold the objective, smallest first; empty if none can."""
    found = []
    for share in SHARES:
        latency = latency_at(share, alone, utilisation)
        if share >= demand.compute and latency <= objective:
            least = Percent(math.ceil(100 * latency / objective))
            found.append(replace(demand, compute=share, least_speed=least))
    return tuple(found)
