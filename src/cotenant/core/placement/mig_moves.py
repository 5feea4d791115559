# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""From one MIG layout of a GPU to another: which instances are removed, and where the new ones begin.

An instance that is in use stays at its place. Of the others as many stay as possible; one may be made again at another
place if the layout is not possible otherwise. The places are those that the driver lists.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

SLICES_OF_COMPUTE = 7
"""of a GPU whose profiles do not say how many it has"""


class Place(NamedTuple):
    """The places of instances of one profile, in slices of memory."""

    size: int
    starts: tuple[int, ...]


class Placed(NamedTuple):
    """An instance."""

    profile: str
    start: int
    size: int
    number: int = 0
    """by which the driver knows it; 0: it is not made yet"""
    in_use: bool = False


class Moves(NamedTuple):
    """What has to be removed, and then made."""

    remove: tuple[Placed, ...]
    make: tuple[Placed, ...]


class NoMoves(NamedTuple):
    """Why a layout cannot be reached, in one sentence."""

    why: str


def moves_to(now: Sequence[Placed], then: Sequence[str], places: Mapping[str, Place]) -> Moves | NoMoves:
    """How a GPU gets a layout, given as the profile of each instance."""
    unknown = sorted(set(then) - set(places))
    if unknown:
        return NoMoves(f"the driver has no profile {unknown[0]} for this GPU")
    fixed = [one for one in now if one.in_use]
    needed = Counter(then)
    needed.subtract(one.profile for one in fixed)
    surplus = sorted(profile for profile, count in needed.items() if count < 0)
    if surplus:
        return NoMoves(f"an instance {surplus[0]} is in use, and the plan has no place for it")
    loose = [one for one in now if not one.in_use]
    for kept in _kept(loose, +needed):
        made = _placed(sorted((+needed - Counter(one.profile for one in kept)).elements()), [*fixed, *kept], places)
        if made is not None:
            return Moves(tuple(one for one in loose if one not in kept), tuple(made))
    return NoMoves("the instances that are in use lie so that the others have no place beside them")


def can_be_placed(profiles: Sequence[str], beside: Sequence[Placed], places: Mapping[str, Place]) -> bool:
    """Whether instances of these profiles have a place beside those that stay."""
    return set(profiles) <= set(places) and _placed(profiles, beside, places) is not None


def _kept(loose: Sequence[Placed], needed: Counter[str]) -> Iterator[tuple[Placed, ...]]:
    """The instances that could stay, most first."""
    for count in range(len(loose), -1, -1):
        for chosen in combinations(loose, count):
            if Counter(one.profile for one in chosen) <= needed:
                yield chosen


def _placed(profiles: Sequence[str], beside: Sequence[Placed], places: Mapping[str, Place]) -> list[Placed] | None:
    """A place for each of these; the largest are placed first."""
    if sum(map(compute_slices, [*profiles, *(one.profile for one in beside)])) > _all_slices(places):
        return None
    taken = sum(_bits(one.start, one.size) for one in beside)
    return _search(sorted(profiles, key=lambda one: (-places[one].size, one)), taken, places)


def _search(profiles: Sequence[str], taken: int, places: Mapping[str, Place]) -> list[Placed] | None:
    if not profiles:
        return []
    first, place = profiles[0], places[profiles[0]]
    for start in reversed(place.starts):
        if taken & _bits(start, place.size):
            continue
        rest = _search(profiles[1:], taken | _bits(start, place.size), places)
        if rest is not None:
            return [Placed(first, start, place.size), *rest]
    return None


def compute_slices(profile: str) -> int:
    """The `2` of `2g.10gb`."""
    number = profile.partition("g.")[0]
    return int(number) if number.isdecimal() else 0


def _all_slices(places: Mapping[str, Place]) -> int:
    return max(map(compute_slices, places), default=SLICES_OF_COMPUTE)


def _bits(start: int, size: int) -> int:
    return ((1 << size) - 1) << start
