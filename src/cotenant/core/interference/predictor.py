# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Predicts how fast jobs run beside each other on one type of GPU, and learns from each measurement.

Two models work together. One is fitted to all measurements whenever their number has grown by a fifth (`learned`), and
solved again when a family was measured often since. The other one spreads what was measured since (`posterior`), so
every measurement counts at once. Predictions are computed on demand, for all requested pairs at once, and are kept
until the next measurement.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np

from cotenant.core.interference.calibration import Calibration
from cotenant.core.interference.catalogue import MOST_TYPES, Catalogue, Signature
from cotenant.core.interference.kernel import SHARES, Floats, Indices, Pairs, Shares
from cotenant.core.interference.learned import (
    NOISE,
    Fit,
    Learned,
    fit_shares_of,
    is_sound,
)
from cotenant.core.interference.left_out import Errors, errors_of
from cotenant.core.interference.observations import (
    FASTEST,
    MOST_COUNTED,
    MOST_ROWS,
    SLOWEST,
    SPARE_ROWS,
    Observations,
    Row,
)
from cotenant.core.interference.posterior import JITTER, Posterior
from cotenant.errors import InputError

LEAST = 0.01
"""the lowest bound of an interval"""
DIGITS = 9
"""decimals of a prediction: a pair is predicted with all others of one of its two jobs, and the sums for the one and
for the other differ in their last bits, so without this a prediction would depend on what was asked before"""
SPARE = 64
"""types without a measurement are forgotten only if that frees at least this many places"""
MOST_SHARE = 1e6
"""largest share of the variance; a larger one leaves no digits for the others"""

MEASURED_ERROR = 3 * math.sqrt(NOISE + JITTER)
"""half the width of the interval of a pair that was measured itself, in standard deviations of all roots"""
FIRST_FIT = 64
"""measured directions from which on a model is fitted to all of them"""
GROWTH, GROWTH_OF_SHARES = 1.2, 1.5
"""the model is solved again when there are so many times the directions, and its shares are fitted again"""
BURST = 3
"""measured pairs of one family since the model was solved, and at least as many as before, after which it is solved
again: what it expects of a family that was new then says little about it"""

VERSION = 1


class Speed(NamedTuple):
    """Speed relative to running alone, with an interval that contains it in 9 of 10 cases."""

    mean: float
    low: float
    high: float


class Speeds(NamedTuple):
    """One job beside each of many partners: its own speed and the partner's."""

    mean: Floats
    low: Floats
    partner_mean: Floats
    partner_low: Floats


class _AtHand(NamedTuple):
    """The job that was requested last: the numbers of its `Speed` beside each type, and of each type beside it."""

    job: int
    there: list[list[float]]
    back: list[list[float]]


ALONE = Speed(1.0, 1.0, 1.0)


class Measured(NamedTuple):
    """The average speed of one job beside another, from several measurements."""

    victim: Signature
    partner: Signature
    speed: float
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorState:
    """Everything that a predictor has learned, as plain values."""

    version: int = VERSION
    shares: Shares = SHARES
    types: tuple[Signature, ...] = ()
    """the types with a measurement"""
    rows: tuple[Row, ...] = ()
    """victims and partners are positions in `types`"""
    fit: Fit | None = None
    """of the model for all rows; None: it is fitted when it is needed"""
    errors: Errors | None = None
    """of that model; None: it is fitted again"""


class Predictor:
    """The predictor of one type of GPU."""

    def __init__(self, shares: Shares = SHARES) -> None:
        self._shares = shares
        self._catalogue = Catalogue()
        self._seen = Observations(self._catalogue, shares)
        self._fit: Fit | None = None
        self._errors: Errors | None = None
        self._learned: Learned | None = None
        self._solved = self._seen.counts.families.copy()
        """measured pairs of each family when the model was solved"""
        self._last: tuple[int, int] = (-1, -1)
        self._make_tables(0)

    def _make_tables(self, room: int) -> None:
        self._tables, self._filled = np.zeros((3, room, room)), [0] * room
        self._at_hand: _AtHand | None = None

    def learn(self, signature: Signature) -> int:
        """The number of a job's type; a new type gets one."""
        return self._catalogue.number(signature)

    def observe(self, one: Signature, other: Signature, one_speed: float, other_speed: float) -> bool:
        """Adds the measured speeds of both jobs of a pair; False if they are implausible and were rejected."""
        if not (_sensible(one_speed) and _sensible(other_speed)):
            return False
        self._make_room(one, other)
        first, second = self.learn(one), self.learn(other)
        if first == second:
            self._seen.add({(first, first): _bounded((one_speed + other_speed) / 2)})
        else:
            self._seen.add({(first, second): _bounded(one_speed), (second, first): _bounded(other_speed)})
        return True

    def observe_one(self, victim: Signature, partner: Signature, speed: float) -> bool:
        """Adds the measured speed of one job of a pair; False if it is implausible and was rejected."""
        if not _sensible(speed):
            return False
        self._make_room(victim, partner)
        self._seen.add({(self.learn(victim), self.learn(partner)): _bounded(speed)})
        return True

    def pair(self, one: Signature, other: Signature) -> tuple[Speed, Speed]:
        """The expected speed of each of two jobs beside the other."""
        self._make_room(one, other)
        first, second = self.learn(one), self.learn(other)
        self._refresh()  # after that, since a new type may need larger tables
        known = self._at_hand
        if known is not None and known.job == first and second < len(known.there):
            return Speed(*known.there[second]), Speed(*known.back[second])
        if known is None or known.job != second or first >= len(known.there):
            # A job of the last pair is likely to be in the next one, too: one placement compares a job with the tenants
            # of many GPUs.
            known = self._row(first if first in self._last and second not in self._last else second)
            self._last = first, second
        if known.job == first:
            return Speed(*known.there[second]), Speed(*known.back[second])
        return Speed(*known.back[first]), Speed(*known.there[first])

    def _row(self, one: int) -> "_AtHand":
        """One job beside all types, and all types beside it."""
        types = len(self._catalogue.types)
        if self._filled[one] < types:
            self._fill(one)
        there, back = self._tables[:, one, :types].T.tolist(), self._tables[:, :types, one].T.tolist()
        self._at_hand = _AtHand(one, there, back)
        return self._at_hand

    def speeds(self, one: Signature, partners: Indices) -> Speeds:
        """One job beside each of many types, by their numbers: much faster than pair by pair."""
        own = self.learn(one)
        self._refresh()
        if self._filled[own] < len(self._catalogue.types):
            self._fill(own)
        (mean, low), (partner_mean, partner_low) = self._tables[:2, own, partners], self._tables[:2, partners, own]
        return Speeds(mean, low, partner_mean, partner_low)

    def beside(self, one: Signature, others: Sequence[Signature]) -> Speed:
        """One job beside several: the speeds multiply, and the errors of the pairs are taken as independent."""
        if not others:
            return ALONE
        pairs = [self.pair(one, other)[0] for other in others]
        if len(pairs) == 1:
            return pairs[0]
        # Beside one neighbour a job may be measured a little faster than alone; several do not add up to more.
        pairs = [Speed(*(min(value, 1.0) for value in speed)) for speed in pairs]
        log_mean = sum(math.log(speed.mean) for speed in pairs)
        below = math.hypot(*(math.log(speed.mean / speed.low) for speed in pairs))
        above = math.hypot(*(math.log(speed.high / speed.mean) for speed in pairs))
        mean, low, high = (max(LEAST, math.exp(log)) for log in (log_mean, log_mean - below, log_mean + above))
        return Speed(mean, low, min(high, *(speed.high for speed in pairs)))

    def known(self, one: Signature, other: Signature) -> bool:
        """Whether both directions of this pair were measured."""
        return self.measured(one, other) and self.measured(other, one)

    def measured(self, victim: Signature, partner: Signature) -> bool:
        """Whether the speed of one job beside another was measured."""
        first, second = self._catalogue.find(victim), self._catalogue.find(partner)
        return first is not None and second is not None and (first, second) in self._seen

    @property
    def rows(self) -> int:
        """The number of measured directions of pairs."""
        return len(self._seen)

    def probes(self, new: Signature, partners: Sequence[Signature], most: int) -> list[Signature]:
        """The partners whose measurement would say most about a job beside all of them, the best first."""
        by_number = {self.learn(partner): partner for partner in partners}
        chosen = most_informative(self._seen.posterior, self.learn(new), np.array(list(by_number), np.int64), most)
        return [by_number[number] for number in chosen]

    def state(self) -> PredictorState:
        """What it has learned, to be stored."""
        rows = self._seen.rows()
        met = {number: place for place, number in enumerate(sorted({side for row in rows for side in row[:2]}))}
        return PredictorState(
            shares=self._shares,
            types=tuple(self._catalogue.types[number] for number in met),
            rows=tuple(row._replace(victim=met[row.victim], partner=met[row.partner]) for row in rows),
            fit=self._fit_to_store(rows),
            errors=self._errors,
        )

    def _fit_to_store(self, rows: Sequence[Row]) -> Fit | None:
        if self._fit is None or self._learned is None:
            return None
        pairs = Pairs(np.array([row.victim for row in rows]), np.array([row.partner for row in rows]))
        return replace(self._fit, scale=self._learned.scale, weights=self._learned.weights_of(pairs))

    @classmethod
    def restore(cls, state: PredictorState) -> "Predictor":
        """The predictor with a stored state; InputError if the state is invalid."""
        if state.version != VERSION:
            raise InputError(f"stored predictor: version {state.version}, this program reads version {VERSION}")
        if not all(0 <= share <= MOST_SHARE for share in astuple(state.shares)):
            raise InputError(f"stored predictor: a share is not a number from 0 to {MOST_SHARE:g}")
        for row in state.rows:
            if not _makes_sense(row, len(state.types)):
                raise InputError(f"stored predictor: {row} is no measurement of {len(state.types)} types")
        if state.fit is not None and not is_sound(state.fit, len(state.rows)):
            raise InputError(f"stored predictor: its fit is not one of {len(state.rows)} measurements")
        if state.errors is not None and not state.errors.are_sound():
            raise InputError("stored predictor: its errors are not numbers above 0")
        predictor = cls(state.shares)
        predictor._recall(state)
        return predictor

    @classmethod
    def of(cls, measured: Iterable[Measured], before: "Predictor | None" = None) -> "Predictor":
        """A predictor that has learned exactly this; implausible speeds are left out, and of too many the first.

        The model of a predictor that had learned nearly the same, `before`, is used until it is due to be fitted again.
        """
        kept = [one for one in measured if _sensible(one.speed) and one.times > 0][-MOST_ROWS:]
        types = tuple(dict.fromkeys(side for one in kept for side in (one.victim, one.partner)))
        places = {signature: place for place, signature in enumerate(types)}
        rows = tuple(
            Row(places[one.victim], places[one.partner], math.sqrt(_bounded(one.speed)), min(one.times, MOST_COUNTED))
            for one in kept
        )
        predictor = cls()
        fit = None if before is None else before._fit_for(types, rows)
        errors = None if before is None else before._errors
        predictor._recall(PredictorState(types=types, rows=rows, fit=fit, errors=errors))
        if before is not None and predictor._fit is not None:
            predictor._take_solved(before)
        return predictor

    def _take_solved(self, before: "Predictor") -> None:
        """Takes over what was measured when the model of `before` was solved."""
        self._solved[:] = 0.0
        for one, family in zip(self._catalogue.types, self._catalogue.families.tolist(), strict=True):
            known = before._catalogue.find(one)
            if known is not None:
                self._solved[family] = before._solved[before._catalogue.families[known]]

    def _fit_for(self, types: Sequence[Signature], rows: Sequence[Row]) -> Fit | None:
        """Its fit for the rows of another predictor; None if rows are missing there that it was fitted to."""
        if self._fit is None or self._learned is None:
            return None
        numbers = [self._catalogue.find(one) for one in types]
        found = [(numbers[row.victim], numbers[row.partner]) for row in rows]
        known = [(-1, -1) if v is None or p is None or (v, p) not in self._seen else (v, p) for v, p in found]
        if len({one for one in known if one[0] >= 0}) < len(self._seen):
            return None
        pairs = Pairs(*np.array(known, np.int64).reshape(-1, 2).T)
        first, second = self._learned.weights_of(pairs)
        absent = [one[0] < 0 for one in known]
        weights = tuple(
            tuple(0.0 if none else w for none, w in zip(absent, each, strict=True)) for each in (first, second)
        )
        return replace(self._fit, scale=self._learned.scale, weights=(weights[0], weights[1]))

    def _recall(self, state: PredictorState) -> None:
        """Replaces what it has learned by a stored state."""
        self._catalogue = Catalogue()
        self._seen = Observations(self._catalogue, self._shares)
        numbers = self._catalogue.numbers(state.types)
        rows: dict[tuple[int, int], Row] = {}
        for row in state.rows[-MOST_ROWS:]:
            direction = numbers[row.victim], numbers[row.partner]
            rows[direction] = Row(*direction, row.root, row.times)
        self._seen.extend(list(rows.values()))
        self._fit = self._errors = self._learned = None
        if state.fit is not None and state.errors is not None and len(rows) == len(state.rows):
            self._fit, self._errors = state.fit, state.errors
            self._learned = Learned.stored(self._catalogue.traits, Pairs(*np.array(list(rows)).T), state.fit)
        self._solved = self._seen.counts.families.copy()

    def _make_room(self, *coming: Signature) -> None:
        """Forgets types without a measurement before there are too many; they can be learned again."""
        known = self._catalogue
        if len(known.types) + len(coming) <= MOST_TYPES or all(known.find(one) is not None for one in coming):
            return
        measured = self.state()
        if len(measured.types) <= MOST_TYPES - SPARE:
            self._recall(measured)

    # The update. Invariant: `_tables` holds mean, low and high of a job beside the first types, and of these beside it,
    # as many as `_filled` says, computed from all rows of `_seen`. A measurement (`observe`) changes `_seen` alone, at
    # the cost of one product of a matrix and a vector. The next request sees that it changed, solves the model for all
    # rows again if that is due, and drops everything that was derived from the rows. So no prediction mixes two states.

    def _refresh(self) -> None:
        """Drops what was computed before the last measurement."""
        room = self._catalogue.room
        if self._seen.changed:
            self._seen.use()
            self._learn_if_due()
            self._at_hand = None
            self._filled = [0] * len(self._filled)
            self._standardised = self._seen.standardise(self._expected())
            self._calibration = Calibration(self._catalogue, self._seen, self._errors)
        if room != len(self._filled):
            self._make_tables(room)

    def _expected(self) -> Floats | None:
        """The table of the roots that the model for all rows predicts; for rows it was solved for, their own."""
        if self._learned is None:
            return None
        if len(self._learned.table) < len(self._catalogue.types):
            self._learned.grow(self._catalogue.traits)
        return self._learned.accounted

    def _learn_if_due(self) -> None:
        """Fits or solves the model for all rows if there are many more than at the last time."""
        count, fit = len(self._seen), self._fit
        due = FIRST_FIT if fit is None else min(GROWTH * fit.solved, fit.solved + SPARE_ROWS)
        if count < due and (fit is None or not self._has_burst()):
            return
        traits, values = self._catalogue.traits, self._seen.values
        self._seen.trim()
        if fit is None or count >= GROWTH_OF_SHARES * fit.rows:
            shares = fit_shares_of(traits, values)
            self._errors = errors_of(traits, values, shares)
            fit = Fit(first=shares[0], second=shares[1], rows=count, solved=count)
        self._fit = replace(fit, solved=count)
        self._learned = Learned(traits, values, fit.first, fit.second)
        self._solved = self._seen.counts.families.copy()

    def _has_burst(self) -> bool:
        """Whether most pairs of a family were measured after the model was solved."""
        gained = self._seen.counts.families - self._solved
        return bool(((gained >= BURST) & (gained >= self._solved)).any())

    def _fill(self, one: int) -> None:
        """Predicts one job beside all types, and all types beside it."""
        posterior, standardised, expected = self._seen.posterior, self._standardised, self._expected()
        every = np.arange(len(self._catalogue.types))
        own = np.full(len(every), one)
        pairs = Pairs(np.append(own, every), np.append(every, own))
        beside, under = posterior.beside_all(one, standardised.whitened)
        mean = standardised.spread * np.append(beside[: len(every)], under[: len(every)])
        mean += standardised.mean if expected is None else expected[pairs]

        def deviations() -> Floats:
            variance = posterior.variance(pairs, posterior.explained(pairs))
            deviations: Floats = standardised.spread * np.sqrt(variance)
            return deviations

        width = self._calibration.widths(pairs, deviations)
        if expected is not None:
            width[self._seen.measured(pairs)] = MEASURED_ERROR * standardised.spread
        speeds = np.maximum([mean, mean - width, mean + width], 0.0) ** 2
        bounded = np.clip(speeds, [[SLOWEST], [LEAST], [SLOWEST]], FASTEST)
        self._tables[:, pairs.victims, pairs.partners] = bounded.round(DIGITS)
        self._filled[one] = len(every)


def _sensible(speed: float) -> bool:
    return 0 < speed <= FASTEST


def _bounded(speed: float) -> float:
    return max(speed, SLOWEST)


def _makes_sense(row: Row, types: int) -> bool:
    rounding = 1e-9
    bounded = SLOWEST - rounding <= row.root**2 <= FASTEST + rounding
    return 0 <= row.victim < types and 0 <= row.partner < types and bounded and 1 <= row.times <= MOST_COUNTED


MOST_COMPARED = 128
"""partners that are compared; more would change little"""
LEAST_INFORMATION = 1e-3
"""variance, in variances of a pair, that a measurement must at least remove"""


def most_informative(posterior: Posterior, new: int, partners: Indices, most: int) -> list[int]:
    """Chooses greedily the partner whose measurement removes most variance of the new type beside all partners."""
    partners = partners[:MOST_COMPARED]
    count = len(partners)
    own = np.full(count, new)
    left = posterior.covariance(Pairs(np.append(own, partners), np.append(partners, own)))
    noise = (NOISE + JITTER) * np.eye(2)
    places = np.stack([np.arange(count), count + np.arange(count)], axis=1)
    chosen: list[int] = []
    while len(chosen) < min(most, count):
        # The two directions of each pair, and their covariance with all directions.
        both = left[places[:, :, None], places[:, None, :]] + noise
        shared = left[places]
        gains = np.einsum("pit,pit->p", shared, np.linalg.solve(both, shared))
        best = int(np.argmax(gains))
        if gains[best] < LEAST_INFORMATION:
            break
        chosen.append(int(partners[best]))
        left = left - shared[best].T @ np.linalg.solve(both[best], shared[best])
    return chosen
