# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Answers to `cotenant why`. Nothing here changes the state of a job."""

from collections.abc import Iterator
from typing import Any

import msgspec

from cotenant.core.isolation import Granted, Refused
from cotenant.core.placement.queue import account_of, queue_position
from cotenant.core.sharing.unshared import no_share_notes
from cotenant.local import attempts
from cotenant.local.lifecycle import ENDED, JobRecord, request_of, unreadable
from cotenant.local.notifications import NOTIFIED, SENT
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.views import WaitReasons, explain
from cotenant.wire.job_demands import job_of
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.text import duration_text

LINES_OF_WHY = 10
"""of its output that `why` shows for a job that has ended"""
OVERTOOK = "; overtook "
"""in the reason of a placement, before the waiting job that was overtaken and why"""
MOST_EXAMINED, MOST_NAMED = 1000, 5
"""jobs that `why` examines, and jobs that it names, if it looks for those that overtook a job"""


class Explanations:
    """Explains why a job waits, is where it is, or ended."""

    def __init__(self, parts: Parts, queries: Queries) -> None:
        self._queries, self._resources, self._journal = queries, parts.resources, parts.journal
        self._devices, self._tenants, self._unmanaged = parts.devices, parts.tenants, parts.unmanaged
        self._learner, self._queue, self._idle = parts.learner, parts.queue, parts.idle
        self._holds, self._dependencies, self._bounds = parts.holds, parts.dependencies, parts.bounds
        self._interference, self._grants = parts.interference, parts.grants

    def why(self, name: str) -> dict[str, Any]:
        record, waiting = self._queries.find(name), self._queries.wait_reasons()
        placed = self._tenants.placed.get(record.id)
        placement = None if placed is None else placed.placement
        return {
            **explain(self._queries.view(record, waiting), self._queries.core_job(record), placement, waiting),
            "outside": record.id in self._holds or record.id in self._dependencies or record.id in self._bounds,
            "end": self._how_it_ended(record) if record.state in ENDED else None,
            **(self._overtaken(record) if record.id in self._queue.jobs else {}),
            "suggestions": self._suggestions(record),
            "shares": self._shares(record, waiting),
            "policy": self._learner.policy.name,
            "company": self._interference.company(record.id),
            "isolation": self._queries.rung(record.id, request_of(record).isolation, request_of(record).gpus),
            "grants": [msgspec.to_builtins(one) for one in self._grants.views(record.id)],
            "notes": [
                *(note for note in self._notes(request_of(record)) if note is not None),
                *self._grants.notes(record.id),
                *self._no_share_notes(record.id),
                *self._idle_notes(record.id),
                *(self._notice_notes(record.id) if request_of(record).notify else ()),
                *(self._unmanaged_notes() if record.id in self._queue.jobs else ()),
            ],
        }

    def _idle_notes(self, job: str) -> Iterator[str]:
        idle_s = self._idle.idle_s(job)
        if idle_s is not None:
            yield f"idle: it has not used its GPUs for {duration_text(idle_s)}"

    def _notice_notes(self, job: str) -> Iterator[str]:
        """The notices that were not sent, or perhaps not."""
        for event in self._queries.events_of(job):
            if event.kind == NOTIFIED and SENT not in event.text:
                yield f"notice: {event.text}"

    def _unmanaged_notes(self) -> Iterator[str]:
        """For jobs that wait: what programs without a job use of each GPU."""
        for index, gpu in enumerate(self._devices.machine.gpus):
            found = self._unmanaged.processes.get(gpu.uuid, ())
            if found:
                users = ", ".join(sorted({f"{one.user}:{one.program}" for one in found}))
                known = [one.memory_mib for one in found if one.memory_mib is not None]
                amount = f"{sum(known)} MiB of GPU {index}" if len(known) == len(found) else f"memory of GPU {index}"
                yield f"without a job: {users} use{'s' * (len(found) == 1)} {amount}, which jobs do not get"

    def _shares(self, record: JobRecord, waiting: WaitReasons) -> str | None:
        """How the account of a waiting job stands; None if that does not decide about it."""
        job = self._queue.jobs.get(record.id)
        return None if job is None or waiting.standing is None else waiting.standing.explain(account_of(job))

    def _suggestions(self, record: JobRecord) -> list[Any]:
        """What would make a waiting job fit."""
        job = self._queue.jobs.get(record.id)
        return [] if job is None else [msgspec.to_builtins(one) for one in self._queries.foresight.suggestions(job)]

    def _no_share_notes(self, job: str) -> Iterator[str]:
        placed = self._tenants.placed.get(job)
        if placed is not None:
            demand = placed.placement.job.demand
            yield from no_share_notes(demand, self._tenants.cluster.at(0), placed.gpus, job)

    def _notes(self, request: JobRequest) -> list[str | None]:
        """What its owner should know about its limits."""
        memory = None if request.memory_why is None else f"memory: {request.memory_why}"
        isolation = self._resources.isolation
        granted = None if isolation is None else isolation.granted(request.isolation, request.gpus or 1)
        refused = granted.why if isinstance(granted, Refused) else None
        note = granted.note if isinstance(granted, Granted) and request.isolation is not None else None
        return [memory, self._resources.backend.vendor.row.unenforced(), refused, note]

    def _how_it_ended(self, record: JobRecord) -> dict[str, Any]:
        """The outcome of a job that has ended, and the last lines of its output."""
        names = ("outcome", "code", "signal", "error", "started", "ended", "attempts")
        output = attempts.last_lines(self._queries.folder(record), LINES_OF_WHY)
        pruned = record.attempts > 0 and not self._queries.folder(record).exists()
        return {name: getattr(record, name) for name in names} | {"output": output, "pruned": pruned}

    def _overtaken(self, record: JobRecord) -> dict[str, Any]:
        """The jobs behind a waiting job in the queue that have started since it was submitted, the last first."""
        policy, job = self._learner.policy, self._queue.jobs[record.id]
        own = queue_position(policy, job, job.submitted)
        found = []
        for other in self._journal.started_since(record.submitted, MOST_EXAMINED):
            if other.id == record.id or unreadable(other) is not None:
                continue
            position = queue_position(policy, job_of(other.id, request_of(other), other.submitted), job.submitted)
            if (*position, other.id) > (*own, record.id):
                found.append({"job": other.id, "reason": _why_before(other, record.id)})
        return {"overtaken": len(found), "overtaken_by": found[:MOST_NAMED]}


def _why_before(other: JobRecord, job: str) -> str:
    """Why a job that has started overtook this one, as far as its reason says it."""
    _, _, overtook = (other.reason or "").partition(OVERTOOK)
    first, _, why = overtook.partition(": ")
    if not why:
        return "it fitted at the time, and no GPU was reserved"
    return why if first == job else f"{why} ({first})"
