# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The measures of free room: typical pods, fragmentation by cases, prices from cutting stock, learning in epochs."""

from itertools import combinations, combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Node
from cotenant.core.fragmentation import fgd
from cotenant.core.fragmentation.mix import Spec, inventory_of, mix_of, spec_of
from cotenant.core.fragmentation.online import GROWTH, Learner
from cotenant.core.fragmentation.ours import STEP, WHOLE, FreeRoom, _dual_prices, remainder_values
from cotenant.core.fragmentation.potential import Rooms, gradient, of_node
from cotenant.core.model import Container, Demand, GpuModel
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent
from tests.core.builders import card, machine, machine_of, node, share


def spec(compute: int, gpus: int = 1, cpu: int = 0, types: tuple[str, ...] = ()) -> Spec:
    return Spec(MilliCpu(cpu), MilliGpu(compute), gpus, types, MiB(0))


def test_typical_pods_are_the_fewest_that_make_up_95_percent() -> None:
    mix = {spec(1000): 60, spec(500): 36, spec(300): 3, spec(100): 1}
    typical = fgd.typical_pods(mix)
    assert [one for one, _ in typical] == [spec(1000), spec(500)]
    assert [share for _, share in typical] == pytest.approx([60 / 96, 36 / 96])


def test_equally_popular_pods_are_taken_larger_first() -> None:
    mix = {spec(100): 1, spec(900): 1, spec(500, cpu=10): 1}
    assert [one for one, _ in fgd.typical_pods(mix)] == [spec(500, cpu=10), spec(900), spec(100)]


def fragmentation_of(where: Node, asked: Spec) -> float:
    return fgd.fragmented(fgd.Fragmentation({asked: 1}).amounts(where))


def ours(asked: Spec) -> FreeRoom:
    return FreeRoom({asked: 1}, inventory_of([machine()]))


NODE = node(machine(gpus=3, memory=0, cpu=MilliCpu(4000)), (share(0, 300), (0,)), (share(0, 800), (1,)))


@pytest.mark.parametrize(
    ("asked", "fragmented", "case"),
    [
        (spec(500), 200, "GPUs with too little room"),
        (spec(100), 0, "all of it is of use"),
        (spec(1000, gpus=2), 1900, "too few GPUs"),
        (spec(500, cpu=5000), 1900, "too little CPU"),
        (spec(1000, gpus=2, cpu=5000), 1900, "neither"),
        (spec(0, gpus=0), 1900, "asks for no GPU"),
        (spec(500, types=("V100",)), 1900, "the wrong card"),
    ],
)
def test_fragmentation_is_the_room_that_a_pod_cannot_use(asked: Spec, fragmented: int, case: str) -> None:
    assert fragmentation_of(NODE, asked) == fragmented, case


@pytest.mark.parametrize("percent", [1, 33, 50, 100])
def test_a_percentage_of_memory_counts_as_the_amount_that_it_is_on_each_gpu(percent: int) -> None:
    asked = Demand(memory_percent=Percent(percent), compute=MilliGpu(0))
    for memory in (8000, 16_000, 80_001):
        model, amount = machine(memory=memory).gpus[0].gpu_model, share(memory * percent // 100)
        assert spec_of(asked).size_on(model) == spec_of(amount).size_on(model)
        assert ours(spec(300)).expected_loss(asked, model) == ours(spec(300)).expected_loss(amount, model)
    half_full = node(machine(gpus=2), (share(8000), (0,)))
    of_amount = fragmentation_of(half_full, spec_of(share(16_000 * percent // 100)))
    assert fragmentation_of(half_full, spec_of(asked)) == of_amount


def test_percentages_are_not_mistaken_for_each_other() -> None:
    potential, (gpu,) = ours(spec(300)), machine().gpus
    losses = [
        potential.expected_loss(Demand(memory_percent=Percent(percent), compute=MilliGpu(0)), gpu.gpu_model)
        for percent in (10, 70)
    ]
    assert losses[0] != losses[1]


def test_the_seven_amounts_add_up_to_all_free_room() -> None:
    mix = {spec(500): 3, spec(1000, gpus=2): 2, spec(0, gpus=0): 1, spec(500, types=("V100",)): 1}
    assert sum(fgd.Fragmentation(mix).amounts(NODE)) == pytest.approx(1900)


def test_a_change_of_nothing_scores_fifty() -> None:
    assert (fgd.descent_score(0.0), fgd.descent_score(1000.0), fgd.descent_score(-1000.0)) == (50, 73, 26)


class Squares:
    """A potential in which every room counts, whatever the others are."""

    def value(self, model: GpuModel, cpu: int | None, rooms: Rooms) -> float:
        return float(sum(room * room for room in rooms) + (cpu or 0))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("demand", [share(0, 300), share(4000, 100, gpus=2), share(2000, 0, cpu=MilliCpu(500))])
def test_the_score_of_a_slot_is_that_of_the_node_with_the_job_on_it(slots: int, demand: Demand) -> None:
    where = node(machine_of("a", *[card(slots=slots)] * 3, cpu=MilliCpu(8000)), (share(1000, 200), (1,)))
    free = [gpu for gpu in range(3) if where.slots[gpu] > 0]
    asked = list(combinations(free, demand.gpus))
    assert asked
    potential = Squares()
    after = [of_node(potential, where.after(demand, slot)) - of_node(potential, where) for slot in asked]
    assert gradient(potential, lambda change: change)(demand, where, asked) == after


def test_a_pod_with_containers_counts_as_what_they_ask_together() -> None:
    both = Demand(containers=(Container(compute=MilliGpu(300)), Container(gpus=2, compute=MilliGpu(400))))
    assert spec_of(both) == spec(700, gpus=2)
    assert spec_of(share(0, 100, exclusive=True)) == spec(1000)
    assert spec_of(Demand(gpus=0)) == spec(0, gpus=0)


def test_a_machine_with_different_cards_counts_once_for_each() -> None:
    counted = inventory_of([machine_of("a", card(type="V100"), card(type="T4"), card(type="T4"))])
    assert {(kind.model.type, kind.gpus): n for kind, n in counted.items()} == {("V100", 1): 1, ("T4", 2): 1}


def values(wanted: dict[int, int]) -> dict[int, float]:
    return {STEP * i: value for i, value in enumerate(remainder_values(wanted))}


def test_without_demand_room_is_worth_its_size() -> None:
    assert values({})[370] == pytest.approx(0.37)


def test_where_halves_are_wanted_less_than_a_half_is_worthless() -> None:
    worth = values({500: 10})
    assert [worth[r] for r in (0, 490, 500, 990, 1000)] == pytest.approx([0, 0, 0.5, 0.5, 1])


def test_whole_gpus_only_make_every_remainder_worthless() -> None:
    worth = values({1000: 5})
    assert [worth[r] for r in (500, 990, 1000)] == pytest.approx([0, 0, 1])


def test_sizes_that_complete_each_other_share_the_worth_of_a_gpu() -> None:
    """As many of 700 as of 300: each pair fills a GPU, so the two prices add up to one."""
    worth = values({700: 10, 300: 10})
    assert worth[700] + worth[300] == pytest.approx(1)
    assert worth[290] == 0


def test_a_size_that_nothing_completes_takes_a_whole_gpu() -> None:
    worth = values({600: 10})
    assert worth[600] == pytest.approx(1)
    assert worth[590] == 0


def test_shares_are_rounded_up_to_the_resolution() -> None:
    assert values({333: 9}) == pytest.approx(values({340: 9}))


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 500), min_size=1, max_size=12))
def test_values_never_fall_with_room_and_end_at_one(wanted: dict[int, int]) -> None:
    worth = remainder_values(wanted)
    assert len(worth) == WHOLE + 1
    assert worth[0] == 0
    assert worth[-1] == 1
    assert list(worth) == sorted(worth)


@given(st.dictionaries(st.integers(15, 100), st.integers(1, 50), min_size=1, max_size=5))
def test_no_way_to_fill_a_gpu_is_worth_more_than_a_gpu(wanted: dict[int, int]) -> None:
    """Prices are feasible, checked against every pattern there is."""
    sizes = sorted(wanted)
    prices = dict(zip(sizes, _dual_prices(sizes, [wanted[size] for size in sizes]), strict=True))
    for pieces in range(1, WHOLE // sizes[0] + 1):
        for pattern in combinations_with_replacement(sizes, pieces):
            if sum(pattern) <= WHOLE:
                assert sum(prices[size] for size in pattern) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("wanted", "gpus"),
    [
        ({50: 10}, 5.0),
        ({70: 10, 30: 10}, 10.0),
        ({60: 4, 40: 2}, 4.0),
        ({45: 6, 36: 6, 31: 6, 14: 6}, None),
    ],
)
def test_the_price_of_everything_wanted_is_the_least_number_of_gpus(wanted: dict[int, int], gpus: float | None) -> None:
    """Strong duality: prices times counts is the value of the relaxed cutting-stock problem."""
    sizes = sorted(wanted)
    prices = _dual_prices(sizes, [wanted[size] for size in sizes])
    total = sum(price * wanted[size] for size, price in zip(sizes, prices, strict=True))
    volume = sum(size * count for size, count in wanted.items()) / WHOLE
    assert total >= volume - 1e-6
    if gpus is not None:
        assert total == pytest.approx(gpus)


def learner(seen: int = 0) -> Learner:
    machines = [machine("a", gpus=4)]
    return Learner("fragmentation", inventory_of(machines), seen=[share(0, 500)] * seen)


def test_a_learner_without_experience_has_a_policy() -> None:
    assert learner().policy.name == "fragmentation"


def test_a_new_epoch_begins_when_enough_new_jobs_were_seen() -> None:
    learning = learner(100)
    begun = [learning.observe(share(0, 500)) for _ in range(40)]
    assert begun.index(True) == int(100 * GROWTH) - 100 - 1
    assert begun.count(True) == 2


def test_early_on_every_job_begins_an_epoch() -> None:
    learning = learner()
    assert [learning.observe(share(0, 500)) for _ in range(3)] == [True, True, True]


def test_a_policy_stays_the_same_value_within_an_epoch() -> None:
    learning = learner(100)
    before = learning.policy
    learning.observe(share(0, 500))
    assert learning.policy is before
    learning.machines_changed(inventory_of([machine("a"), machine("b")]))
    assert learning.policy is not before


def test_what_was_learnt_is_what_was_seen() -> None:
    """A learner and a policy built from the same jobs choose alike."""
    jobs = [share(0, 500), share(0, 300), Demand(gpus=2)]
    assert mix_of(jobs) == {spec(500): 1, spec(300): 1, spec(1000, gpus=2): 1}
    learning = Learner("fgd", inventory_of([machine("a")]))
    for one in jobs:
        learning.observe(one)
    assert learning.policy.known.mix == mix_of(jobs)
