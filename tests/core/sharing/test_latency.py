# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The search for the smallest compute share that holds a latency objective."""

from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.sharing.latency import (
    BUCKETS,
    HOLDS_TO_SHRINK,
    REMEMBERED,
    STEP,
    Search,
    bound_of,
    judge,
    latency_of,
)
from cotenant.core.units import WHOLE_GPU, MilliGpu, Seconds
from cotenant.job import messages

OBJECTIVE = Seconds(0.1)


def serve(search: Search, share: int, needed: int, windows: int) -> tuple[Search, list[int]]:
    """A server that needs a share: below it requests take as much longer, at and above it half of the objective."""
    shares = []
    for _ in range(windows):
        latency = 0.05 if share >= needed else 0.1 * needed / share
        search, wanted = judge(search, MilliGpu(share), Seconds(latency), OBJECTIVE)
        if wanted != share:
            search, share = search.at_new_share(), wanted
        shares.append(share)
    return search, shares


@given(st.integers(1, 1000), st.sampled_from(range(50, 1001, 50)))
def test_the_search_ends_at_the_smallest_share_that_holds(needed: int, begin: int) -> None:
    search, shares = serve(Search(), begin, needed, 200)
    # From there it looks below once in a while, and is back at once.
    _, later = serve(search, shares[-1], needed, REMEMBERED)
    smallest = min(1000, STEP * -(-needed // STEP))
    assert later.count(smallest) >= len(later) - 10


def test_one_miss_changes_nothing_and_two_at_most_double_the_share() -> None:
    search, wanted = judge(Search(), MilliGpu(100), Seconds(9.0), OBJECTIVE)
    assert wanted == 100
    search, wanted = judge(search, MilliGpu(100), Seconds(9.0), OBJECTIVE)
    assert wanted == 200
    assert search.too_small == 100


def test_a_share_shrinks_only_if_the_latency_is_well_below_the_objective() -> None:
    for latency, expected in ((0.09, 400), (0.05, 400 - STEP)):
        search, wanted = Search(), MilliGpu(400)
        for _ in range(HOLDS_TO_SHRINK):
            search, wanted = judge(search, MilliGpu(400), Seconds(latency), OBJECTIVE)
        assert wanted == expected


@given(st.integers(1, 1000), st.lists(st.floats(1e-4, 1e3), max_size=50))
def test_a_share_stays_between_a_step_and_a_whole_gpu(share: int, latencies: list[float]) -> None:
    search = Search()
    for latency in latencies:
        search, wanted = judge(search, MilliGpu(share), Seconds(latency), OBJECTIVE)
        assert 1 <= wanted <= WHOLE_GPU
        assert share - STEP <= wanted <= 2 * share + STEP
        share = wanted


@given(st.floats(0, 1e5))
def test_the_job_library_counts_a_latency_where_its_bound_is_at_most_a_tenth_larger(seconds: float) -> None:
    assert messages.BUCKETS == BUCKETS
    bucket = messages.bucket_of(seconds)
    assert bound_of(bucket) >= min(seconds, bound_of(BUCKETS - 1)) * 0.999999
    assert bucket == 0 or bound_of(bucket) <= seconds * 1.0906


def test_a_percentile_is_the_bound_that_so_many_requests_do_not_exceed() -> None:
    counts = {0: 89, 8: 10, 16: 1}
    assert latency_of(counts, 89) == bound_of(0)
    assert latency_of(counts, 90) == bound_of(8)
    assert latency_of(counts, 99) == bound_of(8)
    assert latency_of({**counts, 16: 2}, 99) == bound_of(16)
    assert latency_of({}, 99) is None
