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

REACH = 1.5
"""how far likeness reaches, in octaves of batch size and of step time"""


class JobType(NamedTuple):
    """What is known of a job before it has met anyone."""

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


SHARES = Shares()


class Likeness(NamedTuple):
    """How alike any two of some job types are, from 0 to 1."""

    family: Floats
    batch: Floats
    """of one family, and near in batch size"""
    time: Floats
    same: Floats


def likeness(types: Sequence[JobType]) -> Likeness:
    """Compares distinct job types with each other."""
    names = {family: index for index, family in enumerate(dict.fromkeys(job.family for job in types))}
    families = np.array([names[job.family] for job in types])
    family = (families[:, None] == families).astype(np.float64)
    return Likeness(
        family,
        family * _near(np.log2([float(job.batch) for job in types])),
        _near(np.log2([job.step_seconds for job in types])),
        np.eye(len(types)),
    )


def _near(octaves: Floats) -> Floats:
    near: Floats = np.exp(-0.5 * ((octaves[:, None] - octaves) / REACH) ** 2)
    return near


class Pairs(NamedTuple):
    """Some victims and the partner of each, as positions among job types."""

    victims: Indices
    partners: Indices


def covariance(like: Likeness, some: Pairs, others: Pairs, share: Shares = SHARES) -> Floats:
    """Covariance of the slowdowns of some pairs with those of others, in units of the overall variance."""
    victims = np.ix_(some.victims, others.victims)
    partners = np.ix_(some.partners, others.partners)
    # the same two jobs with their roles exchanged
    crossed = np.ix_(some.victims, others.partners), np.ix_(some.partners, others.victims)

    def both(kind: Floats) -> Floats:
        product: Floats = kind[victims] * kind[partners]
        return product

    def swapped(kind: Floats) -> Floats:
        product: Floats = kind[crossed[0]] * kind[crossed[1]]
        return product

    sensitivity = (
        share.victim_family * like.family
        + share.victim_batch * like.batch
        + share.victim_type * like.same
        + share.victim_time * like.time
    )
    aggressiveness = (
        share.partner_family * like.family
        + share.partner_batch * like.batch
        + share.partner_type * like.same
        + share.partner_time * like.time
    )
    special = (
        0.5 * (share.families_alike + share.families_opposed) * both(like.family)
        + 0.5 * (share.families_alike - share.families_opposed) * swapped(like.family)
        + 0.5 * (share.batches_alike + share.batches_opposed) * both(like.batch)
        + 0.5 * (share.batches_alike - share.batches_opposed) * swapped(like.batch)
        + (share.types + 0.5 * share.types_alike) * both(like.same)
        + 0.5 * share.types_alike * swapped(like.same)
    )
    partner = share.batch_and_family * like.family + share.batch_and_time * like.time
    total: Floats = (
        share.constant
        + sensitivity[victims]
        + aggressiveness[partners]
        + special
        + like.batch[victims] * partner[partners]
    )
    return total
