# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The search for the smallest compute share that holds a latency objective."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.sharing.latency import (
    BUCKETS,
    HOLDS_TO_SHRINK,
    LEAST_REQUESTS,
    REMEMBERED_S,
    STEP,
    Objective,
    Search,
    Window,
    bound_of,
    bucket_of,
    complete_window,
    is_missed,
    judge,
    latency_of,
)
from cotenant.core.units import WHOLE_GPU, MilliGpu, Seconds
from cotenant.job import messages

OBJECTIVE = Seconds(0.1)
PER_LOOK = 10
"""requests after which the agent looks again"""


def window(latency: float, end: float = 0.0) -> Window:
    return Window(Seconds(latency), latency > OBJECTIVE, Seconds(end))


def serve(search: Search, share: int, needed: int, windows: int, begin: int = 0) -> tuple[Search, list[int]]:
    """A server that needs a share: below it requests take as much longer, at and above it half of the objective.

    A window takes two seconds.
    """
    shares = []
    for number in range(begin, begin + windows):
        latency = 0.05 if share >= needed else 0.1 * needed / share
        search, wanted = judge(search, MilliGpu(share), window(latency, 2 * number), OBJECTIVE)
        if wanted != share:
            search, share = search.at_new_share(), wanted
        shares.append(share)
    return search, shares


@given(st.integers(1, 1000), st.sampled_from(range(50, 1001, 50)))
def test_the_search_ends_at_the_smallest_share_that_holds(needed: int, begin: int) -> None:
    search, shares = serve(Search(), begin, needed, 200)
    # From there it looks below once in a while, and is back at once.
    _, later = serve(search, shares[-1], needed, int(REMEMBERED_S / 2), begin=200)
    smallest = min(1000, STEP * -(-needed // STEP))
    assert later.count(smallest) >= len(later) - 10


def test_one_miss_changes_nothing_and_two_at_most_double_the_share() -> None:
    search, wanted = judge(Search(), MilliGpu(100), window(9.0), OBJECTIVE)
    assert wanted == 100
    search, wanted = judge(search, MilliGpu(100), window(9.0), OBJECTIVE)
    assert wanted == 200
    assert search.too_small == 100


def test_a_share_shrinks_only_if_the_latency_is_well_below_the_objective() -> None:
    for latency, expected in ((0.09, 400), (0.05, 400 - STEP)):
        search, wanted = Search(), MilliGpu(400)
        for _ in range(HOLDS_TO_SHRINK):
            search, wanted = judge(search, MilliGpu(400), window(latency), OBJECTIVE)
        assert wanted == expected


@given(st.integers(1, 1000), st.lists(st.floats(1e-4, 1e3), max_size=50))
def test_a_share_stays_between_a_step_and_a_whole_gpu(share: int, latencies: list[float]) -> None:
    search = Search()
    for latency in latencies:
        search, wanted = judge(search, MilliGpu(share), window(latency), OBJECTIVE)
        assert 1 <= wanted <= WHOLE_GPU
        assert share - STEP <= wanted <= 2 * share + STEP
        share = wanted


@given(st.floats(0, 1e5))
def test_the_job_library_counts_a_latency_where_its_bound_is_at_most_a_tenth_larger(seconds: float) -> None:
    assert messages.BUCKETS == BUCKETS
    bucket = messages.bucket_of(seconds)
    assert bucket == bucket_of(Seconds(seconds))
    assert bound_of(bucket) >= min(seconds, bound_of(BUCKETS - 1)) * 0.999999
    assert bucket == 0 or bound_of(bucket) <= seconds * 1.0906


def test_a_percentile_is_the_bound_that_so_many_requests_do_not_exceed() -> None:
    counts = {0: 89, 8: 10, 16: 1}

    def latency(counts: dict[int, int], percentile: int) -> Seconds | None:
        return latency_of(counts, Objective(percentile, Seconds(1.0)))

    assert latency(counts, 89) == bound_of(0)
    assert latency(counts, 90) == bound_of(8)
    assert latency(counts, 99) == bound_of(8)
    assert latency({**counts, 16: 2}, 99) == bound_of(16)
    assert latency({}, 99) is None


@given(st.floats(0.001, 3600), st.floats(0, 1))
def test_no_request_within_the_objective_is_a_miss(seconds: float, part: float) -> None:
    objective = Objective(99, Seconds(seconds))
    counts = {messages.bucket_of(seconds * part): 1000}
    latency = latency_of(counts, objective)
    assert latency is not None
    assert latency <= seconds
    assert is_missed(counts, objective) is False


def test_a_share_that_was_too_small_is_tried_again_after_half_an_hour_whatever_else_was_missed() -> None:
    search, _ = judge(Search(missed=1), MilliGpu(400), window(0.2, 100.0), OBJECTIVE)
    assert search.too_small == 400
    tried = []
    for number in range(400):
        end = 110.0 + 5 * number
        search, wanted = judge(search, MilliGpu(450), window(0.2 if number % 10 == 0 else 0.05, end), OBJECTIVE)
        if wanted < 450:
            tried.append(end)
    assert 100 + REMEMBERED_S < min(tried) < 100 + REMEMBERED_S + 60


def played(percentile: int, slow: float, windows: int) -> tuple[list[int], list[int]]:
    """The shares that a server wants which has slow requests at any share, and how many requests each window had."""
    objective = Objective(percentile, OBJECTIVE)
    search, share, shares, sizes = Search(), MilliGpu(500), [500], list[int]()
    fast_bucket, slow_bucket = bucket_of(Seconds(0.05)), bucket_of(Seconds(0.3))
    random = np.random.default_rng(percentile)
    late_in_looks = (int(late) for _ in range(windows) for late in random.binomial(PER_LOOK, slow, 1000))
    while len(sizes) < windows:
        counts = {fast_bucket: 0, slow_bucket: 0}
        missed = None
        while missed is None:
            late = next(late_in_looks)
            counts[slow_bucket] += late
            counts[fast_bucket] += PER_LOOK - late
            missed = is_missed(counts, objective)
        latency = latency_of({bucket: count for bucket, count in counts.items() if count}, objective)
        assert latency is not None
        sizes.append(sum(counts.values()))
        end = Seconds(2.0 * len(sizes))
        search, wanted = judge(search, share, Window(latency, missed, end), objective.seconds)
        if wanted != share:
            search, share = search.at_new_share(), wanted
            shares.append(share)
    return shares, sizes


@pytest.mark.parametrize(("percentile", "windows"), [(50, 10_000), (90, 10_000), (99, 2_000)])
def test_the_share_of_a_server_that_holds_its_objective_with_a_margin_never_grows(
    percentile: int, windows: int
) -> None:
    shares, sizes = played(percentile, (1 - percentile / 100) / 2, windows)
    assert shares == sorted(shares, reverse=True)
    assert sum(sizes) / len(sizes) > 0.95 * complete_window(percentile)


@pytest.mark.parametrize("percentile", [50, 90, 99])
def test_the_share_of_a_server_that_clearly_misses_grows_after_a_few_requests(percentile: int) -> None:
    shares, sizes = played(percentile, 0.9, 4)
    assert shares == [500, 1000]
    assert max(sizes) <= LEAST_REQUESTS + PER_LOOK
    shares, _ = played(percentile, min(0.9, 3 * (1 - percentile / 100)), 6)
    assert max(shares) == 1000
