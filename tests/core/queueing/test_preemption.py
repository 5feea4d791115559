# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""As few as will do give way, the last in order first, and nobody for nothing."""

from collections.abc import Sequence
from dataclasses import replace

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job, Machine, Placement
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.preemption import find_preemptions
from cotenant.core.units import MilliCpu
from tests.core.builders import card, cluster_with, job, machine, machine_of, placed, share

Rows = list[list[str]]


def displaced(waiting: Sequence[Job], running: Sequence[Placement], machines: Sequence[Machine]) -> Rows:
    """Who gives way to whom, turns by the number in a job's id: j1 before j2."""
    return displaced_on(cluster_with(machines, *running), waiting, running)


def displaced_on(cluster: Cluster, waiting: Sequence[Job], running: Sequence[Placement]) -> Rows:
    holders = [
        (job, tuple(one for one in running if one.job.id == job.id))
        for job in {one.job.id: one.job for one in running}.values()
    ]
    ways = find_preemptions(
        Ranker(build_policy("binpack")), waiting, holders, cluster, lambda job: (0, float(job.id[1:]))
    )
    return [[victim.id for victim in victims] for victims in ways]


def test_the_last_in_order_gives_way() -> None:
    running = [placed("j2", Demand(), "a", 0), placed("j4", Demand(), "a", 1), placed("j3", Demand(), "a", 2)]
    assert displaced([job("j1")], running, [machine(gpus=3)]) == [["j4"]]


def test_nobody_gives_way_to_a_job_that_comes_later() -> None:
    assert displaced([job("j9")], [placed("j2", Demand(), "a", 0)], [machine()]) == []


def test_nobody_gives_way_to_a_job_with_the_same_turn() -> None:
    assert displaced([job("j2.0")], [placed("j2", Demand(), "a", 0)], [machine()]) == []


def test_nobody_gives_way_where_there_is_room() -> None:
    assert displaced([job("j1")], [placed("j2", Demand(), "a", 0)], [machine(gpus=2)]) == []


def test_nobody_gives_way_for_nothing() -> None:
    running = [placed("j2", Demand(), "a", 0), placed("j3", Demand(), "a", 1)]
    assert displaced([job("j1", Demand(gpus=3))], running, [machine(gpus=2)]) == []


def test_those_whose_leaving_does_not_help_are_put_back() -> None:
    """j5 is last but on a card that will not do; j4 has to go."""
    machines = [machine_of("a", card(type="V100")), machine_of("b", card(type="T4"))]
    running = [placed("j4", Demand(), "a", 0), placed("j5", Demand(), "b", 0)]
    assert displaced([job("j1", Demand(use_types=("V100",)))], running, machines) == [["j4"]]


def test_a_share_stays_where_it_still_fits_beside_the_newcomer() -> None:
    running = [placed("j2", share(0, 600), "a", 0), placed("j3", share(0, 400), "a", 0)]
    assert displaced([job("j1", share(0, 500))], running, [machine()]) == [["j2"]]


def test_two_waiting_jobs_displace_different_ones() -> None:
    running = [placed(f"j{i}", Demand(), "a", i - 3) for i in (3, 4, 5)]
    assert displaced([job("j1"), job("j2")], running, [machine(gpus=3)]) == [["j5"], ["j4"]]


def test_a_gang_gives_way_as_a_whole() -> None:
    gang = job("j2", replicas=2)
    running = [replace(placed("j2", Demand(), "a", i), job=gang, replica=i) for i in (0, 1)]
    assert displaced([job("j1")], running, [machine(gpus=2)]) == [["j2"]]


def test_a_rival_is_not_put_back_beside_the_newcomer() -> None:
    rival = share(anti_affinity="rivals")
    assert displaced([job("j1", rival)], [placed("j2", rival, "a", 0)], [machine()]) == [["j2"]]


def test_a_group_is_not_split_by_putting_a_member_back() -> None:
    """j1 needs a whole GPU's memory and its group on it: only where no other member sits is there one."""
    machines = [machine("a", memory=8000), machine("b", memory=16000)]
    member, large = share(1000, affinity="twins"), share(16000, affinity="twins")
    assert displaced([job("j1", large)], [placed("j2", member, "a", 0)], machines) == [["j2"]]


def test_a_job_on_a_cordoned_gpu_is_not_displaced_by_accident() -> None:
    """The last in order sits on a GPU that takes no new tenants: its leaving helps nobody, so it stays."""
    before = machine_of("a", card(), card())
    running = [placed("j5", Demand(), "a", 0), placed("j4", Demand(), "a", 1)]
    cluster = cluster_with([before], *running).replace(machine_of("a", card(cordoned=True), card()))
    assert displaced_on(cluster, [job("j1")], running) == [["j4"]]


def test_a_job_whose_host_share_is_gone_is_not_put_back() -> None:
    running = [placed("j2", share(cpu=MilliCpu(600)), "a", 0)]
    assert displaced([job("j1", share(cpu=MilliCpu(600)))], running, [machine(cpu=MilliCpu(1000))]) == [["j2"]]
