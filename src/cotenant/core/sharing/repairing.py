# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Re-pairing: if a GPU is idle and no job waits, which tenant to move there, if the gain exceeds the cost of a move."""

from collections.abc import Iterable

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Job, Placement
from cotenant.core.sharing.orders import gain, mean, taken
from cotenant.core.sharing.speeds import Belief
from cotenant.core.units import Seconds

WORTH = 2.0
"""a move must gain this many times the work that it loses"""


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
