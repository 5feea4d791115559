# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A reserved GPU is free in time: jobs of others start there only if their time limit ends them before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job
from cotenant.core.placement.deciding import Decision, decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.queue import Queue
from cotenant.core.queueing.advance import SLACK, Advance, AdvanceReservation, Busy, Obstacle, choose, obstacles
from cotenant.core.queueing.backfill import Ends
from cotenant.core.units import Seconds
from tests.core.builders import job, machine, share

POLICY = build_policy("binpack")
HOUR = 3600.0
MACHINE = machine("a", gpus=2)


def reservation(
    name: str = "r-1", gpus: tuple[int, ...] = (0,), start: float = HOUR, end: float = 2 * HOUR
) -> AdvanceReservation:
    return AdvanceReservation(id=name, gpus=frozenset(f"a-{i}" for i in gpus), start=Seconds(start), end=Seconds(end))


def of(user: str, name: str, limit: float | None = None, gpus: int = 1, reservation: str | None = None) -> Job:
    demand = replace(share(compute=1000), gpus=gpus)
    hard = None if limit is None else Seconds(limit)
    return job(name, demand, account=(user,), limit=hard, estimate=hard, reservation=reservation)


def advance(*reservations: AdvanceReservation, whose: str = "bob") -> Advance:
    return Advance(reservations, lambda one, job: job.account == (whose,), frozenset({"a-0", "a-1"}))


def run(reserved: Advance, jobs: list[Job], now: float = 0.0, *, backfill: bool = True) -> dict[str, tuple[int, ...]]:
    return slots(decision_of(reserved, jobs, now, backfill=backfill))


def decision_of(reserved: Advance, jobs: list[Job], now: float = 0.0, *, backfill: bool = True) -> Decision:
    ends = Ends() if backfill else None
    return decide(POLICY, Queue(POLICY, jobs), Cluster.of([MACHINE]), Seconds(now), ends=ends, advance=reserved)


def slots(decision: Decision) -> dict[str, tuple[int, ...]]:
    return {one.job.id: one.slot.gpus for one in decision.placements}


@pytest.mark.parametrize("backfill", [True, False])
def test_a_job_without_a_time_limit_gets_no_gpu_that_is_reserved_later(backfill: bool) -> None:
    jobs = [of("ada", "endless"), of("ada", "endless-too")]
    assert run(advance(reservation()), jobs, backfill=backfill) == {"endless": (1,)}


def test_an_estimate_is_no_promise() -> None:
    guess = replace(of("ada", "guess"), estimate=Seconds(60.0))
    assert run(advance(reservation(gpus=(0, 1))), [guess]) == {}


@pytest.mark.parametrize("backfill", [True, False])
def test_a_job_that_ends_in_time_starts_there_although_one_before_it_must_not(backfill: bool) -> None:
    jobs = [of("ada", "a"), of("ada", "b"), of("ada", "c", limit=HOUR - SLACK), of("ada", "d", limit=HOUR)]
    assert run(advance(reservation()), jobs, backfill=backfill) == {"a": (1,), "c": (0,)}


def test_the_user_of_a_reservation_may_start_there_at_any_time() -> None:
    for now in (0.0, HOUR, 1.5 * HOUR):
        assert run(advance(reservation(gpus=(0, 1))), [of("ada", "a"), of("bob", "b")], now) == {"b": (0,)}


def test_after_its_end_a_reservation_keeps_nobody_away() -> None:
    assert run(advance(reservation(gpus=(0, 1))), [of("ada", "a")], 2 * HOUR) == {"a": (0,)}


def test_a_job_for_a_reservation_starts_with_it_and_on_its_gpus() -> None:
    reserved = advance(reservation(gpus=(1,)))
    jobs = [of("bob", "b", reservation="r-1")]
    assert run(reserved, jobs, HOUR - 1) == {}
    assert run(reserved, jobs, HOUR) == {"b": (1,)}
    gone = [of("bob", "b", reservation="r-0")]
    assert run(reserved, gone, HOUR) == {"b": (0,)}, "its reservation has ended: it waits as others"


def test_nothing_is_kept_free_for_a_job_that_must_not_start() -> None:
    reserved = advance(reservation(gpus=(0, 1)))
    decision = decision_of(reserved, [of("ada", "endless", gpus=2), of("ada", "short", limit=60.0)])
    assert decision.reservation is None
    assert slots(decision) == {"short": (0,)}


def test_a_placed_job_leaves_the_cluster_of_the_decision() -> None:
    decision = decision_of(advance(reservation()), [of("ada", "a")])
    assert not decision.cluster.finish(decision.placements[0]).at(0).tenants


@given(
    st.lists(st.tuples(st.sampled_from(["ada", "bob"]), st.one_of(st.none(), st.floats(1, 4 * HOUR))), max_size=12),
    st.lists(st.tuples(st.sampled_from([(0,), (1,), (0, 1)]), st.floats(0, 3 * HOUR), st.floats(60, HOUR)), max_size=3),
    st.floats(0, 3 * HOUR),
    st.booleans(),
)
def test_no_job_of_others_can_run_in_a_reservation(
    jobs: list[tuple[str, float | None]], spans: list[tuple[tuple[int, ...], float, float]], now: float, backfill: bool
) -> None:
    found = [reservation(f"r-{i}", gpus, start, start + length) for i, (gpus, start, length) in enumerate(spans)]
    waiting = [of(user, f"j{i}", limit) for i, (user, limit) in enumerate(jobs)]
    decision = decision_of(advance(*found), waiting, now, backfill=backfill)
    for one in decision.placements:
        for other in found:
            meets = other.gpus & {f"a-{gpu}" for gpu in one.slot.gpus} and other.end > now
            if meets and one.job.account != ("bob",):
                assert one.job.limit is not None
                assert now + one.job.limit < other.start


def test_gpus_are_chosen_that_are_free_by_then() -> None:
    busy = {0: [Busy("endless", None)], 1: [Busy("short", Seconds(600.0))]}
    found = obstacles(MACHINE, busy, (), Seconds(HOUR), Seconds(2 * HOUR))
    assert found == [Obstacle(busy=Busy("endless", None)), None]
    assert choose(1, found, busy) == (1,)
    assert choose(2, found, busy) is None
    evicting = obstacles(MACHINE, busy, (), Seconds(HOUR), Seconds(2 * HOUR), evict=True)
    assert choose(2, evicting, busy) == (0, 1)


def test_a_reservation_does_not_overlap_another() -> None:
    other = reservation(gpus=(1,))
    for start, end, free in (
        (0.0, HOUR, True),
        (0.0, HOUR + 1, False),
        (2 * HOUR, 3 * HOUR, True),
        (HOUR, HOUR + 1, False),
    ):
        found = obstacles(MACHINE, {}, (other,), Seconds(start), Seconds(end))
        assert (found[1] is None) is free, (start, end)
        assert found[0] is None


def test_a_job_is_late_if_it_ends_at_the_start() -> None:
    for until, free in ((HOUR - SLACK, True), (HOUR, False)):
        found = obstacles(MACHINE, {0: [Busy("j", Seconds(until))]}, (), Seconds(HOUR), Seconds(2 * HOUR))
        assert (found[0] is None) is free


def test_unusable_gpus_cannot_be_reserved() -> None:
    cards = (replace(MACHINE.gpus[0], cordoned=True), replace(MACHINE.gpus[1], healthy=False))
    found = obstacles(replace(MACHINE, gpus=cards), {}, (), Seconds(0.0), Seconds(60.0))
    assert found == [Obstacle(unusable="cordoned"), Obstacle(unusable="unhealthy")]
