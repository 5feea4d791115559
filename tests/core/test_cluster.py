# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster is a value: every change makes a new one, and old ones keep telling the truth."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import ROW, Cluster, Node, Seen
from cotenant.core.model import Demand, Gpus, Machine
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.placement.slots import slots_of
from cotenant.core.units import MiB, MilliCpu, Percent
from tests.core.builders import card, cluster_with, job, machine, machine_of, node, placed, share


def test_placing_leaves_the_old_cluster_as_it_was() -> None:
    old = Cluster.of([machine("a"), machine("b")])
    new = old.place(placed("one", share(1000), "a", 0))
    assert old.node("a").memory == (16000,)
    assert new.node("a").memory == (15000,)
    assert new.node("b") is old.node("b")


def test_nodes_are_in_name_order_whatever_order_they_came_in() -> None:
    assert Cluster.of([machine("b"), machine("c"), machine("a")]).names == ("a", "b", "c")


def test_two_nodes_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two nodes have the same name"):
        Cluster.of([machine("a"), machine("a")])
    with pytest.raises(ValueError, match="two nodes have the same name"):
        Cluster.of([machine("a")]).join(machine("a"))


def test_empty_nodes_of_one_kind_start_with_one_version() -> None:
    cluster = Cluster.of([machine("a"), machine("b"), machine("c", memory=8000)])
    a, b, c = cluster.versions.tolist()
    assert a == b != c


def test_every_change_gives_a_version_that_no_other_value_has() -> None:
    cluster = Cluster.of([machine("a"), machine("b")])
    seen = set(cluster.versions.tolist())
    guest = placed("one", share(1), "a", 0)
    there = cluster.place(guest)
    for changed in (there, there.finish(guest), cluster.place(guest), there.replace(machine("a"))):
        version = int(changed.versions[0])
        assert version not in seen
        seen.add(version)


def test_nodes_that_stay_keep_their_versions_when_others_join_or_leave() -> None:
    cluster = Cluster.of([machine(name) for name in "bdf"]).place(placed("one", share(1), "d", 0))
    grown = cluster.join(machine("a"), machine("e"))
    shrunk = grown.leave("b", "a")
    for name in "df":
        versions = {int(one.versions[one.index[name]]) for one in (cluster, grown, shrunk)}
        assert len(versions) == 1
    assert shrunk.names == ("d", "e", "f")
    assert [one.job for one in shrunk.node("d").tenants] == ["one"]


STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.booleans()), max_size=40)


@given(STEPS, st.sampled_from([0, 600]))
def test_nodes_that_changed_are_found_whichever_cluster_was_seen_before(
    steps: list[tuple[int, int, bool]], least: int
) -> None:
    """Each step changes a node of one of the clusters so far, or returns to it; not every cluster is looked at."""
    clusters, seen, known = [Cluster.of(machine(name) for name in "abc")], Seen(3), [0, 0, 0]
    for step, (pick, i, look) in enumerate(steps):
        cluster = clusters[pick % len(clusters)]
        if pick % 3:
            cluster = cluster.place(placed(f"job-{step}", share(1, 250), "abc"[i], 0))
            clusters.append(cluster)
        now = [node.version for node in cluster]
        assert cluster.versions.tolist() == now
        if look:
            stale = seen.stale(cluster, least)
            enough = [node.widest >= least for node in cluster]
            assert {i for i in range(3) if known[i] != now[i] and enough[i]} <= set(stale)
            seen.saw(cluster, stale)
            seen.caught_up(cluster)
            known = [now[i] if i in stale else known[i] for i in range(3)]
            assert least or known == now


def test_clusters_longer_than_a_row_find_every_node() -> None:
    names = [f"n{i:04}" for i in range(ROW * ROW + 3)]
    cluster = Cluster.of(machine(name) for name in names)
    for name in (names[0], names[ROW - 1], names[ROW], names[ROW * ROW - 1], names[-1]):
        changed = cluster.place(placed("one", share(5), name, 0))
        assert [one.name for one in changed if one.tenants] == [name]
    assert [one.name for one in cluster] == names


def test_room_is_the_scarcer_of_memory_and_compute() -> None:
    where = node(machine(gpus=3, memory=10000), (share(2500, 500), (0,)), (share(9000, 500), (1,)))
    assert where.room == (500, 100, 1000)


def test_a_gpu_without_slots_has_no_room() -> None:
    assert node(machine_of("a", card(slots=1)), (share(1), (0,))).room == (0,)


def test_scaling_hands_out_more_than_the_card_has() -> None:
    where = node(machine_of("a", card(8000, memory_scaling=Percent(150), compute_scaling=Percent(200))))
    assert (where.memory, where.compute) == ((12000,), (2000,))
    assert slots_of(feasibility(share(12000, 2000)), where) == [(0,)]
    assert slots_of(feasibility(share(12001)), where) == []


@given(st.integers(0, 100_000), st.integers(1, 1000), st.lists(st.integers(0, 100_000), max_size=8))
def test_what_tenants_hold_on_an_oversubscribed_gpu_itself_fits_there(
    memory: int, scaling: int, wanted: list[int]
) -> None:
    gpu = card(memory, memory_scaling=Percent(scaling))
    left, on_gpu = gpu.memory_capacity, 0
    for amount in (min(one, gpu.memory_capacity) for one in wanted):
        if amount > left:
            continue
        left = MiB(left - amount)
        host = gpu.host_part(MiB(amount))
        assert 0 <= host <= amount
        on_gpu += amount - host
    assert on_gpu <= gpu.memory
    assert gpu.host_part(gpu.memory_capacity) == max(0, gpu.memory_capacity - gpu.memory)


def test_the_host_is_counted_where_it_is_known() -> None:
    where = node(machine(cpu=MilliCpu(4000)), (share(cpu=MilliCpu(1000), host_memory=MiB(5)), (0,)))
    assert (where.cpu, where.host_memory) == (3000, None)


def best(cluster: Cluster, demand: Demand) -> tuple[str, Gpus] | None:
    fit = Ranker(build_policy("binpack")).best(demand, cluster)
    return None if fit is None else (fit.slot.node, fit.slot.gpus)


HEALTHY = machine_of("a", card(), card())


@pytest.mark.parametrize("broken", [{"healthy": False}, {"cordoned": True}], ids=["unhealthy", "cordoned"])
def test_a_gpu_takes_no_tenants_while_it_is_out_and_takes_them_again_afterwards(broken: dict[str, bool]) -> None:
    guest = placed("guest", share(4000), "a", 0)
    cluster = cluster_with([HEALTHY], guest)
    ranker = Ranker(build_policy("binpack"))

    def chosen(of: Cluster) -> Gpus | None:
        fit = ranker.best(share(1000), of)
        return None if fit is None else fit.slot.gpus

    assert chosen(cluster) == (0,)
    out = cluster.replace(machine_of("a", card(**broken), card()))
    assert chosen(out) == (1,)
    assert out.node("a").memory == (12000, 16000), "its tenant stays"
    back = out.replace(HEALTHY)
    assert chosen(back) == (0,)
    assert back.node("a").slots == cluster.node("a").slots


def test_a_tenant_that_leaves_a_cordoned_gpu_does_not_open_it() -> None:
    guest = placed("guest", share(4000), "a", 0)
    cordoned = machine_of("a", card(cordoned=True))
    cluster = cluster_with([machine("a")], guest).replace(cordoned).finish(guest)
    assert best(cluster, share(1)) is None
    assert best(cluster.replace(machine("a")), share(1)) == ("a", (0,))


def test_a_fault_takes_the_whole_card_out_not_one_of_its_shares() -> None:
    """k8s-device-plugin#1929: an XID error marked one of a GPU's replicas unhealthy, the others went on being used."""
    where = Node.of(machine_of("a", card(slots=10, healthy=False)))
    assert where.slots == (0,)
    assert slots_of(feasibility(share(1)), where) == []


def shrunk(memory: int) -> Cluster:
    """A card with 12000 MiB promised was swapped for a smaller one."""
    guests = [placed(f"g{i}", share(4000, 400), "a", 0) for i in range(2)]
    return cluster_with([machine("a", memory=16000)], *guests).replace(machine("a", memory=memory))


def test_a_card_that_holds_more_than_it_has_is_full_not_endless() -> None:
    """gpushare's extender and volcano (#2859) subtracted unsigned numbers: used > total gave nearly endless memory."""
    cluster = shrunk(6000)
    where = cluster.node("a")
    assert where.memory == (-2000,)
    assert where.room == (0,)
    assert best(cluster, share(1)) is None
    reason = Ranker(build_policy("binpack")).reasons(share(1), cluster)["a"]
    assert str(reason) == "needs 1 MiB on one GPU; the freest has -2000 MiB free"


def test_a_job_that_asks_for_no_memory_is_kept_off_an_overfull_card_too() -> None:
    assert best(shrunk(6000), share(0, 100)) is None


def test_an_overfull_card_opens_again_when_enough_tenants_have_left() -> None:
    cluster = shrunk(6000).finish(placed("g0", share(4000, 400), "a", 0))
    assert best(cluster, share(2000)) == ("a", (0,))
    assert best(cluster, share(2001)) is None


def test_a_capacity_change_counts_at_once() -> None:
    """gpushare's extender kept the first capacity it saw for ever."""
    cluster = Cluster.of([machine("a", memory=8000)])
    assert best(cluster, share(9000)) is None
    assert best(cluster.replace(machine("a", memory=16000)), share(9000)) == ("a", (0,))
    assert best(cluster.replace(machine("a", gpus=2, memory=8000)), share(8000, gpus=2)) == ("a", (0, 1))


def test_each_card_of_a_mixed_node_has_its_own_memory() -> None:
    """gpushare took the average, its device plugin the first card's memory, for all cards of a node."""
    for order in ((4000, 24000), (24000, 4000)):
        mixed = Cluster.of([machine_of("a", *map(card, order))])
        large = order.index(24000)
        assert best(mixed, share(20000)) == ("a", (large,))
        assert best(mixed, share(4000, gpus=2)) == ("a", (0, 1))
        assert best(mixed, share(14000, gpus=2)) is None
        reason = Ranker(build_policy("binpack")).reasons(share(25000), mixed)["a"]
        assert str(reason) == "needs 25000 MiB on one GPU; the freest has 24000 MiB free"


def test_memory_is_free_only_when_the_job_has_finished() -> None:
    """gpushare freed a pod's memory at its deletion mark, while the process still ran. Here only `finish` frees."""
    guest = placed("guest", share(16000), "a", 0)
    cluster = cluster_with([machine("a")], guest)
    assert best(cluster, share(1)) is None
    assert best(cluster.finish(guest), share(16000)) == ("a", (0,))


def test_groups_are_known_by_node_and_forgotten_with_their_last_member() -> None:
    twins = share(1, affinity="twins")
    one, two = placed("one", twins, "b", 0), placed("two", twins, "b", 0)
    cluster = cluster_with([machine("a"), machine("b")], one, two)
    assert cluster.groups == {"twins": (("b", 2),)}
    assert best(cluster, twins) == ("b", (0,))
    assert str(Ranker(build_policy("binpack")).reasons(twins, cluster).get("a")) == "group twins is on another node"
    assert cluster.finish(one).finish(two).groups == {}
    assert cluster.leave("b").groups == {}


def test_machines_of_one_kind_differ_in_name_and_uuid_only() -> None:
    def kind(**changes: Any) -> object:
        return machine_of("x", card(**changes)).kind

    assert machine("a").kind == machine("b").kind
    kinds = [kind(), kind(type="T4"), kind(numa=1), kind(slots=3), kind(healthy=False), kind(cordoned=True)]
    assert len(set(kinds)) == len(kinds)
    assert machine("a", cpu=MilliCpu(1)).kind != machine("a").kind
    assert Machine(name="a", gpus=(), labels={"x": "1"}).kind != Machine(name="a", gpus=()).kind


def test_two_replicas_of_one_job_on_a_node_leave_one_by_one() -> None:
    twice = job("gang", share(1000), replicas=2)
    first, second = (placed("gang", share(1000), "a", 0) for _ in range(2))
    cluster = Cluster.of([machine("a")]).seat(twice, first.slot, 0).seat(twice, second.slot, 1)
    left = cluster.finish(first).node("a")
    assert [(one.job, one.replica) for one in left.tenants] == [("gang", 1)]
    assert left.memory == (15000,)


def test_the_hash_of_a_demand_is_not_sent_to_other_processes() -> None:
    demand = share(1000, workload="bert")
    assert hash(demand) == hash(share(1000, workload="bert"))
    assert hasattr(demand, "_hash")
    copy = pickle.loads(pickle.dumps(demand))
    assert copy == demand
    assert not hasattr(copy, "_hash")
