# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is suggested makes the job fit, and no smaller change of the same kind does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Job
from cotenant.core.placement.deciding import place_gang
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.queueing.eviction import Stake
from cotenant.core.suggestions.changes import Change, axes
from cotenant.core.suggestions.search import Memory, Search, finished
from cotenant.core.suggestions.suggesting import gang_standing, ordered, suggestions
from cotenant.core.units import Seconds
from tests.properties.strategies import demands, examples, plain_demands, policies
from tests.properties.test_placing import occupied


def fits(policy: Policy, job: Job, cluster: Cluster) -> bool:
    return place_gang(Ranker(policy), job, cluster) is not None


def without(cluster: Cluster, node: str, jobs: set[str]) -> Cluster:
    there = cluster.node(node)
    return cluster.with_node(Node.of(there.machine, (one for one in there.tenants if one.job not in jobs)))


def just_enough(policy: Policy, job: Job, cluster: Cluster, node: str, victims: set[str]) -> bool:
    """Whether the job fits after these tenants of a node have ended, and not if one of them stays."""
    return (
        victims <= {one.job for one in cluster.node(node).tenants}
        and fits(policy, job, without(cluster, node, victims))
        and not any(fits(policy, job, without(cluster, node, victims - {name})) for name in victims)
    )


def one_more(demand: Demand, original: Demand, change: Change) -> Demand:
    """The changed demand with the next larger amount of one kind."""
    found = next(
        axis
        for axis in axes(original)
        if axis.kind == change.kind and axis.was == change.was and axis.to(change.now) == change
    )
    return found.change(demand, change.now + found.unit) if change.now + found.unit < found.was else original


@pytest.mark.slow
@examples(250)
@given(st.data())
def test_a_suggestion_makes_the_job_fit_and_no_smaller_one_does(data: st.DataObject) -> None:
    cluster = data.draw(occupied())
    policy = data.draw(policies(cluster))
    job = Job(id="new", demand=data.draw(st.one_of(demands(), plain_demands())), replicas=data.draw(st.integers(1, 3)))
    stakes = {one.job: Stake(one.demand.priority, Seconds(i)) for node in cluster for i, one in enumerate(node.tenants)}
    found = ordered(suggestions(Search(Memory(policy), job, cluster), stakes))
    if fits(policy, job, cluster):
        assert found == []
    for one in found:
        if one.demand is not None:
            assert fits(policy, replace(job, demand=one.demand), cluster)
            for change in one.changes:
                if change.was and not job.demand.containers:
                    larger = one_more(one.demand, job.demand, change)
                    assert not fits(policy, replace(job, demand=larger), cluster), change
        elif one.kind == "end" and job.replicas == 1:
            victims = set(one.changes[0].names)
            assert any(just_enough(policy, job, cluster, node, victims) for node in cluster.names)


@examples(60)
@given(st.data())
def test_as_many_members_of_a_gang_fit_as_are_said_to(data: st.DataObject) -> None:
    cluster = data.draw(occupied())
    policy = data.draw(policies(cluster))
    job = Job(id="new", demand=data.draw(plain_demands()), replicas=data.draw(st.integers(1, 6)))
    standing = finished(gang_standing(Search(Memory(policy), job, cluster)))
    assert standing.fit == 0 or fits(policy, replace(job, replicas=standing.fit), cluster)
    if standing.fit < job.replicas:
        assert not fits(policy, replace(job, replicas=standing.fit + 1), cluster)
    assert (standing.fit == job.replicas) == fits(policy, job, cluster)
