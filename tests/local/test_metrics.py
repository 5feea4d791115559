# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's page of metrics: its queue and decisions, and every job with its own numbers."""

import asyncio
import time

import pytest

from cotenant.core.units import MIB_BYTES
from cotenant.local import api
from cotenant.local.engine import Engine
from cotenant.local.identity import Callers
from cotenant.local.tokens import TokenAccess
from cotenant.node.agent import Reported
from cotenant.wire.agent import Steps
from cotenant.wire.job_requests import JobRequest
from tests.local.asgi_client import request
from tests.metrics.nodes import series, values

MIB = MIB_BYTES


def submit(engine: Engine, memory: str, **more: object) -> str:
    return engine.submit(JobRequest(command=("sleep", "9"), cwd="/", memory=memory, **more)).id  # type: ignore[arg-type]


async def scraped(engine: Engine) -> bytes:
    engine.metrics.page._made = float("-inf")
    return (await request(api.application(engine), "GET", "/metrics")).body


def short(found: dict[str, float]) -> dict[str, float]:
    """By job: the node is this machine, and the GPU its first."""
    return {next(word for word in key.split() if word.startswith("j-")): value for key, value in found.items()}


def test_jobs_have_series_from_their_placement_on(runner: asyncio.Runner, engine: Engine) -> None:
    first, second = submit(engine, "500MiB", compute="30%"), submit(engine, "800MiB")
    text = runner.run(scraped(engine))
    assert values(text, "cotenant_scheduler_queue_length") == {"waiting": 2}
    assert values(text, "cotenant_scheduler_decisions_total") == {"placed  pass": 0}
    runner.run(_pass(engine))
    engine.metrics.steps.handle(
        Reported(job=first, at=1.0, steps=Steps(n=3, wall_s=1, busy_s=0.25, samples=96, batch=32))
    )
    text = runner.run(scraped(engine))
    assert short(values(text, "cotenant_tenant_memory_limit_bytes")) == {first: 500 * MIB, second: 800 * MIB}
    assert short(values(text, "cotenant_tenant_compute_asked_ratio")) == {first: 0.3, second: 1.0}
    assert short(values(text, "cotenant_tenant_device_seconds_total")) == {first: 0.25, second: 0}
    assert short(values(text, "cotenant_tenant_samples_total")) == {first: 96, second: 0}
    assert values(text, "cotenant_scheduler_decisions_total")["placed  pass"] == 2
    assert values(text, "cotenant_scheduler_wait_seconds_count") == {"": 2}
    assert sum(values(text, "cotenant_gpu_memory_allocated_bytes").values()) == 1300 * MIB
    assert sum(values(text, "cotenant_gpu_tenants").values()) == 2


def test_jobs_that_do_not_fit_are_counted_by_what_refuses_them(runner: asyncio.Runner, engine: Engine) -> None:
    capacity = max(gpu.memory_mib for gpu in engine.queries.gpus())
    for _ in range(2 * len(engine.queries.gpus())):
        submit(engine, f"{capacity - 10}MiB")
    runner.run(_pass(engine))
    text = runner.run(scraped(engine))
    assert values(text, "cotenant_scheduler_decisions_total")["refused memory pass"] >= 1
    assert values(text, "cotenant_scheduler_oldest_wait_seconds")[""] >= 0


def test_a_clock_off_by_an_hour_makes_no_negative_waits(
    runner: asyncio.Runner, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(engine, "1000MiB")

    now = time.time()
    monkeypatch.setattr("cotenant.local.metrics.time.time", lambda: now - 3600)
    assert values(runner.run(scraped(engine)), "cotenant_scheduler_oldest_wait_seconds") == {"": 0}
    runner.run(_pass(engine))
    assert values(runner.run(scraped(engine)), "cotenant_scheduler_wait_seconds_sum") == {"": 0}


def test_the_page_needs_the_token_that_the_interface_needs(runner: asyncio.Runner, engine: Engine) -> None:
    guarded = api.application(engine, TokenAccess(engine.tokens, Callers(), "a-token-of-some-length").identify)
    assert runner.run(request(guarded, "GET", "/metrics")).status == 401
    allowed = runner.run(
        request(guarded, "GET", "/metrics", headers={"authorization": "Bearer a-token-of-some-length"})
    )
    assert allowed.status == 200
    assert series(allowed.body)


async def _pass(engine: Engine) -> None:
    engine.schedule()
