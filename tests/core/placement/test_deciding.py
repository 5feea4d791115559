# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is, what is passed over, and what a ranking tells."""

from dataclasses import replace

import pytest

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Demand, Job, Placement
from cotenant.core.placement.deciding import decide, judge_again, rank
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.queue import Queue
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import MilliGpu, Seconds
from tests.core.builders import job, machine, node, one_bad_pair, share

FIFO = build_policy("binpack")
NOW = Seconds(0.0)


def started(queue: list[Job], cluster: Cluster, order: str = "fifo") -> list[str]:
    return [one.job.id for one in decide(build_policy("binpack", queue=order), queue, cluster, NOW).placements]


def one_gpu() -> Cluster:
    return Cluster.of([machine("a")])


def test_higher_priority_goes_before_an_earlier_arrival() -> None:
    queue = [job("early", submitted=0.0), job("urgent", Demand(priority=1), submitted=9.0)]
    assert started(queue, one_gpu()) == ["urgent"]


def test_the_queue_order_decides_among_equal_priorities() -> None:
    queue = [job("b", submitted=1.0), job("a", submitted=2.0)]
    assert started(queue, one_gpu()) == ["b"]


def test_ties_go_to_the_lower_id() -> None:
    assert started([job("b"), job("c"), job("a")], one_gpu()) == ["a"]


def test_a_job_that_does_not_fit_is_passed_over() -> None:
    queue = [job("huge", Demand(gpus=8), submitted=0.0), job("small", submitted=1.0)]
    assert started(queue, one_gpu()) == ["small"]


def test_a_gang_that_fits_in_part_takes_nothing() -> None:
    queue = [job("gang", replicas=3, submitted=0.0), job("single", submitted=1.0)]
    decision = decide(FIFO, queue, Cluster.of([machine("a", gpus=2)]), NOW)
    assert [one.job.id for one in decision.placements] == ["single"]
    assert decision.cluster.node("a").compute == (0, 1000)


def test_a_smaller_gang_of_the_same_demand_is_still_tried() -> None:
    queue = [job("three", replicas=3, submitted=0.0), job("two", replicas=2, submitted=1.0)]
    assert started(queue, Cluster.of([machine("a", gpus=2)])) == ["two", "two"]


def test_deciding_does_not_change_what_it_was_given() -> None:
    queue = Queue(FIFO, [job("a"), job("b")])
    cluster = one_gpu()
    first = decide(FIFO, queue, cluster, NOW)
    assert decide(FIFO, queue, cluster, NOW).placements == first.placements
    assert [one.id for one in queue] == ["a", "b"]
    assert cluster.node("a").tenants == ()


def test_a_queue_gives_jobs_in_order_and_forgets_removed_ones() -> None:
    jobs = [job("c", submitted=1.0), job("a", submitted=1.0), job("b", Demand(gpus=2)), job("d", Demand(priority=9))]
    queue = Queue(FIFO, jobs)
    assert [one.id for one in queue] == ["d", "b", "a", "c"]
    queue.remove(jobs[1])
    queue.remove(jobs[2])
    assert [one.id for one in queue] == ["d", "c"]
    assert len(queue) == 2


def test_a_ranking_has_every_node_once() -> None:
    cluster = Cluster.of([machine("a", memory=4000), machine("b", memory=8000), machine("c", memory=16000)])
    ranking = rank(FIFO, job("one", share(6000)), cluster)
    assert [fit.slot.node for fit in ranking.fits] == ["b", "c"]
    assert {name: str(why) for name, why in ranking.reasons.items()} == {
        "a": "needs 6000 MiB on one GPU; the freest has 4000 MiB free"
    }


def test_a_ranking_of_named_nodes_is_about_those_only() -> None:
    cluster = Cluster.of([machine(name, memory=4000 if name < "e" else 16000) for name in "abcdefgh"])
    ranking = rank(FIFO, job("one", share(6000)), cluster, ["a", "g", "f", "elsewhere"])
    assert [fit.slot.node for fit in ranking.fits] == ["f", "g"]
    assert set(ranking.reasons) == {"a"}


def test_at_most_so_many_fits_are_returned_best_first() -> None:
    cluster = Cluster.of([machine(f"n{i:03}", memory=10000 - i) for i in range(100)])
    ranking = rank(build_policy("spread"), job("one", share(1000)), cluster, most=3)
    assert [fit.slot.node for fit in ranking.fits] == ["n000", "n001", "n002"]


def test_only_what_changed_is_rated_again() -> None:
    cluster = Cluster.of([machine(f"n{i:03}") for i in range(100)])
    policy = build_policy("bestfit")
    ranker = Ranker(policy)
    ranker.best(share(1000), cluster)
    assert ranker.rated == 1, "all are alike"
    decision = decide(policy, [job("one", share(1000)), job("two", share(1000))], cluster, NOW, ranker=ranker)
    assert len(decision.placements) == 2
    assert ranker.rated <= 3


def test_a_demand_asked_about_long_ago_is_forgotten_and_answered_alike() -> None:
    cluster = Cluster.of([machine("a", gpus=2), machine("b", gpus=2)])
    forgetful = Ranker(FIFO, remember=1)
    asked = [share(1000), share(2000), share(1000)]
    assert [forgetful.best(one, cluster) for one in asked] == [Ranker(FIFO).best(one, cluster) for one in asked]


def test_an_empty_cluster_and_an_empty_queue_decide_nothing() -> None:
    assert decide(FIFO, [job("a")], Cluster.of([]), NOW).placements == ()
    assert decide(FIFO, [], one_gpu(), NOW).placements == ()
    assert rank(FIFO, job("a"), Cluster.of([])).fits == ()


@pytest.mark.parametrize(("length", "first"), [(69.0, "young"), (71.0, "old")])
def test_a_second_of_waiting_counts_for_0_3_seconds_of_work(length: float, first: str) -> None:
    """The old job has 100 s of work and came 100 s earlier."""
    queue = [
        replace(job("old", submitted=0.0), estimate=Seconds(100.0)),
        replace(job("young", submitted=100.0), estimate=Seconds(length)),
    ]
    decision = decide(build_policy("binpack", queue="aged"), queue, one_gpu(), Seconds(100.0))
    assert [one.job.id for one in decision.placements] == [first]


# Nobody is passed over for ever


def later(hours: float, queue: list[Job], cluster: Cluster, policy: str = "binpack", order: str = "aged") -> list[str]:
    """Who starts when all that was submitted at 0 has waited for so long."""
    decision = decide(build_policy(policy, queue=order), queue, cluster, Seconds(3600 * hours))
    return [one.job.id for one in decision.placements]


def old(demand: Demand, replicas: int = 1) -> Job:
    """A job of 100 seconds, overdue after an hour and 1,000 seconds."""
    return replace(job("old", demand, submitted=0.0, replicas=replicas), estimate=Seconds(100.0))


def young(name: str, hours: float) -> Job:
    return replace(job(name, submitted=3600 * hours), estimate=Seconds(100.0))


def test_room_is_kept_for_a_job_that_was_passed_over_for_too_long() -> None:
    half_full = Cluster.of([node(machine("a", gpus=2), (Demand(), (0,)))])
    assert later(1.2, [old(Demand(gpus=2)), young("young", 1.2)], half_full) == ["young"]
    assert later(1.3, [old(Demand(gpus=2)), young("young", 1.3)], half_full) == []
    assert later(1.3, [old(Demand(gpus=2)), young("young", 1.3)], Cluster.of([machine("a", gpus=2)])) == ["old"]
    assert later(1.3, [old(Demand(gpus=2)), young("young", 1.3)], half_full, order="fifo") == ["young"]


def test_room_is_kept_only_where_the_job_can_come_and_on_no_more_nodes_than_it_needs() -> None:
    small, large, larger = (machine("a"), machine("b", gpus=2), machine("c", gpus=4))
    nodes = [
        node(small),
        node(large, (Demand(), (0,))),
        node(larger, (Demand(), (0,)), (Demand(), (1,)), (Demand(), (2,))),
    ]
    queue = [old(Demand(gpus=2)), *(young(f"young-{i}", 1.3) for i in range(4))]
    decision = decide(build_policy("binpack", queue="aged"), queue, Cluster.of(nodes), Seconds(1.3 * 3600))
    assert [one.slot.node for one in decision.placements] == ["a", "c"], (
        "the node with most idle cards that can hold it"
    )
    assert list(decision.kept) == ["b"]


def test_an_overdue_job_shares_even_where_that_is_not_worth_it() -> None:
    busy = Cluster.of([node(machine("a"), (Demand(compute=MilliGpu(0), workload="endless"), (0,)))])
    waiting = old(Demand(compute=MilliGpu(0), workload="other"))
    policy = build_policy("cotenant", Knowledge(belief=one_bad_pair()), queue="aged")
    assert decide(policy, [waiting], busy, Seconds(1.2 * 3600)).placements == ()
    (placement,) = decide(policy, [waiting], busy, Seconds(1.3 * 3600)).placements
    assert placement.overdue
    assert judge_again(policy, placement, busy.place(placement), 0.0).reason is None, "nor is it sent back"


def test_a_stream_of_small_jobs_does_not_starve_a_large_one() -> None:
    policy, cluster = build_policy("cotenant", queue="aged"), Cluster.of([machine("a", gpus=2)])
    running: list[Placement] = []
    waiting, now = [old(Demand(gpus=2))], 0.0
    while waiting and waiting[0].id == "old" and now < 1e5:
        for placement in [one for one in running if one.job.submitted + 150 <= now]:
            cluster = cluster.finish(placement)
            running.remove(placement)
        waiting.append(young(f"young-{now:.0f}", now / 3600))
        decision = decide(policy, waiting, cluster, Seconds(now))
        cluster = decision.cluster
        running += decision.placements
        gone = {one.job.id for one in decision.placements}
        waiting = [one for one in waiting if one.id not in gone]
        now += 50
    assert now < 3600 + 10 * 100 + 500
