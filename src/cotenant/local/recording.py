# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Samples the GPUs and tenants of this machine for the history, about every 10 s."""

import asyncio
import time
from collections.abc import Iterator

from cotenant.history.quantities import GPU, QUEUE, TENANT, Entity, Sample
from cotenant.history.store import History, HistoryError
from cotenant.local.events import log_error
from cotenant.local.queries import Queries
from cotenant.local.tenants import Tenants
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView

RECORD_EVERY_S = 10.0
THE_QUEUE = Entity(QUEUE, "jobs")


async def record_history(history: History, queries: Queries, tenants: Tenants) -> None:
    """Records until it is cancelled. A full disk is logged once, and recording goes on when there is space again."""
    works = True
    while True:
        now, samples = time.time(), list(samples_of(queries, tenants))
        try:
            await asyncio.to_thread(history.record, now, samples)
            works = True
        except HistoryError as error:
            if works:
                log_error(f"{error}; jobs are not affected")
            works = False
        await asyncio.sleep(RECORD_EVERY_S)


def samples_of(queries: Queries, tenants: Tenants) -> Iterator[Sample]:
    """What is known now of every GPU, every tenant and the queue."""
    for gpu in queries.gpus():
        yield _gpu(gpu)
    for job in queries.active():
        placed = tenants.placed.get(job.id)
        limit = None if placed is None or placed.memory is None else placed.memory * len(placed.gpus)
        yield _tenant(job, limit)
    yield Sample(THE_QUEUE, {"waiting": queries.waiting, "running": len(tenants.placed)})


def _gpu(gpu: GpuView) -> Sample:
    values = {
        "memory_allocated_mib": gpu.memory_mib - gpu.free_memory_mib,
        "memory_used_mib": gpu.used_mib,
        "memory_mib": gpu.memory_mib,
        "compute_allocated": (gpu.compute - gpu.free_compute) / max(1, gpu.compute),
        "utilisation": gpu.utilisation,
        "tenants": len(gpu.tenants),
    }
    return Sample(Entity(GPU, gpu.uuid), values)


def _tenant(job: JobView, limit: float | None) -> Sample:
    values = {
        "memory_used_mib": job.memory_used_mib,
        "memory_limit_mib": limit,
        "device_share": job.utilisation,
        "speed": job.speed,
        "batch": job.batch,
        "predicted_speed": job.predicted,
    }
    return Sample(Entity(TENANT, job.id, owner=job.user), values)
