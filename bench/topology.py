# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how fast well-linked GPUs of a node are found, and how often they are optimal."""

import statistics
import time
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from bench.harness import Figure, at_least, benchmark, in_fresh_process
from cotenant.core.links import LinkMatrix
from cotenant.core.placement.topology import best_linked, choose, total_link
from tests.core.placement.linked_machines import MACHINES, by_division, orders, total_of, total_over_time

SCORES = (10, 20, 30, 40, 50, 60, 100, 200, 300, 400, 600, 1200)
BASELINE = "go-gpuallocator 4,230"
SERIES = 1000
"""of requests between which GPUs are given back"""


@benchmark("topology-16")
def topology_16() -> Iterator[Figure]:
    """Measures the choice of 4 of 16 free GPUs, and compares it with exhaustive search if that is affordable."""
    generator = np.random.default_rng(16)
    four = statistics.median(milliseconds(random_links(generator, 16), 4) for _ in range(2000))
    yield Figure(
        name="best 4 of 16, median",
        figure=four,
        unit="ms",
        baseline=BASELINE,
        target="< 1",
        met=four < 1,
        note="2,000 random link matrices, each seen for the first time",
    )
    eight = statistics.median(milliseconds(random_links(generator, 16), 8) for _ in range(200))
    yield Figure(name="best 8 of 16, median", figure=eight, unit="ms", note="the most sets there are: 12,870")
    cold = statistics.median(in_fresh_process(first_choice).result for _ in range(3))
    yield Figure(name="best 4 of 16, first call of a process", figure=cold, unit="ms", baseline=BASELINE)
    yield at_least(
        "same total as exhaustive, up to 10 GPUs",
        100 * statistics.mean(is_best(generator, gpus=int(generator.integers(2, 11))) for _ in range(1000)),
        "%",
        limit=100,
        note="1,000 random matrices, free GPUs and sizes",
    )
    yield Figure(
        name="same total as exhaustive, 17 GPUs",
        figure=100 * statistics.mean(climb_is_best(generator) for _ in range(300)),
        unit="%",
        note="any size; above 16 free GPUs sets are grown and swapped, not all weighed",
    )


@benchmark("topology-orders")
def topology_orders() -> Iterator[Figure]:
    """Compares what is handed out over all orders of requests with the rule of go-gpuallocator, on known machines."""
    for name, links in MACHINES.items():
        totals = [
            tuple(total_of(links, sizes, choice) for choice in (choose, by_division, best_linked))
            for sizes in orders(len(links))
        ]
        ours, theirs, greedy = (sum(column) for column in zip(*totals, strict=True))
        worse = sum(one[0] < one[1] for one in totals)
        better = sum(one[0] > one[1] for one in totals)
        greedy_worse = sum(one[2] < one[1] for one in totals)
        yield Figure(
            name=name,
            figure=100 * (ours / theirs - 1),
            unit="% total link",
            baseline=f"the best set for each request {100 * (greedy / theirs - 1):+.2f}",
            target="no order lower, sum higher",
            met=worse == 0 and ours > theirs,
            note=f"against go-gpuallocator's rule; of {len(totals)} orders {worse} lower, {better} higher"
            f" (the best set for each request: {greedy_worse} lower)",
        )
        yield with_departures(name)


def with_departures(name: str) -> Figure:
    """The same if GPUs are given back between requests, in a random order."""
    links = MACHINES[name]
    totals = [tuple(total_over_time(links, seed, choice) for choice in (choose, by_division)) for seed in range(SERIES)]
    ours, theirs = (sum(column) for column in zip(*totals, strict=True))
    lower, higher = sum(one < other for one, other in totals), sum(one > other for one, other in totals)
    return at_least(
        f"{name}, with departures",
        100 * (ours / theirs - 1),
        "% total link",
        limit=0,
        note=f"against go-gpuallocator's rule; of {SERIES} series of requests {lower} lower, {higher} higher",
    )


def random_links(generator: np.random.Generator, gpus: int) -> LinkMatrix:
    """Random links, which are harder than those of a real machine."""
    scores = np.triu(generator.choice(SCORES, (gpus, gpus)), 1)
    return tuple(tuple(row) for row in (scores + scores.T).tolist())


def milliseconds(links: LinkMatrix, size: int) -> float:
    """The time of one choice among all GPUs of the node."""
    start = time.perf_counter()
    best_linked(links, range(len(links)), size)
    return (time.perf_counter() - start) * 1000


def first_choice() -> float:
    """The time of the first choice, with empty caches."""
    return milliseconds(random_links(np.random.default_rng(0), 16), 4)


def is_best(generator: np.random.Generator, gpus: int) -> bool:
    """Whether a choice among some of the GPUs has the maximal total."""
    links = random_links(generator, gpus)
    free = sorted(generator.choice(gpus, generator.integers(1, gpus + 1), replace=False).tolist())
    size = int(generator.integers(1, len(free) + 1))
    chosen = best_linked(links, free, size)
    largest = max(sum(links[a][b] for a, b in combinations(every, 2)) for every in combinations(free, size))
    return chosen is not None and len(set(chosen) & set(free)) == size and total_link(links, chosen) == largest


def climb_is_best(generator: np.random.Generator, gpus: int = 17) -> bool:
    """The same for more GPUs than the exact search covers."""
    links, size = random_links(generator, gpus), int(generator.integers(2, gpus))
    every, scores = np.array(list(combinations(range(gpus), size))), np.array(links)
    totals = sum(scores[every[:, a], every[:, b]] for a, b in combinations(range(size), 2))
    chosen = best_linked(links, range(gpus), size)
    return chosen is not None and total_link(links, chosen) == int(np.max(totals))
