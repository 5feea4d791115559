# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which jobs count as one type, and how alike any two types are: measurements are kept by type, not by job."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.kernel import PROFILE_REACH, Indices, Likeness, Traits, alike

MOST_TYPES = 512
"""types that are distinguished; a further one counts as the type most similar to it"""
STEPS_PER_OCTAVE = 4
"""two jobs of one program are of one type if their step times agree to about this part of a doubling"""
REMEMBERED = 8 * MOST_TYPES
"""spellings of types that are looked up at once"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The measured use of a job that ran alone; None: not measured."""

    utilisation: float | None = None
    """of the compute units, from 0 to 1"""
    bandwidth: float | None = None
    """of the device memory's, from 0 to 1"""
    memory_mib: float | None = None
    pcie_mib_s: float | None = None


class Signature(NamedTuple):
    """What is known of a workload before it shares a GPU."""

    family: str | None
    """the program, whatever its batch size; None: not known"""
    batch: int | None
    step_seconds: float | None
    """of one step, alone on the device"""
    profile: Profile | None = None


class Catalogue:
    """The types met so far, numbered as they came, and their likeness."""

    def __init__(self) -> None:
        self.types: list[Signature] = []
        self._numbers: dict[Signature, int] = {}
        self._spellings: dict[Signature, int] = {}
        self._families: dict[str | Signature, int] = {}
        self._traits = _no_traits(0)
        self._like = [np.zeros((0, 0)) for _ in range(4)]
        self._profiled = False

    def number(self, signature: Signature) -> int:
        """The type of a signature, learned now if it is new."""
        known = self._spellings.get(signature)
        if known is None:
            known = self._number(typical(signature))
            if len(self._spellings) >= REMEMBERED:
                self._spellings.clear()
            self._spellings[signature] = known
        return known

    def numbers(self, signatures: Sequence[Signature]) -> list[int]:
        """The types of many signatures; those of an empty catalogue are learned at once, which is much faster."""
        if not self.types:
            distinct: dict[Signature, Signature] = {}
            for signature in signatures:
                one = typical(signature)
                distinct.setdefault(_key(one), one)
            self._learn_all(list(distinct.values())[:MOST_TYPES])
        return [self.number(signature) for signature in signatures]

    def find(self, signature: Signature) -> int | None:
        """The type of a signature, if there is one."""
        return self._numbers.get(_key(typical(signature)))

    @property
    def likeness(self) -> Likeness:
        """Of the types and of those there is room for; positions are numbers."""
        family, batch, time, profile = self._like
        return Likeness(family, batch, time, profile if self._profiled else None)

    @property
    def traits(self) -> Traits:
        """Of the types, in the order of their numbers."""
        count, traits = len(self.types), self._traits
        return Traits(traits.family[:count], traits.batch[:count], traits.time[:count], traits.profile[:count])

    @property
    def families(self) -> Indices:
        """The family of each type; a type without one has a family of its own."""
        return self._traits.family[: len(self.types)]

    @property
    def room(self) -> int:
        """How many types there is room for before tables grow."""
        return len(self._traits.family)

    def _number(self, one: Signature) -> int:
        key = _key(one)
        if key in self._numbers:
            return self._numbers[key]
        new = self._traits_of([one])
        count = len(self.types)
        family, batch, time, profile = self._traits
        like = alike(new, Traits(family[:count], batch[:count], time[:count], profile[:count]))
        if count == MOST_TYPES:
            # Program first, then size, then time: each counts for more than all after it.
            return int(np.argmax(4 * like.family + 2 * like.batch + like.time))
        if count == len(self._traits.family):
            self._grow(max(32, 2 * count))
        for trait, value in zip(self._traits, new, strict=True):
            trait[count] = value[0]
        for table, row in zip(self._like, like, strict=True):
            if row is not None:
                table[count, :count] = table[:count, count] = row[0]
        own = alike(new, new)
        self._profiled |= own.profile is not None
        for table in self._like[:3]:
            table[count, count] = 1.0  # also where its step time is not known
        if own.profile is not None:
            self._like[3][count, count] = own.profile[0, 0]
        self._families.setdefault(one.family or one, len(self._families))
        self.types.append(one)
        self._numbers[key] = count
        return count

    def _learn_all(self, new: list[Signature]) -> None:
        """Fills an empty catalogue with distinct types: the same as one by one."""
        for one in new:
            self._families.setdefault(one.family or one, len(self._families))
        count, traits = len(new), self._traits_of(new)
        self._grow(32 << max(0, (count - 1) // 32).bit_length())
        for trait, values in zip(self._traits, traits, strict=True):
            trait[:count] = values
        like = alike(traits, traits)
        for table, found in zip(self._like, like, strict=True):
            if found is not None:
                table[:count, :count] = found
        for table in self._like[:3]:
            np.fill_diagonal(table[:count, :count], 1.0)
        self._profiled = like.profile is not None
        self.types = new
        self._numbers = {_key(one): number for number, one in enumerate(new)}

    def _traits_of(self, some: Sequence[Signature]) -> Traits:
        families = [self._families.get(one.family or one, len(self._families)) for one in some]
        return Traits(
            np.array(families, np.int64),
            np.array([_or_nan(_octaves(one.batch)) for one in some]),
            np.array([_or_nan(_octaves(one.step_seconds)) for one in some]),
            np.array([_profile_traits(one.profile or Profile()) for one in some]).reshape(-1, len(PROFILE_REACH)),
        )

    def _grow(self, room: int) -> None:
        count = len(self.types)
        grown = _no_traits(room)
        for trait, old in zip(grown, self._traits, strict=True):
            trait[:count] = old
        tables = [np.zeros((room, room)) for _ in self._like]
        for table, old in zip(tables, self._like, strict=True):
            table[:count, :count] = old
        self._traits, self._like = grown, tables


def _no_traits(room: int) -> Traits:
    unknown = np.full((room, len(PROFILE_REACH)), np.nan)
    return Traits(np.zeros(room, np.int64), np.full(room, np.nan), np.full(room, np.nan), unknown)


def _profile_traits(profile: Profile) -> list[float]:
    fields = (profile.utilisation, profile.bandwidth, _octaves(profile.memory_mib), _octaves(profile.pcie_mib_s))
    return [_or_nan(value) for value in fields]


def typical(signature: Signature) -> Signature:
    """The signature that stands for all of its type: what makes no sense is unknown, what was measured is rounded."""
    family, batch, seconds, profile = signature
    octaves = _octaves(seconds)
    if octaves is not None:
        octaves = round(octaves * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE
    return Signature(
        family or None,
        batch if _octaves(batch) is not None else None,
        None if octaves is None else 2.0**octaves,
        _typical_profile(profile),
    )


def _key(one: Signature) -> Signature:
    """What tells types apart: of a known program the numbers of a profile do not, they differ a little each time."""
    return one if one.family is None else one._replace(profile=one.profile and Profile())


def _typical_profile(profile: Profile | None) -> Profile | None:
    if profile is None:
        return None
    rounded = Profile(
        utilisation=_twentieths(profile.utilisation),
        bandwidth=_twentieths(profile.bandwidth),
        memory_mib=_power(profile.memory_mib),
        pcie_mib_s=_power(profile.pcie_mib_s),
    )
    return None if rounded == Profile() else rounded


def _twentieths(share: float | None) -> float | None:
    return None if share is None or not 0 <= share <= 1.5 else min(round(20 * share) / 20, 1.0)


def _power(value: float | None) -> float | None:
    octaves = _octaves(value)
    return None if octaves is None else 2.0 ** (round(2 * octaves) / 2)


def _octaves(value: float | None) -> float | None:
    return math.log2(value) if value is not None and 1e-9 < value < 1e15 else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
