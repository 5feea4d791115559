# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Few slots are worth rating, and the best one for every order is among them."""

from cotenant.core.links import link_matrix_of_pairs
from cotenant.core.model import Container, ContainerKind, Demand, Gpus, Link
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.slots import refusal_of, slots_of
from cotenant.core.units import MiB, MilliCpu, MilliGpu
from tests.core.builders import card, machine, machine_of, node, share, with_free_memory


def container(memory: int, gpus: int = 1, kind: ContainerKind = ContainerKind.APP) -> Container:
    return Container(kind=kind, gpus=gpus, memory=MiB(memory), compute=MilliGpu(0))


def pod(*containers: Container) -> Demand:
    return Demand(containers=containers)


def test_of_equal_gpus_one_is_rated() -> None:
    assert slots_of(feasibility(share(1000)), node(machine(gpus=8))) == [(0,)]


def test_gpus_that_differ_in_what_is_free_are_all_rated() -> None:
    assert slots_of(feasibility(share(1000)), with_free_memory([3000, 2000, 3000, 500])) == [(0,), (1,)]


def test_gpus_with_different_cards_are_all_rated() -> None:
    mixed = node(machine_of("a", card(type="V100"), card(type="T4"), card(type="V100")))
    assert slots_of(feasibility(share(1000)), mixed) == [(0,), (1,), (2,)]


def test_the_tightest_and_the_roomiest_pair_are_rated() -> None:
    slots = slots_of(feasibility(share(1000, gpus=2)), with_free_memory([9000, 2000, 16276, 3000]))
    assert (1, 3) in slots
    assert (0, 2) in slots


def test_a_job_without_gpus_fits_beside_full_gpus_and_on_nodes_without_any() -> None:
    for where in (with_free_memory([0]), node(machine(gpus=0))):
        assert slots_of(feasibility(Demand(gpus=0, cpu=MilliCpu(1))), where) == [()]


def test_only_gpus_linked_well_enough_are_chosen() -> None:
    links = link_matrix_of_pairs(4, [(0, 1, Link.PIX), (1, 3, Link.NVLINK), (0, 2, Link.SYS)])
    where = node(machine(gpus=4, links=links))
    assert slots_of(feasibility(Demand(gpus=2, link=Link.NVLINK)), where) == [(1, 3)]


def test_a_fit_by_amounts_counts_the_host_too() -> None:
    where = node(machine(cpu=MilliCpu(1000), host_memory=MiB(1000)))
    assert slots_of(feasibility(share(16000, 1000, cpu=MilliCpu(1000))), where) == [(0,)]
    assert not slots_of(feasibility(share(cpu=MilliCpu(1001))), where)
    assert not slots_of(feasibility(share(host_memory=MiB(1001))), where)


def seated(demand: Demand, *free: int) -> list[Gpus]:
    return slots_of(feasibility(demand), with_free_memory(free, each=10000))


def test_an_init_container_shares_the_gpu_of_the_app_that_follows_it() -> None:
    assert seated(pod(container(9000, kind=ContainerKind.INIT), container(9000)), 9000, 9000) == [(0, 0)]


def test_two_apps_that_fit_no_gpu_together_get_one_each() -> None:
    assert all(len(set(slot)) == 2 for slot in seated(pod(container(6000), container(6000)), 7000, 9000))


def test_containers_are_seated_wherever_some_way_to_seat_them_exists() -> None:
    """Neither tightest nor roomiest first finds these."""
    for sizes, free in (
        ((2000, 2000, 4000, 4000), (6000, 6000)),
        ((3000, 3000, 6000, 6000), (9000, 9000)),
        ((2000, 2000, 2000, 5000, 5000, 5000), (7000, 7000, 7000)),
    ):
        demand = pod(*map(container, sizes))
        assert seated(demand, *free), (sizes, free)
        assert refusal_of(feasibility(demand), with_free_memory(free, each=10000)) is None


def test_more_free_memory_never_unseats_a_pod() -> None:
    demand = pod(container(4000), container(4000), container(5000), container(5000))
    for a in range(4000, 10001, 1000):
        fitting = [bool(seated(demand, a, b)) for b in range(0, 10001, 1000)]
        assert fitting == sorted(fitting)
