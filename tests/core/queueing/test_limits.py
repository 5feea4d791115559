# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job whose account has reached a limit waits, with the numbers, and others pass it."""

from dataclasses import replace

import pytest

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.queue import Queue
from cotenant.core.queueing.backfill import Ends
from cotenant.core.queueing.fair import Account
from cotenant.core.queueing.limits import (
    NO_LIMITS,
    Amounts,
    LimitCheck,
    Limits,
    kinds_of_gpus,
    least_amounts,
    never,
    over_queue,
)
from cotenant.core.queueing.week import PERIOD_S, PERIODS, Week
from cotenant.core.units import MiB, Seconds
from tests.core.builders import job, machine, share

ALICE: Account = ("vision", "alice")
BOB: Account = ("vision", "bob")
POLICY = build_policy("binpack")


def of(account: Account, name: str, gpus: int = 1) -> Job:
    return replace(job(name, replace(share(compute=1000), gpus=gpus)), account=account)


def check(limits: dict[Account, Limits], used: dict[Account, Amounts] | None = None, hours: float = 0.0) -> LimitCheck:
    return LimitCheck(lambda level: limits.get(level, NO_LIMITS), used or {}, lambda level: hours)


def placed(limits: LimitCheck, jobs: list[Job], gpus: int = 4) -> list[str]:
    cluster, now = Cluster.of([machine("a", gpus=gpus)]), Seconds(0.0)
    decision = decide(POLICY, Queue(POLICY, jobs, by_account=True), cluster, now, ends=Ends(), limits=limits)
    return [one.job.id for one in decision.placements]


def test_jobs_of_others_pass_those_of_a_user_at_the_limit() -> None:
    limits = check({ALICE: Limits(gpus=2)})
    assert placed(limits, [*(of(ALICE, f"a{i}") for i in range(4)), of(BOB, "b0")]) == ["a0", "a1", "b0"]


def test_a_limit_of_a_group_counts_all_its_users() -> None:
    limits = check({("vision",): Limits(gpus=3)})
    jobs = [of(ALICE, "a0", 2), of(BOB, "b0"), of(BOB, "b1"), of(("nlp", "carol"), "c0")]
    assert placed(limits, jobs) == ["a0", "b0", "c0"]


def test_nothing_is_reserved_for_a_job_over_its_limit() -> None:
    limits = check({ALICE: Limits(gpus=4)}, {ALICE: Amounts(gpus=3.0)})
    cluster, jobs = Cluster.of([machine("a", gpus=1)]), [of(ALICE, "a0", 2), of(BOB, "b0")]
    decision = decide(POLICY, jobs, cluster, Seconds(0.0), ends=Ends(), limits=limits)
    assert [one.job.id for one in decision.placements] == ["b0"]
    assert decision.reservation is None


@pytest.mark.parametrize(
    ("limits", "used", "hours", "text"),
    [
        (Limits(gpus=4), Amounts(gpus=4.0), 0, "alice has 4 of at most 4 GPUs, and the job needs 1"),
        (
            Limits(memory=MiB(1000)),
            Amounts(memory=900),
            0,
            "alice has 900 MiB of at most 1000 MiB of GPU memory, and the job needs 1 GiB",
        ),
        (Limits(running=1), Amounts(running=1), 0, "alice has 1 of at most 1 running job"),
        (Limits(gpu_hours=40), Amounts(), 40.2, "alice has used 40.2 of at most 40 GPU-hours in the last 7 days"),
    ],
)
def test_the_reason_has_the_numbers(limits: Limits, used: Amounts, hours: float, text: str) -> None:
    gpus = kinds_of_gpus(Cluster.of([machine("a", gpus=2)]))
    wanted = replace(job("j", share(1024, compute=1000)), account=ALICE)
    reason = check({ALICE: limits}, {ALICE: used}, hours).refuse(ALICE, least_amounts(wanted, gpus))
    assert str(reason) == text


def test_a_job_that_can_never_run_under_its_limits_is_found_at_once() -> None:
    gpus = kinds_of_gpus(Cluster.of([machine("a", gpus=8)]))
    text = never(of(ALICE, "j", 8), {ALICE: Limits(gpus=4)}, gpus)
    assert text == "alice has 0 of at most 4 GPUs, and the job needs 8"
    assert never(of(ALICE, "j", 4), {ALICE: Limits(gpus=4)}, gpus) is None


def test_the_queue_of_a_user_is_limited() -> None:
    assert over_queue("alice", Limits(queued=3), 2) is None
    assert over_queue("alice", Limits(queued=3), 2, 2) == "alice has 2 of at most 3 queued jobs"
    assert over_queue("alice", NO_LIMITS, 10**6) is None


def test_a_week_forgets_what_is_older_than_seven_days() -> None:
    week = Week()
    week.add(2.0, 0.0, PERIOD_S / 2)
    week.add(1.0, PERIOD_S, 3 * PERIOD_S)
    assert week.used(3 * PERIOD_S) == 3 * PERIOD_S
    week.add(-1.0, 2 * PERIOD_S, 3 * PERIOD_S)
    assert week.used(3 * PERIOD_S) == 2 * PERIOD_S
    assert week.used(PERIODS * PERIOD_S) == PERIOD_S
    assert Week(week.periods(0.0)).used((PERIODS + 1) * PERIOD_S) == 0.0


def test_a_use_of_a_year_counts_for_the_last_week_only() -> None:
    week = Week()
    week.add(1.0, 0.0, 365 * 86_400.0)
    assert week.used(365 * 86_400.0) == pytest.approx((PERIODS - 1) * PERIOD_S, abs=PERIOD_S)
