# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Each check refuses with one sentence that carries the numbers."""

import pytest

from cotenant.core.cluster import Cluster, Node
from cotenant.core.links import link_matrix
from cotenant.core.model import Container, ContainerKind, Demand, Gpus, Link
from cotenant.core.placement.checks import CHECKS, type_allowed
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.placement.slots import refusal_of, slots_of
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent
from tests.core.builders import card, machine, machine_of, node, share, with_free_memory

TWO_PAIRS = link_matrix([["X", "NV2", "SYS", "SYS"], ["NV2", "X", "SYS", "SYS"]] + [["SYS"] * 4] * 2)

FREE = with_free_memory([12207, 8138, 4069, 8138])
WHOLE, HALF = MilliGpu(1000), MilliGpu(500)

REFUSALS: list[tuple[str, Demand, Node, str]] = [
    (
        "cpu",
        share(cpu=MilliCpu(4000)),
        node(machine(cpu=MilliCpu(3000))),
        "needs 4 CPUs; the node has 3 free",
    ),
    (
        "host-memory",
        share(host_memory=MiB(900)),
        node(machine(host_memory=MiB(1000)), (share(host_memory=MiB(200)), (0,))),
        "needs 900 MiB of host memory; the node has 800 MiB free",
    ),
    ("count", Demand(gpus=5), node(machine(gpus=4)), "needs 5 GPUs on one node; the node has 4"),
    ("count", Demand(gpus=1), node(machine(gpus=0)), "needs 1 GPU on one node; the node has 0"),
    (
        "health",
        Demand(gpus=2),
        node(machine_of("a", card(), card(healthy=False), card(cordoned=True))),
        "needs 2 GPUs in good health and not cordoned; the node has 1",
    ),
    (
        "health",
        Demand(use_types=("V100",)),
        node(machine_of("a", card(type="V100", cordoned=True), card(type="T4"))),
        "needs 1 GPU in good health and not cordoned; the node has 0",
    ),
    (
        "type",
        Demand(use_types=("A100*", "H100")),
        node(machine_of("a", card(type="V100"))),
        "needs 1 GPU of type A100* or H100; the node has 0",
    ),
    (
        "type",
        Demand(gpus=2, avoid_types=("V100",)),
        node(machine_of("a", card(type="V100"), card(type="T4"))),
        "needs 2 GPUs of any type but V100; the node has 1",
    ),
    (
        "uuid",
        Demand(gpus=2, use_uuids=frozenset({"a-0", "b-0"})),
        node(machine(gpus=2)),
        "needs 2 of the GPUs named by UUID; the node has 1",
    ),
    (
        "uuid",
        Demand(avoid_uuids=frozenset({"a-0"})),
        node(machine()),
        "needs 1 of the GPUs named by UUID; the node has 0",
    ),
    (
        "affinity",
        share(gpus=2, affinity="twins"),
        node(machine(gpus=2), (share(affinity="twins"), (1,))),
        "needs 2 GPUs that group twins uses; the node has 1",
    ),
    (
        "anti-affinity",
        share(anti_affinity="rivals"),
        node(machine(), (share(anti_affinity="rivals"), (0,))),
        "needs 1 GPU that group rivals does not use; the node has 0",
    ),
    (
        "exclusive",
        share(gpus=2, exclusive=True),
        node(machine(gpus=2), (share(), (0,))),
        "needs 2 GPUs that no other job uses; the node has 1",
    ),
    (
        "slots",
        share(),
        node(machine_of("a", card(slots=2)), (share(), (0,)), (share(), (0,))),
        "needs 1 GPU with a free share slot; the node has 0",
    ),
    (
        "slots",
        share(),
        node(machine(gpus=2), (share(exclusive=True), (0,)), (share(exclusive=True), (1,))),
        "needs 1 GPU with a free share slot; the node has 0",
    ),
    (
        "memory",
        share(9000),
        with_free_memory([8138, 4069]),
        "needs 9000 MiB on one GPU; the freest has 8138 MiB free",
    ),
    ("memory", share(8138, gpus=4), FREE, "needs 4 GPUs, each with 8138 MiB free; the node has 3"),
    (
        "memory",
        share(memory_percent=Percent(75)),
        with_free_memory([8138], each=16276),
        "needs 12207 MiB on one GPU; the freest has 8138 MiB free",
    ),
    (
        "compute",
        share(0, 600),
        node(machine(gpus=2), (share(0, 500), (0,)), (share(0, 700), (1,))),
        "needs 60 % of one GPU; the freest has 50 % free",
    ),
    (
        "compute",
        share(0, 600, gpus=2),
        node(machine(gpus=2), (share(0, 500), (0,))),
        "needs 2 GPUs, each with 60 % of its compute free; the node has 1",
    ),
    (
        "compute",
        Demand(),
        node(machine(gpus=2), (share(0, 300), (0,)), (share(0, 700), (1,))),
        "needs a whole GPU; every GPU is in use",
    ),
    (
        "compute",
        Demand(gpus=2),
        node(machine(gpus=2), (share(0, 500), (0,))),
        "needs 2 whole GPUs; the node has 1 free",
    ),
    (
        "compute",
        Demand(),
        node(machine_of("a", card(compute_scaling=Percent(50)))),
        "needs 100 % of one GPU; the freest has 50 % free",
    ),
    (
        "memory",
        share(memory_percent=Percent(50), gpus=2),
        with_free_memory([16276, 1000]),
        "needs 2 GPUs, each with 50 % of its memory free; the node has 1",
    ),
    (
        "numa",
        Demand(gpus=3, one_numa=True),
        node(machine_of("a", card(numa=0), card(numa=0), card(numa=1), card(numa=1))),
        "needs 3 GPUs on one NUMA node; the best NUMA node has 2 free",
    ),
    (
        "link",
        Demand(gpus=2, link=Link.NVLINK),
        node(machine(gpus=4, links=TWO_PAIRS), (Demand(), (0,))),
        "needs 2 GPUs linked by NVLINK or better; the 3 free GPUs have no such set",
    ),
    (
        "container",
        Demand(containers=(Container(memory=MiB(9000), compute=HALF), Container(memory=MiB(9000), compute=HALF))),
        node(machine(memory=16000)),
        "container 1 (app) needs 9000 MiB on one GPU; the freest has 7000 MiB free for it",
    ),
    (
        "container",
        Demand(
            containers=(
                Container(kind=ContainerKind.SIDECAR, memory=MiB(1000), compute=HALF),
                Container(kind=ContainerKind.INIT, memory=MiB(16000), compute=HALF),
            )
        ),
        node(machine(memory=16000)),
        "container 1 (init) needs 16000 MiB on one GPU; the freest has 15000 MiB free for it",
    ),
    (
        "container",
        Demand(containers=(Container(memory=MiB(1), compute=MilliGpu(600)), Container(memory=MiB(1), compute=HALF))),
        node(machine(memory=16000)),
        "container 1 (app) needs 50 % of one GPU; the freest has 40 % free for it",
    ),
    (
        "container",
        Demand(containers=(Container(gpus=3, memory=MiB(100), compute=HALF), Container(memory=MiB(1), compute=HALF))),
        node(machine(gpus=2, memory=16000)),
        "container 0 (app) needs 3 GPUs, each with 100 MiB and 50 % of its compute free for it; the node has 2",
    ),
]


@pytest.mark.parametrize(("check", "demand", "where", "sentence"), REFUSALS, ids=[case[3] for case in REFUSALS])
def test_a_refusal_says_what_was_needed_and_what_there_was(
    check: str, demand: Demand, where: Node, sentence: str
) -> None:
    reason = refusal_of(feasibility(demand), where)
    assert reason is not None
    assert (reason.check, str(reason)) == (check, sentence)
    assert slots_of(feasibility(demand), where) == []


def test_every_check_has_a_refusal_above() -> None:
    """That each row of the table is in a scenario is asserted beside the scenarios."""
    names = "cpu host-memory count type uuid health affinity anti-affinity exclusive slots memory compute numa link"
    assert {check for check, *_ in REFUSALS} == {*names.split(), "container"}
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_the_numbers_of_a_refusal_are_data() -> None:
    reason = refusal_of(feasibility(Demand()), node(machine(), (share(0, 300), (0,))))
    assert reason is not None
    assert (reason.needed, reason.available) == (1000, 700)


def test_a_full_gpu_is_refused_with_its_free_memory() -> None:
    reason = refusal_of(feasibility(share(1)), with_free_memory([0]))
    assert str(reason) == "needs 1 MiB on one GPU; the freest has 0 MiB free"


@pytest.mark.parametrize("odd", ["{0}", "{needed", "a}b", "%s"])
def test_signs_in_names_that_users_choose_do_not_break_the_sentence(odd: str) -> None:
    taken = node(machine(), (share(affinity=odd, anti_affinity=odd), (0,)))
    for demand in (
        share(use_types=(odd,)),
        share(avoid_types=("*", odd)),
        share(anti_affinity=odd),
        share(gpus=1, affinity=odd, anti_affinity=odd),
    ):
        assert odd in str(refusal_of(feasibility(demand), taken))


@pytest.mark.parametrize(
    ("name", "use", "avoid", "allowed"),
    [
        ("V100", (), (), True),
        ("V100-SXM2-32GB", ("v100*",), (), True),
        ("V100-SXM2-32GB", ("V100",), (), False),
        ("A100", ("V100", "A100"), (), True),
        ("A100", ("A*",), ("A100",), False),
        ("A100", (), ("V*",), True),
    ],
)
def test_card_types_match_by_pattern_whatever_the_case(
    name: str, use: tuple[str, ...], avoid: tuple[str, ...], allowed: bool
) -> None:
    assert type_allowed(name, use, avoid) is allowed


def test_the_first_check_that_refuses_is_the_one_that_is_told() -> None:
    demand = share(99999, 1000, cpu=MilliCpu(10), use_types=("H100",))
    reason = refusal_of(feasibility(demand), node(machine(cpu=MilliCpu(0))))
    assert reason is not None
    assert reason.check == "cpu"


def test_nodes_that_are_alike_but_for_their_uuids_each_give_their_own_numbers() -> None:
    twins = Cluster.of([machine("a", gpus=2), machine("b", gpus=2)])
    demand = Demand(gpus=2, use_uuids=frozenset({"a-0"}))
    said = Ranker(build_policy("binpack")).reasons(demand, twins)
    assert {name: reason.available for name, reason in said.items()} == {"a": 1, "b": 0}


def best_gpus(policy: str, demand: Demand, where: Node) -> Gpus | None:
    fit = Ranker(build_policy(policy)).best(demand, Cluster.of([where]))
    return None if fit is None else fit.slot.gpus


def test_binpack_takes_the_least_free_gpu_that_fits() -> None:
    """gpushare's design example."""
    where = with_free_memory([12207, 8138, 4069, 16276])
    assert best_gpus("binpack", share(8138), where) == (1,)
    assert best_gpus("spread", share(8138), where) == (3,)


def test_memory_of_several_gpus_does_not_add_up() -> None:
    """gpushare's filter example: 8138 free in all, but on no one GPU."""
    assert best_gpus("binpack", share(8138), with_free_memory([4069, 4069])) is None
