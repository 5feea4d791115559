# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job of this machine fit, and what-if, over the daemon's interface."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cotenant.local import api
from cotenant.local.engine import Engine
from cotenant.wire.explanation import WhatIf, WhatIfRequest
from cotenant.wire.job_requests import JobRequest
from tests.local.asgi_client import request

Submit = Callable[..., str]


@pytest.fixture
def submit(runner: asyncio.Runner, engine: Engine) -> Submit:
    async def submitted(memory: str, **rest: Any) -> str:
        found = engine.submit(JobRequest(command=("sleep", "9"), cwd="/", memory=memory, **rest)).id
        engine.schedule()
        return found

    return lambda memory, **rest: runner.run(submitted(memory, **rest))


def asked(runner: asyncio.Runner, engine: Engine, **wanted: Any) -> WhatIf:
    body = msgspec.json.encode(WhatIfRequest(**wanted))
    answer = runner.run(request(api.application(engine), "POST", "/v1/whatif", body))
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=WhatIf)


def test_why_says_what_would_make_a_waiting_job_fit(engine: Engine, submit: Submit) -> None:
    first, second = submit("700MiB"), submit("600MiB")
    waiting = submit("500MiB")
    why = engine.why(waiting)
    assert [one["text"] for one in why["suggestions"]] == [
        "with 424 MiB of GPU memory instead of 500 MiB",
        f"without {second}",
    ]
    assert why["suggestions"][0]["slots"] == ({"node": "local", "gpus": (1,)},)
    assert engine.why(first)["suggestions"] == []


def test_what_if_says_where_a_job_would_go_and_changes_nothing(
    runner: asyncio.Runner, engine: Engine, submit: Submit
) -> None:
    first = submit("700MiB", workload="bert")
    before = engine.queries.jobs((), 100, None), engine.queries.gpus(), engine.queries.status()
    answer = asked(runner, engine, memory="300MiB", workload="lstm")
    assert [one.gpus for one in answer.slots] == [(0,)]
    assert [(one.job, one.workload) for one in answer.tenants] == [("what-if", "lstm"), (first, "bert")]
    own, neighbour = answer.tenants
    assert own.before is None
    assert neighbour.before is not None
    assert neighbour.before.mean == 1.0
    assert neighbour.after.low < neighbour.after.mean < 1.0
    assert (engine.queries.jobs((), 100, None), engine.queries.gpus(), engine.queries.status()) == before
    assert submit("300MiB", workload="lstm") is not None
    assert engine.queries.gpus()[0].tenants[0] == first
    assert len(engine.queries.gpus()[0].tenants) == 2


def test_what_if_of_a_job_that_would_wait_says_why_and_what_to_change(
    runner: asyncio.Runner, engine: Engine, submit: Submit
) -> None:
    submit("700MiB")
    submit("600MiB")
    answer = asked(runner, engine, memory="500MiB")
    assert answer.slots == ()
    assert answer.waits == "needs 500 MiB on one GPU; the freest has 424 MiB free"
    assert answer.suggestions[0].text == "with 424 MiB of GPU memory instead of 500 MiB"


def test_a_job_without_a_compute_share_is_told_what_it_may_expect(
    runner: asyncio.Runner, engine: Engine, submit: Submit
) -> None:
    for _ in range(2):
        submit("100MiB", compute="100%")
    answer = asked(runner, engine, memory="100MiB")
    gpu = answer.slots[0].gpus[0]
    said = (
        f"it requests no compute share; on GPU {gpu} 1 other job has 100 % of the compute: "
        "it gets only what they leave idle"
    )
    assert said in answer.notes
    placed = submit("100MiB")
    assert said in engine.why(placed)["notes"]


def test_a_refused_job_is_told_what_would_run(runner: asyncio.Runner, engine: Engine) -> None:
    body = msgspec.json.encode(JobRequest(command=("true",), cwd="/", memory="2GiB"))
    for path, sent in (("/v1/jobs", body), ("/v1/whatif", b'{"memory": "2GiB"}')):
        answer = runner.run(request(api.application(engine), "POST", path, sent))
        assert answer.status == 422
        assert answer.json()["suggestions"] == ["with 1024 MiB of GPU memory instead of 2048 MiB"]


@pytest.mark.parametrize("body", [b'{"memory": "lots"}', b'{"gpu": 1}', b"[]", b'{"gpus": -1}', b'{"compute": "900%"}'])
def test_what_if_of_nonsense_is_refused(runner: asyncio.Runner, engine: Engine, body: bytes) -> None:
    answer = runner.run(request(api.application(engine), "POST", "/v1/whatif", body))
    assert answer.status == 400
    assert answer.json()["error"]
