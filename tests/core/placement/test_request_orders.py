# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Over every order of requests, the GPUs that are handed out are linked at least as well as by dividing them up."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.links import LinkMatrix, link_matrix_of_pairs
from cotenant.core.placement.topology import best_linked, choose, total_link
from tests.core.placement.linked_machines import MACHINES, by_division, orders, total_of, total_over_time
from tests.core.placement.test_topology import islands, published_links, uniform

VOLTA = MACHINES["DGX-1 Volta"]


@pytest.mark.parametrize("machine", MACHINES)
def test_no_order_of_requests_gets_a_lower_total_than_by_division_and_some_get_a_higher_one(machine: str) -> None:
    links = MACHINES[machine]
    every = list(orders(len(links)))
    ours = np.array([total_of(links, sizes, choose) for sizes in every])
    theirs = np.array([total_of(links, sizes, by_division) for sizes in every])
    assert [sizes for sizes, a, b in zip(every, ours, theirs, strict=True) if a < b] == []
    assert ours.sum() > theirs.sum()


@settings(max_examples=15)
@given(scores=st.lists(st.sampled_from([10, 20, 30, 50, 100, 200, 250]), min_size=10, max_size=10))
def test_nor_on_a_random_machine(scores: list[int]) -> None:
    links = link_matrix_of_pairs(5, [(a, b, s) for (a, b), s in zip(combinations(range(5), 2), scores, strict=True)])
    for sizes in orders(5):
        assert total_of(links, sizes, choose) >= total_of(links, sizes, by_division)


def test_only_one_set_of_a_division_lacks_gpus() -> None:
    """Two sets that each lack a GPU can be linked better than one of 4 and one of 2: but go-gpuallocator
    does not compare those, and gets 2,260 for 4 GPUs and then 2."""
    scores = [600, 10, 10, 300, 50, 100, 10, 600, 100, 600, 300, 300, 50, 300, 10]
    links = link_matrix_of_pairs(6, [(a, b, s) for (a, b), s in zip(combinations(range(6), 2), scores, strict=True)])
    assert by_division(links, tuple(range(6)), 4) == (0, 1, 4, 5)
    for sizes in orders(6):
        assert total_of(links, sizes, choose) >= total_of(links, sizes, by_division)
    assert total_of(links, (4, 2), choose) == total_of(links, (4, 2), by_division) == 2260


@pytest.mark.parametrize("machine", MACHINES)
def test_with_gpus_given_back_in_between_the_totals_are_not_lower_either(machine: str) -> None:
    links = MACHINES[machine]
    ours, theirs = (
        sum(total_over_time(links, seed, choice) for seed in range(200)) for choice in (choose, by_division)
    )
    assert ours >= theirs


def test_a_pair_spares_the_sets_of_four() -> None:
    """The best linked pair of all would be 2+3, the next one 6+7: both sets of four would be broken up."""
    assert best_linked(VOLTA, range(8), 2) == (2, 3)
    assert total_of(VOLTA, (2, 2, 4), best_linked) == 1240
    assert total_of(VOLTA, (2, 2, 4), choose) == total_of(VOLTA, (2, 2, 4), by_division) == 1580


@pytest.mark.parametrize("gpus", [6, 20])
def test_one_gpu_is_the_one_whose_links_the_others_miss_least(gpus: int) -> None:
    links = islands(gpus, gpus // 2, 100, 10)
    lonely = tuple(gpu for gpu in range(gpus) if gpu != 1 and not gpu > gpus // 2)
    assert choose(links, lonely, 1) == (gpus // 2,)


def test_sizes_above_one_are_chosen_as_published(data: Path) -> None:
    vectors = json.loads((data / "topology" / "vectors.json").read_text())
    steps = 0
    for case in vectors["cases"]:
        if case["policy"] == "BestEffortPolicy" and case["steps"][0][0] > 1:
            links = published_links(vectors, case["node"])
            free = set(range(len(links)))
            for size, expected in case["steps"]:
                chosen = choose(links, free, size)
                assert list(chosen or ()) == expected, case
                free -= set(chosen or ())
                steps += 1
    assert steps > 10


def test_what_cannot_be_is_none_and_what_is_alike_is_taken_in_order() -> None:
    assert choose(uniform(4, 10), [1, 3], 3) is None
    assert choose(uniform(4, 10), [1, 3], -1) is None
    assert choose(VOLTA, [5, 3], 0) == ()
    assert choose(VOLTA, [5, 3], 2) == (3, 5)
    assert choose(uniform(4, 10), [3, 1, 2], 2) == (1, 2)
    assert choose((), [3, 1, 2], 2) == (1, 2)


def test_links_count_as_their_worse_direction() -> None:
    lopsided: LinkMatrix = ((0, 200, 10), (10, 0, 50), (10, 50, 0))
    assert choose(lopsided, range(3), 2) == (1, 2)
    assert total_link(lopsided, (1, 2)) == 50


def test_above_eight_gpus_the_best_linked_set_is_taken() -> None:
    links = islands(12, 4, 300, 10)
    assert choose(links, range(1, 12), 4) == best_linked(links, range(1, 12), 4) == (4, 5, 6, 7)
