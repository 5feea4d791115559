# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node belong together: jobs on several GPUs run at the speed of the links between them.

A set of GPUs is worth the sum of the scores of its pairs. Up to `EXACT_UP_TO` free GPUs every set is weighed at once,
so the answer is the best there is; beyond, sets are grown and improved by swaps. A matrix describes hardware: what is
busy is left out of `free`, never out of the matrix.
"""

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from itertools import chain, combinations
from math import comb
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.core.links import LinkMatrix
from cotenant.core.model import Gpus
from cotenant.core.placement.request_orders import MOST_GPUS, lookahead_choice

StaticTable = Mapping[int, tuple[Gpus, ...]]
"""For each size the sets of GPUs to hand out, the preferred first."""

EXACT_UP_TO = 16
"""Free GPUs up to which every set is weighed; remembering all such sets takes 16 MB."""
_PRODUCT = 250_000
"""Multiplications in one matrix product; for more, numpy starts threads, and on busy cores they cost 40 ms."""
_CLIMBS = 32
"""How many grown sets are improved by swaps, best first, if there are too many GPUs to weigh every set."""
_LARGEST = 2**61
"""Limit of a sum, so that it cannot overflow; beyond it, with hundreds of GPUs, the burden is ignored."""
_CLIQUE_STEPS = 50_000
"""Steps of the search for a set above a least link, if there are too many GPUs to weigh every set."""


def total_link(links: LinkMatrix, gpus: Collection[int]) -> int:
    """What a set of GPUs is worth: the sum of its pair scores."""
    return sum(min(links[a][b], links[b][a]) for a, b in combinations(sorted(set(gpus)), 2))


def first_free(free: Collection[int], size: int) -> Gpus | None:
    """The lowest `size` free GPUs, wherever they are."""
    candidates = sorted(set(free))
    return tuple(candidates[:size]) if 0 <= size <= len(candidates) else None


def choose(links: LinkMatrix, free: Collection[int], size: int) -> Gpus | None:
    """The `size` free GPUs to take, well linked, such that later requests find well-linked ones too.

    On a machine with more than `MOST_GPUS` it is the best linked set, and for one GPU that with the worst links.
    """
    candidates = tuple(sorted(set(free)))
    if not 0 <= size <= len(candidates):
        return None
    matrix = _matrix(links)
    if matrix.uniform or size in (0, len(candidates)):
        return candidates[:size]
    if len(links) <= MOST_GPUS:
        return lookahead_choice(links, candidates, size)
    if size == 1:
        burden = matrix.scores[np.ix_(candidates, candidates)].sum(axis=0)
        return (candidates[int(burden.argmin())],)
    return best_linked(links, candidates, size)


def best_linked(links: LinkMatrix, free: Collection[int], size: int, required: Collection[int] = ()) -> Gpus | None:
    """The `size` free GPUs, `required` among them, with the largest total link.

    Ties go to what leaves the free rest best linked, then to the lowest indices; a single GPU is the lowest free one.
    """
    candidates, fixed = sorted(set(free)), sorted(set(required))
    if not len(fixed) <= size <= len(candidates) or not set(fixed) <= set(candidates):
        return None
    others = [gpu for gpu in candidates if gpu not in fixed]
    missing = size - len(fixed)
    matrix = _matrix(links)
    if size <= 1 or missing == 0 or matrix.uniform:
        return tuple(sorted(fixed + others[:missing]))
    chosen = _search(_worth(matrix.scores, candidates, fixed, others), missing)
    return tuple(sorted(fixed + [others[i] for i in chosen]))


def linked_at_least(links: LinkMatrix, free: Collection[int], size: int, least: int) -> Gpus | None:
    """The best linked `size` free GPUs of which every pair scores `least` or more."""
    candidates = sorted(set(free))
    if size <= 1 or size > len(candidates):
        return first_free(free, size)
    matrix = _matrix(links)
    others, near = _well_connected(matrix.scores, candidates, size, least)
    if not others or matrix.uniform:
        return first_free(others, size)
    worth = _worth(matrix.scores, candidates, [], others)
    # One pair that is too far costs more than all others can bring.
    pairs = np.where(near, worth.pairs, -(worth.pairs.sum() + 1))
    np.fill_diagonal(pairs, 0.0)
    chosen = _search(worth._replace(pairs=pairs), size)
    if not _is_clique(near, chosen):
        # Weighing every set cannot miss one; climbing can.
        found = _some_clique(near, size) if len(others) > EXACT_UP_TO else None
        if found is None:
            return None
        chosen = found
    return tuple(others[i] for i in chosen)


def static_choice(table: StaticTable, free: Collection[int], size: int) -> Gpus | None:
    """The first set that the table lists for this size and that is entirely free."""
    available = frozenset(free)
    return next((gpus for gpus in table.get(size, ()) if available.issuperset(gpus)), None)


def static_or_best(table: StaticTable, links: LinkMatrix, free: Collection[int], size: int) -> Gpus | None:
    """A set of the table; else the best linked part of its smallest free set that is larger; else the best linked."""
    whole = static_choice(table, free, size)
    if whole is not None:
        return whole
    for larger in sorted(listed for listed in table if listed > size):
        around = static_choice(table, free, larger)
        if around is not None:
            return best_linked(links, around, size)
    return best_linked(links, free, size)


# The search. A set S of GPUs, chosen beside those that are required anyway, is worth
#     sum of `pairs` within S + sum of `own` in S,              own(i) = sum of i's links to the required
# and with R = S + required, the rest of the free GPUs F is worth
#     total(F - R) = total(F) + total(R) - sum of `burden` in R,        burden(i) = sum of i's links to all of F
# so of sets that are worth the same, the one with the least burden leaves the rest best linked.

_Floats = NDArray[np.float64]
_Whole = NDArray[np.int64]


class _Matrix(NamedTuple):
    scores: _Floats
    uniform: bool
    """every pair scores the same, as behind NVSwitch: then nothing has to be weighed"""


class _Worth(NamedTuple):
    pairs: _Floats
    own: _Floats
    burden: _Floats


@lru_cache(maxsize=64)
def _matrix(links: LinkMatrix) -> _Matrix:
    scores = np.array(links, dtype=np.float64).reshape(len(links), len(links))
    scores = np.minimum(scores, scores.T)
    np.fill_diagonal(scores, 0.0)
    scores.flags.writeable = False
    pairs = scores[np.triu_indices(len(links), 1)]
    return _Matrix(scores, bool((pairs == pairs[:1]).all()))


def _worth(scores: _Floats, candidates: list[int], fixed: list[int], others: list[int]) -> _Worth:
    columns = scores[:, others]
    return _Worth(columns[others], columns[fixed].sum(axis=0), columns[candidates].sum(axis=0))


def _search(worth: _Worth, size: int) -> list[int]:
    """Positions of the best `size`; scores are whole numbers, so that sums of floats are exact."""
    if size == len(worth.own):
        return list(range(size))
    return _weigh_all(worth, size) if len(worth.own) <= EXACT_UP_TO else _climb(worth, size)


@cache
def _subsets(total: int, size: int) -> _Floats:
    """One row per choice of `size` out of `total` in lexicographic order, with a 1 in each chosen column."""
    rows = comb(total, size)
    chosen = np.fromiter(chain.from_iterable(combinations(range(total), size)), np.intp, rows * size)
    subsets = np.zeros((rows, total))
    np.put_along_axis(subsets, chosen.reshape(rows, size), 1.0, axis=1)
    subsets.flags.writeable = False
    return subsets


def _weigh_all(worth: _Worth, size: int) -> list[int]:
    subsets = _subsets(len(worth.own), size)
    # Twice the worth: each pair is met from both ends, and a 1 times itself is a 1.
    weights = worth.pairs + np.diag(2 * worth.own)
    rows = _PRODUCT // weights.size
    parts = [subsets[first : first + rows] for first in range(0, len(subsets), rows)]
    values = np.concatenate([np.einsum("ij,ij->i", part @ weights, part) for part in parts])
    tied = np.flatnonzero(values == values.max())
    best = tied[np.einsum("ij,j->i", subsets[tied], worth.burden).argmin()]
    positions: list[int] = np.flatnonzero(subsets[best]).tolist()
    return positions


def _climb(worth: _Worth, size: int) -> list[int]:
    """Grow a set around each GPU by its best next member, then swap members while that gains."""
    # One whole number for both goals: any gain in links outweighs every difference in burden.
    scale, burden = int(worth.burden.sum()) + 1, worth.burden.astype(np.int64)
    if scale * float(np.abs(worth.pairs).sum()) > _LARGEST:
        scale, burden = 1, np.zeros_like(burden)
    pairs = worth.pairs.astype(np.int64) * scale
    own = worth.own.astype(np.int64) * scale - burden
    everyone = np.arange(len(own))
    sets = np.eye(len(own), dtype=bool)
    values, gains = own.copy(), own + pairs
    for _ in range(size - 1):
        joining = np.where(sets, np.iinfo(np.int64).min, gains).argmax(axis=1)
        values += gains[everyone, joining]
        sets[everyone, joining] = True
        gains += pairs[joining]
    promising = {sets[start].tobytes(): sets[start] for start in np.argsort(-values, kind="stable")[:_CLIMBS]}
    return min(_swap_while_better(pairs, own, members) for members in promising.values())[1]


def _swap_while_better(pairs: _Whole, own: _Whole, members: NDArray[np.bool_]) -> tuple[int, list[int]]:
    """The set after its last swap that gained, behind its negated value, so that the best sorts first."""
    members = members.copy()
    while True:
        inside, outside = np.flatnonzero(members), np.flatnonzero(~members)
        contribution = own + pairs[inside].sum(axis=0)
        gains = contribution[outside] - contribution[inside][:, None] - pairs[np.ix_(inside, outside)]
        leaving, joining = np.unravel_index(gains.argmax(), gains.shape)
        if gains[leaving, joining] <= 0:
            within = int(pairs[np.ix_(inside, inside)].sum()) // 2
            return -(within + int(own[inside].sum())), inside.tolist()
        members[inside[leaving]], members[outside[joining]] = False, True


def _well_connected(
    scores: _Floats, candidates: list[int], size: int, least: int
) -> tuple[list[int], NDArray[np.bool_]]:
    """The candidates that keep `size - 1` near ones after all others are gone, and which of them are near."""
    others = candidates
    while True:
        near = scores[np.ix_(others, others)] >= least
        np.fill_diagonal(near, False)
        enough = (near.sum(axis=1) >= size - 1).tolist()
        if all(enough):
            return others, near
        others = [gpu for gpu, stays in zip(others, enough, strict=True) if stays]


def _is_clique(near: NDArray[np.bool_], chosen: list[int]) -> bool:
    return int(near[np.ix_(chosen, chosen)].sum()) == len(chosen) * (len(chosen) - 1)


def _some_clique(near: NDArray[np.bool_], size: int) -> list[int] | None:
    """The first set of GPUs that are all near each other, given up after `_CLIQUE_STEPS`."""
    neighbours = [sum(1 << int(other) for other in np.flatnonzero(row)) for row in near]
    branches: list[tuple[list[int], int]] = [([], (1 << len(neighbours)) - 1)]
    for _ in range(_CLIQUE_STEPS):
        if not branches:
            break
        chosen, common = branches.pop()
        if len(chosen) == size:
            return chosen
        if len(chosen) + common.bit_count() < size:
            continue
        lowest = (common & -common).bit_length() - 1
        without = common & (common - 1)
        branches += [(chosen, without), ([*chosen, lowest], without & neighbours[lowest])]
    return None


def _table(gpus: int, pairs: tuple[Gpus, ...]) -> StaticTable:
    """Single GPUs, the given pairs, then neighbouring blocks of 4, 8, ... GPUs."""
    sets: dict[int, tuple[Gpus, ...]] = {1: tuple((gpu,) for gpu in range(gpus)), 2: pairs}
    size = 4
    while size <= gpus:
        sets[size] = tuple(tuple(range(first, first + size)) for first in range(0, gpus, size))
        size *= 2
    return MappingProxyType(sets)


STATIC_TABLES: Mapping[str, StaticTable] = MappingProxyType(
    {
        "dgx-1-pascal": _table(8, ((0, 2), (1, 3), (4, 6), (5, 7))),
        "dgx-1-volta": _table(8, ((0, 3), (1, 2), (4, 7), (5, 6))),
        "dgx-2": _table(16, tuple((first, first + 1) for first in range(0, 16, 2))),
        "ecs.sccgn6.24xlarge": _table(8, ((0, 2), (1, 3), (4, 6), (5, 7))),
    }
)
"""Known machines, by name or cloud instance type (sources: go-gpuallocator and the GSoC 2019 topology scheduler)."""
