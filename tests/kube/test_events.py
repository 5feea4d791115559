# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Events on pods: few, short, with a count for repetitions, and never in the way of other work."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Node
from cotenant.kube.scheduler.events import (
    CLAIMS_PROBLEM,
    MOST_QUEUED,
    NO_ROOM,
    PLACED,
    RESIZE_REFUSED,
    EventRecorder,
)
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.pods import pod

QUICK = Limits(connect_s=5, answer_s=1, tries=2, first_pause_s=0.01, longest_pause_s=0.05)


class Desk:
    """An event recorder at work, with a clock to turn."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self.server, self.now, self.lines = server, 0.0, list[str]()
        self.recorder = EventRecorder(client, "cotenant-scheduler", ErrorLog(self.lines.append), clock=lambda: self.now)

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.server.events.pods.values())

    async def until(self, so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not so():
                await asyncio.sleep(0.005)

    async def written(self, *messages: str) -> None:
        await self.until(lambda: sorted(event["message"] for event in self.events) == sorted(messages))


def play(story: Callable[[Desk], Awaitable[None]]) -> Desk:
    async def told() -> Desk:
        server = ApiServer()
        async with server.serving():
            client = Client(Access(host="127.0.0.1", port=server.port), QUICK)
            desk = Desk(server, client)
            task = asyncio.create_task(desk.recorder.run())
            await story(desk)
            task.cancel()
            await asyncio.wait([task])
            await client.close()
            return desk

    return asyncio.run(told())


def test_an_event_names_pod_reason_and_reporter() -> None:
    async def story(desk: Desk) -> None:
        desk.recorder.record(pod({}), NO_ROOM, "2 nodes: 8000 MiB needed", warning=True)
        await desk.written("2 nodes: 8000 MiB needed")

    (event,) = play(story).events
    assert event["involvedObject"]["uid"] == pod({}).metadata.uid
    assert (event["reason"], event["type"], event["count"]) == ("NoRoom", "Warning", 1)
    assert (event["metadata"]["namespace"], event["source"]["component"]) == ("team", "cotenant-scheduler")


def test_an_event_on_a_node_is_in_the_default_namespace() -> None:
    """Kubernetes accepts it nowhere else."""

    async def story(desk: Desk) -> None:
        there = Node(metadata=Metadata(name="n1", uid="node-uid"))
        desk.recorder.record(there, CLAIMS_PROBLEM, "first", warning=True)
        await desk.written("first")
        desk.now = 31.0
        desk.recorder.record(there, CLAIMS_PROBLEM, "again", warning=True)
        await desk.written("again")

    (event,) = play(story).events
    about = {"apiVersion": "v1", "kind": "Node", "namespace": "", "name": "n1", "uid": "node-uid"}
    assert (event["involvedObject"], event["metadata"]["namespace"], event["count"]) == (about, "default", 2)


def test_the_same_reason_is_counted_on_in_one_event_and_only_after_a_while() -> None:
    async def story(desk: Desk) -> None:
        for _ in range(10):
            desk.recorder.record(pod({}), NO_ROOM, "first")
        await desk.written("first")
        desk.now = 31.0
        desk.recorder.record(pod({}), NO_ROOM, "later")
        await desk.written("later")

    desk = play(story)
    assert [event["count"] for event in desk.events] == [11]
    assert [asked.method for asked in desk.server.asked] == ["POST", "PATCH"]


def test_another_text_for_the_same_reason_is_written_at_once() -> None:
    async def story(desk: Desk) -> None:
        for text in ("needs 9000 MiB", "needs 8000 MiB"):
            desk.recorder.record(pod({}), RESIZE_REFUSED, text)
            await desk.written(text)

    assert [event["count"] for event in play(story).events] == [2]


def test_an_event_that_the_server_forgot_is_made_anew() -> None:
    async def story(desk: Desk) -> None:
        desk.recorder.record(pod({}), NO_ROOM, "first")
        await desk.written("first")
        desk.server.events.pods.clear()
        desk.now = 31.0
        desk.recorder.record(pod({}), NO_ROOM, "later")
        await desk.written("later")

    play(story)


def test_words_are_made_when_they_are_written_and_none_write_nothing() -> None:
    async def story(desk: Desk) -> None:
        desk.recorder.record(pod({}), NO_ROOM, lambda: "")
        desk.recorder.record(pod({}), PLACED, lambda: "x" * 5000)
        await desk.until(lambda: len(desk.events) == 1)

    (event,) = play(story).events
    assert len(json.dumps(event["message"])) < 1024


def test_a_server_that_accepts_no_events_disturbs_nothing_else() -> None:
    async def story(desk: Desk) -> None:
        desk.server.events.refusals = [Refusal(403, "Forbidden"), Refusal(500)]
        for number in range(2):
            desk.now = 31.0 * number
            desk.recorder.record(pod({}), NO_ROOM, "lost")
        desk.now = 100.0
        desk.recorder.record(pod({}), NO_ROOM, "found")
        await desk.written("found")

    (line,) = play(story).lines
    assert "403 Forbidden" in line


def test_warnings_are_written_first() -> None:
    async def story(desk: Desk) -> None:
        for number in range(5):
            desk.recorder.record(pod({}), f"Fine{number}", "well")
        desk.recorder.record(pod({}), NO_ROOM, "wrong", warning=True)
        await desk.until(lambda: len(desk.events) == 6)

    reasons = [event["reason"] for event in play(story).events]
    assert reasons == [NO_ROOM, *(f"Fine{number}" for number in range(5))]


def test_words_that_are_made_later_wait_for_those_that_are_known() -> None:
    async def story(desk: Desk) -> None:
        for number in range(5):
            desk.recorder.record(pod({}), f"Queued{number}", lambda: "it waits")
        desk.recorder.record(pod({}), PLACED, "on n1")
        await desk.until(lambda: len(desk.events) == 6)

    assert play(story).events[0]["reason"] == PLACED


def test_a_flood_is_bounded() -> None:
    async def story(desk: Desk) -> None:
        desk.server.events.hang_everything = True
        for number in range(MOST_QUEUED + 50):
            desk.recorder.record(pod({}), f"Reason{number}", "much")

    (line,) = play(story).lines
    assert "dropped" in line
