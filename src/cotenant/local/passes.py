# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Scheduling passes: which waiting jobs start now, and where."""

import time

from cotenant.core.model import Placement
from cotenant.core.placement.deciding import decide
from cotenant.core.queueing.advance import restricted
from cotenant.core.queueing.backfill import why_overtook
from cotenant.core.units import Seconds
from cotenant.local.explanations import OVERTOOK
from cotenant.local.lifecycle import JobRecord, Placed, request_of
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.transitions import Transitions
from cotenant.local.views import placement_reason
from cotenant.local.waiting import Waiting


class Passes:
    """Asks the core, and starts what it places."""

    def __init__(self, parts: Parts, queries: Queries, transitions: Transitions, waiting: Waiting) -> None:
        self._queries, self._transitions, self._waiting = queries, transitions, waiting
        self._journal, self._devices, self._tenants = parts.journal, parts.devices, parts.tenants
        self._draw, self._backfill = parts.settings.draw, parts.settings.backfill
        self._learner, self._queue, self._bounds = parts.learner, parts.queue, parts.bounds
        self._reservations, self._accounting = parts.reservations, parts.accounting
        self._launcher, self._runs, self._grants = parts.launcher, parts.runs, parts.grants
        self._decisions, self._metrics = parts.decisions, parts.metrics
        self._reserved_before = False

    def schedule(self) -> None:
        """One scheduling pass: starts every waiting job that fits, in queue order."""
        began = time.perf_counter()
        self._transitions.record_late_cancels()
        self._waiting.settle()
        for element in self._bounds.ready():
            self._waiting.enqueue_record(self._journal.job(element))
        ranker, now = self._learner.ranker, Seconds(time.time())
        policy, cluster = ranker.policy, self._tenants.cluster
        self._reservations.expire()
        self._evict_for_reservations()
        advance = self._reservations.advance(self._devices.machine)
        timed, self._reserved_before = advance is not None or self._reserved_before, advance is not None
        jobs = self._queue.begin_pass(policy, cluster, timed=timed)
        decision = decide(
            policy,
            jobs,
            cluster,
            now,
            ranker=ranker,
            draw=self._draw,
            ends=self._tenants.ends if self._backfill else None,
            reservation=self._queue.reservation,
            shares=self._accounting.shares,
            limits=self._accounting.limit_check(),
            advance=advance,
        )
        self._queue.reservation = reservation = decision.reservation
        for placement in decision.placements:
            job, allowed = placement.job, decision.overtaking.get(placement.job.id)
            waited = self._queue.jobs.get(job.id, job)
            waited = waited if advance is None else restricted(waited, advance.closed(waited, now))
            self._decisions.placed(policy, waited, placement, decision, self._tenants.cluster)
            overtook = "" if allowed is None or reservation is None else why_overtook(reservation, job, allowed, now)
            self._start(placement, None if placement.overdue else decision.crowding, overtook)
        self._queue.end_pass(policy, self._tenants.cluster)
        waiting = self._queue.some()
        if advance is not None:
            waiting = [restricted(job, advance.closed(job, now)) for job in waiting]
        self._decisions.refused(ranker, waiting, decision, now)
        self._metrics.passed(began, ranker)

    def _start(self, placement: Placement, crowding: float | None, overtook: str) -> None:
        """The journal is written before the process starts: after a kill in between, the job is started once."""
        job, ranker = placement.job.id, self._learner.ranker
        reason = placement_reason(ranker.policy, ranker, placement, self._tenants.cluster)
        reason += OVERTOOK + overtook if overtook else ""
        record, change = self._transitions.apply(self._journal.job(job), Placed(placement, reason))
        self._queue.remove(job)
        self._tenants.add(placement, request_of(record), record.attempts, crowding)
        self.begin(record)
        self._metrics.placed(placement.job)
        self._transitions.announce(job, change)

    def begin(self, record: JobRecord) -> None:
        placement = self._tenants.placed[record.id].placement
        folder, machine = self._queries.folder(record), self._devices.machine
        start = self._launcher.starter(folder, machine, placement, record, self._journal.origin(record.id))
        self._grants.begin(record.id, lambda: self._runs.begin(record.id, record.attempts, start))

    def _evict_for_reservations(self) -> None:
        """Stops jobs on GPUs whose reservation has begun and was made with that wish."""
        for why, reservation in self._reservations.evicting():
            gpus = {i for i, gpu in enumerate(self._devices.machine.gpus) if gpu.uuid in reservation.gpus}
            for job, placed in list(self._tenants.placed.items()):
                if gpus & set(placed.gpus) and not self._reservations.admits(reservation, placed.placement.job):
                    self._transitions.evict(job, f"asked to leave its GPU: {why}")
