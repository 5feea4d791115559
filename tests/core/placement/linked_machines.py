# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Link matrices of known machines, all orders in which their GPUs can be requested, and the choice of go-gpuallocator.

The scores of a pair's NVLinks and of its PCIe path add up, as in go-gpuallocator. The NVLinks of DGX-1 are those that
NVIDIA documents; GPUs 0 and 1, 2 and 3, ... share a PCIe switch, GPUs 0 to 3 a socket. That program does not see links
through NVSwitch, so a matrix of such a machine is given with both: the links, and PCIe alone.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from random import Random

from cotenant.core.links import LinkMatrix
from cotenant.core.model import Gpus, Link
from cotenant.core.placement.topology import total_link

GIVEN_BACK = 0.45
"""share of the steps of `total_over_time` in which a set is given back, as long as there is one"""
Choice = Callable[[LinkMatrix, Gpus, int], Gpus | None]

_RING = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)]
_ACROSS = [(0, 4), (1, 5), (2, 6), (3, 7)]
_DOUBLE = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
"""Pairs of a DGX-1 Volta with two NVLinks; the other pairs of a DGX-1 have one."""


def _with_pcie(gpus: int, nvlinks: Callable[[int, int], int]) -> LinkMatrix:
    def pcie(a: int, b: int) -> Link:
        if a // 2 == b // 2:
            return Link.PIX
        return Link.PHB if 2 * a // gpus == 2 * b // gpus else Link.SYS

    def score(a: int, b: int) -> int:
        return Link.NVLINK * nvlinks(min(a, b), max(a, b)) + pcie(a, b)

    return tuple(tuple(0 if a == b else score(a, b) for b in range(gpus)) for a in range(gpus))


MACHINES: dict[str, LinkMatrix] = {
    "DGX-1 Pascal": _with_pcie(8, lambda a, b: int((a, b) in [*_RING, *_ACROSS])),
    "DGX-1 Volta": _with_pcie(8, lambda a, b: int((a, b) in [*_RING, *_ACROSS]) + int((a, b) in _DOUBLE)),
    "half a DGX-2, 6 links through NVSwitch": _with_pcie(8, lambda a, b: 6),
    "DGX A100, 12 links through NVSwitch": _with_pcie(8, lambda a, b: 12),
    "DGX H100, 18 links through NVSwitch": _with_pcie(8, lambda a, b: 18),
    "8 GPUs on PCIe": _with_pcie(8, lambda a, b: 0),
    "4 GPUs, linked in pairs": _with_pcie(4, lambda a, b: 2 * int((a, b) in [(0, 3), (1, 2)])),
}


def orders(gpus: int) -> Iterator[tuple[int, ...]]:
    """All orders of sizes that use up this many GPUs."""
    if not gpus:
        yield ()
    for size in range(1, gpus + 1):
        for rest in orders(gpus - size):
            yield (size, *rest)


def total_of(links: LinkMatrix, sizes: tuple[int, ...], choice: Choice) -> int:
    """The total link of all sets that are handed out for requests of these sizes, one after the other."""
    free, total = tuple(range(len(links))), 0
    for size in sizes:
        chosen = choice(links, free, size)
        assert chosen is not None
        assert len(set(chosen)) == size
        assert set(chosen) <= set(free)
        total += total_link(links, chosen)
        free = tuple(gpu for gpu in free if gpu not in chosen)
    return total


def total_over_time(links: LinkMatrix, seed: int, choice: Choice, steps: int = 24) -> int:
    """The total link of all sets that are handed out if GPUs are also given back, in a random order. The sizes do not
    depend on the choice."""
    random, free, held, total = Random(seed), set(range(len(links))), list[Gpus](), 0
    for _ in range(steps):
        if held and (not free or random.random() < GIVEN_BACK):
            free |= set(held.pop(random.randrange(len(held))))
            continue
        chosen = choice(links, tuple(sorted(free)), random.randint(1, len(free)))
        assert chosen is not None
        total += total_link(links, chosen)
        held.append(chosen)
        free -= set(chosen)
    return total


@cache
def by_division(links: LinkMatrix, free: Gpus, size: int) -> Gpus:
    """The best set of the best division of the free GPUs, filled up with places for no GPU, into sets of this size. One
    set has all of these places, or there is none: this is how go-gpuallocator limits its search."""
    places = (*free, *(-1 - place for place in range(-len(free) % size)))
    _, sets = _divided(links, places, size)
    return max((one for one in sets if min(one) >= 0), key=lambda one: total_link(links, one))


@cache
def _divided(links: LinkMatrix, places: Gpus, size: int) -> tuple[int, tuple[Gpus, ...]]:
    if not places:
        return 0, ()
    best: tuple[int, tuple[Gpus, ...]] = (-1, ())
    empty = {place for place in places if place < 0}
    for beside in combinations(places[1:], size - 1):
        one = (places[0], *beside)
        if not empty.isdisjoint(one) and not empty.issubset(one):
            continue
        total, sets = _divided(links, tuple(place for place in places if place not in one), size)
        total += total_link(links, [gpu for gpu in one if gpu >= 0])
        if total > best[0]:
            best = total, (one, *sets)
    return best
