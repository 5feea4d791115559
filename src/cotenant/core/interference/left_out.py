# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How far off the model for all measurements is, learned from measurements that are left out in turn.

An error depends on how many pairs of the two types were measured. Measurements are therefore left out by pairs and by
types, and the expected error is fitted to the numbers of pairs that remain. So it also applies to pairs of which more
is known than of those that were left out, or less. Half the width of an interval is the expected error times a factor,
which nine of ten errors do not exceed. There is one factor for known types, one for pairs with a new type, and one for
pairs with a new family, from measurements that are left out by families.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.catalogue import MOST_TYPES
from cotenant.core.interference.kernel import Floats, Indices, Mask, Pairs, Traits
from cotenant.core.interference.learned import MOST_TABLED, Learned, Shares, Values

COVERED = 0.9
"""share of values that an interval should contain"""
LEAST_ERROR = 0.002
"""of predicted roots"""
PAIR_FOLDS, TYPE_FOLDS, FAMILY_FOLDS = 8, 6, 5
"""number of parts that all pairs, types and families are split into; one part is left out at a time"""
TURNS = PAIR_FOLDS, 4, FAMILY_FOLDS
"""how many of the parts are left out in turn"""
TURNS_OF_MANY = 2, 1, 2
"""the same with very many types, which take long to solve"""
ROUNDS = 500


class Counts(NamedTuple):
    """How many pairs of each type and of each family were measured. A pair counts half if only one of its directions
    was measured."""

    types: Floats
    families: Floats

    @classmethod
    def none(cls) -> "Counts":
        return cls(np.zeros(MOST_TYPES), np.zeros(MOST_TYPES))

    @classmethod
    def of(cls, pairs: Pairs, families: Indices) -> "Counts":
        counts = cls.none()
        counts.add(pairs, families)
        return counts

    def add(self, pairs: Pairs, families: Indices, times: float = 1.0) -> None:
        """Counts some more directions, by the family of each type; a negative number of times takes them off."""
        for side in pairs:
            np.add.at(self.types, side, times / 2)
        victims, partners = (families[side] for side in pairs)
        np.add.at(self.families, victims, times / 2)
        np.add.at(self.families, partners[partners != victims], times / 2)


class Novelty(NamedTuple):
    """How new each of some pairs is."""

    features: Floats
    """of the expected error: one, and how new the types of both jobs are together, from 0 to 2"""
    kind: Indices
    """which factor counts: 0 known types, 1 a type without measurements, 2 a family without measurements"""


def novelty_of(pairs: Pairs, counts: Counts, families: Indices) -> Novelty:
    types = [counts.types[side] for side in pairs]
    related = [counts.families[families[side]] for side in pairs]
    new = 1 / (1 + types[0]) + 1 / (1 + types[1])
    kind = np.where(np.minimum(*related) == 0, 2, np.where(np.minimum(*types) == 0, 1, 0))
    return Novelty(np.column_stack([np.ones(len(kind)), new]), kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Expected errors of predicted roots, as plain values."""

    weights: tuple[float, float]
    """of the features of `Novelty`"""
    factors: tuple[float, float, float]
    """by kind of pair: nine of ten errors are at most so many times the expected one"""

    def widths(self, novelty: Novelty) -> Floats:
        """Half the width of the interval of each pair, as a root."""
        widths: Floats = np.array(self.factors)[novelty.kind] * (novelty.features @ np.array(self.weights))
        return np.maximum(widths, LEAST_ERROR)

    def are_sound(self) -> bool:
        return all(0 <= number < 1e9 for number in (*self.weights, *self.factors))


def errors_of(traits: Traits, values: Values, shares: Shares) -> Errors:
    """The errors of a model with these shares, from measurements that are left out."""
    found = [_left_out(traits, values, shares, folds) for folds in _folds(traits, values)]
    if len(found[2].errors) == 0:  # one family only: nothing is known about others, except how speeds are distributed
        everything = np.abs(values.roots - values.roots.mean())
        unknown = novelty_of(values.pairs, Counts.none(), traits.family)
        found[2] = LeftOut(everything, unknown.features)
    fitted = found[:2] if len(found[0].errors) + len(found[1].errors) else found
    errors = np.maximum(np.concatenate([one.errors for one in fitted]), LEAST_ERROR)
    weights = _positive_fit(np.vstack([one.features for one in fitted]), errors)
    factors = [quantile(one.errors / np.maximum(one.features @ weights, LEAST_ERROR)) for one in found]
    # What is new is never more certain. Without types that could be left out, a new type is like a new family.
    new_type = max(factors[:2]) if factors[1] else factors[2]
    return Errors(
        weights=(float(weights[0]), float(weights[1])),
        factors=(factors[0] or new_type, new_type, max(new_type, factors[2])),
    )


class LeftOut(NamedTuple):
    """The errors of some measurements that were left out, and the features of each in what was left."""

    errors: Floats
    features: Floats


def _left_out(traits: Traits, values: Values, shares: Shares, folds: Sequence[Mask]) -> LeftOut:
    errors, features = [np.zeros(0)], [np.zeros((0, 2))]
    for hidden in folds:
        if hidden.any() and not hidden.all():
            kept, asked = values.some(~hidden), values.some(hidden)
            learned = Learned(traits, kept, *shares)
            if len(learned.table) < len(traits.family):
                learned.grow(traits)
            errors.append(np.abs(asked.roots - learned.table[asked.pairs]))
            counts = Counts.of(kept.pairs, traits.family)
            features.append(novelty_of(asked.pairs, counts, traits.family).features)
    return LeftOut(np.concatenate(errors), np.vstack(features))


def _folds(traits: Traits, values: Values) -> Iterator[list[Mask]]:
    """What is left out in turn: pairs, with both directions; types; families."""
    few = len(traits.family) <= MOST_TABLED
    by_pair, by_type, by_family = TURNS if few else TURNS_OF_MANY
    low, high = np.minimum(*values.pairs), np.maximum(*values.pairs)
    mixed = ((low * MOST_TYPES + high) * 2654435761 >> 16) % PAIR_FOLDS
    yield [mixed == number for number in range(by_pair)]
    yield [_involves(values.pairs, TYPE_FOLDS, number) for number in range(by_type)]
    related = Pairs(traits.family[values.pairs.victims], traits.family[values.pairs.partners])
    yield [_involves(related, FAMILY_FOLDS, number) for number in range(by_family)]


def _involves(pairs: Pairs, folds: int, number: int) -> Mask:
    involved: Mask = np.any([side % folds == number for side in pairs], axis=0)
    return involved


def _positive_fit(features: Floats, values: Floats) -> Floats:
    """Least squares with weights that are not negative, by multiplicative steps."""
    squares, goal = features.T @ features, features.T @ values
    weights: Floats = np.full(len(goal), float(values.mean()) / max(float(features.sum(axis=1).mean()), 1e-9))
    for _ in range(ROUNDS):
        weights = weights * goal / np.maximum(squares @ weights, 1e-12)
    return weights


def quantile(errors: Floats) -> float:
    """The error that nine of ten do not exceed, with the correction for a finite number of them; 0 of none.

    Most errors come in two, of both directions of a pair, which are alike: they count as one.
    """
    if len(errors) == 0:
        return 0.0
    return float(np.quantile(errors, min(1.0, COVERED * (1 + 2 / len(errors)))))
