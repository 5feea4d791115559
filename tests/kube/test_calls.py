# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Events and changes of pods wait for the calls of kube-scheduler, but never long and never always."""

import asyncio
from collections.abc import Awaitable, Callable

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.scheduler.calls import LONGEST_S, SHARE, Calls
from cotenant.kube.scheduler.events import PLACED, EventRecorder
from tests.kube.api_server import ApiServer
from tests.kube.pods import pod


class Clock:
    """A clock to turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Holds work back until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.open.wait()


async def is_waiting(work: Awaitable[None]) -> bool:
    """Whether the work has not ended after a turn of the event loop; it is ended then."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waits = not task.done()
    task.cancel()
    await asyncio.wait([task])
    return waits


def test_work_waits_until_all_calls_are_answered() -> None:
    async def story() -> None:
        calls = Calls()
        waiter = calls.waiter()
        assert not await is_waiting(waiter.wait())
        with calls.answering():
            with calls.answering():
                pass
            assert await is_waiting(waiter.wait())
            task = asyncio.ensure_future(waiter.wait())
            await asyncio.sleep(0)
        await task
        assert not await is_waiting(waiter.wait())

    asyncio.run(story())


def test_a_call_that_failed_holds_nothing_back() -> None:
    async def story() -> None:
        calls = Calls()
        try:
            with calls.answering():
                raise ValueError
        except ValueError:
            pass
        assert not await is_waiting(calls.waiter().wait())

    asyncio.run(story())


def test_work_waits_a_fifth_of_the_time_at_most() -> None:
    async def story() -> None:
        clock = Clock()
        calls = Calls(clock)
        waiter, other = calls.waiter(), calls.waiter()
        with calls.answering():
            task = asyncio.ensure_future(waiter.wait())
            await asyncio.sleep(0)
            clock.now = LONGEST_S
            await task  # without an answer
            assert not await is_waiting(waiter.wait())
            assert await is_waiting(other.wait())
            clock.now += 0.99 * SHARE * LONGEST_S
            assert not await is_waiting(waiter.wait())
            clock.now += 0.02 * SHARE * LONGEST_S
            assert await is_waiting(waiter.wait())

    asyncio.run(story())


def played(story: Callable[[ApiServer, Client], Awaitable[None]]) -> None:
    async def told() -> None:
        server = ApiServer()
        async with asyncio.timeout(60), server.serving():
            client = Client(Access(host="127.0.0.1", port=server.port))
            try:
                await story(server, client)
            finally:
                await client.close()

    asyncio.run(told())


def test_a_change_of_a_pod_is_handled_after_the_wait() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        gate, handled = Gate(), asyncio.Event()
        reflector = Reflector(client, Kind("pods", Pod), lambda _old, _new: handled.set(), wait=gate.wait)
        task = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        server.put("a")
        await gate.reached.wait()
        assert not handled.is_set()
        gate.open.set()
        await handled.wait()
        task.cancel()
        await asyncio.wait([task])

    played(story)


def test_an_event_is_written_after_the_wait() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        gate = Gate()
        recorder = EventRecorder(client, "cotenant-scheduler", ErrorLog(), wait=gate.wait)
        task = asyncio.create_task(recorder.run())
        recorder.record(pod({}), PLACED, "GPU 0 of n1")
        await gate.reached.wait()
        assert not server.asked
        gate.open.set()
        while not server.events.pods:
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.wait([task])

    played(story)
