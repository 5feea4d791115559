# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job fit, on clusters that are easy to read."""

from dataclasses import replace

import pytest

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.isolation import Rung
from cotenant.core.model import Container, ContainerKind, Demand, Job, Placement, Slot
from cotenant.core.placement.policies import build_policy
from cotenant.core.queueing.eviction import Stake
from cotenant.core.suggestions.changes import Suggestion
from cotenant.core.suggestions.search import Memory, Search, finished
from cotenant.core.suggestions.suggesting import gang_standing, ordered, suggestions
from cotenant.core.units import MiB, MilliGpu, Percent, Seconds
from tests.core.builders import card, cluster_with, job, machine, machine_of, one_bad_pair, placed, share

BUSY = cluster_with([machine("a", 2)], placed("x", share(10000, 500), "a", 0), placed("y", share(12000, 100), "a", 1))
STAKES = {"x": Stake(0, Seconds(0.0)), "y": Stake(0, Seconds(1.0))}


def suggested(
    wanted: Job | Demand, cluster: Cluster = BUSY, policy: str = "binpack", budget: int = 40_000
) -> list[Suggestion]:
    one = wanted if isinstance(wanted, Job) else job("new", wanted)
    search = Search(Memory(build_policy(policy, Knowledge(belief=one_bad_pair()))), one, cluster, budget=budget)
    running = [
        (Job(id=tenant.job, demand=tenant.demand), (placed(tenant.job, tenant.demand, node.name, *tenant.gpus),))
        for node in cluster
        for tenant in node.tenants
    ]
    return ordered(suggestions(search, STAKES, running))


def texts(found: list[Suggestion]) -> list[str]:
    return [one.text for one in found]


def test_less_memory_is_suggested_to_the_mebibyte_and_says_who_would_have_to_end() -> None:
    found = suggested(share(8000))
    assert texts(found) == ["with 6000 MiB of GPU memory instead of 8000 MiB", "without y"]
    assert found[0].demand == share(6000)
    assert [one.slots for one in found] == [(Slot("a", (0,)),), (Slot("a", (1,)),)]


def test_less_compute_is_suggested_in_whole_percents() -> None:
    assert "with 50 % of a GPU's compute instead of 76.5 %" in texts(suggested(share(5000, 765)))


def test_if_neither_amount_alone_is_enough_both_are_lowered() -> None:
    found = [one for one in suggested(share(8000, 1000)) if one.demand is not None]
    assert texts(found) == [
        "with 90 % of a GPU's compute instead of 100 % and 4000 MiB of GPU memory instead of 8000 MiB",
        "with 50 % of a GPU's compute instead of 100 % and 6000 MiB of GPU memory instead of 8000 MiB",
    ]
    assert [one.kind for one in found] == ["compute+memory"] * 2


def test_a_job_that_wants_whole_gpus_is_told_the_percents_that_are_free() -> None:
    found = [one for one in suggested(Demand(memory_percent=Percent(100))) if one.demand is not None]
    assert texts(found)[0] == "with 90 % of a GPU's compute instead of 100 % and 25 % of GPU memory instead of 100 %"


def test_fewer_gpus() -> None:
    assert "with 1 GPU instead of 2 GPUs" in texts(suggested(share(5000, gpus=2)))


@pytest.mark.parametrize(
    ("demand", "text"),
    [
        (share(1000, use_types=("H100",)), "GPUs of type A100 or T4"),
        (share(1000, use_uuids=frozenset({"elsewhere"})), "GPUs of any UUID"),
        (share(1000, exclusive=True), "GPUs that other jobs use too"),
        (share(1000, rung=Rung.MPS), "isolation preload"),
    ],
)
def test_a_constraint_is_dropped_or_replaced(demand: Demand, text: str) -> None:
    gpus = [card(type=kind, rungs=frozenset({Rung.PRELOAD})) for kind in ("A100", "T4")]
    both = [placed(f"t{i}", share(1000), "a", i) for i in range(2)]
    cluster = cluster_with([machine_of("a", *gpus)], *both)
    assert f"with {text}" in texts(suggested(demand, cluster))


def test_a_dropped_constraint_and_a_lower_amount_if_neither_alone_is_enough() -> None:
    found = [one for one in suggested(share(8000, use_types=("H100",))) if one.demand is not None]
    assert texts(found) == ["with GPUs of any type and 6000 MiB of GPU memory instead of 8000 MiB"]
    assert found[0].kind == "type+memory"


def test_an_init_container_that_needs_too_much_is_named() -> None:
    init = Container(kind=ContainerKind.INIT, memory=MiB(9000), compute=MilliGpu(0))
    app = Container(memory=MiB(1000), compute=MilliGpu(0))
    found = suggested(Demand(containers=(init, app)))
    assert texts(found)[0] == "with 6000 MiB of GPU memory in container 0 instead of 9000 MiB"


def test_if_the_sharing_gate_waits_an_idle_gpu_is_what_helps() -> None:
    found = suggested(share(3000), policy="cotenant")
    assert texts(found) == ["without y"]


def test_a_job_that_fits_needs_no_change() -> None:
    assert suggested(share(100)) == []


def test_a_gang_says_how_many_members_fit_and_what_the_next_one_lacks() -> None:
    gang = Job(id="gang", demand=share(5000), replicas=3)
    cluster = cluster_with(
        [machine("a"), machine("b")], placed("x", share(9000), "a", 0), placed("y", share(8000), "b", 0)
    )
    standing = finished(gang_standing(Search(Memory(build_policy("binpack")), gang, cluster)))
    assert (standing.needed, standing.fit) == (3, 2)
    assert str(standing.lacks) == "needs 5000 MiB on one GPU; the freest has 3000 MiB free"
    found = suggested(gang, cluster)
    assert texts(found) == ["with 4000 MiB of GPU memory instead of 5000 MiB", "without x"]


def test_a_search_that_is_given_up_says_that_it_is_not_exact() -> None:
    cluster = BUSY
    nodes = [machine(f"n{i:03}") for i in range(50)]
    busy = [placed(f"j{i}", share(10000 + i), f"n{i:03}", 0) for i in range(50)]
    cluster = cluster_with(nodes, *busy)
    wanted = share(8000, use_uuids=frozenset(f"n{i:03}-0" for i in range(50)))
    full = suggested(wanted, cluster)
    assert full[0].text == "with 6000 MiB of GPU memory instead of 8000 MiB"
    assert full[0].exact
    some = suggested(wanted, cluster, budget=90)
    assert all(not one.exact for one in some if one.kind == "memory")


def test_closed_nodes_are_not_suggested() -> None:
    search = Search(Memory(build_policy("binpack")), job("new", share(8000)), BUSY, closed={"a"})
    assert ordered(suggestions(search, STAKES)) == []


def test_what_is_suggested_does_not_touch_the_cluster() -> None:
    before = [node.tenants for node in BUSY]
    suggested(share(8000, 1000))
    assert [node.tenants for node in BUSY] == before
    assert isinstance(placed("x", replace(share(1)), "a", 0), Placement)
