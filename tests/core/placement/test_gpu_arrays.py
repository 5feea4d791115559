# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Finding the best of many shared nodes by who is on their cards, without rating them all."""

from dataclasses import replace
from typing import Any

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Demand
from cotenant.core.placement.gpu_arrays import GpuArrays
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.sharing.speeds import Tabled, TenantSet, tenant_set_of
from cotenant.core.units import MiB, Percent
from tests.core.builders import card, cluster_with, machine, machine_of, placed, share
from tests.properties.referee import freshly_ranked

GOOD, BAD = TenantSet("gpu", ("bert", "lstm")), tenant_set_of("gpu", ["bert", "vgg"])
BELIEF = Tabled({GOOD: (0.8, 0.8), BAD: (0.6, 0.6)}, learns=False)
COTENANT = build_policy("cotenant", Knowledge(belief=BELIEF))
BERT = share(1000, workload="bert")


def guest(workload: str, **wishes: Any) -> Demand:
    return share(1000, workload=workload, **wishes)


def shared_nodes(count: int, workload: str) -> Cluster:
    """So many nodes of two cards with a tenant on each."""
    names = [f"n{i:03}" for i in range(count)]
    tenants = [placed(f"{name}-{gpu}", guest(workload), name, gpu) for name in names for gpu in (0, 1)]
    return cluster_with([machine(name, gpus=2) for name in names], *tenants)


def chosen(demand: Demand, cluster: Cluster) -> str | None:
    fit = Ranker(COTENANT, few=0).best(demand, cluster)
    return None if fit is None else fit.slot.node


def test_of_many_shared_nodes_few_are_rated() -> None:
    cluster = shared_nodes(100, "vgg")
    better = placed("better", guest("lstm"), "n070", 1)
    vgg = placed("n070-1", guest("vgg"), "n070", 1)
    cluster = cluster.finish(vgg).place(better)
    ranker = Ranker(COTENANT)
    fit = ranker.best(BERT, cluster)
    assert fit == freshly_ranked(COTENANT, BERT, cluster)[0]
    assert (fit.slot.node, fit.slot.gpus, ranker.rated) == ("n070", (1,), 1)


def test_tenants_that_were_promised_a_speed_are_another_crowd_than_those_that_were_not() -> None:
    promised = placed("r", guest("lstm", least_speed=Percent(90)), "a", 0)
    cluster = cluster_with([machine("a"), machine("b")], promised, placed("s", guest("lstm"), "b", 0))
    assert chosen(BERT, cluster) == "b"


def test_a_percentage_of_memory_counts_instead_of_an_amount() -> None:
    cluster = cluster_with([machine("a")], placed("r", guest("lstm"), "a", 0))
    assert chosen(replace(BERT, memory=MiB(99_999)), cluster) is None
    assert chosen(replace(BERT, memory=MiB(99_999), memory_percent=Percent(10)), cluster) == "a"


def test_an_idle_card_that_takes_no_tenants_does_not_stand_for_those_that_do() -> None:
    cluster = Cluster.of([machine_of("a", card(cordoned=True)), machine_of("b", card())])
    assert chosen(BERT, cluster) == "b"
    assert chosen(replace(BERT, gpus=2), cluster) is None


def test_the_roomiest_slots_of_a_sharing_policy_are_compared_by_room_alone() -> None:
    tight, roomy = share(8000, workload="lstm"), guest("lstm")
    cluster = cluster_with([machine("a"), machine("b")], placed("r", tight, "a", 0), placed("s", roomy, "b", 0))
    fit = Ranker(COTENANT, few=0).roomiest().best(BERT, cluster)
    assert fit is not None
    assert fit.slot.node == "b"


def test_crowds_that_are_gone_are_forgotten_and_answers_stay_right() -> None:
    ranker, arrays = Ranker(COTENANT, few=0), GpuArrays(1, tenants=True)
    for i in range(80):
        cluster = cluster_with([machine("a"), machine("b")], placed(f"{i}", guest(f"kind {i}"), "a", 0))
        arrays.columns(cluster)
        assert ranker.best(BERT, cluster) == freshly_ranked(COTENANT, BERT, cluster)[0]
    assert arrays.worn_out
