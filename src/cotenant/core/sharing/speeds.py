# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Beliefs: the predicted speed of each of the workloads that share a GPU, relative to running alone.

A belief predicts for a `TenantSet`: the workloads of the tenants of one GPU. If a measurement changes its predictions,
its `version` changes too, so that remembered answers are dropped.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple, Protocol

from cotenant.core.interference import ALONE, Measured, Predictor, Signature, Speed

UNKNOWN = Signature(None, None, None)
LEAST_CHANGE = 0.02
"""a further measurement of a pair is ignored if it differs from the prediction by less than this"""


FEW_ROWS = 20
"""as long as fewer directions of pairs were measured on a type of GPU, unmeasured pairs are tried in order to learn"""


class Basis(StrEnum):
    """What a prediction rests on."""

    MEASURED = "measured"
    """the workloads ran beside each other"""
    PREDICTED = "predicted"
    """they did not: the prediction follows from other pairs, or from what is known in advance"""
    UNTRIED = "untried"
    """they did not, few other pairs did, and a measurement would improve the predictions"""


class TenantSet(NamedTuple):
    """The workloads of the tenants of one GPU, in a fixed order."""

    gpu_type: str
    workloads: tuple[str | None, ...]


def tenant_set_of(gpu_type: str, workloads: Iterable[str | None]) -> TenantSet:
    return TenantSet(gpu_type, tuple(sorted(workloads, key=str)))


class Belief(Protocol):
    """The predictions that a sharing policy needs."""

    version: int
    knows_memory: bool
    """whether some workloads are known not to fit into the memory of one GPU together; no policy may place them so"""

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        """The speed of each tenant, relative to running alone."""
        ...

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        """The mean speed of a workload beside all known ones."""
        ...

    def basis(self, pair: TenantSet) -> Basis:
        """What the speeds of two tenants rest on."""
        ...

    def apart(self, company: TenantSet) -> bool:
        """Whether these are known not to fit into the memory of one GPU together."""
        ...

    def observe(self, company: TenantSet, speeds: Sequence[float | None]) -> bool:
        """Learns measured speeds (None: not measured); True if a prediction changes."""
        ...


class Predicted:
    """Predictions by one predictor per type of GPU, and the profiles of workloads that run alone."""

    def __init__(
        self, signatures: Mapping[str, Signature] | None = None, apart: frozenset[TenantSet] = frozenset()
    ) -> None:
        self.version = 0
        self.predictors: dict[str, Predictor] = {}
        self.knows_memory = bool(apart)
        self._signatures = dict(signatures or {})
        self._apart = apart
        self._answers: dict[TenantSet, tuple[Speed, ...]] = {}
        self._bases: dict[TenantSet, Basis] = {}
        self._recalled: tuple[dict[str, Signature], dict[str, tuple[Measured, ...]]] = ({}, {})

    def describe(self, workload: str, signature: Signature) -> None:
        """Sets the signature of a workload."""
        if self._signatures.get(workload) != signature:
            self._signatures[workload] = signature
            self._changed()

    def signature(self, workload: str | None) -> Signature:
        """The signature of a workload; only its name if nothing else is known."""
        return UNKNOWN if workload is None else self._signatures.get(workload, Signature(workload, None, None))

    def predictor(self, gpu_type: str) -> Predictor:
        known = self.predictors.get(gpu_type)
        if known is None:
            known = self.predictors[gpu_type] = Predictor()
        return known

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        answer = self._answers.get(company)
        if answer is None:
            answer = self._answers[company] = self._predict(company)
        return answer

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        return mean_speed(self, gpu_type, workload, self._signatures)

    def basis(self, pair: TenantSet) -> Basis:
        known = self._bases.get(pair)
        if known is None:
            known = self._bases[pair] = self._basis(pair)
        return known

    def apart(self, company: TenantSet) -> bool:
        return any_apart(self._apart, company)

    def observe(self, company: TenantSet, speeds: Sequence[float | None]) -> bool:
        """Learns from pairs; a larger company does not show which tenant slowed which."""
        if len(company.workloads) != 2 or None in company.workloads:
            return False
        one, other = (self.signature(workload) for workload in company.workloads)
        predictor = self.predictor(company.gpu_type)
        measured = [(was, now) for was, now in zip(self.speeds(company), speeds, strict=True) if now is not None]
        if predictor.known(one, other) and all(abs(was.mean - now) < LEAST_CHANGE for was, now in measured):
            return False
        if not _taken(predictor, (one, other), *speeds):
            return False
        self._changed()
        return True

    def recall(self, signatures: Mapping[str, Signature], measured: Mapping[str, Iterable[Measured]]) -> bool:
        """Replaces everything that was recalled before, by GPU type; True if it differs from that.

        The predictor of a type with the same rows stays, since making one is costly. So do not mix it with `observe`.
        """
        recalled = dict(signatures), {gpu_type: tuple(rows) for gpu_type, rows in measured.items()}
        if recalled == self._recalled:
            return False
        (_, before), self._recalled = self._recalled, recalled
        self._signatures = dict(signatures)
        known = self.predictors
        self.predictors = {
            gpu_type: known[gpu_type] if before.get(gpu_type) == rows else Predictor.of(rows, known.get(gpu_type))
            for gpu_type, rows in recalled[1].items()
        }
        self._changed()
        return True

    def _predict(self, company: TenantSet) -> tuple[Speed, ...]:
        if len(company.workloads) == 1:
            return (ALONE,)
        predictor = self.predictor(company.gpu_type)
        signatures = [self.signature(workload) for workload in company.workloads]
        if len(signatures) == 2:
            return predictor.pair(*signatures)
        return tuple(predictor.beside(one, [*signatures[:i], *signatures[i + 1 :]]) for i, one in enumerate(signatures))

    def _basis(self, pair: TenantSet) -> Basis:
        if None in pair.workloads:
            return Basis.PREDICTED
        predictor = self.predictor(pair.gpu_type)
        one, other = (self.signature(workload) for workload in pair.workloads)
        if predictor.measured(one, other) or predictor.measured(other, one):
            return Basis.MEASURED
        # A measured speed is relative to the speed alone. If that is known of neither job, nothing would be learned.
        comparable = one.step_seconds is not None or other.step_seconds is not None
        return Basis.UNTRIED if comparable and predictor.rows < FEW_ROWS else Basis.PREDICTED

    def _changed(self) -> None:
        self.version += 1
        self._answers.clear()
        self._bases.clear()


class Tabled:
    """Speeds from a table, and from measurements if it learns.

    Two published systems work this way: IADeep's table learns, Co-scheML's model is trained beforehand and fixed.
    """

    def __init__(
        self, table: Mapping[TenantSet, tuple[float, ...]], *, learns: bool, apart: frozenset[TenantSet] = frozenset()
    ) -> None:
        self.version = 0
        self._table = dict(table)
        self._workloads = sorted({workload for company in table for workload in company.workloads}, key=str)
        self.knows_memory = bool(apart)
        self._learns = learns
        self._apart = apart

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        if len(company.workloads) == 1:
            return (ALONE,)
        known = self._table.get(company)
        if known is None:  # an unknown company is taken to be undisturbed, as in IADeep
            known = (1.0,) * len(company.workloads)
        return tuple(Speed(speed, speed, speed) for speed in known)

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        return mean_speed(self, gpu_type, workload, self._workloads)

    def basis(self, pair: TenantSet) -> Basis:
        return Basis.MEASURED if pair in self._table else Basis.PREDICTED

    def apart(self, company: TenantSet) -> bool:
        return any_apart(self._apart, company)

    def observe(self, company: TenantSet, speeds: Sequence[float | None]) -> bool:
        measured = tuple(speed for speed in speeds if speed is not None)
        incomplete = len(measured) < max(2, len(speeds))
        if not self._learns or incomplete or self._table.get(company) == measured:
            return False
        self._table[company] = measured
        self.version += 1
        return True


UNDISTURBED = Tabled({}, learns=False)
"""believes that no job slows another one down"""


def _taken(
    predictor: Predictor, jobs: tuple[Signature, Signature], one_speed: float | None, other_speed: float | None
) -> bool:
    """Passes the measured speeds of a pair to a predictor: both, or one."""
    one, other = jobs
    if one_speed is not None and other_speed is not None:
        return predictor.observe(one, other, one_speed, other_speed)
    if one_speed is not None:
        return predictor.observe_one(one, other, one_speed)
    return other_speed is not None and predictor.observe_one(other, one, other_speed)


def any_apart(apart: frozenset[TenantSet], company: TenantSet) -> bool:
    """Whether any two of a company are among the pairs that do not fit into the memory of one GPU."""
    if len(company.workloads) <= 2:
        return company in apart
    return any(tenant_set_of(company.gpu_type, two) in apart for two in combinations(company.workloads, 2))


def mean_speed(belief: Belief, gpu_type: str, workload: str | None, others: Iterable[str | None]) -> float:
    """The mean speed of a workload beside each of the others that fit into the memory of one GPU with it."""
    speeds = []
    for other in others:
        pair = tenant_set_of(gpu_type, (workload, other))
        if not belief.apart(pair):
            speeds.append(belief.speeds(pair)[pair.workloads.index(workload)].mean)
    return sum(speeds) / len(speeds) if speeds else 0.0
