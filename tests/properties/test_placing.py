# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What must never happen, whatever is asked for and in whatever order: promises that the machines cannot keep."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.footprint import claims
from cotenant.core.model import Demand, Job, Machine, Placement, Reason, Tenant
from cotenant.core.placement.containers import amounts_fit
from cotenant.core.placement.deciding import decide, place_gang, rank
from cotenant.core.placement.feasibility import eligible_gpus, feasibility
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.placement.slots import refusal_of, slots_of
from cotenant.core.queueing.preemption import find_preemptions
from cotenant.core.units import Seconds
from tests.properties.referee import broken_constraints, group_nodes, host_fits, overfull, peak
from tests.properties.strategies import clusters, demands, examples, machines, plain_demands, policies, queues

NOW = Seconds(0.0)


@st.composite
def occupied(draw: st.DrawFn) -> Cluster:
    """A cluster with tenants that a policy put there."""
    cluster = draw(clusters())
    policy = build_policy(draw(st.sampled_from(["binpack", "spread", "topology"])))
    return decide(policy, draw(queues(demands())), cluster, NOW).cluster


@pytest.mark.slow
@examples(80)
@given(st.data())
def test_no_gpu_is_ever_promised_more_than_it_has(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    policy = data.draw(policies(cluster))
    ranker = Ranker(policy, remember=3)
    running: list[Placement] = []
    for wave in range(data.draw(st.integers(1, 4))):
        queue = [replace(job, id=f"{wave}-{job.id}") for job in data.draw(queues(demands(), largest=8))]
        decision = decide(policy, queue, cluster, NOW, ranker=ranker)
        cluster = decision.cluster
        running += decision.placements
        assert overfull(cluster) == []
        for _ in range(data.draw(st.integers(0, len(running)))):
            cluster = cluster.finish(running.pop(data.draw(st.integers(0, len(running) - 1))))
        assert overfull(cluster) == []
        assert sum(len(node.tenants) for node in cluster) == len(running)


@pytest.mark.slow
@examples(80)
@given(st.data())
def test_shuffling_the_queue_changes_nothing(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    policy = data.draw(policies(cluster))
    queue = data.draw(queues(demands()))
    shuffled = data.draw(st.permutations(queue))
    assert decide(policy, queue, cluster, NOW).placements == decide(policy, shuffled, cluster, NOW).placements


@pytest.mark.slow
@examples(80)
@given(st.data())
def test_every_node_either_fits_or_says_why_not(data: st.DataObject) -> None:
    cluster = data.draw(occupied())
    job = Job(id="new", demand=data.draw(demands()))
    ranking = rank(data.draw(policies(cluster)), job, cluster)
    fits = [fit.slot.node for fit in ranking.fits]
    assert sorted([*fits, *ranking.reasons]) == list(cluster.names)
    assert all(reason.check and str(reason) for reason in ranking.reasons.values())


@pytest.mark.slow
@examples(100)
@given(occupied(), demands())
def test_a_reason_is_that_of_its_own_node(cluster: Cluster, demand: Demand) -> None:
    policy = build_policy("binpack")
    said = Ranker(policy).reasons(demand, cluster)
    if not group_nodes(demand, cluster):
        assert said == {
            node.name: why for node in cluster if (why := refusal_of(feasibility(demand), node)) is not None
        }


@pytest.mark.slow
@examples(100)
@given(occupied(), demands())
def test_a_demand_is_refused_exactly_where_it_has_no_slot(cluster: Cluster, demand: Demand) -> None:
    for node in cluster:
        assert (refusal_of(feasibility(demand), node) is None) == bool(slots_of(feasibility(demand), node))


@pytest.mark.slow
@examples(100)
@given(occupied(), demands())
def test_every_candidate_slot_meets_every_wish(cluster: Cluster, demand: Demand) -> None:
    for node in cluster:
        slots = slots_of(feasibility(demand), node)
        assert len(set(slots)) == len(slots)
        for slot in slots:
            assert host_fits(demand, node)
            assert amounts_fit(demand, node, slot, slot)
            assert broken_constraints(demand, node, slot) == []
            assert overfull(Cluster.of([node.after(demand, slot)])) == []


@pytest.mark.slow
@examples(100)
@given(occupied(), plain_demands())
def test_the_fast_path_for_plain_demands_answers_as_the_checks_do(cluster: Cluster, demand: Demand) -> None:
    assert demand.claim is not None
    for node in cluster:
        eligible = eligible_gpus(demand, node)
        fast = slots_of(feasibility(demand), node)
        if isinstance(eligible, Reason):
            assert fast == []
        elif demand.gpus == 1:
            states = {_state(node, i) for i in eligible}
            assert {_state(node, gpus[0]) for gpus in fast} == states
            assert {gpus[0] for gpus in fast} <= set(eligible)
        else:
            # The same demand with one more check that applies to it.
            assert fast == slots_of(feasibility(replace(demand, avoid_types=("no such GPU",))), node)


def _state(node: Node, gpu: int) -> tuple[object, ...]:
    return node.machine.gpus[gpu].type, node.machine.gpus[gpu].numa, node.free(gpu)


@pytest.mark.slow
@examples(100)
@given(occupied(), demands(), st.data())
def test_finishing_a_job_never_makes_another_infeasible(cluster: Cluster, demand: Demand, data: st.DataObject) -> None:
    tenants = [(node.name, one) for node in cluster for one in node.tenants]
    if not tenants:
        return
    name, gone = data.draw(st.sampled_from(tenants))
    node = cluster.node(name)
    before = bool(slots_of(feasibility(demand), node))
    after = bool(slots_of(feasibility(demand), node.without_tenant(gone.job, gone.replica)))
    assert after or not before


@pytest.mark.slow
@examples(80)
@given(st.data())
def test_a_job_that_fits_a_cluster_still_fits_after_another_finished(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    policy = data.draw(policies(cluster))
    decision = decide(policy, data.draw(queues(demands())), cluster, NOW)
    ranker = Ranker(policy)
    demand = data.draw(demands())
    if not decision.placements or ranker.best(demand, decision.cluster) is None:
        return
    gone = data.draw(st.sampled_from(decision.placements))
    assert ranker.best(demand, decision.cluster.finish(gone)) is not None


@pytest.mark.slow
@examples(100)
@given(occupied(), demands())
def test_place_then_finish_gives_back_exactly_what_was_taken(cluster: Cluster, demand: Demand) -> None:
    fit = Ranker(build_policy("binpack")).best(demand, cluster)
    if fit is None:
        return
    placement = Placement(Job(id="guest", demand=demand), fit.slot)
    node, again = cluster.node(fit.slot.node), cluster.place(placement).finish(placement).node(fit.slot.node)
    assert again.tenants == node.tenants
    for part in ("compute", "memory", "slots", "room", "cpu", "host_memory", "distinct", "sorted_room"):
        assert getattr(again, part) == getattr(node, part)


@pytest.mark.slow
@examples(80)
@given(st.data())
def test_a_gang_starts_together_or_not_at_all(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    policy = data.draw(policies(cluster))
    queue = data.draw(queues(demands()))
    decision = decide(policy, queue, cluster, NOW)
    for job in queue:
        replicas = [placed.replica for placed in decision.placements if placed.job.id == job.id]
        assert replicas in ([], list(range(job.replicas)))
    waiting = [job for job in queue if all(placed.job.id != job.id for placed in decision.placements)]
    for job in waiting:
        assert place_gang(Ranker(policy), job, decision.cluster) is None


@pytest.mark.slow
@examples(60)
@given(st.data())
def test_when_the_displaced_have_left_the_waiting_job_fits_beside_all_others(data: st.DataObject) -> None:
    cluster = data.draw(clusters(largest=3))
    policy = build_policy("binpack")
    decision = decide(policy, data.draw(queues(demands())), cluster, NOW)
    running = {job.id: job for job in (placed.job for placed in decision.placements)}
    holders = [(job, tuple(one for one in decision.placements if one.job.id == job.id)) for job in running.values()]
    first = Job(id="first", demand=data.draw(demands()), submitted=Seconds(-1.0))
    ways = list(find_preemptions(Ranker(policy), [first], holders, decision.cluster, lambda job: (0, job.submitted)))
    left, by_job = decision.cluster, {job.id: own for job, own in holders}
    for victim in (job for victims in ways for job in victims):
        for placement in by_job[victim.id]:
            left = left.finish(placement)
    if ways:
        placed = place_gang(Ranker(policy), first, left)
        assert placed is not None
        assert overfull(placed.cluster) == []


@examples(100)
@given(machines("n0"), demands(), st.data())
def test_a_claim_is_the_peak_over_a_pods_life(machine: Machine, demand: Demand, data: st.DataObject) -> None:
    for slot in slots_of(feasibility(demand), Node.of(machine)):
        counted = claims(demand, slot, machine.gpus)
        assert set(counted) == set(slot)
        for i, claim in counted.items():
            assert claim == peak(demand, slot, i, machine.gpus[i])
        node = Node.of(machine, [Tenant("one", demand, slot)])
        assert node.memory == tuple(
            gpu.memory_capacity - (counted[i].memory if i in counted else 0) for i, gpu in enumerate(machine.gpus)
        )
