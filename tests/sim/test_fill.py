# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fill simulation on clusters small enough to compute by hand, and what must hold for every order of arrivals."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job
from cotenant.core.placement.deciding import Decision
from cotenant.core.placement.ranking import Policy
from cotenant.core.units import MilliGpu
from cotenant.errors import InputError
from cotenant.sim import fill
from cotenant.sim.clusters import open_cluster
from cotenant.sim.experiment import Plan, run_one
from tests.properties.strategies import examples

HALF, WHOLE, PAIR = Demand(compute=MilliGpu(500)), Demand(), Demand(gpus=2)


def jobs_of(*demands: Demand) -> list[Job]:
    return [Job(id=f"j{i}", demand=demand) for i, demand in enumerate(demands)]


def in_turn(jobs: int, nodes: int) -> fill.Order:
    return fill.Order(range(jobs), range(nodes))


# The protocol


def test_arrivals_are_placed_or_refused_once_and_counted() -> None:
    jobs = jobs_of(HALF, PAIR, WHOLE, HALF, WHOLE)
    filled = fill.replay(jobs, open_cluster("1x2", data=None), in_turn(5, 1), "binpack", 42)
    # the pair and the last whole one find no room
    assert filled.arrived == [500, 2500, 3500, 4000, 5000]
    assert filled.allocated == [500, 500, 1500, 2000, 2000]
    assert filled.placed == 3


@pytest.mark.parametrize("suffix", ["", "@online"])
def test_where_no_job_ends_auto_is_the_fragmentation_policy(suffix: str) -> None:
    used: dict[str, list[str]] = {"auto": [], "fragmentation": []}
    for name, policies in used.items():

        def watch(_job: Job, _at: Cluster, policy: Policy, _done: Decision | None, seen: list[str] = policies) -> None:
            seen.append(policy.name)

        fill.replay(jobs_of(HALF, PAIR), open_cluster("1x2", data=None), in_turn(2, 1), name + suffix, 42, watch)
    assert used["auto"] == used["fragmentation"] == ["fragmentation"] * 2


def test_gang_is_counted_with_all_its_replicas() -> None:
    gang = Job(id="gang", demand=PAIR, replicas=2)
    filled = fill.replay([gang, *jobs_of(WHOLE)], open_cluster("2x2", data=None), in_turn(2, 2), "binpack", 42)
    assert filled.arrived == [4000, 5000]
    assert filled.allocated == [4000, 4000]


def test_job_drawn_again_is_another_tenant() -> None:
    seen: list[str] = []

    def watch(job: Job, _cluster: Cluster, _policy: Policy, _decision: Decision | None) -> None:
        seen.append(job.id)

    fill.replay(jobs_of(HALF, HALF), open_cluster("1x2", data=None), fill.Order([0, 1, 1, 0], [0]), "fgd", 42, watch)
    assert seen == ["j0", "j1", "j1@2", "j0@3"]


def test_fragmentation_is_what_the_mix_cannot_use() -> None:
    # one kind of job, pairs: the single GPU left beside a whole one is of no use
    jobs = jobs_of(WHOLE, *[PAIR] * 99)
    filled = fill.replay(jobs, open_cluster("1x2", data=None), in_turn(1, 1), "binpack", 42)
    assert filled.fragmented == [1000.0]
    assert filled.fragmented_idle == [100.0]


def test_ranks_of_nodes_break_ties() -> None:
    machines = open_cluster("3x1", data=None)
    for ranks, first in (([0, 1, 2], "node-0000"), ([2, 0, 1], "node-0001"), ([1, 2, 0], "node-0002")):
        placed: list[str] = []

        def watch(
            _job: Job, _cluster: Cluster, _policy: Policy, decision: Decision | None, to: list[str] = placed
        ) -> None:
            to.extend(placement.slot.node for placement in (decision.placements if decision else ()))

        fill.replay(jobs_of(WHOLE), machines, fill.Order([0], ranks), "binpack", 42, watch)
        assert placed == [f"000000-{first}"]


def test_curve_is_averaged_over_the_events_of_each_percent() -> None:
    filled = fill.Filled(
        arrived=[400, 1400, 1000_0, 1004_0],
        allocated=[400, 1400, 8000, 9000],
        fragmented=[0.0, 100.0, 200.0, 400.0],
        fragmented_idle=[0.0, 1.0, 2.0, 4.0],
    )
    series = fill.discretise(filled, gpus=100)
    # 0.4 % rounds to 0, 1.4 % to 1, 10.0 and 10.04 % to 10; 2 and 9 borrow from their neighbours, 3 to 8 have none
    assert series["arrived"] == [0.0, 1.0, 2.0, 9.0, 10.0]
    assert series["allocated"] == [0.4, 1.4, 1.4, 8.5, 8.5]
    assert series["fragmented"] == [0.0, 0.1, 0.1, 0.3, 0.3]
    assert series["fragmented_idle"] == [0.0, 1.0, 1.0, 3.0, 3.0]


def test_summary_is_read_off_the_curve() -> None:
    jobs = jobs_of(*[WHOLE] * 5)
    result = fill.run(jobs, open_cluster("2x2", data=None), in_turn(5, 2), "binpack", 42)
    assert result.summary == {
        "allocated": 100.0,
        "fragmented": 0.0,
        "placed": 4.0,
        "rejected": 1.0,
        "allocated_at_100": 100.0,
        "fragmented_at_100": 0.0,
    }
    assert result.heat is not None
    assert result.heat.columns == [25.0, 50.0, 75.0, 100.0, 125.0]
    assert [sum(column) for column in zip(*result.heat.values, strict=True)] == [100.0, 200.0, 300.0, 400.0, 400.0]


def test_policy_that_learns_fills_too(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,compute\n" + "".join(f"j{i},{20 + i % 7 * 10}%\n" for i in range(60)))
    plan = Plan(trace=str(trace), nodes="4x4", policies=("fragmentation@online",), seeds=(1,))
    result = run_one(plan, "fragmentation@online", 1).result
    assert result.policy == "fragmentation@online"
    assert result.summary["allocated_at_100"] > 85


# Orders of arrival

LOADS = st.sampled_from([0.01, 0.5, 1.0, 1.3, 4.0])


@given(st.lists(st.sampled_from([HALF, WHOLE, PAIR]), min_size=1, max_size=40), st.integers(0, 99), LOADS)
@examples(100)
def test_shuffled_trace_asks_just_about_the_load(demands: list[Demand], seed: int, load: float) -> None:
    jobs, machines = jobs_of(*demands), open_cluster("3x2", data=None)
    order = fill.shuffled(jobs, machines, seed, load)
    assert order == fill.shuffled(jobs, machines, seed, load)
    assert sorted(order.node_ranks) == [0, 1, 2]
    asked = sum(fill.requested_milli_gpu(jobs[i]) for i in order.arrivals)
    assert len(order.arrivals) == 1 or asked <= load * 6000 + 2000
    assert len(order.arrivals) == 1 or asked > load * 6000 - 2000
    if sum(map(fill.requested_milli_gpu, jobs)) <= load * 6000:  # all of it comes before any of it comes again
        assert set(Counter(order.arrivals[: len(jobs)]).values()) == {1}


def test_seeds_differ() -> None:
    jobs, machines = jobs_of(*[WHOLE] * 30), open_cluster("8x4", data=None)
    assert fill.shuffled(jobs, machines, 1, 1.3) != fill.shuffled(jobs, machines, 2, 1.3)


def test_trace_that_asks_no_compute_cannot_fill() -> None:
    cpu = Demand(gpus=0, compute=MilliGpu(0))
    with pytest.raises(InputError, match="no job of this trace requests GPU compute"):
        fill.shuffled(jobs_of(cpu, cpu), open_cluster("1x1", data=None), 1, 1.3)


# What must hold for every order


@given(
    st.lists(st.sampled_from([HALF, WHOLE, PAIR, Demand(compute=MilliGpu(300))]), min_size=1, max_size=40),
    st.sampled_from(["binpack", "spread", "fgd", "fragmentation", "random", "fgd@online"]),
    st.integers(0, 5),
)
@examples(80)
def test_nothing_is_allocated_that_did_not_arrive_or_does_not_exist(
    demands: list[Demand], policy: str, seed: int
) -> None:
    jobs, machines = jobs_of(*demands), open_cluster("2x2:V100,1x1:T4", data=None)
    result = fill.run(jobs, machines, fill.shuffled(jobs, machines, seed, 1.3), policy, seed)
    series = result.series
    assert series["arrived"] == sorted(series["arrived"])
    for arrived, allocated, fragmented in zip(
        series["arrived"], series["allocated"], series["fragmented"], strict=True
    ):
        assert 0 <= allocated <= min(100, arrived + 1)
        assert 0 <= fragmented <= 100 - allocated + 0.02
    assert series["allocated"] == sorted(series["allocated"])
    assert result.heat is not None
    assert all(0 <= value <= 100 for row in result.heat.values for value in row)
    assert result == fill.run(jobs, machines, fill.shuffled(jobs, machines, seed, 1.3), policy, seed)
