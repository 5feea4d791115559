# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The index of nodes by room finds the node that naive ranking puts first, through all events."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job, Slot
from cotenant.core.placement import room_index
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.placement.scores import binpack, node_binpack, node_spread, spread
from cotenant.core.units import MilliCpu
from tests.core.builders import card, machine, machine_of, node, share
from tests.properties.referee import freshly_ranked
from tests.properties.strategies import clusters, demands, events, examples
from tests.properties.test_ranking import happen

FIFO = build_policy("binpack").queue
POLICIES = [
    Policy(name="by room", queue=FIFO, nodes=(of_gpu, of_node), gpus=(of_gpu,))
    for of_gpu, of_node in product((binpack, spread), (node_binpack, node_spread))
]


@pytest.fixture(params=[1, room_index.TRIES])
def tries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_index, "TRIES", request.param)


@pytest.mark.slow
@pytest.mark.usefixtures("tries")
@examples(60)
@given(st.data())
def test_the_index_and_naive_ranking_agree_through_all_events(data: st.DataObject) -> None:
    cluster = data.draw(clusters(largest=8))
    policy = data.draw(st.sampled_from(POLICIES))
    ranker = Ranker(policy, remember=data.draw(st.sampled_from([1, 512])))
    asked = data.draw(st.lists(demands(), min_size=1, max_size=3))
    kept = [cluster]
    for step, event in enumerate(data.draw(events(demands(), most=10))):
        cluster = happen(event, cluster, kept, step, ranker)
        closed = set(cluster.names[event.pick % 3 :: 3]) if event.pick % 2 else set()
        for demand in asked:
            fresh = [fit for fit in freshly_ranked(policy, demand, cluster) if fit.slot.node not in closed]
            assert ranker.best(demand, cluster, None, closed) == (fresh[0] if fresh else None)
            others = set(cluster.names) - closed
            assert ranker.shortlist(demand, cluster, others, 1) == [fit.slot.node for fit in fresh[:1]]


def test_no_node_is_rated() -> None:
    ranker, cluster = Ranker(POLICIES[0]), Cluster.of([machine(f"n{i:03}", 2) for i in range(100)])
    for i in range(300):
        fit = ranker.best(share(1000 + 10 * (i % 7)), cluster)
        assert fit is not None
        cluster = cluster.seat(Job(id=str(i), demand=share(1000 + 10 * (i % 7))), fit.slot)
    assert ranker.rated == 0


def test_a_demand_that_is_asked_about_again_and_again_is_not_forgotten() -> None:
    ranker, cluster = Ranker(POLICIES[0], remember=4), Cluster.of([machine("a", 2)])
    common = share(1000)
    for memory in range(20):
        ranker.best(common, cluster)
        ranker.best(share(memory), cluster)
    assert [ranker.knows(share(memory)) for memory in (1, 19)] == [False, True]
    assert ranker.knows(common)


def test_if_most_hosts_are_full_nodes_are_rated() -> None:
    full = (share(100, cpu=MilliCpu(1000)), (0,))
    nodes = [node(machine(f"n{i:03}", 2, cpu=MilliCpu(1000)), full) for i in range(2 * room_index.TRIES)]
    cluster = Cluster.of([*nodes, machine("z", 2, cpu=MilliCpu(1000))])
    ranker = Ranker(POLICIES[0])
    for _ in range(2):
        fit = ranker.best(share(100, cpu=MilliCpu(1)), cluster)
        assert fit is not None
        assert fit.slot == Slot("z", (0,))
    assert ranker.rated > 0


def test_groups_without_gpus_are_forgotten() -> None:
    cluster = Cluster.of([machine("a"), machine_of("b", card(), card(8000))])
    ranker = Ranker(POLICIES[0])
    for memory in range(1, 500):
        demand = share(memory)
        assert ranker.best(demand, cluster) == freshly_ranked(ranker.policy, demand, cluster)[0]
        changed = cluster.seat(Job(id="one", demand=demand), Slot("b", (1,)))
        assert ranker.best(demand, changed) == freshly_ranked(ranker.policy, demand, changed)[0]
    assert ranker._index is not None
    assert len(ranker._index._groups) < 100
