# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests below limits: what is granted never exceeds the GPU, and a request is always honoured."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.footprint import claims, memory_limit_on
from cotenant.core.model import Demand, Gpu
from cotenant.core.sharing.surplus import (
    Holder,
    divide,
    divide_compute,
    evictions,
    first_grant,
    needed,
    raises,
)
from cotenant.core.units import MiB, Percent

CAPACITY = 100


@st.composite
def gpus(draw: st.DrawFn) -> tuple[list[Holder], int]:
    """Tenants whose requests fit into the GPU and whose use fits into it, too; and a margin."""
    requests = draw(st.lists(st.integers(1, CAPACITY), min_size=1, max_size=8))
    while sum(requests) > CAPACITY:
        requests.remove(max(requests))
    free = CAPACITY
    holders = []
    for place, request in enumerate(requests):
        limit = request + draw(st.integers(0, CAPACITY - request))
        used = draw(st.integers(0, min(limit, free)))
        free -= used
        wanted = draw(st.integers(0, max(0, limit - used)))
        holders.append(Holder(str(place), request, limit, used, wanted))
    return holders, draw(st.integers(0, 20))


@given(gpus())
def test_what_is_granted_never_exceeds_the_gpu_nor_a_limit(gpu: tuple[list[Holder], int]) -> None:
    holders, margin = gpu
    shares = divide(CAPACITY, holders, margin)
    assert sum(share.granted for share in shares.values()) <= CAPACITY
    for one in holders:
        assert one.used <= shares[one.name].granted <= shares[one.name].most <= one.limit


@given(gpus())
def test_a_need_within_a_request_is_granted_as_soon_as_nobody_above_its_request_is_left(
    gpu: tuple[list[Holder], int],
) -> None:
    holders, margin = gpu
    evicted = evictions(CAPACITY, holders, margin)
    assert all(one.above > 0 for one in holders if one.name in evicted)
    left = [one for one in holders if one.name not in evicted]
    shares = divide(CAPACITY, left, margin)
    for one in left:
        assert shares[one.name].granted >= needed(one, margin)
    if evicted:
        kept = [one for one in holders if one.name not in evicted[:-1]]
        assert sum(needed(one, margin) + one.above for one in kept) > CAPACITY  # none was evicted without need


@given(gpus())
def test_nobody_above_its_request_grows_while_another_lacks_something_within_its_own(
    gpu: tuple[list[Holder], int],
) -> None:
    holders, margin = gpu
    shares = divide(CAPACITY, holders, margin)
    if evictions(CAPACITY, holders, margin):
        for one in holders:
            if one.above:
                assert shares[one.name] == (one.used, one.used)


@given(gpus())
def test_who_is_evicted_first_is_the_furthest_above_its_request(gpu: tuple[list[Holder], int]) -> None:
    holders, margin = gpu
    above = {one.name: one.above for one in holders}
    order = [above[name] for name in evictions(CAPACITY, holders, margin)]
    assert order == sorted(above.values(), reverse=True)[: len(order)]


@dataclass
class World:
    """One GPU with its tenants, whose processes allocate and free at any moment between the steps of the granter."""

    requests: dict[str, int]
    limits: dict[str, int]
    margin: int
    used: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    in_force: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        for name, request in self.requests.items():
            self.used[name] = self.wanted[name] = 0
            limit = self.limits[name]
            self.in_force[name] = first_grant(Holder(name, request, limit, 0), self.margin)

    def holders(self) -> list[Holder]:
        return [
            Holder(name, request, self.limits[name], self.used[name], self.wanted[name])
            for name, request in self.requests.items()
            if name in self.used
        ]

    def allocate(self, name: str, amount: int) -> None:
        if name not in self.used:
            return
        if self.used[name] + amount <= self.in_force[name]:
            self.used[name] += amount
            self.wanted[name] = 0
        elif self.used[name] + amount <= self.limits[name]:
            self.wanted[name] = amount

    def free(self, name: str, amount: int) -> None:
        if name in self.used:
            self.used[name] -= min(amount, self.used[name])

    def lower(self) -> None:
        shares = divide(CAPACITY, self.holders(), self.margin)
        for name, share in shares.items():
            self.in_force[name] = min(self.in_force[name], share.granted)

    def raise_grants(self) -> None:
        holders = self.holders()
        in_force = {one.name: self.in_force[one.name] for one in holders}
        shares = divide(CAPACITY, holders, self.margin)
        self.in_force |= raises(CAPACITY, holders, in_force, shares, self.margin)

    def evict(self) -> None:
        for name in evictions(CAPACITY, self.holders(), self.margin):
            del self.used[name], self.wanted[name], self.in_force[name]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("allocate", "free")), st.sampled_from("abcd"), st.integers(1, 60)),
        st.tuples(st.sampled_from(("lower", "raise_grants"))),
    ),
    max_size=60,
)


@given(st.lists(st.integers(0, 70), min_size=4, max_size=4), st.integers(0, 25), ACTIONS)
def test_at_any_moment_all_use_fits_and_a_request_is_granted_after_one_round(
    surplus: list[int], margin: int, actions: list[tuple[str, ...]]
) -> None:
    requests = dict.fromkeys("abcd", CAPACITY // 4)
    limits = {name: 25 + more for name, more in zip("abcd", surplus, strict=True)}
    world = World(requests, limits, margin)
    world.start()
    for what, *words in actions:
        getattr(world, what)(*words)
        assert sum(max(world.used[one], world.in_force[one]) for one in world.used) <= CAPACITY
        assert all(world.in_force[one] <= limits[one] for one in world.used)
    # Whoever waits within its request has it after one round, if those above theirs are evicted.
    world.evict()
    world.lower()
    world.raise_grants()
    for one in world.holders():
        assert world.in_force[one.name] >= needed(one, margin)


def test_a_borrower_gets_what_others_leave_idle_and_gives_way_when_they_want_it_back() -> None:
    lender, borrower = Holder("lender", 50, 80, used=5), Holder("borrower", 50, 80, used=50, wanted=20)
    shares = divide(CAPACITY, [lender, borrower], margin=10)
    assert shares["borrower"].granted == 70
    assert shares["lender"].granted == 30  # the rest of its request is lent
    back = [lender._replace(used=30, wanted=20), borrower._replace(used=70, wanted=0)]
    assert evictions(CAPACITY, back, margin=10) == ["borrower"]
    assert divide(CAPACITY, back, margin=10)["borrower"] == (70, 70)  # until then it may not grow


def test_a_tenant_without_a_limit_above_its_request_lends_nothing() -> None:
    guaranteed, borrower = Holder("guaranteed", 50, 50, used=0), Holder("borrower", 30, 100, used=30, wanted=40)
    shares = divide(CAPACITY, [guaranteed, borrower], margin=10)
    assert shares["guaranteed"] == (50, 50)
    assert shares["borrower"] == (40, 40)


def test_a_newcomer_takes_back_what_was_free_until_it_came() -> None:
    borrower = Holder("borrower", 30, 100, used=80)
    assert evictions(CAPACITY, [borrower, Holder("newcomer", 50, 50, used=0)], margin=10) == ["borrower"]
    assert evictions(CAPACITY, [borrower, Holder("newcomer", 50, 60, used=0)], margin=10) == []  # 10 are free


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1000)), min_size=1, max_size=6))
def test_compute_above_requests_is_what_nobody_requested(amounts: list[tuple[int, int]]) -> None:
    holders = [Holder(str(i), request, request + more, 0) for i, (request, more) in enumerate(amounts)]
    shares = divide_compute(1000, holders)
    assert all(one.request <= shares[one.name] <= one.limit for one in holders)
    assert sum(shares.values()) <= max(1000, sum(one.request for one in holders))


@pytest.mark.parametrize(
    ("demand", "booked", "limit"),
    [
        (Demand(memory=MiB(2000)), 2000, 2000),
        (Demand(memory=MiB(2000), memory_limit=MiB(6000)), 2000, 6000),
        (Demand(memory_percent=Percent(20), memory_limit_percent=Percent(60)), 1600, 4800),
        (Demand(memory=MiB(2000), memory_limit=MiB(60_000)), 2000, 8000),
    ],
)
def test_placement_counts_the_request_only(demand: Demand, booked: int, limit: int) -> None:
    gpu = Gpu(uuid="GPU-0", memory=MiB(8000))
    assert claims(demand, (0,), [gpu])[0].memory == booked
    assert memory_limit_on(demand, gpu) == limit
