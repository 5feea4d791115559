# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine decided, as lines of a recording: jobs that came, why they waited, their placements, and how they
ended."""

import time
from collections.abc import Iterable

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job, Placement
from cotenant.core.placement.deciding import Decision, place_gang, rank
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.units import Seconds
from cotenant.history.decisions import Considered, DecisionRecorder
from cotenant.history.quantities import TENANT, Entity
from cotenant.history.store import History, HistoryError
from cotenant.local.lifecycle import JobRecord, JobState
from cotenant.local.owners import Owner
from cotenant.wire.recording import Arrived, Ended


class DecisionLog:
    """Passes on what happens to a recorder; without one, it does nothing."""

    def __init__(self, recorder: DecisionRecorder | None, history: History | None) -> None:
        self._recorder, self._history = recorder, history
        self._refusals: dict[str, set[frozenset[str]]] = {}
        """the kinds of reasons with which each waiting job was refused"""

    def began(self, cluster: Cluster) -> None:
        """The engine knows its GPUs and their tenants."""
        if self._recorder is not None:
            self._recorder.snapshot(cluster)

    def left(self, job: str) -> None:
        """A job left the queue without having been placed."""
        self._refusals.pop(job, None)

    def queued(self, job: Job, name: str, owner: Owner) -> None:
        if self._recorder is not None:
            arrived = Arrived(at=Seconds(time.time()), job=job, name=name, user=owner.user, team=owner.group)
            self._recorder.job(arrived)

    def placed(self, policy: Policy, job: Job, placement: Placement, decision: Decision, cluster: Cluster) -> None:
        """A job is placed; `job` is as it was in the queue, and `cluster` is the one before the placement."""
        self._refusals.pop(job.id, None)
        if self._recorder is None:
            return
        if decision.reservation is not None and not decision.overtaking.get(job.id, True):
            cluster = decision.reservation.without_reserved(cluster)
        considered = Considered(
            at=time.time(),
            policy=policy,
            job=job,
            cluster=cluster,
            slots=(placement.slot,),
            crowding=None if placement.overdue else decision.crowding,
            closed=() if placement.overdue or placement.slot.node in decision.kept else decision.kept,
        )
        self._recorder.decided(considered.with_beliefs())

    def refused(self, ranker: Ranker, jobs: Iterable[Job], decision: Decision, now: Seconds) -> None:
        """These jobs wait after a pass. A job is recorded once for each set of reasons."""
        if self._recorder is None:
            return
        policy, crowding, reservation = ranker.policy, decision.crowding, decision.reservation
        beside = decision.cluster if reservation is None else reservation.without_reserved(decision.cluster)
        for job in jobs:
            cluster = decision.cluster
            if reservation is not None and reservation.job.id != job.id and not reservation.allows(job, now):
                cluster = beside
            if place_gang(ranker, job, cluster, None, crowding, decision.kept) is not None:
                continue  # it came after the pass had begun
            ranking = rank(policy, job, cluster, ranker=ranker, crowding=crowding)
            reasons = (*ranking.reasons.values(), *filter(None, [ranking.verdict.reason]))
            checks = frozenset(reason.check for reason in reasons)
            known = self._refusals.setdefault(job.id, set())
            if checks in known:
                continue
            known.add(checks)
            considered = Considered(
                at=float(now),
                policy=policy,
                job=job,
                cluster=cluster,
                slots=(),
                crowding=crowding,
                closed=decision.kept,
            )
            self._recorder.decided(considered.with_beliefs())

    def ended(self, record: JobRecord, state: JobState, cause: str) -> None:
        """A run has ended, and the job is in this state now; `record` is from before."""
        if self._recorder is None:
            return
        now = time.time()
        outcome = "queued" if state is JobState.QUEUED else cause
        self._recorder.ended(
            lambda: Ended(
                at=Seconds(now),
                job=record.id,
                outcome=outcome,
                started=None if record.started is None else Seconds(record.started),
                speed=self._mean_speed(record, now),
            )
        )

    def _mean_speed(self, record: JobRecord, now: float) -> float | None:
        """The mean of the speeds that were sampled in the run; None: there are none."""
        if self._history is None or record.started is None:
            return None
        try:
            points = self._history.series(Entity(TENANT, record.id), "speed", record.started, now + 1, 1)
        except HistoryError:
            return None
        return min(10.0, max(0.0, points[0].mean)) if points else None
