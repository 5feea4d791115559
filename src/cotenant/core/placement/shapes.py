# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a ranker remembers of one demand, in arrays over all nodes of a cluster.

A label is a number that stands for a score, or for an upper bound of it, so that numpy can compare scores.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster, Node, Seen
from cotenant.core.model import Gpus, Slot
from cotenant.core.placement.feasibility import Feasibility
from cotenant.core.placement.scores import Score

Number = TypeVar("Number", np.float64, np.int64, np.int8)
Labels = NDArray[np.float64]
Rater = Callable[[Node], tuple[float, Gpus]]
"""gives a node the label of its score and its best slot"""

REFUSED = -np.inf
SPAN = 1 << 24
"""more than twice what rooms add up to, so that two of them are compared as one number, which a float holds exactly"""
SURE, BY_GPUS, BY_TENANTS, BY_FIRST = range(4)
"""what a label stands for: the score, a bound by single GPUs and all orders, a bound by type and tenants alone, or one
by the first order alone"""


class Ladder:
    """Labels in the order of scores: a new score gets a label between those of its neighbours, without weights."""

    def __init__(self) -> None:
        self._label: dict[Score, float] = {}
        self._scores: list[Score] = []
        self._labels: list[float] = []
        self.renumbered = False
        """whether labels given out before are invalid"""

    def __len__(self) -> int:
        return len(self._scores)

    def label(self, score: Score) -> float:
        known = self._label.get(score)
        return self._insert(score) if known is None else known

    def score(self, label: float) -> Score:
        """The score that has this label."""
        return self._scores[bisect_left(self._labels, label)]

    def _insert(self, score: Score) -> float:
        at = bisect_left(self._scores, score)
        if at == len(self._scores):
            new = self._labels[-1] + 1.0 if self._labels else 0.0
        elif at == 0:
            new = self._labels[0] - 1.0
        else:
            low, high = self._labels[at - 1], self._labels[at]
            new = (low + high) / 2
            if not low < new < high:
                self._renumber()
                return self._insert(score)
        self._scores.insert(at, score)
        self._labels.insert(at, new)
        self._label[score] = new
        return new

    def _renumber(self) -> None:
        """Numbers all scores again: about fifty halvings of one gap use up the digits of a float."""
        self._labels = [float(i) for i in range(len(self._scores))]
        self._label = dict(zip(self._scores, self._labels, strict=True))
        self.renumbered = True


class RoomScale:
    """The same for scores of two whole numbers, as policies have that compare rooms: the label follows from them."""

    renumbered = False

    def __len__(self) -> int:
        return 0

    def label(self, score: Score) -> float:
        first, second = score
        return first * SPAN + second

    def score(self, label: float) -> Score:
        """The score that has this label."""
        first = round(label / SPAN)
        return first, int(label) - first * SPAN


class Shape:
    """For each node: a label, what it stands for, the best slot if it is sure, and the version of the node."""

    def __init__(self, cluster: Cluster, feasible: Feasibility, ladder: Ladder | RoomScale, rate_node: Rater) -> None:
        self.feasible, self.rate_node = feasible, rate_node
        self.names = cluster.names
        self.slots: list[Gpus] = [()] * len(cluster)
        self.labels = np.full(len(cluster), REFUSED)
        self.seen = Seen(len(cluster))
        self.doubt = np.zeros(len(cluster), dtype=np.int8)
        self.heights: dict[int, float] = {}
        """label of the bound for each set of tenants, by its number (`GpuArrays.examples`)"""
        self.first_heights: dict[int, float] = {}
        """the same, by the first order alone"""
        self.rest: dict[tuple[int, int], Score] = {}
        """scores of single GPUs by the orders after those by GPU, by version of the node and GPU"""
        self.believed = -1
        """version of the predictions that labels are of"""
        self.ladder = ladder

    @property
    def worn_out(self) -> bool:
        """Whether the labels were renumbered, or most scores on the ladder belong to nodes that have changed since."""
        bounds = len(self.heights) + len(self.first_heights)
        return self.ladder.renumbered or len(self.ladder) > 2 * (len(self.names) + bounds) + 64

    def forget(self) -> None:
        """Makes all labels stale; starts a new ladder unless the old one was only renumbered."""
        self.seen.forget()
        self.heights.clear()
        self.first_heights.clear()
        if isinstance(self.ladder, Ladder) and self.ladder.renumbered:
            self.ladder.renumbered = False
        else:
            self.ladder = type(self.ladder)()

    def align(self, cluster: Cluster) -> None:
        """Nodes joined or left: keep what is known of those that stayed."""
        old = {name: i for i, name in enumerate(self.names)}
        came_from = np.array([old.get(name, -1) for name in cluster.names], dtype=np.int64)
        self.labels = moved(self.labels, came_from, REFUSED)
        self.doubt = moved(self.doubt, came_from, SURE)
        self.seen.align(came_from)
        self.slots = [self.slots[i] if i >= 0 else () for i in came_from.tolist()]
        self.names = cluster.names

    def fit(self, i: int) -> tuple[Score, Slot]:
        """The score and the slot of a node that fits."""
        return self.ladder.score(float(self.labels[i])), Slot(self.names[i], self.slots[i])


def moved(values: NDArray[Number], came_from: NDArray[np.int64], otherwise: float) -> NDArray[Number]:
    """Each value at its new index, `otherwise` for nodes that are new."""
    return np.append(values, np.array(otherwise, dtype=values.dtype))[came_from]


def best_first(labels: Labels, chunk: int = 64) -> Iterator[int]:
    """Nodes that fit, best first, ties in name order; sorts no more of them than the caller takes."""
    rest = np.flatnonzero(labels > REFUSED)
    while len(rest):
        values, at = labels[rest], max(0, len(rest) - chunk)
        floor = np.partition(values, at)[at]
        above = rest[values > floor]
        yield from above[np.argsort(-labels[above], kind="stable")].tolist()
        yield from map(int, rest[values == floor])  # all ties of the last one: often most nodes, and few are taken
        rest, chunk = rest[values < floor], chunk * 4
