# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The interference predictor: how far off it is on measured pairs that it has not seen, and how long it takes."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from bench.harness import Figure, at_most, benchmark, in_fresh_process
from bench.studies import figures_of
from cotenant.core.interference import Predictor, Signature


@benchmark("predict")
def predict() -> Iterator[Figure]:
    """Error on unseen pairs beside matrix factorisation, coverage of the intervals, and new families after probes."""
    return figures_of("predict")


GPUS = 8000


@benchmark("score-8000")
def score_8000() -> Iterator[Figure]:
    """What it takes to score one job beside the tenants of 8,000 GPUs, to learn from one measurement, and to load."""
    for kinds in (26, 200):
        costs = in_fresh_process(cost, kinds).result
        note = f"CPU time, {costs.rows} measured directions"
        yield at_most(f"{kinds} types: one job beside 8,000 GPUs", costs.again, "ms", limit=5, note=note)
        yield Figure(name=f"{kinds} types: first after a measurement", figure=costs.first, unit="ms", note=note)
        yield at_most(f"{kinds} types: measurement of a new pair", costs.update, "ms", limit=1, note=note)
        yield Figure(name=f"{kinds} types: of a known pair, mean", figure=costs.repeat, unit="ms", note=note)
        yield at_most(f"{kinds} types: loading", costs.load, "ms", limit=100, note=note)


class Cost(NamedTuple):
    """Milliseconds; medians, but of repetitions the mean, since few of them do any work."""

    rows: int
    again: float
    first: float
    update: float
    repeat: float
    load: float


def cost(kinds: int) -> Cost:
    """Of a predictor with almost as many rows as it may have; 600 is the most."""
    chance = np.random.default_rng(kinds)
    types = [Signature(f"{i % 20}", 1 << (i // 20), float(2 ** chance.normal())) for i in range(kinds)]
    predictor = Predictor()
    tenants = np.array([predictor.learn(kind) for kind in types])[chance.integers(0, kinds, GPUS)]
    pairs = [(one, other) for i, one in enumerate(types) for other in types[:i]]
    chosen = [pairs[i] for i in chance.permutation(len(pairs))]

    def observe(place: int) -> None:
        predictor.observe(*chosen[place], *chance.uniform(0.3, 0.9, 2))

    for place in range(250):
        observe(place)
    update, first, again, repeat = [], [], [], []
    for place in range(250, 290):
        update.append(milliseconds(lambda: observe(place)))  # noqa: B023 -- called at once
        first.append(milliseconds(lambda: predictor.speeds(types[0], tenants)))
        again.append(milliseconds(lambda: predictor.speeds(types[0], tenants)))
    for place in 4 * list(range(40)):
        repeat.append(milliseconds(lambda: observe(place)))  # noqa: B023 -- called at once
    state = predictor.state()
    load = [milliseconds(lambda: Predictor.restore(state).pair(types[0], types[1])) for _ in range(5)]
    return Cost(
        rows=len(state.rows),
        again=statistics.median(again),
        first=statistics.median(first),
        update=statistics.median(update),
        repeat=statistics.mean(repeat),
        load=statistics.median(load),
    )


def milliseconds(run: Callable[[], object]) -> float:
    """CPU time; other users of the machine do not count."""
    start = time.process_time_ns()
    run()
    return (time.process_time_ns() - start) / 1e6
