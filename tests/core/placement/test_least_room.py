# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pass drops what cannot fit by free amounts alone, and decides as if it had tried it."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job
from cotenant.core.placement.check import Check, Floors, Reads
from cotenant.core.placement.deciding import FIRST_LOOK, Decision, decide
from cotenant.core.placement.least_room import Need, may_fit, need_of, room_of
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.queue import Queue
from cotenant.core.placement.ranking import Policy, rate
from cotenant.core.queueing.advance import Advance, AdvanceReservation
from cotenant.core.queueing.backfill import Ends
from cotenant.core.queueing.fair import FairSettings, FairShares
from cotenant.core.queueing.limits import NO_LIMITS, LimitCheck, Limits
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Seconds
from tests.core.builders import job, machine, share
from tests.properties.strategies import clusters, demands, examples, policies, queues

NOW, FIFO = Seconds(0.0), build_policy("binpack")


class Hopeful(Queue):
    """A queue that says of each kind that it needs nothing, so that a pass tries all of them."""

    def needs(self, kind: int, job: Job) -> tuple[Need, ...]:
        return (Need(0, Floors()),)


@examples(60)
@given(st.data())
def test_whatever_fits_may_fit(data: st.DataObject) -> None:
    cluster = decide(build_policy("binpack"), data.draw(queues(demands())), data.draw(clusters()), NOW).cluster
    policy, demand = data.draw(policies(cluster)), data.draw(demands())
    rooms = room_of(cluster, policy.checks)
    assert rooms is not None
    if any(rate(policy, demand, node) is not None for node in cluster):
        assert may_fit(rooms, [need_of(demand, policy.checks)])


def test_a_demand_for_all_that_is_free_may_fit() -> None:
    rooms = room_of(Cluster.of([machine("a", memory=8000, cpu=MilliCpu(2000))]), FIFO.checks)
    assert rooms is not None
    whole = replace(share(8000, 1000), cpu=MilliCpu(2000))
    assert may_fit(rooms, [need_of(whole, FIFO.checks)])
    for more in (replace(whole, memory=MiB(8001)), replace(whole, cpu=MilliCpu(2001)), replace(whole, gpus=2)):
        assert not may_fit(rooms, [need_of(more, FIFO.checks)])


def long_queue(seed: Random) -> list[Job]:
    """More kinds than a pass tries before it looks for those that cannot fit."""
    found = []
    for number in range(seed.randint(FIRST_LOOK, 4 * FIRST_LOOK)):
        demand = Demand(
            gpus=seed.choice([0, 1, 1, 1, 2, 3]),
            memory=MiB(seed.choice([4_000, 8_000, 16_000, seed.randint(1, 20_000)])),
            compute=MilliGpu(seed.choice([0, 0, 100, 500, 1000])),
            priority=seed.choice([0, 0, 0, 5]),
            cpu=MilliCpu(seed.choice([100, 1000, 9000])),
        )
        found.append(
            Job(
                id=f"j{number:03}",
                demand=demand,
                alternatives=(replace(demand, memory=MiB(demand.memory // 2)),) if seed.random() < 0.2 else (),
                replicas=seed.choice([1, 1, 1, 2]),
                submitted=Seconds(-float(seed.randint(0, 9000))),
                estimate=seed.choice([None, Seconds(5.0), Seconds(500.0)]),
                limit=seed.choice([None, Seconds(10.0), Seconds(500.0)]),
                account=("lab", seed.choice(["ann", "bob"])),
            )
        )
    return found


@examples(60)
@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["fifo", "srpt", "aged", "fair"]),
)
def test_decisions_are_those_of_a_pass_that_tries_every_kind(
    number: int, backfill: bool, limited: bool, reserved: bool, order: str
) -> None:
    seed = Random(number)
    jobs = long_queue(seed)
    few = [machine(f"n{i}", gpus=seed.randint(1, 3), cpu=MilliCpu(8000)) for i in range(seed.randint(1, 3))]
    policy = build_policy(seed.choice(["binpack", "spread", "cotenant"]), queue=order)
    first = AdvanceReservation(id="r1", gpus=frozenset({few[0].gpus[0].uuid}), start=Seconds(200.0), end=Seconds(900.0))
    everything = frozenset(gpu.uuid for one in few for gpu in one.gpus)
    advance = Advance((first,), lambda _, one: one.account == ("lab", "ann"), everything)

    def passes(queue: type[Queue]) -> list[Decision]:
        cluster, ends, waiting, found = Cluster.of(few), Ends(), list(jobs), list[Decision]()
        shares = FairShares(FairSettings(), sum(len(one.gpus) for one in few)) if order == "fair" else None
        for at in (0.0, 20.0):
            limits = LimitCheck(lambda level: Limits(gpus=2) if limited else NO_LIMITS, {}, lambda level: 0.0)
            decision = decide(
                policy,
                queue(policy, waiting, Seconds(at), by_account=limited),
                cluster,
                Seconds(at),
                ends=ends if backfill else None,
                reservation=found[-1].reservation if found else None,
                shares=shares,
                limits=limits if limited else None,
                advance=advance if reserved else None,
            )
            cluster = decision.cluster
            gone = {one.job.id for one in decision.placements}
            for name in gone:
                ends.add([one for one in decision.placements if one.job.id == name], Seconds(at))
            waiting = [one for one in waiting if one.id not in gone]
            found.append(decision)
        return found

    for short, whole in zip(passes(Queue), passes(Hopeful), strict=True):
        assert short.placements == whole.placements
        assert short.overtaking == whole.overtaking
        assert list(short.kept) == list(whole.kept)
        ours, theirs = short.reservation, whole.reservation
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert replace(ours, versions=()) == replace(theirs, versions=())


def test_a_pass_tries_few_of_the_kinds_that_cannot_fit() -> None:
    tried = 0

    def counts(demand: Demand) -> bool:
        nonlocal tried
        tried += 1
        return False

    base = build_policy("binpack")
    counting = Check("counts", lambda demand, node, eligible: eligible, counts, Reads.TYPE)
    policy: Policy = replace(base, more_checks=(counting,))
    cluster = Cluster.of([machine("a", gpus=2)])
    full = decide(policy, [job("first", replace(share(16_000, 1000), gpus=2))], cluster, NOW)
    ends = Ends()
    ends.add(full.placements, NOW)
    waiting = Queue(policy, [job(f"j{number:04}", share(1 + number, 100)) for number in range(2000)])
    tried = 0
    decision = decide(policy, waiting, full.cluster, NOW, ends=ends)
    assert decision.placements == ()
    assert decision.reservation is not None
    assert decision.reservation.job.id == "j0000"
    assert 0 < tried < 4 * FIRST_LOOK


def test_gpus_are_reserved_for_a_job_behind_many_that_fit_on_no_machine() -> None:
    running = decide(FIFO, [job("first")], Cluster.of([machine("a", gpus=1)]), NOW)
    ends = Ends()
    ends.add(running.placements, NOW)
    larger = [job(f"j{number:03}", replace(share(1 + number), gpus=2)) for number in range(3 * FIRST_LOOK)]
    decision = decide(FIFO, [*larger, job("later", share(compute=1000))], running.cluster, NOW, ends=ends)
    assert decision.reservation is not None
    assert decision.reservation.job.id == "later"
