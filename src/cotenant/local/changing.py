# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of jobs that wait or run: their values and limits, and pauses."""

import time
from dataclasses import replace

import msgspec
from msgspec.structs import replace as replaced

from cotenant.core.model import Job
from cotenant.errors import InputError
from cotenant.local import attempts
from cotenant.local.containers import DOCKER, name_of
from cotenant.local.lifecycle import ACTIVE, ENDED, JobRecord, JobState, stored_request, with_stored_compute
from cotenant.local.live_changes import refuse_amounts, refuse_simulated, refuse_time
from cotenant.local.owners import Owner
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.submissions import Submissions
from cotenant.local.waiting import Waiting
from cotenant.wire.job_checks import change_text, changed_by
from cotenant.wire.job_requests import JobChange, JobRequest, element_of
from cotenant.wire.job_views import JobView
from cotenant.wire.text import counted


class Changer:
    """Changes jobs at the request of users: first in the journal, then what runs."""

    def __init__(self, parts: Parts, queries: Queries, waiting: Waiting, submissions: Submissions) -> None:
        self._queries, self._waiting, self._submissions = queries, waiting, submissions
        self._journal, self._events, self._wake = parts.journal, parts.events, parts.wake
        self._learner, self._admission, self._accounting = parts.learner, parts.admission, parts.accounting
        self._queue, self._tenants, self._reservations = parts.queue, parts.tenants, parts.reservations
        self._devices, self._launcher, self._grants = parts.devices, parts.launcher, parts.grants
        self._orders, self._tuner, self._interference = parts.orders, parts.tuner, parts.interference
        self._containers = parts.resources.containers

    def change(self, name: str, change: JobChange, by: Owner | None = None) -> JobView:
        """Gives a queued job other values at the request of a user (None: of the daemon's own); it keeps its place
        among jobs of equal priority."""
        record = self._queries.find(name)
        if change.priority is not None and by is not None:
            self._submissions.check_priority(change.priority, by)
        if record.state in ENDED or record.id in self._queries.set_aside:
            raise InputError(f"{record.id} is {record.state}; only a job that waits or runs can be changed")
        if change.name is not None and record.item is not None:
            raise InputError(f"--name: {record.id} is an element of an array, and is called like it")
        request = self._admission.with_memory(changed_by(stored_request(record), change))
        job = self._admission.admit(record.id, request, record.submitted)
        job = replace(job, account=self._accounting.account(record.owner))
        self._accounting.check_submission(job, self._tenants.cluster, 0)
        if record.state in ACTIVE:
            self._change_running(record, change, request, job)
        else:
            record = self._journal.change_request(record.id, msgspec.json.encode(request))
            if record.id in self._queue.jobs:  # one that waits outside the queue is read again when it comes in
                self._waiting.leave(record.id)
                self._waiting.enqueue(job, record)
        self._events.record("changed", record.id, f"changed: {change_text(change)}")
        return self._queries.job(record.id)

    def _change_running(self, record: JobRecord, change: JobChange, request: JobRequest, job: Job) -> None:
        """The journal is written first: a daemon that is killed in between tells the supervisor after its restart."""
        placed, machine, now = self._tenants.placed[record.id], self._devices.machine, time.time()
        job = with_stored_compute(job, record) if request.latency_s is not None else job
        job = replace(job, demand=replace(job.demand, rung=placed.placement.job.demand.rung))
        problem = self._can_change(record)
        if problem is not None:
            raise InputError(problem)
        resized = (change.memory, change.compute) != (None, None)
        if resized and record.state is not JobState.RUNNING:
            raise InputError(f"{record.id} is being started; its limits can be changed when it runs")
        used, limits = self._devices.usage_of(record.id).memory_mib, self._accounting.limit_check()
        refuse_amounts(placed, job, self._tenants.cluster, used, self._learner.policy.checks, limits)
        orders = self._orders.of(record)
        if change.time_s is not None:
            refuse_time(placed, change.time_s, now)
            ends = placed.started + change.time_s + request.grace_s
            self._reservations.refuse_longer(job, [machine.gpus[gpu] for gpu in placed.gpus], ends)
            orders = replaced(orders, time_s=change.time_s)
        placement, own = replace(placed.placement, job=job), element_of(request, record.item or 0)
        launch = self._launcher.limits(machine, placement, own)
        if resized and launch.memory_mib is not None:
            refuse_simulated(record.id, self._queries.folder(record), launch)
            orders = replaced(orders, memory_mib=launch.memory_mib, share_percent=launch.share_percent)
        with self._journal.transaction():
            self._journal.change_request(record.id, msgspec.json.encode(request))
            self._orders.store(record.id, replaced(orders, changed=True))
        changed = self._tenants.change(record.id, job, own)
        self._accounting.change(changed, self._tenants.cluster)
        self._grants.change(changed)
        self._tuner.add(changed)
        self.obey(record)
        self._wake.set()

    def pause(self, name: str, paused: bool) -> JobView:
        """Stops all processes of a job that runs, which keeps its slot, or lets them go on; or those of every element
        of an array."""
        verb = "paused" if paused else "resumed"
        if self._queries.is_array(name):
            array = self._queries.array(name)
            found = [one for one in self._journal.elements(array.number, ACTIVE) if self._can_pause(one) is None]
            found = [one for one in found if self._orders.is_paused(one.id) is not paused]
            if not found:
                raise InputError(f"no element of {array.id} {'runs' if paused else 'is paused'}")
            for record in found:
                self._pause(record, paused)
            self._events.record(verb, found[0].id, f"{counted(len(found), 'element')} of {array.id} {verb}")
            return self._queries.job(array.id)
        record = self._queries.find(name)
        if paused and record.state is JobState.QUEUED:
            raise InputError(f"{record.id} is queued; `cotenant hold {record.id}` keeps it from starting")
        problem = self._can_pause(record)
        if problem is not None:
            raise InputError(problem)
        if not paused and not self._orders.is_paused(record.id):
            raise InputError(f"{record.id} is {record.state} and not paused")
        if paused is not self._orders.is_paused(record.id):
            self._pause(record, paused)
            self._events.record(verb, record.id, "paused: it keeps its GPUs" if paused else "resumed")
        return self._queries.job(record.id)

    def _pause(self, record: JobRecord, paused: bool) -> None:
        """While a job is paused, nothing is measured: its neighbours run as if it were not there."""
        self._orders.pause(record, paused)
        self.measure(record.id, not paused)

    def measure(self, job: str, measured: bool) -> None:
        placed, now = self._tenants.placed[job], time.monotonic()
        for gpu in placed.gpus:
            self._tuner.disturb(gpu, now)
        if measured:
            self._interference.add(replace(placed, since=now))
        else:
            self._interference.remove(job)

    def _can_change(self, record: JobRecord) -> str | None:
        """Why a job that should run cannot be paused or changed; None: it can."""
        if record.state not in ACTIVE:
            return f"{record.id} is {record.state}; only a job that runs can be paused"
        if record.stop is not None:
            return f"{record.id} is about to end"
        if not attempts.obeys_orders(self._queries.folder(record)):
            return f"{record.id} was started by an earlier version, which can neither pause nor change it"
        return None

    def _can_pause(self, record: JobRecord) -> str | None:
        """Why a job cannot be paused or resumed; None: it can."""
        problem = self._can_change(record)
        if problem is not None or self._containers is None or self._containers.name != DOCKER:
            return problem
        if stored_request(record).container is None:
            return None
        name = name_of(record.id, record.attempts)
        return f"{record.id} is a container of docker, whose processes only docker can stop: use `docker pause {name}`"

    def obey(self, record: JobRecord) -> None:
        """Tells the supervisor of a job, and writes its limits once it runs, as they are in the journal."""
        placed = self._tenants.placed[record.id]
        if self._orders.of(record).changed and record.state is JobState.RUNNING:
            launch = self._launcher.limits(self._devices.machine, placed.placement, placed.request)
            self._launcher.change_limits(placed.placement, launch)
        self._orders.give(record.id)
