# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Under contention every account gets its share of the GPUs, over time and by its weight."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job
from cotenant.core.placement.deciding import Decision, decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.queueing.fair import (
    HALF_LIFE,
    MOST_ACCOUNTS,
    MOST_CORRECTION,
    Account,
    FairSettings,
    FairShares,
    gpus_taken,
)
from cotenant.core.units import Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.timed import TimedRun, Timing
from tests.core.builders import job, machine, share

DAY = 86_400.0
ALICE: Account = ("alice",)
BOB: Account = ("bob",)
CAROL: Account = ("carol",)


def of(account: Account, name: str, at: float = 0.0) -> Job:
    return replace(job(name, share(compute=1000), submitted=at), account=account)


def placed(shares: FairShares, jobs: list[Job], gpus: int, now: float = 0.0) -> list[str]:
    """The jobs that one pass places on an empty machine, in order."""
    cluster = Cluster.of([machine("a", gpus=gpus)])
    decision: Decision = decide(build_policy("binpack", queue="fair"), jobs, cluster, Seconds(now), shares=shares)
    return [one.job.id for one in decision.placements]


def test_free_gpus_are_divided_although_one_account_came_first() -> None:
    jobs = [of(ALICE, f"a{i}") for i in range(8)] + [of(BOB, f"b{i}", at=100.0) for i in range(8)]
    assert sorted(placed(FairShares(FairSettings(), 4), jobs, 4, 100.0)) == ["a0", "a1", "b0", "b1"]


def test_weights_divide_the_gpus() -> None:
    fair = FairSettings(weights=((ALICE, 3.0),))
    jobs = [of(ALICE, f"a{i}") for i in range(8)] + [of(BOB, f"b{i}") for i in range(8)]
    assert sorted(placed(FairShares(fair, 4), jobs, 4)) == ["a0", "a1", "a2", "b0"]


def test_groups_share_before_their_users() -> None:
    users = [("vision", "alice"), ("vision", "bob"), ("speech", "carol")]
    jobs = [of(user, f"{user[-1]}{i}") for user in users for i in range(8)]
    names = [name[:-1] for name in placed(FairShares(FairSettings(), 8), jobs, 8)]
    assert {name: names.count(name) for name in names} == {"alice": 2, "bob": 2, "carol": 4}


def test_an_account_that_used_less_goes_first() -> None:
    shares = FairShares(FairSettings(), 2)
    shares.start("old", ALICE, 2.0, Seconds(0.0))
    shares.end("old", Seconds(3600.0))
    assert placed(shares, [of(ALICE, "a"), of(BOB, "b", at=3600.0)], 1, 3600.0) == ["b"]


def test_past_use_is_forgotten_by_half_in_a_half_life() -> None:
    shares = FairShares(FairSettings(), 1)
    shares.start("old", ALICE, 1.0, Seconds(0.0))
    shares.end("old", Seconds(100.0))
    before = shares.standing([ALICE], Seconds(100.0)).shares[ALICE].used
    after = shares.standing([ALICE], Seconds(100.0 + HALF_LIFE)).shares[ALICE].used
    assert after == pytest.approx(before / 2)
    assert shares.served(ALICE, Seconds(2 * HALF_LIFE)) == 100.0


def test_priority_comes_before_shares() -> None:
    shares = FairShares(FairSettings(), 1)
    shares.start("running", ALICE, 1.0, Seconds(0.0))
    urgent = of(ALICE, "urgent")
    urgent = replace(urgent, demand=replace(urgent.demand, priority=1))
    assert placed(shares, [of(BOB, "b"), urgent], 1, 10.0) == ["urgent"]


def test_part_of_a_gpu_counts_by_the_larger_of_compute_and_memory() -> None:
    cluster = Cluster.of([machine("a", gpus=1, memory=1000)])
    decision = decide(build_policy("binpack"), [job("half", share(500, compute=100))], cluster, Seconds(0.0))
    assert gpus_taken(decision.placements, cluster) == 0.5


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_that_divides_nothing_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of alice"):
        FairSettings(weights=((ALICE, weight),))


USES = st.lists(st.tuples(st.sampled_from([ALICE, BOB, CAROL]), st.floats(0.1, 8), st.floats(0, 1e6)), max_size=12)


@given(USES, st.floats(0, 1e7))
@settings(max_examples=60)
def test_history_moves_no_account_by_more_than_half_of_its_share(
    uses: list[tuple[Account, float, float]], later: float
) -> None:
    shares, now = FairShares(FairSettings(), 8), 0.0
    for number, (account, gpus, lasts) in enumerate(uses):
        shares.start(str(number), account, gpus, Seconds(now))
        now += lasts
        shares.end(str(number), Seconds(now))
    standing = shares.standing([ALICE, BOB, CAROL], Seconds(now + later))
    for one in standing.shares.values():
        assert abs(one.correction) <= MOST_CORRECTION * one.fair / one.weight + 1e-9
    total = sum(shares.served(account, Seconds(now)) for account in (ALICE, BOB, CAROL))
    assert total == pytest.approx(sum(gpus * lasts for _, gpus, lasts in uses))


def arrivals(loads: dict[Account, list[tuple[float, float, float]]]) -> Iterator[Arrival]:
    """For each account: from when to when it submits, and how many jobs of an hour it submits per hour."""
    number, found = count(), []
    for account, spans in loads.items():
        for begin, end, per_hour in spans:
            at = begin
            while at < end:
                found.append(Arrival(of(account, f"{account[-1]}-{next(number):06d}", at), Seconds(3600.0)))
                at += 3600.0 / per_hour
    return iter(sorted(found, key=lambda one: (one.job.submitted, one.job.id)))


def served(loads: dict[Account, list[tuple[float, float, float]]], *, since: float, until: float) -> dict[str, float]:
    """The part of all GPU time between two times that each account gets on 8 GPUs."""

    def at(time: float) -> dict[Account, float]:
        timing = Timing(queue="fair", fragmentation=False, heat=False)
        run = TimedRun([machine("a", gpus=8)], "binpack", {}, 1, timing).run(arrivals(loads), until=time)
        assert run.shares is not None
        return {account: run.shares.served(account, Seconds(time)) for account in loads}

    before, after = at(since), at(until)
    return {account[-1]: (after[account] - before[account]) / (8 * (until - since)) for account in loads}


def test_equal_weights_get_equal_gpu_time_in_a_day_of_contention_with_unequal_demand() -> None:
    # Alice alone wants five times what the machine has, Bob and Carol little more than their third.
    loads = {ALICE: [(0.0, DAY, 40.0)], BOB: [(0.0, DAY, 4.0)], CAROL: [(0.0, DAY, 3.0)]}
    parts = served(loads, since=0.0, until=DAY)
    assert sum(parts.values()) > 0.95
    assert all(abs(3 * part - 1) <= 0.03 for part in parts.values()), parts


def test_who_returns_after_a_week_gets_a_share_and_leaves_one() -> None:
    week = 7 * DAY
    loads = {ALICE: [(0.0, week + DAY, 16.0)], BOB: [(week, week + DAY, 16.0)]}
    parts = served(loads, since=week + 7200.0, until=week + DAY)
    assert parts["bob"] >= 0.5, "who returns is not starved"
    assert parts["alice"] >= 0.24, "and does not starve the others"


def test_past_use_that_was_not_seen_counts_like_use_that_was() -> None:
    seen, told = FairShares(FairSettings(), 2), FairShares(FairSettings(), 2)
    seen.start("a", ALICE, 2.0, Seconds(0.0))
    seen.end("a", Seconds(DAY))
    told.charge(ALICE, 2.0, Seconds(0.0), Seconds(DAY), Seconds(3 * DAY))
    assert told.used(ALICE, Seconds(4 * DAY)) == pytest.approx(seen.used(ALICE, Seconds(4 * DAY)))
    told.charge(ALICE, -2.0, Seconds(0.0), Seconds(DAY), Seconds(4 * DAY))
    assert told.used(ALICE, Seconds(4 * DAY)) == pytest.approx(0.0, abs=1e-6)


def test_restored_use_decays_from_the_time_when_it_was_stored() -> None:
    user = ("vision", "alice")
    before, after = FairShares(FairSettings(), 2), FairShares(FairSettings(), 2)
    before.charge(user, 1.0, Seconds(0.0), Seconds(DAY), Seconds(DAY))
    after.restore(user, before.used(user, Seconds(DAY)), Seconds(DAY), Seconds(5 * DAY))
    for level in (user, user[:1]):
        assert after.used(level, Seconds(6 * DAY)) == pytest.approx(before.used(level, Seconds(6 * DAY)))


def test_accounts_are_bounded_and_those_with_the_least_use_are_forgotten() -> None:
    shares = FairShares(FairSettings(), 2)
    shares.charge(ALICE, 1.0, Seconds(0.0), Seconds(DAY), Seconds(DAY))
    for number in range(MOST_ACCOUNTS):
        shares.charge((f"u{number}",), 1.0, Seconds(0.0), Seconds(1.0), Seconds(DAY))
    assert shares.used(ALICE, Seconds(DAY)) > 1.0
    assert sum(shares.used((f"u{number}",), Seconds(DAY)) > 0 for number in range(MOST_ACCOUNTS)) < MOST_ACCOUNTS


def test_the_explanation_has_the_figures_of_each_level() -> None:
    shares = FairShares(FairSettings(weights=((("vision",), 2.0),)), 6)
    shares.charge(("vision", "alice"), 1.0, Seconds(0.0), Seconds(3600.0), Seconds(3600.0))
    text = shares.standing([("vision", "alice"), ("nlp", "bob")], Seconds(3600.0)).explain(("vision", "alice"))
    group, user = text.split("; vision/alice")
    assert group.startswith(
        "vision has 0 GPUs; its fair share is 4 (weight 2); it has used 0.998 GPU-hours where 0.665"
    )
    assert group.endswith("which counts as 0.33 GPUs more")
    assert user == " has 0 GPUs; its fair share is 6 (weight 1)"
