# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a ranker remembers of one demand, in arrays over all nodes of a cluster.

A label stands for a score, or for the most that a score can be, which is quicker to find; numpy compares labels.
"""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster
from cotenant.core.model import Gpus, Slot
from cotenant.core.placement.checks import Feasibility
from cotenant.core.placement.ladder import Ladder, Score

Number = TypeVar("Number", np.float64, np.int64, np.int8)
Labels = NDArray[np.float64]

REFUSED = -np.inf
SURE, BY_SLOTS, BY_CARDS = 0, 1, 2
"""what a label is of: the score, or the most it can be, as far as the node's cards for themselves tell, or as who is on
them does"""


class Shape:
    """Of each node a label and what it is of, the best slot where it is sure, and the version all this is true for."""

    def __init__(self, cluster: Cluster, feasible: Feasibility) -> None:
        self.feasible = feasible
        self.names = cluster.names
        self.slots: list[Gpus] = [()] * len(cluster)
        self.labels = np.full(len(cluster), REFUSED)
        self.seen = np.zeros(len(cluster), dtype=np.int64)
        self.doubt = np.zeros(len(cluster), dtype=np.int8)
        self.heights: dict[int, float] = {}
        """of each crowd on a card, by its number"""
        self.ladder = Ladder()

    @property
    def worn_out(self) -> bool:
        """Whether labels mean nothing any more, or most scores on the ladder are of nodes as they once were."""
        return self.ladder.renumbered or len(self.ladder) > 2 * (len(self.names) + len(self.heights)) + 64

    def forget(self) -> None:
        """Asks for every label again: of the same ladder where it was only renumbered, else of a fresh one."""
        self.seen[:] = 0
        self.heights.clear()
        if self.ladder.renumbered:
            self.ladder.renumbered = False
        else:
            self.ladder = Ladder()

    def align(self, cluster: Cluster) -> None:
        """Nodes joined or left: keep what is known of those that stayed."""
        old = {name: i for i, name in enumerate(self.names)}
        came_from = np.array([old.get(name, -1) for name in cluster.names], dtype=np.int64)
        self.labels = moved(self.labels, came_from, REFUSED)
        self.seen, self.doubt = moved(self.seen, came_from, 0), moved(self.doubt, came_from, SURE)
        self.slots = [self.slots[i] if i >= 0 else () for i in came_from.tolist()]
        self.names = cluster.names

    def fit(self, i: int) -> tuple[Score, Slot]:
        """The score and the slot of a node that fits."""
        return self.ladder.score(float(self.labels[i])), Slot(self.names[i], self.slots[i])


def moved(values: NDArray[Number], came_from: NDArray[np.int64], otherwise: float) -> NDArray[Number]:
    """Each from its old place, something else for those that had none."""
    return np.append(values, np.array(otherwise, dtype=values.dtype))[came_from]


def best_first(labels: Labels, chunk: int = 64) -> Iterator[int]:
    """Nodes that fit, best first, ties in name order; sorts no more of them than are asked for."""
    rest = np.flatnonzero(labels > REFUSED)
    while len(rest):
        values, at = labels[rest], max(0, len(rest) - chunk)
        floor = np.partition(values, at)[at]
        above = rest[values > floor]
        yield from above[np.argsort(-labels[above], kind="stable")].tolist()
        yield from map(int, rest[values == floor])  # all ties of the last one: often most nodes, and few are asked for
        rest, chunk = rest[values < floor], chunk * 4
