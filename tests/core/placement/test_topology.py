# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs that belong together are handed out together, on known machines and against exhaustive search."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.links import LinkMatrix, link_matrix, link_matrix_of_pairs
from cotenant.core.model import Gpus, Link
from cotenant.core.placement.topology import (
    EXACT_UP_TO,
    STATIC_TABLES,
    best_linked,
    first_free,
    linked_at_least,
    static_choice,
    static_or_best,
    total_link,
)

SCORES = [0, 10, 20, 30, 40, 50, 60, 100, 200, 1200]


def uniform(gpus: int, score: int) -> LinkMatrix:
    return tuple(tuple(0 if a == b else score for b in range(gpus)) for a in range(gpus))


def islands(gpus: int, size: int, near: int, far: int) -> LinkMatrix:
    return tuple(
        tuple(0 if a == b else near if a // size == b // size else far for b in range(gpus)) for a in range(gpus)
    )


def random_links(generator: np.random.Generator, gpus: int) -> LinkMatrix:
    scores = np.triu(generator.choice(SCORES, (gpus, gpus)), 1)
    return tuple(tuple(row) for row in (scores + scores.T).tolist())


@st.composite
def matrices(draw: st.DrawFn) -> LinkMatrix:
    gpus = draw(st.integers(1, 10))
    pairs = list(combinations(range(gpus), 2))
    scores = draw(st.lists(st.sampled_from(SCORES), min_size=len(pairs), max_size=len(pairs)))
    return link_matrix_of_pairs(gpus, [(a, b, score) for (a, b), score in zip(pairs, scores, strict=True)])


def published_links(vectors: dict[str, Any], name: str) -> LinkMatrix:
    node = vectors["nodes"][name]
    return link_matrix_of_pairs(node["gpus"], [(a, b, vectors["pair_score"][word]) for a, b, word in node["links"]])


def plain_total(links: LinkMatrix, gpus: Gpus) -> int:
    return sum(links[a][b] for a in gpus for b in gpus if a < b)


def exhaustive(links: LinkMatrix, free: list[int], size: int, allowed: Callable[[Gpus], bool]) -> Gpus | None:
    """Every set tried: the largest total, then the best linked rest, then the lowest indices."""

    def preference(gpus: Gpus) -> tuple[int, int, Gpus]:
        rest = tuple(gpu for gpu in free if gpu not in gpus)
        return -plain_total(links, gpus), -plain_total(links, rest) if size > 1 else 0, gpus

    return min(filter(allowed, combinations(sorted(free), size)), key=preference, default=None)


# Published vectors


def test_published_request_sequences_get_the_published_gpus(data: Path) -> None:
    vectors = json.loads((data / "topology" / "vectors.json").read_text())
    steps = 0
    for case in vectors["cases"]:
        links = published_links(vectors, case["node"])
        free = set(range(len(links)))
        for size, expected in case["steps"]:
            if case["policy"] == "BestEffortPolicy":
                chosen = best_linked(links, free, size)
            else:
                assert (case["policy"], case["arg"]) == ("StaticDGX1Policy", "GPUTypePascal")
                chosen = static_choice(STATIC_TABLES["dgx-1-pascal"], free, size)
            assert list(chosen or ()) == expected, case
            free -= set(chosen or ())
            steps += 1
    assert steps == 54


def test_the_static_table_of_a_dgx_1_is_what_its_links_say(data: Path) -> None:
    vectors = json.loads((data / "topology" / "vectors.json").read_text())
    links = published_links(vectors, "DGX1Pascal")
    for size, sets in STATIC_TABLES["dgx-1-pascal"].items():
        free = set(range(8))
        for gpus in sets:
            assert best_linked(links, free, size) == gpus
            free -= set(gpus)


# Reading link matrices


def test_words_become_scores() -> None:
    words = ["SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "NV1", "NV2", "NV12", "NV18"]
    for word, score in zip(words, [10, 20, 30, 40, 50, 60, 100, 200, 1200, 1800], strict=True):
        assert link_matrix([["X", word], [word, "X"]]) == ((0, score), (score, 0))


def test_no_gpus_is_an_empty_matrix() -> None:
    assert link_matrix([]) == ()
    assert best_linked((), [], 1) is None
    assert best_linked((), [], 0) == ()


@pytest.mark.parametrize("word", ["N/A", "NV", "NV0", "nvlink", "X", ""])
def test_an_unknown_word_is_named(word: str) -> None:
    with pytest.raises(ValueError, match=f"'{word}' is not a link"):
        link_matrix([["X", word], ["SYS", "X"]])


def test_a_row_of_the_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 of the link matrix has 3 columns; expected 2"):
        link_matrix([["X", "SYS"], ["SYS", "X", "0-23"]])


def test_links_of_one_pair_add_up() -> None:
    links = [(0, 1, 200), (1, 0, 200), (0, 1, 20), (1, 0, 20)]
    assert link_matrix_of_pairs(2, links) == ((0, 220), (220, 0))


def test_a_pair_listed_once_counts_in_both_directions() -> None:
    assert link_matrix_of_pairs(3, [(0, 1, 30), (2, 1, 10)]) == ((0, 30, 0), (30, 0, 10), (0, 10, 0))


def test_a_link_to_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="link between GPU 0 and GPU 2: expected indices from 0 to 1"):
        link_matrix_of_pairs(2, [(0, 2, 10)])


# Defects of earlier systems


def test_simple_policy_finds_gpus_behind_a_busy_gpu_0() -> None:
    assert first_free([1, 2, 3], 2) == (1, 2)
    assert first_free([5, 3, 7], 3) == (3, 5, 7)
    assert first_free([1], 2) is None


def test_all_scores_zero_still_gives_gpus() -> None:
    links = uniform(4, 0)
    assert best_linked(links, range(4), 1) == (0,)
    assert best_linked(links, [2, 3], 1) == (2,)
    assert best_linked(links, range(4), 3) == (0, 1, 2)
    assert linked_at_least(links, range(4), 2, 0) == (0, 1)


def test_odd_sizes_of_a_static_table_are_placed_inside_a_listed_set() -> None:
    table, links = STATIC_TABLES["ecs.sccgn6.24xlarge"], islands(8, 4, 100, 10)
    assert static_choice(table, range(8), 3) is None
    assert static_or_best(table, links, range(8), 3) == (0, 1, 2)
    assert static_or_best(table, links, [0, 1, 2, 4, 5, 6, 7], 3) == (4, 5, 6)
    assert static_or_best(table, links, range(8), 5) == best_linked(links, range(8), 5)
    assert static_or_best(table, links, [0, 1, 2, 5, 6], 3) == (0, 1, 2)
    assert static_or_best(table, links, [1, 2, 5, 6], 2) == (1, 2)
    assert static_or_best(table, links, range(8), 9) is None


@pytest.mark.parametrize(("gpus", "size"), [(5, 3), (5, 2), (7, 4), (8, 3), (8, 5), (7, 6)])
def test_sizes_that_do_not_divide_the_free_gpus_are_never_padded(gpus: int, size: int) -> None:
    links = random_links(np.random.default_rng(gpus * size), gpus)
    chosen = best_linked(links, range(gpus), size)
    assert chosen is not None
    assert len(set(chosen)) == size
    assert chosen == exhaustive(links, list(range(gpus)), size, lambda _: True)


def test_nvswitch_links_every_pair_at_full_width() -> None:
    links = link_matrix([["X" if a == b else "NV12" for b in range(16)] for a in range(16)])
    assert set(links[3]) == {0, 1200}
    assert best_linked(links, range(16), 4) == (0, 1, 2, 3)
    assert best_linked(links, [1, 4, 9, 15], 3, required=[15]) == (1, 4, 15)
    assert linked_at_least(links, [9, 4, 15], 3, Link.NVLINK) == (4, 9, 15)
    rack = uniform(72, 1800)
    assert best_linked(rack, range(72), 36) == tuple(range(36))
    assert linked_at_least(rack, range(1, 72), 4, 1800) == (1, 2, 3, 4)
    assert linked_at_least(rack, range(72), 4, 1801) is None


def test_asymmetric_links_count_as_their_worse_direction() -> None:
    symmetric = ((0, 10), (10, 0))
    assert link_matrix([["X", "NV2"], ["SYS", "X"]]) == symmetric
    assert link_matrix_of_pairs(2, [(0, 1, 200), (0, 1, 10), (1, 0, 10)]) == symmetric
    lopsided = ((0, 200, 10), (10, 0, 50), (10, 50, 0))
    assert total_link(lopsided, (0, 1)) == 10
    assert best_linked(lopsided, range(3), 2) == (1, 2)


def test_a_busy_gpu_keeps_its_links() -> None:
    links = islands(4, 2, 100, 10)
    before = tuple(tuple(row) for row in links)
    assert best_linked(links, [1, 2, 3], 2) == (2, 3)
    assert links == before
    assert best_linked(links, [0, 1, 3], 2) == (0, 1)


def test_a_dgx_2_has_a_table_of_its_own() -> None:
    table = STATIC_TABLES["dgx-2"]
    assert static_choice(table, range(16), 16) == tuple(range(16))
    assert static_choice(table, range(5, 16), 4) == (8, 9, 10, 11)
    assert static_choice(table, [1, 2, 3, 15], 2) == (2, 3)


# Choosing


def test_a_tie_goes_to_what_leaves_the_rest_best_linked() -> None:
    chain = link_matrix_of_pairs(4, [(0, 1, 100), (1, 2, 100), (2, 3, 100)])
    assert best_linked(chain, range(4), 2) == (0, 1)
    star = link_matrix_of_pairs(5, [(0, 1, 100), (0, 2, 100), (1, 2, 50), (3, 4, 100)])
    assert best_linked(star, range(5), 2) == (3, 4)


def test_what_cannot_be_is_none() -> None:
    links = uniform(4, 10)
    assert best_linked(links, range(4), 5) is None
    assert best_linked(links, range(4), -1) is None
    assert best_linked(links, [0, 1], 2, required=[3]) is None
    assert best_linked(links, range(4), 1, required=[0, 3]) is None
    assert linked_at_least(links, range(4), 5, 0) is None
    assert linked_at_least(links, range(4), 2, 11) is None
    assert static_choice({2: ((0, 1),)}, [0, 2], 2) is None


def test_without_a_matrix_every_pair_is_alike() -> None:
    assert best_linked((), [1, 3, 4], 2) == (1, 3)
    assert best_linked((), [1, 3, 4], 2, required=[4]) == (1, 4)
    assert static_or_best(STATIC_TABLES["dgx-1-volta"], (), [0, 4, 5, 6, 7], 3) == (4, 5, 6)


def test_a_gpu_named_twice_is_one_gpu() -> None:
    links = islands(4, 2, 100, 10)
    assert best_linked(links, [1, 1, 2, 3], 3, required=[1, 1]) == (1, 2, 3)
    assert first_free([0, 0], 2) is None
    assert total_link(links, [0, 0, 1]) == 100


@given(links=matrices(), choice=st.data())
def test_best_linked_equals_exhaustive_search(links: LinkMatrix, choice: st.DataObject) -> None:
    gpus = st.integers(0, len(links) - 1)
    free = sorted(choice.draw(st.sets(gpus)))
    size = choice.draw(st.integers(0, len(links)))
    required = choice.draw(st.sets(st.sampled_from(free), max_size=3)) if free else set()
    best = exhaustive(links, free, size, lambda chosen: required <= set(chosen))
    assert best_linked(links, free, size, required) == best
    assert best is None or total_link(links, best) == plain_total(links, best)


@given(links=matrices(), choice=st.data())
def test_linked_at_least_equals_exhaustive_search(links: LinkMatrix, choice: st.DataObject) -> None:
    free = sorted(choice.draw(st.sets(st.integers(0, len(links) - 1))))
    size = choice.draw(st.integers(0, len(links)))
    least = choice.draw(st.sampled_from(SCORES))

    def near(chosen: Gpus) -> bool:
        return all(links[a][b] >= least for a, b in combinations(chosen, 2))

    assert linked_at_least(links, free, size, least) == exhaustive(links, free, size, near)


@given(links=matrices(), free=st.sets(st.integers(0, 9)), size=st.integers(0, 10))
def test_static_or_best_places_whatever_has_enough_free_gpus(links: LinkMatrix, free: set[int], size: int) -> None:
    free = {gpu for gpu in free if gpu < len(links)}
    chosen = static_or_best(STATIC_TABLES["dgx-1-volta"], links, free, size)
    assert (chosen is None) == (size > len(free))
    assert chosen is None or (len(chosen) == size and set(chosen) <= free)


# More GPUs than every set can be weighed for


def test_beyond_the_exact_range_nearly_every_choice_is_the_best() -> None:
    generator = np.random.default_rng(7)
    gpus, size, rounds = EXACT_UP_TO + 2, 4, 100
    sets = np.array(list(combinations(range(gpus), size)))
    optimal = 0
    for _ in range(rounds):
        links = random_links(generator, gpus)
        scores = np.array(links)
        best = sum(scores[sets[:, a], sets[:, b]] for a, b in combinations(range(size), 2)).max()
        chosen = best_linked(links, range(gpus), size)
        assert chosen is not None
        assert len(set(chosen)) == size
        total = total_link(links, chosen)
        assert total >= 0.9 * best
        optimal += total == best
    assert optimal >= 0.98 * rounds


def test_beyond_the_exact_range_islands_are_found_and_required_gpus_kept() -> None:
    links = islands(32, 8, 300, 10)
    assert best_linked(links, range(3, 32), 8) == tuple(range(8, 16))
    assert best_linked(links, range(1, 32), 4, required=[17]) == (16, 17, 18, 19)
    assert best_linked(links, range(32), 4, required=[0, 31]) is not None


def test_beyond_the_exact_range_a_tie_still_spares_whole_islands() -> None:
    free = [0, 1, *range(8, 32)]
    assert best_linked(islands(32, 8, 300, 10), free, 2) == (0, 1)


def test_beyond_the_exact_range_a_hidden_set_of_near_gpus_is_found() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        gpus, size = 24, 6
        scores = np.triu(generator.choice([10, 10, 100], (gpus, gpus)), 1)
        hidden = sorted(generator.choice(gpus, size, replace=False).tolist())
        for a, b in combinations(hidden, 2):
            scores[a, b] = 100
        links = tuple(tuple(row) for row in (scores + scores.T).tolist())
        chosen = linked_at_least(links, range(gpus), size, 100)
        assert chosen is not None
        assert all(links[a][b] == 100 for a, b in combinations(chosen, 2))
    assert linked_at_least(islands(32, 4, 100, 10), range(32), 5, 100) is None


def test_beyond_the_exact_range_near_gpus_are_refused_only_where_there_are_none() -> None:
    generator = np.random.default_rng(11)
    answers = set()
    for _ in range(30):
        scores = np.triu(generator.choice([10, 100], (18, 18)), 1)
        links = tuple(tuple(row) for row in (scores + scores.T).tolist())
        near = [[score >= 100 for score in row] for row in links]
        exists = any(all(near[a][b] for a, b in combinations(gpus, 2)) for gpus in combinations(range(18), 6))
        assert (linked_at_least(links, range(18), 6, 100) is not None) == exists
        answers.add(exists)
    assert answers == {True, False}


def test_hundreds_of_gpus_do_not_overflow() -> None:
    links = islands(256, 128, 1860, 10)
    assert linked_at_least(links, range(1, 256), 128, 100) == tuple(range(128, 256))
    assert linked_at_least(links, range(256), 129, 100) is None
    ring = link_matrix_of_pairs(256, [(gpu, (gpu + step) % 256, 1860) for gpu in range(256) for step in range(1, 100)])
    near = linked_at_least(ring, range(256), 100, 100)
    assert near is not None
    assert total_link(ring, near) == 1860 * 100 * 99 // 2
