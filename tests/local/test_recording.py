# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon samples its GPUs, tenants and queue into the history, and works without one."""

import asyncio
from pathlib import Path

from cotenant.history.quantities import GPU, TENANT, Entity
from cotenant.history.store import History
from cotenant.local.owners import own_account
from cotenant.local.recording import THE_QUEUE, record_history, samples_of
from cotenant.wire.job_requests import JobRequest
from tests.local.engines import engine_on


def test_gpus_tenants_and_the_queue_are_sampled(tmp_path: Path) -> None:
    async def run() -> None:
        with engine_on(tmp_path) as (engine, _), History.open(tmp_path / "history.db") as history:
            for _ in range(4):
                engine.submit(JobRequest(command=("train",), cwd="/", memory="600MiB", compute="50%", batch=32))
            engine.schedule()
            samples = {one.entity: one.values for one in samples_of(engine.queries, engine.parts.tenants)}
            assert samples[Entity(GPU, "GPU-0")] == {
                "memory_allocated_mib": 600,
                "memory_used_mib": None,
                "memory_mib": 1024,
                "compute_allocated": 0.5,
                "utilisation": None,
                "tenants": 1,
            }
            assert samples[Entity(TENANT, "j-000001", owner=own_account().owner.user)]["memory_limit_mib"] == 600
            assert samples[Entity(TENANT, "j-000001", owner=own_account().owner.user)]["batch"] == 32
            assert samples[THE_QUEUE] == {"waiting": 2, "running": 2}
            recording = asyncio.create_task(record_history(history, engine.queries, engine.parts.tenants))
            async with asyncio.timeout(60):
                while not history.rows:
                    await asyncio.sleep(0.01)
            recording.cancel()
            assert {seen.entity for seen in history.entities()} == samples.keys()

    asyncio.run(run())


def test_a_history_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        with engine_on(tmp_path) as (engine, _):
            history = History.open(tmp_path / "history.db")
            history._database.execute("PRAGMA query_only = ON")  # as a disk that has become read-only
            recording = asyncio.create_task(record_history(history, engine.queries, engine.parts.tenants))
            await asyncio.sleep(0.2)
            assert not recording.done()
            recording.cancel()
            history.close()

    asyncio.run(run())
