# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler acts only on what it knows, and recovers from whatever a watch meets without a restart."""

import asyncio
from collections.abc import Callable

import pytest

from cotenant.kube.settings import KubeSettings
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.http import ask
from tests.kube.office import KNOWS, Office, an_office, play, until


def test_nothing_is_answered_until_nodes_pods_and_quotas_are_known() -> None:
    async def told() -> None:
        async with an_office(KubeSettings(), synced=False) as office:
            office.server.quotas.refusals = [Refusal(503, "Unavailable", only="list") for _ in range(3)]
            office.add_pod("a")
            assert (await ask(office.kube_port, "GET", "/healthz")).status == 200
            assert (await ask(office.api_port, "GET", "/readyz")).status == 503
            for verb in ("filter", "prioritize", "bind", "preempt"):
                assert (await office.call(verb, office.args("a", "n1"))).status == 503
            assert (await ask(office.api_port, "GET", "/why/team/a", headers=KNOWS)).status == 503
            await until(lambda: office.scheduler.watching.doubt() is None)
            assert (await ask(office.api_port, "GET", "/readyz")).status == 200
            assert (await office.call("filter", office.args("a", "n1"))).status == 200
            (line,) = office.lines
            assert "503" in line

    asyncio.run(told())


def test_a_long_silence_closes_the_doors_until_something_is_heard() -> None:
    async def story(office: Office) -> None:
        office.scheduler.watching.silence_s = 0.3
        office.server.nodes.hang_watches()
        await until(lambda: office.scheduler.watching.doubt() is not None)
        answer = await ask(office.api_port, "GET", "/readyz")
        assert (answer.status, b"nothing was heard of" in answer.body) == (503, True)
        office.scheduler.watching.silence_s = 180.0
        assert (await ask(office.api_port, "GET", "/readyz")).status == 200

    play(story)


def forget(server: ApiServer) -> None:
    server.forget()
    server.end_watches()


TROUBLES: dict[str, Callable[[ApiServer], None]] = {
    "reset": ApiServer.reset_watches,
    "end": ApiServer.end_watches,
    "gone": ApiServer.say_gone,
    "gone by status": forget,
    "nonsense": lambda server: server.say(b'{"type": "MODIFIED", "object": [[[\n'),
    "connections dropped": ApiServer.drop_connections,
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_after_any_trouble_of_a_watch_pods_are_placed_as_before(trouble: str) -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a")
        await until(lambda: office.scheduler.books.vendors)
        assert await office.place("a", "n1") == "n1"
        TROUBLES[trouble](office.server)
        TROUBLES[trouble](office.server.nodes)
        office.end("a")
        office.add_pod("b", 12_000)
        await office.knows("b", "a")
        assert await office.place("b", "n1") == "n1"

    play(story)


def test_a_quota_that_is_raised_wakes_those_who_wait_for_it() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.server.quotas.merge("q", quota(4000), "team")
        office.add_pod("a")
        await until(lambda: office.scheduler.books.vendors)
        await until(lambda: office.scheduler.quotas.limits("team"))
        assert "quota" in await office.place("a", "n1")
        assert "4000" in (await office.why("a"))["reason"]
        office.server.quotas.merge("q", quota(8000), "team")
        await until(lambda: office.annotation("a", "tried-again"))
        assert await office.place("a", "n1") == "n1"

    play(story)


def quota(memory: int) -> dict[str, object]:
    return {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"requests.nvidia.com/gpumem": memory}}}
