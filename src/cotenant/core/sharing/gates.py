# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sharing gates: each decides whether the best slot is good enough to share, or the job waits.

A gate sees only the score of the slot and the crowding of the queue, so remembered scores stay valid when the crowding
changes.
"""

from collections.abc import Callable
from typing import NamedTuple

from cotenant.core.model import Reason
from cotenant.core.placement.scores import Score

LEAST_GAIN_CROWDED, LEAST_GAIN_QUIET = 0.05, 0.5
"""what a newcomer must add to the work of a GPU, if many jobs wait and if none does"""
HALFWAY = 0.5
"""waiting jobs per GPU at which the least gain is halfway between"""


class Verdict(NamedTuple):
    """The answer of a gate for the best slot."""

    reason: Reason | None = None
    """why the job waits; None: it is placed there"""
    trial: bool = False
    """not sure: judge again after a measurement"""


PLACE = Verdict()

Gate = Callable[[Score, float], Verdict]
"""from the score of the best slot and the number of waiting jobs per GPU"""


def least_gain(crowding: float) -> float:
    """The least gain for which to share: the fewer jobs wait, the more it pays to wait for a GPU alone."""
    return LEAST_GAIN_CROWDED + (LEAST_GAIN_QUIET - LEAST_GAIN_CROWDED) * HALFWAY / (HALFWAY + crowding)


def worth_sharing(score: Score, crowding: float) -> Verdict:
    """For scores that begin with: idle or not, expected gain, nearly certain gain."""
    idle, expected, certain = score[:3]
    least = least_gain(crowding)
    # Beside two or more tenants, a difference of lower bounds may exceed the expected gain: only both are certain.
    if idle or min(certain, expected) > least:
        return PLACE
    if expected > least:
        return Verdict(trial=True)
    text = "sharing must add {needed_percent} % of a GPU's work; the best slot adds {available_percent} %"
    return Verdict(Reason("gain", text, round(1000 * least), round(1000 * expected)))
