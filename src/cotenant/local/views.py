# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs, GPUs and reasons as the API shows them: pure functions of values."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from cotenant.core.cluster import Cluster, Node
from cotenant.core.isolation import Rung, uses_mps
from cotenant.core.model import Demand, Job, Machine, Placement, Reason
from cotenant.core.placement.deciding import rank
from cotenant.core.placement.feasibility import eligible_gpus
from cotenant.core.placement.queue import Queue, account_of, position_of, with_pressure
from cotenant.core.placement.ranking import Policy, Ranker, Ranking
from cotenant.core.queueing.advance import NONE, Advance, restricted
from cotenant.core.queueing.backfill import QueuePosition, Reservation, when, why_held_back
from cotenant.core.queueing.fair import Standing
from cotenant.core.queueing.limits import LimitCheck, kinds_of_gpus, least_amounts
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.local.journal_rows import array_id
from cotenant.local.lifecycle import JobRecord, JobState, array_of, gpus_of
from cotenant.local.owners import Owner
from cotenant.local.tenants import UNMANAGED
from cotenant.node.devices.backend import GpuUsage, Running
from cotenant.node.measurement import UNKNOWN_USAGE, JobUsage
from cotenant.wire.arrays import index_of
from cotenant.wire.job_demands import host_memory_of
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import GrantView, JobView, shown_name
from cotenant.wire.machine import GpuView, UnmanagedProcess
from cotenant.wire.reservations import GpuReservation
from cotenant.wire.text import counted


class _RequestSummary(msgspec.Struct, frozen=True):
    """The part of a request that a list shows; a list may hold 10,000 jobs, so the rest is not decoded."""

    command: list[str]
    name: str | None = None
    batch: int | None = None
    gpus: int = 1
    isolation: Rung | None = None
    cpus: float | None = None
    host_memory: str | None = None


_summaries = msgspec.json.Decoder(_RequestSummary)


def job_view(
    record: JobRecord,
    *,
    reason: str | None = None,
    usage: JobUsage = UNKNOWN_USAGE,
    batch: int | None,
    speed: float | None,
    predicted: float | None = None,
    slo_violations: int = 0,
    grants: tuple[GrantView, ...] = (),
    held: bool = False,
    paused: bool = False,
    idle_s: float | None = None,
    granted: Callable[[Rung | None, int], str | None] = lambda wish, gpus: None,
) -> JobView:
    """A job as the journal stores it, with what is measured now."""
    try:
        request = _summaries.decode(record.request)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        request = _RequestSummary([record.id])  # it cannot be read; the job is set aside, or has ended
    array = array_of(record)
    index = None if array is None or record.item is None else index_of(array, record.item)
    return JobView(
        id=record.id,
        array=None if record.array is None else array_id(record.array),
        index=index,
        user=record.user,
        uid=record.uid,
        named=request.name is not None,
        name=shown_name(request.name, request.command[0]) + ("" if index is None else f"[{index}]"),
        state=record.state,
        submitted=record.submitted,
        started=record.started,
        ended=record.ended,
        gpus=gpus_of(record),
        outcome=record.outcome,
        code=record.code,
        signal=record.signal,
        error=record.error,
        attempts=record.attempts,
        reason=reason or record.reason,
        batch=batch or request.batch,
        speed=speed,
        predicted=predicted,
        slo_violations=slo_violations,
        isolation=granted(request.isolation, request.gpus),
        memory_used_mib=usage.memory_mib,
        cpus=request.cpus,
        host_memory_mib=_host_memory(request.host_memory),
        utilisation=usage.utilisation,
        grants=grants,
        held=held,
        paused=paused,
        idle_s=idle_s,
    )


def unsubmitted_view(request: JobRequest, owner: Owner, submitted: float) -> JobView:
    """A job that would be accepted; it has no ID."""
    return JobView(
        id="",
        user=owner.user,
        uid=owner.uid,
        named=request.name is not None,
        name=shown_name(request.name, request.command[0]),
        state=JobState.QUEUED,
        submitted=submitted,
        request=replaced(request, env={}),
    )


def _host_memory(text: str | None) -> int | None:
    try:
        return None if text is None else host_memory_of(text)
    except InputError:  # another version stored it
        return None


def gpu_views(
    machine: Machine,
    node: Node,
    usage: Mapping[str, GpuUsage],
    faults: Mapping[str, str],
    unmanaged: Mapping[str, tuple[UnmanagedProcess, ...]],
    reservations: Mapping[str, tuple[GpuReservation, ...]],
) -> list[GpuView]:
    """The GPUs of a machine; `usage`, `faults`, `unmanaged` and `reservations` are by UUID."""
    return [
        GpuView(
            index=i,
            uuid=gpu.uuid,
            type=gpu.type,
            memory_mib=gpu.memory_capacity,
            free_memory_mib=node.memory[i],
            free_compute=node.compute[i],
            compute=gpu.compute_capacity,
            mig=gpu.mig,
            card=gpu.card,
            used_mib=usage[gpu.uuid].used_mib if gpu.uuid in usage else None,
            utilisation=usage[gpu.uuid].utilisation if gpu.uuid in usage else None,
            healthy=gpu.healthy,
            fault=faults.get(gpu.uuid),
            cordoned=gpu.cordoned,
            isolation=tuple(rung for rung in Rung if rung in gpu.rungs),
            mps=gpu.under_mps or _mps_rung(node, i) is not None,
            only=_mps_rung(node, i),
            tenants=tuple(one.job for one in node.tenants if i in one.gpus and not one.job.startswith(UNMANAGED)),
            reservations=reservations.get(gpu.uuid, ()),
            unmanaged=unmanaged.get(gpu.uuid, ()),
            temperature_celsius=usage[gpu.uuid].temperature_celsius if gpu.uuid in usage else None,
            power_watts=usage[gpu.uuid].power_watts if gpu.uuid in usage else None,
        )
        for i, gpu in enumerate(machine.gpus)
    ]


def _mps_rung(node: Node, gpu: int) -> Rung | None:
    """The rung of the tenants of a GPU, if they are MPS clients."""
    rungs = (one.demand.rung for one in node.tenants if gpu in one.gpus)
    return next((rung for rung in rungs if uses_mps(rung)), None)


def usage_by_job(jobs: Sequence[Running], usage: Sequence[GpuUsage]) -> dict[str, JobUsage]:
    """What each job uses, summed over its processes and GPUs; `usage` is by GPU index."""
    return {job.job: _usage_of(job, [usage[gpu] for gpu in job.gpus if gpu < len(usage)]) for job in jobs}


def _usage_of(job: Running, usage: Sequence[GpuUsage]) -> JobUsage:
    if not usage or any(gpu.processes is None for gpu in usage):
        return UNKNOWN_USAGE
    own = [process for gpu in usage for process in gpu.processes or () if process.job == job.job]
    memory = [process.memory_mib for process in own if process.memory_mib is not None]
    busy = [process.utilisation for process in own if process.utilisation is not None]
    alone = len(usage) == 1 and len(own) == len(usage[0].processes or ())
    return JobUsage(
        max(0, sum(memory) - job.baseline) if len(memory) == len(own) else None,
        min(100.0, sum(busy) / len(usage)) if own and len(busy) == len(own) else None,
        usage[0].bandwidth if alone else None,
        usage[0].pcie_mib_s if alone else None,
    )


# Reasons


def placement_reason(policy: Policy, ranker: Ranker, placement: Placement, cluster: Cluster) -> str:
    """Why a job is placed on its slot, with the numbers that decided; `cluster` is the one before the placement."""
    demand, slot = placement.job.demand, placement.slot
    node = cluster.node(slot.node)
    fitting = eligible_gpus(demand, node, policy.checks)
    if not slot.gpus or isinstance(fitting, Reason):
        return f"{policy.name}: it needs no GPU"
    best = next(iter(ranker.top(demand, cluster, [slot.node], 1)), None)
    chosen = "chosen at random"
    if best is not None and not policy.random:
        chosen = f"best score {' / '.join(f'{part:.4g}' for part in best.score)}"
    free = ", ".join(f"GPU {i} had {node.memory[i]} MiB and {node.compute[i] / 10:g} % free" for i in slot.gpus)
    count, total = len(fitting), len(node.machine.gpus)
    return f"{policy.name}: {count} of {counted(total, 'GPU')} {'fits' if count == 1 else 'fit'}, {chosen}; {free}"


def explain(view: JobView, job: Job, placement: Placement | None, waiting: "WaitReasons") -> dict[str, Any]:
    """Why a job waits or is where it is, with the score of every feasible slot and every reason against the others."""
    ranking = waiting.ranking(job)
    better_wait = {fit.slot.node: ranking.verdict.reason for fit in ranking.fits if ranking.verdict.reason}
    return {
        "job": view.id,
        "state": view.state,
        "held": view.held,
        "placed_on": None if placement is None else list(placement.slot.gpus),
        "reason": view.reason,
        "fits": [{"gpus": list(fit.slot.gpus), "score": list(fit.score)} for fit in ranking.fits],
        "reasons": {node: str(why) for node, why in (better_wait | dict(ranking.reasons)).items()},
        "ahead": waiting.ahead(job) if view.state == JobState.QUEUED else 0,
    }


class WaitReasons:
    """Why jobs wait, for many jobs at once: each distinct demand is ranked only once."""

    def __init__(
        self,
        ranker: Ranker,
        cluster: Cluster,
        queue: Queue,
        reservation: Reservation | None = None,
        now: Seconds = Seconds(0.0),
        standing: Standing | None = None,
        limits: LimitCheck | None = None,
        advance: Advance | None = None,
        why_closed: Callable[[Job], str] = lambda job: "",
    ) -> None:
        """`standing`, `limits` and `advance` as in `decide`, if shares are fair, accounts have limits, and GPUs are
        reserved; `why_closed` says why a job must not start on GPUs that are reserved."""
        self._ranker, self._cluster, self._queue = ranker, cluster, queue
        self.standing, self._limits = standing, limits
        self._gpus = kinds_of_gpus(cluster)
        self._turns: dict[str, int] | None = None
        self._reservation, self._now = reservation, now
        self._beside = None if reservation is None else reservation.without_reserved(cluster)
        self._kinds = list(queue.groups())
        self._crowding = len(queue) / max(1, cluster.gpus)
        self._refusals: dict[Demand, str] = {}
        self._advance, self._why_closed = advance, why_closed

    def reason(self, job: Job) -> str:
        refusal, closed = self._refusal(job), self._closed(job)
        limited = None if self._limits is None else self._limits.refuse(job.account, least_amounts(job, self._gpus))
        if limited is not None:
            return str(limited)
        reserved = self._reserved(job, bool(refusal or closed))
        return "; ".join(filter(None, (refusal, closed, reserved))) or (
            "waits behind other jobs" if self.ahead(job) else "about to start"
        )

    def _refusal(self, job: Job) -> str:
        """Why a job fits nowhere; empty: it does."""
        refusal = self._refusals.get(job.demand)
        if refusal is None:
            ranking = self.ranking(job)
            why = next(iter(ranking.reasons.values()), None) or ranking.verdict.reason
            refusal = self._refusals[job.demand] = "" if why is None else str(why)
        return refusal

    def _closed(self, job: Job) -> str:
        """Why a job does not fit on the GPUs that reservations leave to it; empty: it does."""
        closed = NONE if self._advance is None else self._advance.closed(job, self._now)
        return self._why_closed(job) if closed and self._refusal(restricted(job, closed)) else ""

    def _reserved(self, job: Job, refused: bool) -> str:
        """What is reserved for the job, or for whom it waits although it would fit; empty if neither."""
        reservation, now = self._reservation, self._now
        if reservation is None or self._beside is None:
            return ""
        if job.id == reservation.job.id:
            gpus = sorted(gpu for one in reservation.placements for gpu in one.slot.gpus)
            what = f"GPU{'s' * (len(gpus) > 1)} {' '.join(map(str, gpus))} {'are' if len(gpus) > 1 else 'is'} reserved"
            return f"{what if gpus else 'a slot is reserved'} for it, and it can start {when(reservation, now)}"
        if refused or self._turn(job) < reservation.position or reservation.allows(job, now):
            return ""
        fits = rank(self._ranker.policy, job, self._beside, ranker=self._ranker, crowding=self._crowding).fits
        return "" if fits else why_held_back(reservation, job, now)

    def ranking(self, job: Job) -> Ranking:
        """The ranking of all slots for a job, now."""
        return rank(self._ranker.policy, job, self._cluster, ranker=self._ranker, crowding=self._crowding)

    def ahead(self, job: Job) -> int:
        """The number of jobs before it in the queue."""
        if self.standing is not None:
            if self._turns is None:
                self._turns = {one.id: turn for turn, one in enumerate(self._queue.in_turn(self.standing.copy()))}
            return self._turns.get(job.id, 0)
        turn = self._turn(job)
        return sum(bisect_left(kind, turn, key=lambda item: item[0]) for kind in self._kinds)

    def _turn(self, job: Job) -> QueuePosition:
        position = position_of(self._ranker.policy, job, Seconds(job.submitted))
        known = self.standing is not None and account_of(job) in self.standing.shares
        return with_pressure(position, self.standing if known else None, account_of(job))
