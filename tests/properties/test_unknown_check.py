# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A check that is new in the table counts behind every door of the core, with a form in arrays or without.

The naive answer knows nothing of fast paths: every node is asked by the old checks, one by one, and the new rule is
applied by hand.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.model import Demand, Job, Machine, Placement, Reason, Slot
from cotenant.core.placement.check import Check, GpuColumns, Mask, Reads, enough
from cotenant.core.placement.checks import CHECKS
from cotenant.core.placement.deciding import decide, idlest_nodes, place_gang, rank
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Fit, Policy, Ranker, rate
from cotenant.core.placement.slots import refusal_of, slots_of
from cotenant.core.queueing.eviction import Stake, least_harm
from cotenant.core.queueing.preemption import find_preemptions
from cotenant.core.units import Seconds
from tests.core.builders import card, machine, machine_of
from tests.core.builders import node as node_of
from tests.properties.referee import group_nodes
from tests.properties.strategies import beliefs, clusters, demands, examples, plain_demands, queues, tenants

NOW = Seconds(0.0)
SPOT = {"spot": "true"}


def is_spot(machine: Machine) -> bool:
    return machine.labels.get("spot") == "true"


# Rules on the node, on each GPU, and on some demands only.


def not_on_spot(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    return Reason("spot", "must not run on a spot node") if is_spot(node.machine) else eligible


def mask_spot(demand: Demand, gpus: GpuColumns) -> Mask:
    return np.array([not is_spot(machine) for machine in gpus.machines], dtype=np.bool_)


def odd_gpus(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Of a spot node only the GPUs whose UUID ends in an odd digit: never the first of several that are alike."""
    left = [i for i in eligible if not is_spot(node.machine) or int(node.machine.gpus[i].uuid[-1]) % 2]
    return enough(demand, left, "odd", "needs {gpus} with an odd number; the node has {available}")


def mask_odd(demand: Demand, gpus: GpuColumns) -> Mask:
    odd: Mask = np.arange(gpus.type.shape[0])[:, None] % 2 == 1
    found: Mask = odd | mask_spot(demand, gpus)
    return found


def odd_names(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    return eligible if int(node.name[-1]) % 2 else Reason("name", "must run on a node with an odd number")


def crowded(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """At most one other tenant on a GPU."""
    left = [i for i in eligible if sum(i in tenant.gpus for tenant in node.tenants) < 2]
    return enough(demand, left, "crowded", "needs {gpus} with at most 1 tenant; the node has {available}")


UNKNOWN = (
    Check("spot", not_on_spot),
    Check("spot", not_on_spot, reads=Reads.HARDWARE),
    Check("spot", not_on_spot, reads=Reads.HARDWARE, mask=mask_spot),
    Check("spot", not_on_spot, lambda demand: demand.priority == 0, Reads.HARDWARE, mask=mask_spot),
    Check("odd", odd_gpus),
    Check("odd", odd_gpus, mask=mask_odd),
    Check("name", odd_names),
    Check("crowded", crowded, reads=Reads.TENANTS),
)
POLICIES = (
    "binpack",
    "spread",
    "spread/binpack",
    "fgd",
    "fragmentation",
    "numa+cotenant",
    "cotenant",
    "coscheml",
    "share",
)


@st.composite
def some_spot(draw: st.DrawFn) -> Cluster:
    """A cluster of which some machines are spot machines."""
    return Cluster.of(
        replace(node.machine, labels={**node.machine.labels, **SPOT}) if draw(st.booleans()) else node.machine
        for node in draw(clusters(largest=11))
    )


@st.composite
def situations(draw: st.DrawFn, names: tuple[str, ...] = POLICIES) -> tuple[Policy, Policy, Check, Cluster]:
    """A policy with the new check, the same without it, the check, and a cluster with tenants."""
    check, cluster = draw(st.sampled_from(UNKNOWN)), draw(some_spot())
    known = Knowledge(
        mix_of(draw(st.lists(demands(), max_size=4))), inventory_of(node.machine for node in cluster), draw(beliefs())
    )
    place = draw(st.sampled_from([0, 3, len(CHECKS), len(CHECKS)]))
    name = draw(st.sampled_from(names))
    old = build_policy(name, known)
    new = build_policy(name, known, table=(*CHECKS[:place], check, *CHECKS[place:]))
    cluster = decide(build_policy("binpack"), draw(queues(tenants(), largest=14)), cluster, NOW).cluster
    return new, old, check, cluster


def allowed_gpus(check: Check, demand: Demand, node: Node) -> list[int]:
    """The GPUs that the new rule allows; all if it does not apply."""
    every = list(range(len(node.compute)))
    if not check.applies(demand):
        return every
    left = check.narrow(replace(demand, gpus=0), node, every)
    return [] if isinstance(left, Reason) else left


def allows_node(check: Check, demand: Demand, node: Node) -> bool:
    return not check.applies(demand) or not isinstance(check.narrow(replace(demand, gpus=0), node, []), Reason)


def without_others(node: Node, left: Iterable[int]) -> Node:
    """The node as it would be if all GPUs but these took no tenants."""
    kept = set(left)
    gpus = tuple(replace(gpu, cordoned=gpu.cordoned or i not in kept) for i, gpu in enumerate(node.machine.gpus))
    return Node.of(replace(node.machine, gpus=gpus), node.tenants)


def naive_fits(old: Policy, check: Check, demand: Demand, cluster: Cluster) -> set[str]:
    """The nodes on which the demand fits by the old checks, on the GPUs that the new one allows."""
    home = group_nodes(demand, cluster)
    return {
        node.name
        for node in cluster
        if (not home or node.name in home)
        and allows_node(check, demand, node)
        and rate(old, demand, without_others(node, allowed_gpus(check, demand, node))) is not None
    }


def asked() -> st.SearchStrategy[Demand]:
    """Plain ones, percentages, containers and all other constraints."""
    whole_set = st.builds(replace, plain_demands(), gpus=st.just(2), one_numa=st.just(True))
    return st.one_of(plain_demands(), demands(), tenants(), whole_set)


@pytest.mark.slow
@examples(150)
@given(situations(), asked(), st.sampled_from([0, 2]))
def test_every_door_agrees_with_the_naive_answer(
    situation: tuple[Policy, Policy, Check, Cluster], demand: Demand, few: int
) -> None:
    new, old, check, cluster = situation
    fits = naive_fits(old, check, demand, cluster)
    ranker = Ranker(new, few=few)
    assert set(ranker.shortlist(demand, cluster)) == fits
    ranking = rank(new, Job(id="new", demand=demand), cluster, ranker=ranker)
    assert {fit.slot.node for fit in ranking.fits} == fits
    assert set(ranking.reasons) == set(cluster.names) - fits
    for fit in ranking.fits:
        assert set(fit.slot.gpus) <= set(allowed_gpus(check, demand, cluster.node(fit.slot.node)))
    best = Ranker(new, few=few).best(demand, cluster)
    assert best == (ranking.fits[0] if fits else None)
    assert [fit.slot.node for fit in ranker.top(demand, cluster, cluster.names[:3])] == [
        fit.slot.node for fit in ranking.fits if fit.slot.node in cluster.names[:3]
    ]
    refusers = ranker.refusers(demand, cluster)
    if refusers is not None:
        assert {name for name, who in zip(cluster.names, refusers, strict=True) if not who} == fits
        reasons = [refusal_of(feasibility(demand, new.checks), node) for node in cluster]
        assert refusers == ["" if why is None else why.check for why in reasons]
    nearest = ranker.nearest(demand, cluster, frozenset(cluster.names))
    if nearest is not None:
        assert not fits
        assert all(refusal_of(feasibility(demand, new.checks), cluster.node(name)) == why for _, name, why in nearest)
    for node in cluster:
        slots = slots_of(feasibility(demand, new.checks), node)
        assert bool(slots) == (refusal_of(feasibility(demand, new.checks), node) is None)
        assert bool(slots) == (rate(new, demand, node) is not None)


@pytest.mark.slow
@examples(60)
@given(situations(), asked(), st.integers(1, 3))
def test_decisions_and_gangs_keep_to_the_new_check(
    situation: tuple[Policy, Policy, Check, Cluster], demand: Demand, replicas: int
) -> None:
    new, old, check, cluster = situation
    job = Job(id="gang", demand=demand, replicas=replicas)
    decision = place_gang(Ranker(new), job, cluster, crowding=None)
    if replicas == 1:
        assert (decision is not None) == bool(naive_fits(old, check, demand, cluster))
    assert decision is None or keeps(check, cluster, decision.placements)
    assert keeps(check, cluster, decide(new, [job], cluster, NOW).placements)
    for name in idlest_nodes(new, job, cluster):
        empty = Cluster.of([cluster.node(name).machine])
        assert naive_fits(old, check, demand, empty) == {name}


def keeps(check: Check, cluster: Cluster, placements: Iterable[Placement]) -> bool:
    """Whether each was allowed when it was placed, the ones before it being there."""
    for one in placements:
        demand, node = one.job.demand, cluster.node(one.slot.node)
        if not allows_node(check, demand, node) or not set(one.slot.gpus) <= set(allowed_gpus(check, demand, node)):
            return False
        cluster = cluster.place(one)
    return True


@pytest.mark.slow
@examples(60)
@given(situations(("binpack", "fragmentation", "cotenant")), asked())
def test_eviction_makes_way_only_where_the_new_check_allows_it(
    situation: tuple[Policy, Policy, Check, Cluster], demand: Demand
) -> None:
    new, old, check, cluster = situation
    for node in cluster:
        stakes = {tenant.job: Stake(0, NOW) for tenant in node.tenants}
        way = least_harm(new, demand, node, stakes)
        empty = Node.of(node.machine)
        could = allows_node(check, demand, empty) and (
            rate(old, demand, without_others(empty, allowed_gpus(check, demand, empty))) is not None
        )
        if way is None:
            assert not could
            continue
        left = Node.of(node.machine, [tenant for tenant in node.tenants if tenant.job not in way.victims])
        assert allows_node(check, demand, left)
        assert set(way.gpus) <= set(allowed_gpus(check, demand, left))


@examples(40)
@given(situations(("binpack",)), asked())
def test_preemption_evicts_none_that_the_newcomer_does_not_displace(
    situation: tuple[Policy, Policy, Check, Cluster], demand: Demand
) -> None:
    """Those that run where the new check would refuse them stay."""
    new, _, check, cluster = situation
    holders = [
        (
            job := Job(id=tenant.job, demand=tenant.demand),
            (Placement(job, Slot(node.name, tenant.gpus), tenant.replica),),
        )
        for node in cluster
        for tenant in node.tenants
        if tenant.replica == 0
    ]
    first = Job(id="first", demand=demand, submitted=Seconds(-1.0))
    ways = list(find_preemptions(Ranker(new), [first], holders, cluster, lambda job: (0, job.submitted)))
    left = cluster
    for job, own in holders:
        if any(job.id == victim.id for victims in ways for victim in victims):
            left = left.finish(own[0])
    if ways:
        placed = place_gang(Ranker(new), first, left)
        assert placed is not None
        assert keeps(check, left, placed.placements)


@pytest.mark.parametrize("name", ["binpack", "fgd", "cotenant"])
@pytest.mark.parametrize("check", UNKNOWN[:3], ids=["everything", "hardware", "mask"])
def test_a_thousand_nodes_are_ranked_around_the_new_check(name: str, check: Check) -> None:
    """More nodes than are rated one by one."""
    machines = [machine(f"n{i:04}", gpus=2, labels=SPOT if i % 2 else {}) for i in range(1000)]
    cluster = Cluster.of(machines)
    ranker = Ranker(build_policy(name, table=(*CHECKS, check)))
    fits: list[Fit] = ranker.top(Demand(), cluster)
    assert [fit.slot.node for fit in fits] == [one.name for one in machines if not is_spot(one)]
    best = ranker.best(Demand(gpus=2), cluster)
    assert best is not None
    assert best.slot == Slot("n0000", (0, 1))


def test_a_gpu_does_not_stand_for_others_that_the_check_tells_from_it() -> None:
    equal = node_of(machine("n0", gpus=4, labels=SPOT))
    assert slots_of(feasibility(Demand(), (*CHECKS, Check("odd", odd_gpus))), equal) == [(1,), (3,)]


def test_a_set_of_gpus_is_looked_for_among_those_that_the_check_leaves() -> None:
    """Two GPUs are left, and each NUMA node has one of them."""
    where = node_of(machine_of("n0", *(card(numa=i // 2) for i in range(4)), labels=SPOT))
    checks = (*CHECKS, Check("odd", odd_gpus))
    for demand in (Demand(gpus=2, one_numa=True), Demand(gpus=1, one_numa=True)):
        why = refusal_of(feasibility(demand, checks), where)
        assert (why is None) == bool(slots_of(feasibility(demand, checks), where))
        assert (why is None) == (demand.gpus == 1)
