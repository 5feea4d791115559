# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how fair the queue order `fair` is over time, and what it costs in completion times."""

import os
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_least, at_most, benchmark
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.placement.deciding import Decision
from cotenant.core.queueing.fair import Account
from cotenant.core.units import MiB, Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.experiment import Plan, run_one
from cotenant.sim.timed import TimedRun, Timing

DAY, HOUR = 86_400.0, 3600.0
GPUS = 8
HEAVY, LIGHT, LATE = ("heavy",), ("light",), ("late",)
Load = tuple[float, float, float]
"""from when to when an account submits jobs of one hour, and how many in an hour"""


@benchmark("fair")
def fair() -> Iterator[Figure]:
    """Measures GPU time of users with unequal demand and of one who returns, and mean JCT beside other orders."""
    loads: dict[Account, Load] = {HEAVY: (0.0, DAY, 40.0), LIGHT: (0.0, DAY, 5.0)}
    gaps = {}
    for order in ("fair", "fifo"):
        parts = served(loads, 0.0, DAY, order)
        gaps[order] = 200 * abs(parts[HEAVY] - parts[LIGHT]) / sum(parts.values())
    yield at_most(
        "difference of GPU time in a day, equal weights",
        gaps["fair"],
        "%",
        limit=3,
        baseline=f"fifo {gaps['fifo']:.0f}",
        note="8 GPUs; one user wants 5 times as many, the other 5 of them; of the mean of both",
    )
    week = 7 * DAY
    returning: dict[Account, Load] = {HEAVY: (0.0, week + DAY, 16.0), LATE: (week, week + DAY, 16.0)}
    parts = served(returning, week + 2 * HOUR, week + DAY, "fair")
    note = "both want all GPUs; the part of all GPU time on the first day"
    yield at_least("who returns after a week", 100 * parts[LATE], "%", limit=50, note=note)
    yield at_least("the user who was there", 100 * parts[HEAVY], "%", limit=20, note=note)
    yield from _philly()


def served(loads: dict[Account, Load], since: float, until: float, order: str) -> dict[Account, float]:
    """The part of all GPU time between two times that each account gets."""
    seconds = dict.fromkeys(loads, 0.0)

    def watch(job: Job, _cluster: object, _policy: object, decision: Decision | None) -> None:
        if decision is not None:
            seconds[job.account] += max(0.0, min(until, run.now + HOUR) - max(since, run.now))

    machine = Machine(name="a", gpus=tuple(Gpu(uuid=str(i), memory=MiB(16_000)) for i in range(GPUS)))
    timing = Timing(queue=order, fragmentation=False, heat=False)
    run = TimedRun([machine], "binpack", {}, 1, timing, (watch,))
    run.run(_arrivals(loads), until=until)
    return {account: part / (GPUS * (until - since)) for account, part in seconds.items()}


def _arrivals(loads: dict[Account, Load]) -> Iterator[Arrival]:
    found = [
        (begin + i * HOUR / per_hour, account, i)
        for account, (begin, end, per_hour) in loads.items()
        for i in range(int((end - begin) / HOUR * per_hour))
    ]
    for at, account, i in sorted(found):
        job = Job(id=f"{account[-1]}-{i:06d}", demand=Demand(), submitted=Seconds(at), account=account)
        yield Arrival(job, Seconds(HOUR))


def _philly() -> Iterator[Figure]:
    data = os.environ.get("COTENANT_DATA")
    if not data:
        return
    means = {}
    for order in ("fair", "aged", "srpt"):
        plan = Plan(
            trace="philly",
            mode="timed",
            nodes="64x8",
            policies=("binpack",),
            seeds=(42,),
            limit=8000,
            estimates="noisy:0.5",
            timing=Timing(queue=order, fragmentation=False, heat=False),
            data=Path(data),
        )
        means[order] = run_one(plan, "binpack", 42).result.summary["mean_jct"] / HOUR
    for other in ("aged", "srpt"):
        yield Figure(
            name=f"mean JCT on Philly, fair / {other}",
            figure=means["fair"] / means[other],
            unit="times",
            baseline=f"{other} {means[other]:.2f} h",
            note="first 8,000 jobs on 64 x 8 GPUs, accounts are virtual clusters",
        )
