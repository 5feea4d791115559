# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Those leave whose leaving harms least, no more of them than must, and nobody for nothing."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Node
from cotenant.core.model import Container, ContainerKind, Demand, Gpus, Machine, Tenant
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import rate
from cotenant.core.queueing.eviction import NO_HARM, Stake, Way, harm_of, least_harm
from cotenant.core.units import MiB, MilliGpu, Seconds
from tests.core.builders import card, machine, machine_of, share

BINPACK = build_policy("binpack")
WHOLE = share(16000)

Sitting = Sequence[tuple[str, Demand, Gpus]]


def way(demand: Demand, on: Machine, sitting: Sitting, **stakes: tuple[int, float]) -> Way | None:
    """Stakes as priority and beginning."""
    staked = {name: Stake(priority, Seconds(since)) for name, (priority, since) in stakes.items()}
    return least_harm(BINPACK, demand, Node.of(on, [Tenant(*one) for one in sitting]), staked)


def victims(demand: Demand, on: Machine, sitting: Sitting, **stakes: tuple[int, float]) -> list[str] | None:
    found = way(demand, on, sitting, **stakes)
    return None if found is None else list(found.victims)


def test_nobody_leaves_where_there_is_room() -> None:
    assert victims(share(4000), machine(), [("a", share(4000), (0,))], a=(0, 0)) == []


def test_nobody_leaves_where_that_is_not_enough() -> None:
    assert victims(share(16000), machine(), [("a", share(4000), (0,)), ("b", share(4000), (0,))], a=(0, 0)) is None


def test_a_shortage_of_memory_alone_takes_who_has_memory() -> None:
    sitting = [("a", share(12000), (0,)), ("b", share(1000, 900), (0,))]
    assert victims(share(8000, 100), machine(), sitting, a=(0, 0), b=(0, 9)) == ["a"]


def test_a_shortage_of_compute_alone_takes_who_has_compute() -> None:
    sitting = [("a", share(12000), (0,)), ("b", share(1000, 900), (0,))]
    assert victims(share(1000, 500), machine(), sitting, a=(0, 9), b=(0, 0)) == ["b"]


def test_a_shortage_of_slots_alone_takes_any_one() -> None:
    sitting = [("a", share(1000), (0,)), ("b", share(1000), (0,))]
    assert victims(share(1000), machine_of("n", card(slots=2)), sitting, a=(0, 0), b=(0, 9)) == ["b"]


def test_two_of_little_importance_leave_before_one_of_more() -> None:
    sitting = [("a", WHOLE, (0,)), ("b", share(8000), (1,)), ("c", share(8000), (1,))]
    assert victims(WHOLE, machine(gpus=2), sitting, a=(5, 0), b=(1, 0), c=(1, 0)) == ["b", "c"]


def test_of_equals_as_few_as_possible_leave() -> None:
    sitting = [(name, share(4000), (0,)) for name in "abcd"] + [("e", WHOLE, (1,))]
    stakes = dict.fromkeys("abcd", (0, 9.0)) | {"e": (0, 0.0)}
    assert victims(WHOLE, machine(gpus=2), sitting, **stakes) == ["e"]


def test_of_as_many_those_leave_that_have_just_begun() -> None:
    sitting = [(name, WHOLE, (gpu,)) for gpu, name in enumerate("abc")]
    assert victims(WHOLE, machine(gpus=3), sitting, a=(0, 1), b=(0, 3), c=(0, 2)) == ["b"]


def test_of_as_many_the_less_important_leave() -> None:
    sitting = [(name, share(8000), (gpu,)) for name, gpu in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]
    assert victims(WHOLE, machine(gpus=2), sitting, a=(5, 0), b=(4, 0), c=(5, 0), d=(0, 0)) == ["c", "d"]


def test_of_larger_sets_the_smaller_leaves_even_if_it_began_earlier() -> None:
    sitting = [(name, share(8000), (0,)) for name in "de"] + [(name, share(5000), (1,)) for name in "abc"]
    stakes = dict.fromkeys("de", (0, 0.0)) | dict.fromkeys("abc", (0, 100.0))
    assert victims(WHOLE, machine(gpus=2), sitting, **stakes) == ["d", "e"]


def test_of_equal_pairs_the_one_that_began_last_leaves() -> None:
    sitting = [(name, share(8000), (gpu,)) for name, gpu in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]
    assert victims(WHOLE, machine(gpus=2), sitting, a=(0, 0), b=(0, 9), c=(0, 4), d=(0, 6)) == ["c", "d"]


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ([(1, 0), (1, 0), (1, 0)], [(2, 50)]),
        ([(2, 0)], [(2, 50), (-9, 50)]),
        ([(2, 0), (0, 0)], [(2, 50), (1, 50)]),
        ([(2, 9), (1, 9)], [(2, 50), (1, -33)]),
    ],
    ids=["highest priority", "number", "sum of priorities", "start"],
)
def test_harm_is_compared_in_this_order(less: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    """In each row the measures before are equal, and those after say the opposite."""
    one, other = (harm_of(Stake(priority, Seconds(since)) for priority, since in stakes) for stakes in (less, more))
    assert NO_HARM == harm_of([]) < one < other


def test_those_without_a_stake_stay() -> None:
    sitting = [("a", WHOLE, (0,)), ("b", WHOLE, (1,))]
    assert victims(WHOLE, machine(gpus=2), sitting, b=(0, 0)) == ["b"]
    assert victims(WHOLE, machine(gpus=2), sitting) is None


def test_several_gpus_are_cleared_where_it_takes_least() -> None:
    """Of three GPUs two are needed: the one with two tenants is left alone."""
    sitting = [("a", share(9000), (0,)), ("b", share(8000), (1,)), ("c", share(8000), (1,)), ("d", share(9000), (2,))]
    found = way(Demand(gpus=2, memory=MiB(10000)), machine(gpus=3), sitting, **dict.fromkeys("abcd", (0, 0.0)))
    assert found is not None
    assert (found.victims, found.gpus) == (("a", "d"), (0, 2))


def test_a_tenant_on_several_gpus_is_one_victim() -> None:
    sitting = [("wide", Demand(gpus=2, memory=MiB(9000)), (0, 1)), ("a", WHOLE, (2,)), ("b", WHOLE, (3,))]
    demand = Demand(gpus=2, memory=MiB(10000), compute=MilliGpu(0))
    assert victims(demand, machine(gpus=4), sitting, wide=(0, 0), a=(0, 9), b=(0, 9)) == ["wide"]


def test_a_pod_of_several_containers_gets_room_for_all_of_them() -> None:
    small, large = (Container(memory=MiB(one), compute=MilliGpu(0)) for one in (2000, 12000))
    init = Container(kind=ContainerKind.INIT, memory=MiB(15000), compute=MilliGpu(0))
    sitting = [("a", share(3000), (0,)), ("b", share(9000), (1,))]
    demand = Demand(containers=(init, small, large))
    assert victims(demand, machine(gpus=2), sitting, a=(0, 0), b=(0, 0)) == ["a"]


def test_many_small_ones_leave_where_it_takes_more_than_two() -> None:
    sitting = [(f"t{i:02}", share(1000), (0,)) for i in range(16)]
    stakes = {f"t{i:02}": (0, float(i)) for i in range(16)}
    assert victims(share(5000), machine(), sitting, **stakes) == ["t11", "t12", "t13", "t14", "t15"]


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 6), st.integers(0, 1), st.integers(0, 3), st.integers(0, 50)),
        max_size=6,
    ),
    st.integers(1, 16),
    st.integers(0, 10),
    st.integers(1, 2),
)
def test_who_leaves_is_enough_and_none_of_them_could_stay(
    tenants: list[tuple[int, int, int, int, int]], memory: int, compute: int, gpus: int
) -> None:
    sitting = [
        Tenant(f"t{i}", share(of_memory * 1000, of_compute * 100), (gpu,))
        for i, (of_memory, of_compute, gpu, _, _) in enumerate(tenants)
    ]
    stakes = {f"t{i}": Stake(one[3], Seconds(one[4])) for i, one in enumerate(tenants) if one[3]}
    node = Node.of(machine(gpus=2), sitting)
    demand = Demand(gpus=gpus, memory=MiB(memory * 1000), compute=MilliGpu(compute * 100))

    def fits_without(names: tuple[str, ...]) -> bool:
        return (
            rate(BINPACK, demand, Node.of(node.machine, [one for one in sitting if one.job not in names])) is not None
        )

    found = least_harm(BINPACK, demand, node, stakes)
    assert (found is not None) == fits_without(tuple(stakes))
    if found is not None:
        assert set(found.victims) <= set(stakes)
        assert fits_without(found.victims)
        fewer = combinations(found.victims, max(0, len(found.victims) - 1))
        assert not found.victims or not any(map(fits_without, fewer))
