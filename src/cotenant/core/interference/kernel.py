# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How alike two co-locations are: the covariance of a job's slowdown beside a partner with any other such slowdown.

A slowdown is a victim's sensitivity plus a partner's aggressiveness plus what is special about this pair. Each part is
shared by jobs of one family, fades with the distance of their batch sizes, and a little passes between all jobs whose
steps take equally long. The shares were fitted to Gavel's measured pairs (26 job types on V100, P100 and K80).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

REACH = 1.5
"""how far likeness reaches, in octaves of batch size and of step time"""

IN_CACHE = 16_384
"""covariances computed at once; the tables of many more would not stay in a core's cache"""

PROFILE_REACH = (0.25, 0.25, 1.5, 2.0)
"""the same for what a profile tells: shares of compute and of bandwidth, octaves of memory and of PCIe traffic"""


class JobType(NamedTuple):
    """What is known of a job before it shares a GPU."""

    family: str
    """the program, whatever its batch size"""
    batch: int
    step_seconds: float
    """of one step, alone on the device"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of the variance each part explains."""

    constant: float = 0.337
    victim_family: float = 0.027
    victim_batch: float = 0.051
    victim_type: float = 0.028
    victim_time: float = 0.176
    partner_family: float = 0.083
    partner_batch: float = 0.059
    partner_type: float = 0.010
    partner_time: float = 0.145
    families_alike: float = 0.149
    """two families slow each other equally"""
    families_opposed: float = 0.071
    """one family gains what the other loses"""
    batches_alike: float = 0.038
    batches_opposed: float = 0.027
    types_alike: float = 0.011
    types: float = 0.012
    """this very pair, in this direction"""
    batch_and_family: float = 0.036
    """the victim's batch size, with the partner's family"""
    batch_and_time: float = 0.043
    victim_profile: float = 0.1
    """solo profiles, if both jobs have one; not fitted: no public table of pairs comes with profiles"""
    partner_profile: float = 0.1


SHARES = Shares()


class Traits(NamedTuple):
    """What likeness is judged by, one entry per job type; NaN: not known."""

    family: Indices
    batch: Floats
    """in octaves"""
    time: Floats
    """of one step, in octaves"""
    profile: Floats
    """one row per job type, in the order of `PROFILE_REACH`"""


class Likeness(NamedTuple):
    """How alike any two of some job types are, from 0 to 1."""

    family: Floats
    batch: Floats
    """of one family, and near in batch size"""
    time: Floats
    profile: Floats | None = None
    """None: no job has one"""


def likeness(types: Sequence[JobType]) -> Likeness:
    """Compares distinct job types with each other."""
    names = {family: index for index, family in enumerate(dict.fromkeys(job.family for job in types))}
    traits = Traits(
        np.array([names[job.family] for job in types]),
        np.log2([float(job.batch) for job in types]),
        np.log2([job.step_seconds for job in types]),
        np.full((len(types), len(PROFILE_REACH)), np.nan),
    )
    return alike(traits, traits)


def alike(some: Traits, others: Traits) -> Likeness:
    """Compares some job types with others; what is not known of a type is like nothing."""
    family = (some.family[:, None] == others.family).astype(np.float64)
    # Jobs of a family without batch sizes are alike as if there were one size.
    both_unknown = np.isnan(some.batch)[:, None] & np.isnan(others.batch)
    batch = np.where(both_unknown, 1.0, near(some.batch, others.batch, REACH))
    profile = _alike_profiles(some.profile, others.profile)
    return Likeness(family, family * batch, near(some.time, others.time, REACH), profile)


def _alike_profiles(some: Floats, others: Floats) -> Floats | None:
    if np.isnan(some).all() or np.isnan(others).all():
        return None
    # A mean, not a product, over what a profile may tell: it stays a covariance whatever is missing.
    kinds = zip(some.T, others.T, PROFILE_REACH, strict=True)
    mean: Floats = np.mean([near(one, other, reach) for one, other, reach in kinds], axis=0)
    return mean


def near(some: Floats, others: Floats, reach: float) -> Floats:
    near: Floats = np.exp(-0.5 * ((some[:, None] - others) / reach) ** 2)
    return np.nan_to_num(near, copy=False, nan=0.0)


class Pairs(NamedTuple):
    """Some victims and the partner of each, as positions among job types."""

    victims: Indices
    partners: Indices


def covariance(like: Likeness, some: Pairs, others: Pairs, share: Shares = SHARES) -> Floats:
    """Covariance of the slowdowns of some pairs with those of others, in units of the overall variance."""
    together = np.empty((len(some.victims), len(others.victims)))
    step = max(1, IN_CACHE // max(1, len(others.victims)))
    for start in range(0, len(together), step):
        part = slice(start, start + step)
        few = Pairs(some.victims[part, None], some.partners[part, None])
        together[part] = _shared(like, few, others, share)
    return together


class _Role(NamedTuple):
    """How much of the variance the victim or the partner explains by itself, and by one trait of its own with another
    trait of the other job."""

    family: float
    batch: float
    type: float
    time: float
    profile: float
    batch_with_family: float = 0.0
    batch_with_time: float = 0.0
    family_with_batch: float = 0.0
    time_with_batch: float = 0.0


def _roles(share: Shares) -> tuple[_Role, _Role]:
    """That of the victim, and that of the partner."""
    victim = _Role(
        share.victim_family,
        share.victim_batch,
        share.victim_type,
        share.victim_time,
        share.victim_profile,
        batch_with_family=share.batch_and_family,
        batch_with_time=share.batch_and_time,
    )
    partner = _Role(
        share.partner_family,
        share.partner_batch,
        share.partner_type,
        share.partner_time,
        share.partner_profile,
        family_with_batch=share.batch_and_family,
        time_with_batch=share.batch_and_time,
    )
    return victim, partner


class _Side(NamedTuple):
    """The jobs of one role in some rows, compared with one job: the weights of the rows times the likeness, summed for
    each type of the other job of the row."""

    jobs: Indices
    every: Floats
    """the weights alone"""
    family: Floats
    batch: Floats
    time: Floats
    same: Floats

    @classmethod
    def of(cls, like: Likeness, one: int, jobs: Indices, others: Indices, weights: Floats) -> "_Side":
        types = len(like.family)

        def summed(likeness: Floats | Mask) -> Floats:
            return np.asarray(np.bincount(others, weights * likeness[jobs], types), np.float64)

        every = np.asarray(np.bincount(others, weights, types), np.float64)
        rows = (like.family[one], like.batch[one], like.time[one], np.arange(types) == one)
        return cls(jobs, every, *map(summed, rows))


def beside_all(like: Likeness, one: int, rows: Pairs, weights: Floats, share: Shares = SHARES) -> tuple[Floats, Floats]:
    """The covariance of one job beside each type, and of each type beside it, with some rows, summed with the weights
    of the rows. It is what `covariance` gives, by products of tables and vectors, which is much faster."""
    victim, partner = _roles(share)
    victims = _Side.of(like, one, rows.victims, rows.partners, weights)
    partners = _Side.of(like, one, rows.partners, rows.victims, weights)
    as_victim = _in_role(like, one, victims, partners, weights, share, victim, partner)
    as_partner = _in_role(like, one, partners, victims, weights, share, partner, victim)
    return as_victim, as_partner


def _in_role(
    like: Likeness, one: int, own: _Side, other: _Side, weights: Floats, share: Shares, role: _Role, opposite: _Role
) -> Floats:
    """The covariance of one job in a role with the rows, for each type as the other job, summed with the weights of the
    rows. `own` is the side of that role; what is opposed counts for the other side, as if roles changed."""
    jobs, same = own.jobs, np.arange(len(like.family)) == one
    by_itself = share.constant * weights + weights * (
        role.family * like.family[one, jobs]
        + role.batch * like.batch[one, jobs]
        + role.type * same[jobs]
        + role.time * like.time[one, jobs]
    )
    of_families = (
        opposite.family * own.every
        + 0.5 * (share.families_alike + share.families_opposed) * own.family
        + 0.5 * (share.families_alike - share.families_opposed) * other.family
        + role.batch_with_family * own.batch
    )
    of_batches = (
        opposite.batch * own.every
        + 0.5 * (share.batches_alike + share.batches_opposed) * own.batch
        + 0.5 * (share.batches_alike - share.batches_opposed) * other.batch
        + role.family_with_batch * own.family
        + role.time_with_batch * own.time
    )
    of_times = opposite.time * own.every + role.batch_with_time * own.batch
    found: Floats = (
        by_itself.sum()
        + like.family @ of_families
        + like.batch @ of_batches
        + like.time @ of_times
        + opposite.type * own.every
        + (share.types + 0.5 * share.types_alike) * own.same
        + 0.5 * share.types_alike * other.same
    )
    if like.profile is not None:
        found += role.profile * (like.profile[one, jobs] @ weights)
        found += opposite.profile * (like.profile @ own.every)
    return found


def variance(like: Likeness, some: Pairs, share: Shares = SHARES) -> Floats:
    """Variance of the slowdown of each pair: the diagonal of their covariance."""
    return _shared(like, some, some, share)


def _shared(like: Likeness, some: Pairs, others: Pairs, share: Shares) -> Floats:
    """Covariance of each of some pairs with the other that broadcasting lays beside it."""
    types = len(like.family)
    # Each position is computed once and used for every kind of likeness.
    victims = some.victims * types + others.victims
    partners = some.partners * types + others.partners
    # the same two jobs with their roles exchanged
    victim_partner = some.victims * types + others.partners
    partner_victim = some.partners * types + others.victims
    same_victim, same_partner = some.victims == others.victims, some.partners == others.partners
    exchanged = (some.victims == others.partners) & (some.partners == others.victims)

    family_victims, family_partners = like.family.take(victims), like.family.take(partners)
    batch_victims, batch_partners = like.batch.take(victims), like.batch.take(partners)
    time_partners = like.time.take(partners)
    sensitivity = (
        share.victim_family * family_victims
        + share.victim_batch * batch_victims
        + share.victim_type * same_victim
        + share.victim_time * like.time.take(victims)
    )
    aggressiveness = (
        share.partner_family * family_partners
        + share.partner_batch * batch_partners
        + share.partner_type * same_partner
        + share.partner_time * time_partners
    )
    families_swapped = like.family.take(victim_partner) * like.family.take(partner_victim)
    batches_swapped = like.batch.take(victim_partner) * like.batch.take(partner_victim)
    special = (
        0.5 * (share.families_alike + share.families_opposed) * (family_victims * family_partners)
        + 0.5 * (share.families_alike - share.families_opposed) * families_swapped
        + 0.5 * (share.batches_alike + share.batches_opposed) * (batch_victims * batch_partners)
        + 0.5 * (share.batches_alike - share.batches_opposed) * batches_swapped
        + (share.types + 0.5 * share.types_alike) * (same_victim & same_partner)
        + 0.5 * share.types_alike * exchanged
    )
    partner = share.batch_and_family * family_partners + share.batch_and_time * time_partners
    total: Floats = share.constant + sensitivity + aggressiveness + special + batch_victims * partner
    if like.profile is not None:
        total += share.victim_profile * like.profile.take(victims)
        total += share.partner_profile * like.profile.take(partners)
    return total
