# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether sharing pays: gates decide it for a job that arrives, and `find_move` for a tenant if a GPU is idle.

A gate sees only the score of the slot and the crowding of the queue, so remembered scores stay valid when the crowding
changes.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Job, Placement, Reason
from cotenant.core.placement.scores import Score
from cotenant.core.sharing.orders import gain, mean, taken
from cotenant.core.sharing.speeds import Belief
from cotenant.core.units import Seconds

LEAST_GAIN_CROWDED, LEAST_GAIN_QUIET = 0.05, 0.5
"""what a newcomer must add to the work of a GPU, if many jobs wait and if none does"""
HALFWAY = 0.85
"""waiting jobs per GPU at which the least gain is halfway between"""
GAIN = "gain"
"""the check of the reason with which a gate refuses"""
WORTH = 2.0
"""a move must gain this many times the work that it loses"""


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
    # Let a newcomer share for a time t with a gain g, while k jobs per GPU wait. These get work of g t earlier, worth
    # k g t to them. The two that share do the work of 1 + g GPUs instead of 2: they lose (1 - g) t compared with a GPU
    # for each. So g = 1 / (1 + k) is even if the newcomer would get a GPU of its own at once. If it would have to wait
    # for the end of a job of its own length, 1 / (3 + 2 k) is. What follows is between the two up to about 11 waiting
    # jobs per GPU; beyond that it is above both, because no gain below LEAST_GAIN_CROWDED is worth sharing for.
    return LEAST_GAIN_CROWDED + (LEAST_GAIN_QUIET - LEAST_GAIN_CROWDED) * HALFWAY / (HALFWAY + crowding)


def worth_sharing(score: Score, crowding: float) -> Verdict:
    """For scores that begin with: expected gain, unhindered or not, nearly certain gain, untried or not."""
    expected, unhindered, certain, untried = score[:4]
    least = least_gain(crowding)
    # Beside two or more tenants, a difference of lower bounds may exceed the expected gain: only both are certain.
    if unhindered or min(certain, expected) > least:
        return PLACE
    # The first few pairs are tried whatever is expected: a trial costs a minute of work, and teaches something.
    if expected > least or untried:
        return Verdict(trial=True)
    text = "sharing must add {needed_percent} % of a GPU's work; the best slot adds {available_percent} %"
    return Verdict(Reason(GAIN, text, round(1000 * least), round(1000 * expected)))


def find_move(belief: Belief, running: Iterable[tuple[Job, Placement]], cluster: Cluster, cost: Seconds) -> Job | None:
    """The tenant of a shared GPU whose move to an idle one gains most; None if no move is worth its cost."""
    if not any(_idle(node) for node in cluster):
        return None
    best: tuple[float, str, Job] | None = None
    for job, placement in running:
        if len(placement.slot.gpus) != 1:
            continue
        node = cluster.finish(placement).node(placement.slot.node)
        # On an idle GPU it does the work of one GPU; here it adds less than that.
        lost = 1.0 - gain(belief, mean, job.demand, node, placement.slot.gpus[0])
        left = max(0.0, (job.estimate or Seconds(0.0)) - job.attained)
        if lost * left > WORTH * cost and (best is None or (lost, job.id) > best[:2]):
            best = lost, job.id, job
    return None if best is None else best[2]


def _idle(node: Node) -> bool:
    """Whether it has a usable GPU without a tenant."""
    others = taken(node)
    return any(gpu not in others and slots > 0 for gpu, slots in enumerate(node.slots))
