# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Comparing all nodes at once says what rating and asking each of them says, through every kind of event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Gpu, Machine, Slot, Tenant
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.placement.slots import refusal_of
from cotenant.core.units import MiB, MilliGpu
from tests.properties.referee import freshly_ranked
from tests.properties.strategies import clusters, demands, events, examples
from tests.properties.test_ranking import happen

BY_ROOM = ("binpack", "spread", "spread/binpack", "binpack/spread")


def assert_same(ranker: Ranker, demand: Demand, cluster: Cluster) -> None:
    fresh = freshly_ranked(ranker.policy, demand, cluster)
    names = [fit.slot.node for fit in fresh]
    for some in (cluster.names, cluster.names[::2], cluster.names[:1]):
        left = [name for name in names if name in some]
        assert ranker.shortlist(demand, cluster, some, 3) == left[:3]
        assert ranker.top(demand, cluster, some, 3) == [fit for fit in fresh if fit.slot.node in some][:3]
    said = ranker.refusers(demand, cluster)
    if said is None:
        return
    reasons = [refusal_of(feasibility(demand, ranker.policy.checks), node) for node in cluster]
    assert said == ["" if why is None else why.check for why in reasons]
    nearest = ranker.nearest(demand, cluster, frozenset(cluster.names))
    if nearest is None:
        assert "" in said
        return
    assert {why.check: count for count, _, why in nearest} == {check: said.count(check) for check in said}
    for _, name, why in nearest:
        assert reasons[cluster.index[name]] == why
        if demand.memory_percent is None:  # or each card needs something else
            alike = [one for one in reasons if one is not None and one.check == why.check]
            assert why.available == max(one.available for one in alike)


@pytest.mark.slow
@examples(60)
@given(st.data())
def test_all_at_once_is_as_one_by_one(data: st.DataObject) -> None:
    cluster, kept = data.draw(clusters(largest=12)), list[Cluster]()
    ranker = Ranker(build_policy(data.draw(st.sampled_from(BY_ROOM))))
    asked = data.draw(st.lists(demands(), min_size=1, max_size=4))
    for step, event in enumerate(data.draw(events())):
        cluster = happen(event, cluster, kept, step, ranker)
        assert_same(ranker, asked[step % len(asked)], cluster)


def test_room_decides_before_the_node_and_the_name_last() -> None:
    cards = tuple(Gpu(uuid=f"g{i}", memory=MiB(1000)) for i in range(2))
    small, large = (Demand(memory=MiB(memory), compute=MilliGpu(0)) for memory in (300, 600))
    nodes = [
        Node.of(Machine(name=name, gpus=cards), [Tenant(f"{name}-{i}", one, (i,)) for i, one in enumerate(tenants)])
        for name, tenants in {"a": [], "b": [small], "c": [large], "d": [large, small], "e": [large]}.items()
    ]
    cluster, ranker = Cluster.of(nodes), Ranker(build_policy("binpack"))
    asked = Demand(memory=MiB(350), compute=MilliGpu(0))
    assert ranker.shortlist(asked, cluster) == ["d", "c", "e", "b", "a"]
    assert ranker.top(asked, cluster, most=1)[0].slot == Slot("d", (0,))
