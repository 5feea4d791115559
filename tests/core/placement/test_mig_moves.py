# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""From one MIG layout to another: what stays, what goes, and where new instances begin."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.placement.mig_moves import Moves, NoMoves, Place, Placed, compute_slices, moves_to

A100 = {
    "1g.5gb": Place(1, tuple(range(7))),
    "1g.10gb": Place(2, (0, 2, 4, 6)),
    "2g.10gb": Place(2, (0, 2, 4)),
    "3g.20gb": Place(4, (0, 4)),
    "4g.20gb": Place(4, (0,)),
    "7g.40gb": Place(8, (0,)),
}


def at(profile: str, start: int, number: int = 1, in_use: bool = False) -> Placed:
    return Placed(profile, start, A100[profile].size, number, in_use)


def test_what_can_stay_stays() -> None:
    now = [at("1g.5gb", 6), at("3g.20gb", 0, 2)]
    assert moves_to(now, ["3g.20gb", "1g.5gb", "2g.10gb"], A100) == Moves((), (Placed("2g.10gb", 4, 2),))


def test_an_unused_instance_is_made_again_elsewhere_if_it_is_in_the_way() -> None:
    now = [at("1g.5gb", 0), at("1g.5gb", 6, 2, in_use=True)]
    found = moves_to(now, ["1g.5gb", "1g.5gb", "4g.20gb"], A100)
    assert found == Moves((now[0],), (Placed("4g.20gb", 0, 4), Placed("1g.5gb", 5, 1)))


@pytest.mark.parametrize(
    ("now", "then", "why"),
    [
        ([at("1g.5gb", 0, in_use=True)], ["7g.40gb"], "an instance 1g.5gb is in use, and the plan has no place for it"),
        (
            [at("1g.5gb", 0, in_use=True)],
            ["1g.5gb", "4g.20gb"],
            "the instances that are in use lie so that the others have no place beside them",
        ),
        ([], ["9g.99gb"], "the driver has no profile 9g.99gb for this GPU"),
    ],
)
def test_a_layout_that_cannot_be_reached_has_a_reason(now: list[Placed], then: list[str], why: str) -> None:
    assert moves_to(now, then, A100) == NoMoves(why)


def test_slices_of_compute_count_too() -> None:
    """Four instances 1g.10gb have all slices of memory, and two more of compute would fit; nothing else does."""
    assert isinstance(moves_to([], ["1g.10gb"] * 4, A100), Moves)
    assert isinstance(moves_to([], ["4g.20gb", "3g.20gb", "1g.5gb"], A100), NoMoves)


LAYOUTS = st.lists(st.sampled_from(sorted(A100)), max_size=7)


@given(LAYOUTS, LAYOUTS, st.lists(st.booleans(), min_size=7, max_size=7))
def test_moves_give_the_layout_and_never_touch_what_is_in_use(
    first: list[str], then: list[str], used: list[bool]
) -> None:
    begun = moves_to([], first, A100)
    if isinstance(begun, NoMoves):
        return
    now = [one._replace(number=i + 1, in_use=used[i]) for i, one in enumerate(begun.make)]
    found = moves_to(now, then, A100)
    if isinstance(found, NoMoves):
        assert any(one.in_use for one in now) or isinstance(moves_to([], then, A100), NoMoves)
        return
    assert not any(one.in_use for one in found.remove)
    after = [*(one for one in now if one not in found.remove), *found.make]
    assert Counter(one.profile for one in after) == Counter(then)
    slices = [place for one in after for place in range(one.start, one.start + one.size)]
    assert len(slices) == len(set(slices))
    assert all(one.start in A100[one.profile].starts for one in after)
    assert sum(compute_slices(one.profile) for one in after) <= 7
