# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job of this machine fit, and what-if. Nothing here changes anything."""

from collections.abc import Callable

from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job
from cotenant.core.queueing.eviction import Stake
from cotenant.core.sharing.unshared import no_share_notes
from cotenant.core.suggestions.outlook import outlook
from cotenant.core.suggestions.search import Memory, Search, finished
from cotenant.core.suggestions.suggesting import ordered, suggestions
from cotenant.core.units import Seconds
from cotenant.local.admission import Admission
from cotenant.local.job_queue import JobQueue
from cotenant.local.tenants import Tenants
from cotenant.wire.explanation import SuggestionView, WhatIf, WhatIfRequest, suggestion_view, what_if

NEW = "what-if"
"""the name of the job that does not exist"""


class Foresight:
    """Asks the core about jobs that wait and jobs that do not exist."""

    def __init__(
        self, learner: Learner, admission: Admission, queue: JobQueue, tenants: Tenants, now: Callable[[], float]
    ) -> None:
        self._learner, self._admission, self._queue, self._tenants, self._now = learner, admission, queue, tenants, now
        self._memory: Memory | None = None

    def suggestions(self, job: Job) -> tuple[SuggestionView, ...]:
        """What would make a waiting job fit now, the smallest change first."""
        return self._suggested(self._search(job, len(self._queue)))

    def what_if(self, request: WhatIfRequest) -> WhatIf:
        """Where a job would go; RefusedError if this machine can never run it."""
        wanted = request.as_job()
        job = self._admission.admit(NEW, wanted, self._now(), introduce=False)
        search = self._search(job, len(self._queue) + 1)
        workloads = {one.id: one.workload.name for one in self._tenants.placed.values()}
        named = workloads if wanted.workload is None else workloads | {NEW: wanted.workload}
        found = finished(outlook(search, named))
        notes = [note for note in (self._admission.note(wanted),) if note is not None]
        for placement in found.placements:
            notes += no_share_notes(job.demand, self._tenants.cluster.node(placement.slot.node), placement.slot.gpus)
        return what_if(
            search.policy.name,
            found,
            str,
            suggestions=() if found.placements else self._suggested(search),
            notes=tuple(notes),
        )

    def _suggested(self, search: Search) -> tuple[SuggestionView, ...]:
        placed = self._tenants.placed.values()
        stakes = {one.id: Stake(one.placement.job.demand.priority, Seconds(one.since)) for one in placed}
        return tuple(map(suggestion_view, ordered(suggestions(search, stakes))))

    def _search(self, job: Job, waiting: int) -> Search:
        policy, cluster = self._learner.policy, self._tenants.cluster
        if self._memory is None or self._memory.policy is not policy:
            self._memory = Memory(policy, self._learner.ranker)
        return Search(self._memory, job, cluster, crowding=waiting / max(1, cluster.gpus))
