# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What people and programs are shown of jobs and GPUs, made from values alone: nothing here changes anything."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Gpus, Job, Machine, Placement, Reason
from cotenant.core.placement.checks import eligible_gpus
from cotenant.core.placement.deciding import Queue, Turn, rank, turn_of
from cotenant.core.placement.ranking import Policy, Ranker, Ranking
from cotenant.core.units import MilliGpu, Seconds
from cotenant.local.journal import JournalJob
from cotenant.node.devices.backend import GpuUsage, Running
from cotenant.wire.local import GpuView, JobView


class Used(NamedTuple):
    """What a job uses of its GPUs; None where it cannot be known."""

    memory_mib: int | None = None
    utilisation: float | None = None
    """percent"""
    bandwidth: float | None = None
    """of its only GPU's memory, while it is alone there; percent"""
    pcie_mib_s: float | None = None
    """to and from its only GPU, while it is alone there"""


UNKNOWN = Used()


class _Shown(msgspec.Struct, frozen=True):
    """The part of a request that a list shows; ten thousand are read at once, so the rest is not even decoded."""

    command: list[str]
    name: str | None = None
    batch: int | None = None


_shown = msgspec.json.Decoder(_Shown)


def job_view(
    row: JournalJob,
    *,
    reason: str | None = None,
    used: Used = UNKNOWN,
    batch: int | None,
    speed: float | None,
    predicted: float | None = None,
    slo_violations: int = 0,
) -> JobView:
    """A job as the journal has it, with what is known of it now."""
    request = _shown.decode(row.request)
    return JobView(
        id=row.id,
        name=request.name or request.command[0].rpartition("/")[2],
        state=row.state,
        submitted=row.submitted,
        started=row.started,
        ended=row.ended,
        gpus=gpus_of(row),
        outcome=row.outcome,
        code=row.code,
        signal=row.signal,
        error=row.error,
        attempts=row.attempts,
        reason=reason or row.reason,
        batch=batch or request.batch,
        speed=speed,
        predicted=predicted,
        slo_violations=slo_violations,
        memory_used_mib=used.memory_mib,
        utilisation=used.utilisation,
    )


class _Seat(msgspec.Struct, frozen=True):
    """A slot of a job that could have had other shares of compute."""

    gpus: list[int]
    compute: int


def slot_text(placement: Placement) -> str:
    """How the journal keeps where a job is, and the share it was given of those that would do."""
    gpus, demand = list(placement.slot.gpus), placement.job.demand
    return json.dumps(gpus if demand.least_speed is None else {"gpus": gpus, "compute": demand.compute})


def _seat(row: JournalJob) -> list[int] | _Seat:
    return msgspec.json.decode(row.slot, type=list[int] | _Seat) if row.slot else []


def gpus_of(row: JournalJob) -> Gpus:
    seat = _seat(row)
    return tuple(seat if isinstance(seat, list) else seat.gpus)


def chosen(job: Job, row: JournalJob) -> Job:
    """As it was placed: with the share that it was given."""
    seat = _seat(row)
    if isinstance(seat, list):
        return job
    ways = (one for one in (job.demand, *job.alternatives) if one.compute == seat.compute)
    demand = next(ways, replace(job.demand, compute=MilliGpu(seat.compute)))
    return replace(job, demand=demand, alternatives=())


def gpu_views(machine: Machine, node: Node, usage: Mapping[str, GpuUsage], faults: Mapping[str, str]) -> list[GpuView]:
    """Usage and faults by UUID."""
    return [
        GpuView(
            index=i,
            uuid=gpu.uuid,
            type=gpu.type,
            memory_mib=gpu.memory_capacity,
            free_memory_mib=node.memory[i],
            free_compute=node.compute[i],
            used_mib=usage[gpu.uuid].used_mib if gpu.uuid in usage else None,
            utilisation=usage[gpu.uuid].utilisation if gpu.uuid in usage else None,
            healthy=gpu.healthy,
            fault=faults.get(gpu.uuid),
            cordoned=gpu.cordoned,
            tenants=tuple(tenant.job for tenant in node.tenants if i in tenant.gpus),
        )
        for i, gpu in enumerate(machine.gpus)
    ]


def used_by_jobs(jobs: Sequence[Running], usage: Sequence[GpuUsage]) -> dict[str, Used]:
    """What each job uses, added up over its processes and GPUs."""
    return {job.job: _used_by(job, [usage[gpu] for gpu in job.gpus if gpu < len(usage)]) for job in jobs}


def _used_by(job: Running, usage: Sequence[GpuUsage]) -> Used:
    if not usage or any(gpu.processes is None for gpu in usage):
        return UNKNOWN
    own = [process for gpu in usage for process in gpu.processes or () if process.job == job.job]
    memory = [process.memory_mib for process in own if process.memory_mib is not None]
    busy = [process.utilisation for process in own if process.utilisation is not None]
    alone = len(usage) == 1 and len(own) == len(usage[0].processes or ())
    return Used(
        max(0, sum(memory) - job.baseline) if len(memory) == len(own) else None,
        min(100.0, sum(busy) / len(usage)) if own and len(busy) == len(own) else None,
        usage[0].bandwidth if alone else None,
        usage[0].pcie_mib_s if alone else None,
    )


# Why


def placed_because(policy: Policy, ranker: Ranker, placement: Placement, cluster: Cluster) -> str:
    """Why a job goes where it goes, in the numbers that decided; the cluster is the one before it is placed."""
    demand, slot = placement.job.demand, placement.slot
    node = cluster.node(slot.node)
    fitting = eligible_gpus(demand, node, policy.checks)
    if not slot.gpus or isinstance(fitting, Reason):
        return f"{policy.name}: it needs no GPU"
    best = next(iter(ranker.top(demand, cluster, [slot.node], 1)), None)
    chosen = "drawn by lot"
    if best is not None and not policy.random:
        chosen = f"best score {' / '.join(f'{part:.4g}' for part in best.score)}"
    free = ", ".join(f"GPU {i} had {node.memory[i]} MiB and {node.compute[i] / 10:g} % free" for i in slot.gpus)
    return f"{policy.name}: {len(fitting)} of {len(node.machine.gpus)} GPUs fit, {chosen}; {free}"


def explained(view: JobView, job: Job, placed: Placement | None, waiting: "Waiting") -> dict[str, Any]:
    """Why a job waits or is where it is, with every slot and every reason."""
    ranking = waiting.ranking(job)
    better_wait = {fit.slot.node: ranking.verdict.reason for fit in ranking.fits if ranking.verdict.reason}
    return {
        "job": view.id,
        "state": view.state,
        "placed_on": None if placed is None else list(placed.slot.gpus),
        "reason": view.reason,
        "fits": [{"gpus": list(fit.slot.gpus), "score": list(fit.score)} for fit in ranking.fits],
        "reasons": {node: str(why) for node, why in (better_wait | dict(ranking.reasons)).items()},
        "ahead": waiting.ahead(job) if view.state == "queued" else 0,
    }


class Waiting:
    """Why jobs wait, for many of them at once: those that ask the same are answered once."""

    def __init__(self, ranker: Ranker, cluster: Cluster, queue: Queue) -> None:
        self._ranker, self._cluster = ranker, cluster
        self._kinds = [kind for *_, kind in queue.heads()]
        self._crowding = len(queue) / max(1, cluster.gpus)
        self._refusals: dict[Demand, str] = {}

    def reason(self, job: Job) -> str:
        refusal = self._refusals.get(job.demand)
        if refusal is None:
            ranking = self.ranking(job)
            why = next(iter(ranking.reasons.values()), None) or ranking.verdict.reason
            refusal = self._refusals[job.demand] = "" if why is None else str(why)
        return refusal or ("its turn has not come" if self.ahead(job) else "about to start")

    def ranking(self, job: Job) -> Ranking:
        """What the policy makes of a job now."""
        return rank(self._ranker.policy, job, self._cluster, ranker=self._ranker, crowding=self._crowding)

    def ahead(self, job: Job) -> int:
        """How many jobs wait before it."""
        turn: Turn = (*turn_of(self._ranker.policy, job, Seconds(job.submitted)), job.id)
        return sum(bisect_left(kind, turn, key=lambda item: item[0]) for kind in self._kinds)
