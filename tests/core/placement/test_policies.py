# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Policies by name: what each prefers, how names compose, and what an unknown name answers."""

import pytest

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.links import link_matrix_of_pairs
from cotenant.core.model import MACHINE_TYPE_LABEL, Demand, Link
from cotenant.core.placement.policies import ORDERS, QUEUES, build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import MilliCpu, Seconds
from tests.core.builders import card, cluster_with, job, machine, machine_of, placed, share


def chosen(policy: str, demand: Demand, cluster: Cluster) -> str:
    fit = Ranker(build_policy(policy)).best(demand, cluster)
    assert fit is not None
    return f"{fit.slot.node}/{'+'.join(map(str, fit.slot.gpus))}"


HALF_USED = cluster_with(
    [machine("a", gpus=2), machine("b", gpus=2), machine("c", gpus=2)],
    placed("one", share(8000, 500), "b", 1),
    placed("two", share(4000, 250), "c", 0),
    placed("three", share(4000, 250), "c", 1),
)


@pytest.mark.parametrize(
    ("policy", "slot"),
    [
        ("binpack", "b/1"),
        ("spread", "a/0"),
        ("exclusive", "a/0"),
        ("spread/binpack", "a/0"),
        ("binpack/spread", "c/0"),
        ("topology-simple", "a/0"),
    ],
)
def test_where_a_share_goes(policy: str, slot: str) -> None:
    assert chosen(policy, share(2000, 100), HALF_USED) == slot


def test_of_equal_gpus_binpack_takes_the_fuller_node_and_spread_the_emptier() -> None:
    cluster = cluster_with([machine("a", gpus=2), machine("b", gpus=2)], placed("one", share(8000, 1000), "b", 0))
    assert chosen("binpack", Demand(), cluster) == "b/1"
    assert chosen("spread", Demand(), cluster) == "a/0"


def test_nodes_and_gpus_are_chosen_by_different_orders() -> None:
    cluster = cluster_with(
        [machine("a", gpus=2), machine("b", gpus=2)],
        placed("one", share(0, 500), "a", 1),
        placed("two", share(0, 600), "b", 1),
    )
    assert chosen("binpack", share(0, 100), cluster) == "b/1"
    assert chosen("spread/binpack", share(0, 100), cluster) == "a/1"


def test_a_second_order_breaks_the_ties_of_the_first() -> None:
    mixed = [card(numa=0), card(numa=1), card(numa=1)]
    cluster = Cluster.of([machine_of("a", *mixed)])
    assert chosen("binpack", Demand(gpus=2), cluster) == "a/0+1"
    assert chosen("binpack+numa", Demand(gpus=2), cluster) == "a/1+2"


def test_topology_takes_the_best_linked_pair() -> None:
    links = link_matrix_of_pairs(4, [(0, 1, Link.SYS), (1, 3, Link.NVLINK), (0, 2, Link.PIX)])
    cluster = Cluster.of([machine("a", gpus=4, links=links)])
    assert chosen("topology", Demand(gpus=2), cluster) == "a/1+3"
    assert chosen("topology-simple", Demand(gpus=2), cluster) == "a/0+1"


VOLTA = machine("a", gpus=8, labels={MACHINE_TYPE_LABEL: "dgx-1-volta"})


def test_the_static_table_is_followed() -> None:
    cluster = Cluster.of([VOLTA])
    assert chosen("topology-static", Demand(gpus=2), cluster) == "a/0+3"
    taken = cluster.place(placed("one", Demand(), "a", 0))
    assert chosen("topology-static", Demand(gpus=2), taken) == "a/1+2"
    assert chosen("topology-static", Demand(gpus=4), taken) == "a/4+5+6+7"


def test_sizes_that_the_static_table_does_not_list_are_placed_too() -> None:
    """The GSoC 2019 static policy failed for odd sizes."""
    assert chosen("topology-static", Demand(gpus=3), Cluster.of([VOLTA])) == "a/0+1+2"


def test_the_simple_order_skips_busy_gpus_and_still_hands_out_as_many_as_asked() -> None:
    """The GSoC 2019 simple policy looked at the first n GPUs only, and returned fewer when one of them was busy."""
    cluster = cluster_with([machine("a", gpus=4)], placed("one", Demand(), "a", 0))
    assert chosen("topology-simple", Demand(gpus=2), cluster) == "a/1+2"


def test_one_gpu_is_chosen_by_links_where_every_score_is_zero() -> None:
    """The GSoC 2019 best-effort policy crashed when every set scored nothing, as single GPUs do."""
    links = link_matrix_of_pairs(3, [(0, 1, Link.NVLINK)])
    cluster = Cluster.of([machine("a", gpus=3, links=links)])
    assert chosen("topology", Demand(), cluster) == "a/2"
    assert chosen("topology", Demand(gpus=2), Cluster.of([machine("a", gpus=3, links=((0,) * 3,) * 3)])) == "a/0+1"


def test_a_share_goes_where_the_second_order_wants_it() -> None:
    links = link_matrix_of_pairs(3, [(0, 1, Link.NVLINK)])
    cluster = cluster_with([machine("a", gpus=3, links=links)], placed("one", share(300), "a", 1))
    assert chosen("topology+binpack", share(300), cluster) == "a/1"
    assert chosen("topology+binpack", Demand(), cluster) == "a/2"


def test_more_gpus_than_divide_evenly_are_chosen_without_padding() -> None:
    """go-gpuallocator (its PR 80): 3 of 5 free GPUs."""
    links = link_matrix_of_pairs(5, [(2, 3, Link.NVLINK), (3, 4, Link.NVLINK), (2, 4, Link.NVLINK)])
    assert chosen("topology", Demand(gpus=3), Cluster.of([machine("a", gpus=5, links=links)])) == "a/2+3+4"


@pytest.mark.parametrize(("policy", "slot"), [("bestfit", "b/0"), ("clustering", "b/0"), ("packing", "b/0")])
def test_the_published_baselines_prefer_the_node_already_used_by_shares(policy: str, slot: str) -> None:
    machines = [machine("a", gpus=8, cpu=MilliCpu(96000)), machine("b", gpus=8, cpu=MilliCpu(96000))]
    cluster = cluster_with(machines, placed("one", share(0, 500, cpu=MilliCpu(8000)), "b", 0))
    assert chosen(policy, share(0, 500, cpu=MilliCpu(8000)), cluster) == slot


def test_the_dot_product_prefers_the_node_with_less_of_what_is_asked() -> None:
    machines = [machine("a", gpus=8, cpu=MilliCpu(96000)), machine("b", gpus=4, cpu=MilliCpu(96000))]
    assert chosen("dotprod", Demand(gpus=4), Cluster.of(machines)) == "b/0+1+2+3"


@pytest.mark.parametrize("policy", ["fgd", "fragmentation"])
def test_fragmentation_aware_policies_complete_a_used_gpu(policy: str) -> None:
    machines = [machine("a", gpus=2, memory=0), machine("b", gpus=2, memory=0)]
    half, whole = share(0, 500), Demand()
    known = Knowledge(mix_of([half, half, whole]), inventory_of(machines))
    cluster = cluster_with(machines, placed("one", half, "b", 1))
    fit = Ranker(build_policy(policy, known)).best(half, cluster)
    assert fit is not None
    assert (fit.slot.node, fit.slot.gpus) == ("b", (1,))


def test_fragmentation_takes_a_mix_with_jobs_that_claim_no_compute() -> None:
    machines = [machine("a", gpus=2), machine("b", gpus=2)]
    known = Knowledge(mix_of([share(0, 0), share(4000, 0), share(0, 500)]), inventory_of(machines))
    for demand in (share(0, 0), share(4000, 0), share(0, 500)):
        assert Ranker(build_policy("fragmentation", known)).best(demand, Cluster.of(machines)) is not None


def test_random_draws_every_gpu_that_fits_alike() -> None:
    cluster = cluster_with([machine("a", gpus=2), machine("b", gpus=2)], placed("one", Demand(), "a", 1))
    ranker = Ranker(build_policy("random"))
    drawn = set()
    for node in range(2):
        for gpu in range(2):
            lots = iter([node, gpu])
            fit = ranker.best(Demand(), cluster, lambda n, lots=lots: min(next(lots), n - 1))  # type: ignore[misc]
            assert fit is not None
            drawn.add((fit.slot.node, fit.slot.gpus))
    assert drawn == {("a", (0,)), ("b", (0,)), ("b", (1,))}


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_every_named_policy_can_be_built_and_places_a_job(name: str) -> None:
    policy = build_policy(name)
    assert policy.name == name
    assert Ranker(policy).best(Demand(), Cluster.of([machine("a")])) is not None


@pytest.mark.parametrize("spec", ["nosuch", "binpack/nosuch", "nosuch/binpack", "binpack+nosuch", "BINPACK"])
def test_an_unknown_policy_is_answered_with_the_list_of_names(spec: str) -> None:
    with pytest.raises(ValueError, match=r"unknown policy '(nosuch|BINPACK)'; there are: ") as caught:
        build_policy(spec)
    assert ", ".join(sorted(ORDERS)) in str(caught.value)


@pytest.mark.parametrize("spec", ["", "/binpack", "binpack+", "binpack/spread/fgd"])
def test_a_name_that_is_not_whole_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="unknown policy"):
        build_policy(spec)


JOBS = (
    job("long", submitted=0.0, estimate=Seconds(100.0), attained=Seconds(90.0)),
    job("wide", Demand(gpus=4), submitted=1.0, estimate=Seconds(20.0), attained=Seconds(5.0)),
    job("short", submitted=2.0, estimate=Seconds(30.0), attained=Seconds(25.0)),
    job("unknown", submitted=3.0, attained=Seconds(0.0)),
)


@pytest.mark.parametrize(
    ("queue", "order"),
    [
        ("fifo", ["long", "wide", "short", "unknown"]),
        ("fair", ["long", "wide", "short", "unknown"]),  # of one account
        ("sjf", ["short", "wide", "long", "unknown"]),
        ("srpt", ["short", "long", "wide", "unknown"]),
        ("las", ["unknown", "wide", "short", "long"]),
        ("aged", ["short", "long", "wide", "unknown"]),
    ],
)
def test_queue_orders(queue: str, order: list[str]) -> None:
    by = build_policy("binpack", queue=queue).queue
    assert [one.id for one in sorted(JOBS, key=lambda one: by(one, Seconds(0.0)))] == order


def test_every_queue_order_is_tested_above() -> None:
    assert set(QUEUES) == {"fifo", "fair", "sjf", "srpt", "las", "aged"}


@pytest.mark.parametrize("spec", ["cotenant", "lucid", "iadeep", "alone"])
def test_nothing_is_checked_twice(spec: str) -> None:
    names = [check.name for check in build_policy(spec).checks]
    assert len(names) == len(set(names))
