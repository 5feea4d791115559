# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The sums of `make bench ONLY=local-interference`, on pairs whose speeds are an equation."""

from itertools import combinations_with_replacement

import pytest

from bench.interference import EIGHT, OBSERVED, Pair, completion, prediction
from cotenant.core.interference import Profile, Signature
from cotenant.workloads.registry import TASKS


def busy(task: str) -> float:
    return TASKS[task].busy / 1000


def signature(task: str) -> Signature:
    return Signature(task, None, 0.01 + 0.01 * busy(task), Profile(utilisation=busy(task)))


def slowed(victim: str, partner: str) -> float:
    """A step waits for what is left of the partner's, half a step on average, and then in turn."""
    return 1 / (1 + busy(partner) * (0.3 + 0.5 * busy(victim)))


PAIRS = [
    Pair((signature(a), signature(b)), (busy(a), busy(b)), (slowed(a, b), slowed(b, a)))
    for a, b in combinations_with_replacement(EIGHT, 2)
]


def test_thirty_pairs_tell_the_others_better_than_rules_of_thumb() -> None:
    ours, none, divided = prediction(PAIRS, OBSERVED)
    assert ours.met, (ours.figure, none.figure, divided.figure)
    assert ours.figure < min(none.figure, divided.figure) / 2


def test_the_share_of_time_is_that_of_the_mean_over_runs() -> None:
    alone, share = completion({"cotenant": [100.0, 110.0], "alone": [150.0, 165.0], "share": [100.0, 90.0]})
    assert (alone.figure, alone.met) == (pytest.approx(1.5), True)  # type: ignore[comparison-overlap]
    assert share.met is False
