# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how long pods wait if the leading scheduler of a real cluster is lost, in each of six ways.

The baseline is the time until the stock kube-scheduler of the other pod holds the lease. Nothing of ours takes part in
that, so the rest is the cost of our takeover: writes of the previous leader may be in flight for 3 s.
"""

import statistics
from collections.abc import Iterator
from random import Random

from bench.clusters import engine_in_cluster
from bench.harness import Figure, at_most, benchmark
from cotenant.kube.scheduler.leadership import FRESH_S, WRITE_S
from cotenant.kube.settings import JITTER, KubeSettings
from tests.cluster.test_failover import SEED, Wait, blows, scale, survive

TIMES = 2
"""of each kind of strike"""
SLACK_S = 1.5
"""for reading the lease, listing the pods and placing one"""


@benchmark("failover")
def failover() -> Iterator[Figure]:
    """Measures the seconds from a strike until the next pod has a node."""
    random = Random(SEED)
    waits: dict[str, list[Wait]] = {}
    with engine_in_cluster() as engine:
        scale(engine, 2)
        for blow in blows(random, TIMES):
            waits.setdefault(blow, []).append(survive(engine, blow, random))
    lease = KubeSettings().lease  # read after its retry period and up to JITTER more of them
    most = lease.duration_s + 2 * (1 + JITTER) * lease.retry_s + FRESH_S + WRITE_S + SLACK_S
    everything = [one for some in waits.values() for one in some]
    placed, taken = [one.placed for one in everything], [one.taken for one in everything if one.taken is not None]
    yield at_most("worst wait of a pod", max(placed), "s", limit=most, baseline=f"lease taken {max(taken):.1f}")
    median = statistics.median
    yield Figure(name="median", figure=median(placed), unit="s", baseline=f"lease taken {median(taken):.1f}")
    for blow, some in sorted(waits.items()):
        note = ", ".join(f"{one.placed:.1f}" for one in some)
        yield Figure(name=blow, figure=median(one.placed for one in some), unit="s", note=note)
