# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's peak is counted as Kubernetes counts it: what runs at the same time adds up, what runs in turn does not."""

from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.footprint import claims
from cotenant.core.model import Claim, Container, ContainerKind, Demand
from cotenant.core.units import MiB, MilliGpu, Percent
from tests.core.builders import card, machine
from tests.properties.referee import peak

CARDS = machine(gpus=4, memory=16000).gpus


def app(memory: int = 0, compute: int = 0, gpus: int = 1) -> Container:
    return Container(gpus=gpus, memory=MiB(memory), compute=MilliGpu(compute))


def init(memory: int = 0, compute: int = 0) -> Container:
    return Container(kind=ContainerKind.INIT, memory=MiB(memory), compute=MilliGpu(compute))


def sidecar(memory: int = 0, compute: int = 0) -> Container:
    return Container(kind=ContainerKind.SIDECAR, memory=MiB(memory), compute=MilliGpu(compute))


def on_one_gpu(*containers: Container) -> Claim:
    return claims(Demand(containers=containers), (0,) * len(containers), CARDS)[0]


def test_an_init_container_larger_than_the_app_sets_the_peak() -> None:
    assert on_one_gpu(init(9000, 100), app(4000, 500)) == Claim(MiB(9000), MilliGpu(500), 1)


def test_init_containers_run_in_turn_and_do_not_add_up() -> None:
    assert on_one_gpu(init(3000), init(5000), init(4000), app(1000)).memory == 5000


def test_two_app_containers_on_one_gpu_add_up() -> None:
    assert on_one_gpu(app(4000, 300), app(2000, 200)) == Claim(MiB(6000), MilliGpu(500), 2)


def test_a_sidecar_counts_beside_the_init_containers_that_start_after_it() -> None:
    assert on_one_gpu(sidecar(2000), init(9000), app(4000)).memory == 11000


def test_a_sidecar_does_not_count_beside_the_init_containers_before_it() -> None:
    assert on_one_gpu(init(9000), sidecar(2000), app(4000)).memory == 9000


def test_a_sidecar_stays_beside_the_app() -> None:
    assert on_one_gpu(init(1000), sidecar(2000), app(4000)).memory == 6000


def test_an_app_listed_before_an_init_container_still_starts_after_it() -> None:
    assert on_one_gpu(app(4000), init(3000)).memory == 4000


def test_containers_on_different_gpus_each_take_of_their_own() -> None:
    counted = claims(Demand(containers=(app(4000), app(2000, gpus=2))), (0, 1, 2), CARDS)
    assert {i: claim.memory for i, claim in counted.items()} == {0: 4000, 1: 2000, 2: 2000}


def test_a_percentage_is_of_the_card_it_lands_on() -> None:
    cards = (card(16000), card(8000), card(8000, memory_scaling=Percent(150)))
    counted = claims(Demand(gpus=3, memory_percent=Percent(25), compute=MilliGpu(0)), (0, 1, 2), cards)
    assert [claim.memory for claim in counted.values()] == [4000, 2000, 3000]


def test_two_halves_of_an_odd_card_fit() -> None:
    half = claims(Demand(memory_percent=Percent(50)), (0,), (card(16001),))[0].memory
    assert half * 2 <= 16001


def test_an_exclusive_tenant_takes_every_slot() -> None:
    cards = (card(slots=7),)
    assert claims(Demand(exclusive=True), (0,), cards)[0].slots == 7
    assert claims(Demand(exclusive=True, containers=(app(), app())), (0, 0), cards)[0].slots == 7


@st.composite
def pods(draw: st.DrawFn) -> tuple[Demand, tuple[int, ...]]:
    """Containers on random GPUs of four."""
    containers, chosen = [], []
    for _ in range(draw(st.integers(1, 6))):
        own = draw(st.lists(st.integers(0, 3), unique=True, max_size=3))
        containers.append(
            Container(
                kind=draw(st.sampled_from(list(ContainerKind))),
                gpus=len(own),
                memory=MiB(draw(st.integers(0, 9000))),
                memory_percent=draw(st.none() | st.integers(0, 100).map(Percent)),
                compute=MilliGpu(draw(st.integers(0, 1000))),
            )
        )
        chosen += own
    return Demand(containers=tuple(containers), exclusive=draw(st.booleans())), tuple(chosen)


@given(pods())
def test_the_peak_is_what_playing_through_the_phases_shows(pod: tuple[Demand, tuple[int, ...]]) -> None:
    demand, gpus = pod
    counted = claims(demand, gpus, CARDS)
    assert counted == {i: peak(demand, gpus, i, CARDS[i]) for i in sorted(set(gpus))}
