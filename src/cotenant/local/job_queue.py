# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The jobs that wait on this machine, and which of them the next scheduling pass must try."""

from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from operator import itemgetter

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job
from cotenant.core.placement.queue import Queue
from cotenant.core.placement.ranking import Policy
from cotenant.core.queueing.backfill import Reservation

MOST_LOOKED_AT = 16


class JobQueue:
    """The waiting jobs in queue order.

    Invariant: a job that is not in `_untried` did not fit the cluster and belief of `_passed`. So while both are
    unchanged a pass needs to try only the jobs in `_untried`, unless one of them comes before the job with the
    reservation: then the reservation may end, and with it what keeps other jobs waiting.
    """

    def __init__(self, policy: Policy, *, by_account: bool = False) -> None:
        """`by_account` as in `Queue`."""
        self.ordered = Queue(policy, by_account=by_account)
        self._by_account = by_account or policy.fair
        self.jobs: dict[str, Job] = {}
        """by id"""
        self.reservation: Reservation | None = None
        """the GPUs that are reserved for the first job that did not fit in the last pass"""
        self._untried: dict[str, Job] = {}
        """jobs added since the last pass"""
        self._passed: tuple[Cluster, int] | None = None
        """the cluster after the last pass, and the version of the belief it used; None: the last pass failed"""

    def rebuild(self, policy: Policy, jobs: Iterable[Job], *, by_account: bool) -> None:
        """The same jobs wait, under other accounts."""
        waiting = list(jobs)
        self.ordered, self._by_account = Queue(policy, by_account=by_account), by_account or policy.fair
        self.jobs, self._untried, self.reservation, self._passed = {}, {}, None, None
        for job in waiting:
            self.add(job)

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, job: Job) -> None:
        self.ordered.add(job, job.submitted)
        self.jobs[job.id] = self._untried[job.id] = job

    def remove(self, job: str) -> None:
        self.ordered.remove(self.jobs.pop(job))
        self._untried.pop(job, None)
        if self.reservation is not None and self.reservation.job.id == job:
            self.reservation = self._passed = None

    def begin_pass(self, policy: Policy, cluster: Cluster, *, timed: bool = False) -> Iterable[Job]:
        """The jobs that a pass must try; until `end_pass`, the pass counts as failed. `timed`: what a job may use
        depends on the time."""
        # A sharing gate also considers how many jobs wait, and `overdue` how long they wait: then every job may fit
        # although the cluster is the same. Shares and limits of accounts change with time, too.
        depends_on_cluster_only = policy.gate is None and policy.overdue is None and not (self._by_account or timed)
        unchanged = depends_on_cluster_only and self._passed == (cluster, policy.known.belief.version)
        unchanged = unchanged and not any(self._comes_first(job) for job in self._untried)
        self._passed = None
        return self._untried.values() if unchanged else self.ordered

    def some(self) -> Iterable[Job]:
        """The jobs that came last, and the first of each kind: not all, because thousands may wait."""
        heads = nsmallest(MOST_LOOKED_AT, (group[0] for group in self.ordered.groups()), key=itemgetter(0))
        newest = reversed(self.jobs.values())
        return {job.id: job for job in (*(job for _, job in heads), *islice(newest, MOST_LOOKED_AT))}.values()

    def _comes_first(self, job: str) -> bool:
        """Whether a job comes before the one with the reservation."""
        return self.reservation is not None and self.ordered.position(job) < self.reservation.position

    def end_pass(self, policy: Policy, cluster: Cluster) -> None:
        self._passed = cluster, policy.known.belief.version
        self._untried.clear()
