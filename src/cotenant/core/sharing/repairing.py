# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Re-pairing: a card has become idle and nobody waits for it. Whose move there is worth the work that a move loses?"""

from collections.abc import Iterable

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Job, Placement
from cotenant.core.sharing.orders import gain, mean, taken
from cotenant.core.sharing.speeds import Belief
from cotenant.core.units import Seconds

WORTH = 2.0
"""times the work lost that a move must bring"""


def whom_to_move(
    belief: Belief, running: Iterable[tuple[Job, Placement]], cluster: Cluster, cost: Seconds
) -> Job | None:
    """The tenant of one shared card that all would gain most by on an idle one; None where nothing is worth it."""
    if not any(_idle(node) for node in cluster):
        return None
    best: tuple[float, str, Job] | None = None
    for job, placement in running:
        if len(placement.slot.gpus) != 1:
            continue
        node = cluster.finish(placement).node(placement.slot.node)
        # On an idle card it does one card's work; here it adds less than that.
        lost = 1.0 - gain(belief, mean, job.demand, node, placement.slot.gpus[0])
        left = max(0.0, (job.estimate or Seconds(0.0)) - job.attained)
        if lost * left > WORTH * cost and (best is None or (lost, job.id) > best[:2]):
            best = lost, job.id, job
    return None if best is None else best[2]


def _idle(node: Node) -> bool:
    """Whether it has a usable card that nobody is on."""
    others = taken(node)
    return any(gpu not in others and slots > 0 for gpu, slots in enumerate(node.slots))
