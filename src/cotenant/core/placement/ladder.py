# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Labels: floats in the order of score tuples, so that numpy can compare scores of any length without weights."""

from bisect import bisect_left

Score = tuple[float, ...]


class Ladder:
    """Each distinct score gets a label between those of its neighbours, the first time it is seen."""

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
