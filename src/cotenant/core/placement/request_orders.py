# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a small machine to take so that later requests find well-linked ones too.

The best set for one request may break up the best sets for the next. Later requests are unknown, so a set is judged by
every order of sizes in which the rest of the GPUs can be requested. The baseline is the rule of go-gpuallocator: divide
the free GPUs into sets of the requested size with the largest total link, and take the best of these sets. A set is
admissible if it leads to no lower total than the baseline, whatever is requested later. Of the admissible sets, the one
with the largest mean over all orders is taken. So a series of requests never has a lower total than with the baseline,
until GPUs are given back: from then on the two rules have different GPUs free.

Sets of GPUs are bit masks here. The table of a machine with 8 GPUs takes 50 ms, once for each link matrix.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cotenant.core.links import LinkMatrix
from cotenant.core.model import Gpus

MOST_GPUS = 8
"""Of a machine: the number of sets, orders and sums grows fivefold with each further GPU."""

_Totals = NDArray[np.int64]
"""Total link of all sets that are handed out, for each order in which a number of GPUs can be requested: the orders
that begin with 1 GPU, then those that begin with 2, and so on, each followed by all orders of the rest."""
_Choices = Sequence[Sequence[int]]
"""By mask of the free GPUs, and by size: the mask of the GPUs to take. Size 0 takes none."""


def lookahead_choice(links: LinkMatrix, free: Gpus, size: int) -> Gpus:
    """The GPUs to take, of a machine with at most `MOST_GPUS`, `size` of which or more are free."""
    return _members(_choices(links)[_mask(free)][size])


@lru_cache(maxsize=1024)
def _choices(links: LinkMatrix) -> _Choices:
    totals, sizes = _total_links(links), range(len(links) + 1)
    subsets = [
        [[_mask(chosen) for chosen in combinations(_members(free), size)] for size in sizes]
        for free in range(len(totals))
    ]
    divisions = {size: _Divisions(totals, subsets, size) for size in sizes[1:]}
    baseline: list[_Totals] = [np.zeros(1, np.int64)] * len(totals)
    ours = list(baseline)
    choices: list[list[int]] = [[0] for _ in totals]
    for free in sorted(range(1, len(totals)), key=int.bit_count):
        theirs_by_size, ours_by_size = [], []
        for size in range(1, free.bit_count() + 1):
            divided = divisions[size].choice(free)
            theirs = totals[divided] + baseline[free ^ divided]
            best, reached = divided, totals[divided] + ours[free ^ divided]
            for chosen in subsets[free][size]:
                after = totals[chosen] + ours[free ^ chosen]
                if (after.sum(), totals[chosen]) > (reached.sum(), totals[best]) and (after >= theirs).all():
                    best, reached = chosen, after
            choices[free].append(best)
            theirs_by_size.append(theirs)
            ours_by_size.append(reached)
        baseline[free], ours[free] = np.concatenate(theirs_by_size), np.concatenate(ours_by_size)
    return choices


class _Divisions:
    """The best divisions of free GPUs into sets of one size. If the number does not fit, one set lacks all GPUs that
    are missing: sets that lack some of them are not compared, as in go-gpuallocator."""

    def __init__(self, totals: Sequence[int], subsets: Sequence[Sequence[Sequence[int]]], size: int) -> None:
        self._totals, self._subsets, self._size = totals, subsets, size
        self._best: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def choice(self, free: int) -> int:
        """The best whole set of the best division."""
        _, sets = self._divide(free, -free.bit_count() % self._size)
        return max((one for one in sets if one.bit_count() == self._size), key=self._totals.__getitem__)

    def _divide(self, free: int, lacking: int) -> tuple[int, tuple[int, ...]]:
        """The largest total of a division in which this many GPUs lack, and its sets; the first one of equals."""
        if not free:
            return 0, ()
        if (free, lacking) not in self._best:
            first, others = free & -free, free & (free - 1)
            found: tuple[int, tuple[int, ...]] = (-1, ())
            for beside in self._beside(others, lacking):
                fewer = self._size - 1 - beside.bit_count()
                total, sets = self._divide(others ^ beside, lacking - fewer)
                total += self._totals[first | beside]
                if total > found[0]:
                    found = total, (first | beside, *sets)
            self._best[free, lacking] = found
        return self._best[free, lacking]

    def _beside(self, others: int, lacking: int) -> Sequence[int]:
        """What may be in the set of the first GPU, in order of its members; a place for no GPU comes last."""
        whole = self._subsets[others][self._size - 1]
        if not lacking:
            return whole
        lacked = self._subsets[others][self._size - 1 - lacking]
        return sorted([*whole, *lacked], key=lambda mask: (*_members(mask), len(self._totals)))


def _total_links(links: LinkMatrix) -> list[int]:
    """The total link of every set, by its mask."""
    totals = [0]
    for gpu, row in enumerate(links):
        to_lower = [min(row[other], links[other][gpu]) for other in range(gpu)]
        totals += [total + sum(to_lower[other] for other in _members(mask)) for mask, total in enumerate(totals)]
    return totals


def _mask(gpus: Gpus) -> int:
    return sum(1 << gpu for gpu in gpus)


def _members(mask: int) -> Gpus:
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
