# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What policies may believe of workloads that share a card: how fast each is, of its speed alone.

A belief is asked about companies, the workloads of one card's tenants. What it answers may change when it is told what
was measured; then its `version` does, and whoever remembers answers asks again.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, Protocol

from cotenant.core.interference import ALONE, Predictor, Signature, Speed

UNKNOWN = Signature(None, None, None)
NEWS = 0.02
"""a pair that was measured before teaches nothing if it is this near to what was expected"""


class Company(NamedTuple):
    """The workloads of one card's tenants, in a fixed order."""

    card: str
    workloads: tuple[str | None, ...]


def company_of(card: str, workloads: Iterable[str | None]) -> Company:
    return Company(card, tuple(sorted(workloads, key=str)))


class Belief(Protocol):
    """What a sharing policy asks."""

    version: int
    knows_memory: bool
    """whether it knows of any that do not fit into one card's memory together; then no policy may put them there"""

    def speeds(self, company: Company) -> tuple[Speed, ...]:
        """Of each tenant, of its speed alone."""
        ...

    def mildness(self, card: str, workload: str | None) -> float:
        """A workload's mean speed beside all others that are known."""
        ...

    def apart(self, company: Company) -> bool:
        """Whether these are known not to fit into one card's memory together."""
        ...

    def observe(self, company: Company, speeds: Sequence[float | None]) -> bool:
        """What was measured (None: not of this one); whether any answer changes by it."""
        ...


class Predicted:
    """One predictor per type of card, and what is known of each workload alone."""

    def __init__(
        self, signatures: Mapping[str, Signature] | None = None, apart: frozenset[Company] = frozenset()
    ) -> None:
        self.version = 0
        self.predictors: dict[str, Predictor] = {}
        self.knows_memory = bool(apart)
        self._signatures = dict(signatures or {})
        self._apart = apart
        self._answers: dict[Company, tuple[Speed, ...]] = {}

    def describe(self, workload: str, signature: Signature) -> None:
        """What was learned of a workload alone."""
        if self._signatures.get(workload) != signature:
            self._signatures[workload] = signature
            self._changed()

    def signature(self, workload: str | None) -> Signature:
        """What is known of a workload: at least its name, which tells it from others."""
        return UNKNOWN if workload is None else self._signatures.get(workload, Signature(workload, None, None))

    def predictor(self, card: str) -> Predictor:
        return self.predictors.setdefault(card, Predictor())

    def speeds(self, company: Company) -> tuple[Speed, ...]:
        answer = self._answers.get(company)
        if answer is None:
            answer = self._answers[company] = self._predict(company)
        return answer

    def mildness(self, card: str, workload: str | None) -> float:
        return mean_speed(self, card, workload, self._signatures)

    def apart(self, company: Company) -> bool:
        return any_apart(self._apart, company)

    def observe(self, company: Company, speeds: Sequence[float | None]) -> bool:
        """Pairs teach; a larger company does not say who slowed whom."""
        if len(company.workloads) != 2 or None in company.workloads:
            return False
        one, other = (self.signature(workload) for workload in company.workloads)
        predictor = self.predictor(company.card)
        expected = zip(self.speeds(company), speeds, strict=True)
        if predictor.known(one, other) and all(now is None or abs(was.mean - now) < NEWS for was, now in expected):
            return False
        if not _taken(predictor, (one, other), *speeds):
            return False
        self._changed()
        return True

    def _predict(self, company: Company) -> tuple[Speed, ...]:
        if len(company.workloads) == 1:
            return (ALONE,)
        predictor = self.predictor(company.card)
        signatures = [self.signature(workload) for workload in company.workloads]
        if len(signatures) == 2:
            return predictor.pair(*signatures)
        return tuple(predictor.beside(one, [*signatures[:i], *signatures[i + 1 :]]) for i, one in enumerate(signatures))

    def _changed(self) -> None:
        self.version += 1
        self._answers.clear()


class Tabled:
    """Speeds as a table has them, and as they were measured since; of what it lacks, what an expert guesses.

    Two published systems are built on this: IADeep's table learns, Co-scheML's model is trained beforehand and stays.
    """

    def __init__(
        self, table: Mapping[Company, tuple[float, ...]], *, learns: bool, apart: frozenset[Company] = frozenset()
    ) -> None:
        self.version = 0
        self._table = dict(table)
        self._workloads = sorted({workload for company in table for workload in company.workloads}, key=str)
        self.knows_memory = bool(apart)
        self._learns = learns
        self._apart = apart

    def speeds(self, company: Company) -> tuple[Speed, ...]:
        if len(company.workloads) == 1:
            return (ALONE,)
        known = self._table.get(company)
        if known is None:  # nothing is held against a company that nobody has met, as in IADeep
            known = (1.0,) * len(company.workloads)
        return tuple(Speed(speed, speed, speed) for speed in known)

    def mildness(self, card: str, workload: str | None) -> float:
        return mean_speed(self, card, workload, self._workloads)

    def apart(self, company: Company) -> bool:
        return any_apart(self._apart, company)

    def observe(self, company: Company, speeds: Sequence[float | None]) -> bool:
        measured = tuple(speed for speed in speeds if speed is not None)
        incomplete = len(measured) < max(2, len(speeds))
        if not self._learns or incomplete or self._table.get(company) == measured:
            return False
        self._table[company] = measured
        self.version += 1
        return True


def _taken(
    predictor: Predictor, jobs: tuple[Signature, Signature], one_speed: float | None, other_speed: float | None
) -> bool:
    """Tells a predictor what is known of a pair: both speeds, or one."""
    one, other = jobs
    if one_speed is not None and other_speed is not None:
        return predictor.observe(one, other, one_speed, other_speed)
    if one_speed is not None:
        return predictor.observe_one(one, other, one_speed)
    return other_speed is not None and predictor.observe_one(other, one, other_speed)


def any_apart(apart: frozenset[Company], company: Company) -> bool:
    """Whether any two of a company are among the pairs that do not fit into one card's memory."""
    if len(company.workloads) <= 2:
        return company in apart
    return any(company_of(company.card, two) in apart for two in combinations(company.workloads, 2))


def mean_speed(belief: Belief, card: str, workload: str | None, others: Iterable[str | None]) -> float:
    """Of a workload beside each of others, as far as they fit into one card's memory together."""
    speeds = []
    for other in others:
        pair = company_of(card, (workload, other))
        if not belief.apart(pair):
            speeds.append(belief.speeds(pair)[pair.workloads.index(workload)].mean)
    return sum(speeds) / len(speeds) if speeds else 0.0
