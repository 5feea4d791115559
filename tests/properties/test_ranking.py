# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is remembered is what would be computed afresh, through every kind of event and back to older clusters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.model import Demand, Gpu, Gpus, Job, Machine, Placement, Slot
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import build_policy, fifo
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.placement.shapes import Ladder
from cotenant.core.units import MiB, MilliGpu, Seconds
from tests.properties.referee import freshly_ranked, tenants_of
from tests.properties.strategies import (
    PAIRS,
    Event,
    beliefs,
    clusters,
    demands,
    events,
    examples,
    policies,
    queues,
    renamed,
    tenants,
)


def happen(event: Event, cluster: Cluster, kept: list[Cluster], step: int, ranker: Ranker) -> Cluster:
    """The cluster after one event; those that do not apply change nothing."""
    tenants = tenants_of(cluster)
    if event.kind == "place":
        fit = ranker.best(event.demand, cluster)
        return cluster if fit is None else cluster.seat(Job(id=f"job-{step}", demand=event.demand), fit.slot)
    if event.kind == "finish" and tenants:
        name, tenant = tenants[event.pick % len(tenants)]
        job = Job(id=tenant.job, demand=tenant.demand)
        return cluster.finish(Placement(job, Slot(name, tenant.gpus), tenant.replica))
    if event.kind == "join":
        return cluster.join(renamed(event.machine, f"new{step}"))
    if event.kind == "leave" and len(cluster) > 1:
        return cluster.leave(cluster.names[event.pick % len(cluster)])
    if event.kind == "replace":
        node = cluster.at(event.pick % len(cluster))
        most = max((i for one in node.tenants for i in one.gpus), default=-1)
        if len(event.machine.gpus) > most:
            return cluster.replace(renamed(event.machine, node.name))
    if event.kind == "keep":
        kept.append(cluster)
    if event.kind == "return" and kept:
        return kept[event.pick % len(kept)]
    return cluster


def assert_remembered_is_fresh(ranker: Ranker, demand: Demand, cluster: Cluster) -> None:
    fresh = freshly_ranked(ranker.policy, demand, cluster)
    assert ranker.top(demand, cluster) == fresh
    assert ranker.best(demand, cluster) == (fresh[0] if fresh else None)
    assert ranker.top(demand, cluster, most=2) == fresh[:2]
    some = set(cluster.names[::2])
    assert ranker.top(demand, cluster, some) == [fit for fit in fresh if fit.slot.node in some]
    home = {fit.slot.node for fit in fresh}
    assert set(ranker.reasons(demand, cluster)) == set(cluster.names) - home


@pytest.mark.slow
@examples(100)
@given(st.data())
def test_memoised_and_naive_ranking_agree_through_all_events(data: st.DataObject) -> None:
    cluster = data.draw(clusters(largest=12))
    policy = data.draw(policies(cluster))
    ranker = Ranker(policy, remember=data.draw(st.sampled_from([1, 3, 512])))
    asked = data.draw(st.lists(demands(), min_size=1, max_size=4))
    kept = [cluster]
    for step, event in enumerate(data.draw(events())):
        cluster = happen(event, cluster, kept, step, ranker)
        assert_remembered_is_fresh(ranker, asked[step % len(asked)], cluster)
    for old in kept:
        for demand in asked:
            assert_remembered_is_fresh(ranker, demand, old)


SHARING = (
    "cotenant",
    "cotenant",
    "coscheml",
    "cotenant/binpack",
    "coscheml+binpack",
    "coscheml+iadeep",
    "coscheml+numa+cotenant",
    "numa+cotenant",
    "iadeep",
    "lucid",
)


@pytest.mark.slow
@examples(40)
@given(st.data())
def test_the_best_is_found_without_rating_every_node(data: st.DataObject) -> None:
    belief = data.draw(beliefs())
    cluster = data.draw(clusters(largest=10))
    known = Knowledge(
        mix_of(data.draw(st.lists(tenants(), max_size=4))), inventory_of(n.machine for n in cluster), belief
    )
    policy = build_policy(data.draw(st.sampled_from(SHARING)), known)
    cluster = decide(build_policy("binpack"), data.draw(queues(tenants(), largest=24)), cluster, Seconds(0.0)).cluster
    ranker = Ranker(policy, remember=data.draw(st.sampled_from([1, 512])), few=data.draw(st.sampled_from([0, 0, 2])))
    asked = data.draw(st.lists(tenants(), min_size=1, max_size=4))
    kept = [cluster]
    for step, event in enumerate(data.draw(events(tenants(), most=12))):
        cluster = happen(event, cluster, kept, step, ranker)
        closed = set(cluster.names[event.pick % 3 :: 3]) if event.pick % 2 else set()
        if event.pick % 5 == 0:
            belief.observe(PAIRS[event.pick % len(PAIRS)], (event.pick / 1000, 0.7))
        for demand in asked:
            fresh = [fit for fit in freshly_ranked(policy, demand, cluster) if fit.slot.node not in closed]
            assert ranker.best(demand, cluster, None, closed) == (fresh[0] if fresh else None)
        if event.pick % 7 == 0:
            assert_remembered_is_fresh(ranker, asked[0], cluster)


def by_free_memory(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    return [node.memory[slot[0]] for slot in slots]


MEMORY_ORDER = Policy(name="free memory", queue=fifo, nodes=(by_free_memory,), gpus=(by_free_memory,))
SMALL = Demand(memory=MiB(1), compute=MilliGpu(0))


def nodes_of_sizes(sizes: list[int]) -> Cluster:
    return Cluster.of(
        Machine(name=f"n{i:05}", gpus=(Gpu(uuid=f"{i}", memory=MiB(size)),)) for i, size in enumerate(sizes)
    )


def test_many_nodes_whose_scores_close_in_on_one_value_are_ranked() -> None:
    cluster = nodes_of_sizes([4000, 10, *range(3000, 2800, -1)])
    ranked = Ranker(MEMORY_ORDER).top(SMALL, cluster)
    assert [fit.slot.node for fit in ranked] == [cluster.names[0], *cluster.names[2:], cluster.names[1]]


@examples(20)
@given(st.lists(st.integers(1, 100_000), min_size=100, max_size=400))
def test_hundreds_of_different_scores_are_ranked_as_if_sorted(sizes: list[int]) -> None:
    cluster = nodes_of_sizes(sizes)
    ranker = Ranker(MEMORY_ORDER)
    for round_ in range(4):
        assert ranker.top(SMALL, cluster) == freshly_ranked(MEMORY_ORDER, SMALL, cluster)
        for i in range(round_, len(sizes), 7):
            cluster = cluster.seat(Job(id=f"{round_}-{i}", demand=SMALL), Slot(cluster.names[i], (0,)))


@examples(60)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 3)), max_size=200))
def test_labels_are_in_the_order_of_scores(scores: list[tuple[float, int]]) -> None:
    assert_in_order(scores)


@examples(60)
@given(st.lists(st.booleans(), min_size=60, max_size=300))
def test_labels_keep_the_order_when_every_score_falls_into_the_same_gap(sides: list[bool]) -> None:
    low, high = -(1 << 400), 1 << 400
    scores: list[tuple[int, ...]] = [(low,), (high,)]
    for left in sides:  # halve the gap again and again: a float's digits run out after fifty times
        middle = (low + high) // 2
        scores.append((middle,))
        low, high = (low, middle) if left else (middle, high)
    assert_in_order(scores)


def assert_in_order(scores: list[tuple[float, int]] | list[tuple[int, ...]]) -> None:
    ladder = Ladder()
    for score in scores:
        ladder.label(score)
    ordered = sorted(set(scores))
    labels = [ladder.label(score) for score in ordered]
    assert labels == sorted(set(labels))
    assert len(ladder) == len(ordered)
