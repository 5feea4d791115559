# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Things that run beside a test in its event loop, over an API server that fails on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from cotenant.core.model import Machine, Slot
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.objects import decode_pod
from cotenant.kube.api.reflector import Pace
from cotenant.kube.codec.assignment import RECORD, encode_record, record_for
from cotenant.kube.codec.request import request_of
from tests.kube.api_server import ApiServer
from tests.kube.pods import pod_object

QUICK = Limits(connect_s=5, answer_s=5, tries=2, first_pause_s=0.01, longest_pause_s=0.05)
PACE = Pace(silence_s=5, watches_s=0.01, lists_s=0.01)
SOON_S = 60.0

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test that needs an event loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def access_to(server: ApiServer) -> Access:
    return Access(host="127.0.0.1", port=server.port)


@asynccontextmanager
async def client_of(server: ApiServer) -> AsyncIterator[Client]:
    async with server.serving():
        client = Client(access_to(server), QUICK)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Beside the body; a failure of it is the test's."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        if isinstance(done[0], BaseException) and not isinstance(done[0], asyncio.CancelledError):
            raise done[0]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.01)


def add_pod(server: ApiServer, name: str, uid: str, machine: Machine, *, phase: str = "Running", gpu: int = 0) -> None:
    """A pod of 1,000 MiB that the scheduler put on this card of the machine."""
    made = pod_object([{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}], [], {}, machine.name, {})
    made["metadata"] |= {"name": name, "uid": uid}
    wanting = decode_pod(json.dumps(made).encode())
    record = encode_record(record_for(wanting, request_of(wanting), Slot(machine.name, (gpu,)), machine))
    made["metadata"]["annotations"] = {RECORD: record}
    made["status"] = {"phase": phase}
    server.merge(name, made, "team")


def change_pod(server: ApiServer, name: str, **parts: Any) -> None:
    server.merge(name, parts, "team")
