# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gates: asked about the best slot there is, whether it is good enough. Not to share is a choice, too.

A gate sees the slot's score alone, and how crowded it is; so what is remembered of scores stays true when that changes.
"""

from collections.abc import Callable
from typing import NamedTuple

from cotenant.core.model import Reason
from cotenant.core.placement.ladder import Score

LEAST_GAIN_CROWDED, LEAST_GAIN_QUIET = 0.05, 0.5
"""what a newcomer must add to the work that a card does, where many wait and where nobody does"""
HALFWAY = 0.5
"""waiting jobs per GPU at which it is halfway between"""


class Verdict(NamedTuple):
    """On the best slot that there is."""

    reason: Reason | None = None
    """why to wait instead; None: place it there"""
    trial: bool = False
    """not sure: look again once it has been measured"""


PLACE = Verdict()

Gate = Callable[[Score, float], Verdict]
"""from the best slot's score and the jobs that wait per GPU"""


def least_gain(crowding: float) -> float:
    """With few waiting a job does better to wait for a card of its own; with many, little is better than nothing."""
    return LEAST_GAIN_CROWDED + (LEAST_GAIN_QUIET - LEAST_GAIN_CROWDED) * HALFWAY / (HALFWAY + crowding)


def worth_sharing(score: Score, crowding: float) -> Verdict:
    """For scores that begin with: idle or not, the gain that is expected, the gain that is nearly certain."""
    idle, expected, certain = score[:3]
    least = least_gain(crowding)
    # Beside two and more, a difference of lower bounds may be above what is expected: only both together are certain.
    if idle or min(certain, expected) > least:
        return PLACE
    if expected > least:
        return Verdict(trial=True)
    text = "sharing must add {needed_percent} % of a GPU's work; the best slot adds {available_percent} %"
    return Verdict(Reason("gain", text, round(1000 * least), round(1000 * expected)))
