# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler acts only on what it knows, and recovers from whatever a watch meets without a restart."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from cotenant.kube.codec.inventory import ORPHANS, orphans_for
from cotenant.kube.settings import KubeSettings
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.http import ask
from tests.kube.office import KNOWS, PACE, Office, a_scheduler, given_by, play, until


def test_nothing_is_answered_until_nodes_pods_and_quotas_are_known() -> None:
    async def told() -> None:
        server = ApiServer()
        server.quotas.refusals = [Refusal(503, "Unavailable", only="list")] * 10_000
        async with server.serving(), a_scheduler(server, KubeSettings(), synced=False) as office:
            office.add_pod("a")
            assert (await ask(office.kube_port, "GET", "/healthz")).status == 200
            assert (await ask(office.api_port, "GET", "/readyz")).status == 503
            for verb in ("filter", "prioritize", "bind", "preempt"):
                assert (await office.call(verb, office.args("a", "n1"))).status == 503
            assert (await ask(office.api_port, "GET", "/why/team/a", headers=KNOWS)).status == 503
            await until(lambda: bool(office.lines))
            office.server.quotas.refusals.clear()
            await until(lambda: office.scheduler.watches.unready_reason() is None)
            assert (await ask(office.api_port, "GET", "/readyz")).status == 200
            assert (await office.call("filter", office.args("a", "n1"))).status == 200
            (line,) = office.lines
            assert "503" in line

    asyncio.run(told())


def test_a_long_silence_of_the_server_stops_answers_until_it_ends() -> None:
    async def story(office: Office) -> None:
        office.scheduler.watches.silence_s = 0.3
        office.server.nodes.hang_watches()
        await until(lambda: office.scheduler.watches.unready_reason() is not None)
        answer = await ask(office.api_port, "GET", "/readyz")
        assert (answer.status, b"the API server has sent nothing about" in answer.body) == (503, True)
        office.scheduler.watches.silence_s = 180.0
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
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("a", "n1") == "n1"
        TROUBLES[trouble](office.server)
        TROUBLES[trouble](office.server.nodes)
        office.end("a")
        office.add_pod("b", 12_000)
        await office.knows("b", "a")
        assert await office.place("b", "n1") == "n1"

    play(story)


def test_pods_that_wait_for_a_quota_are_retried_when_it_is_raised() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.server.quotas.merge("q", quota(4000), "team")
        office.add_pod("a")
        await until(lambda: office.scheduler.state.vendors)
        await until(lambda: office.scheduler.quotas.limits("team"))
        assert "quota" in await office.place("a", "n1")
        assert "4000" in (await office.why("a"))["reason"]
        office.server.quotas.merge("q", quota(8000), "team")
        await until(lambda: office.annotation("a", "tried-again"))
        assert await office.place("a", "n1") == "n1"

    play(story)


def quota(memory: int) -> dict[str, object]:
    return {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"requests.nvidia.com/gpumem": memory}}}


# A watch that lies

CARD = 16_000
SOON = replace(PACE, again_s=0.5)


def tell(office: Office, event: str, name: str, *lost: str, **changed: object) -> None:
    """An event of a pod as it is, or nearly, by a version that no pod has yet."""
    office.server.forget()
    pod = office.server.pods.get(("team", name)) or office.add_pod(name)
    metadata = {**pod["metadata"], "resourceVersion": str(office.server.first_kept), **changed}
    whole = {key: value for key, value in pod.items() if key not in lost}
    whole["metadata"] = {key: value for key, value in metadata.items() if key not in lost}
    office.server.say_event(event, whole)


LIES: dict[str, Callable[[Office, str], None]] = {
    "deleted, and is there": lambda office, name: tell(office, "DELETED", name),
    "deleted, and half of it": lambda office, name: tell(office, "DELETED", name, "spec", "status", "annotations"),
    "another of its name": lambda office, name: tell(office, "MODIFIED", name, uid="other"),
    "of no name": lambda office, name: tell(office, "MODIFIED", name, "name"),
    "without an identity": lambda office, name: tell(office, "MODIFIED", name, "uid"),
    "without its record": lambda office, name: tell(office, "MODIFIED", name, "annotations"),
    "without a place": lambda office, name: tell(office, "MODIFIED", name, "spec"),
    "from the past": lambda office, name: tell(office, "MODIFIED", name, "spec", resourceVersion="3"),
    "of another kind": lambda office, name: tell(office, "ADDED", name, "namespace", "spec", "kind"),
    "everything again": lambda office, name: office.server.repeat_history(100),
    "the last ones again": lambda office, name: office.server.repeat_history(2),
    "a bookmark ahead": lambda office, name: office.server.say_event(
        "BOOKMARK", {"metadata": {"resourceVersion": str(10**6)}}
    ),
    "no nodes": lambda office, name: office.server.nodes.say_event("DELETED", office.server.nodes.pods["", "n1"]),
    "nothing any more": lambda office, name: office.server.hang_watches(),
}


def agent_has_seen_everything(office: Office) -> None:
    """What is gone does not run on, as far as the node's agent knows."""
    said = orphans_for(str(10**9), [])
    office.server.nodes.merge("n1", {"metadata": {"annotations": {ORPHANS: said}}})


@pytest.mark.parametrize("lie", LIES)
def test_no_memory_is_given_twice_because_a_watch_lies_and_the_state_recovers(lie: str) -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        agent_has_seen_everything(office)
        office.add_pod("a", 10_000)
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("a", "n1") == "n1"
        await office.knows("a")
        LIES[lie](office, "a")
        office.add_pod("b", 10_000)
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not (await office.filter("b", "n1"))["NodeNames"]
            assert await office.bind("b", "n1")
        await office.knows("a", "b")
        office.end("a")
        await office.knows("a")
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("b", "n1") == "n1"

    play(story, pace=SOON)


def test_a_deletion_that_no_watch_shows_frees_capacity_in_time() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a", 10_000)
        office.add_pod("b", 10_000)
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("a", "n1") == "n1"
        await office.knows("a")
        office.server.merge("a", {"status": {"phase": "Failed"}}, "team")
        office.server.remove("a", "team", unseen=True)
        await until(lambda: ("team", "a") not in office.scheduler.watches.pods.objects)
        assert await office.place("b", "n1") == "n1"

    play(story, pace=SOON)


def test_a_pod_that_was_reported_deleted_and_exists_is_logged() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a", 10_000)
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("a", "n1") == "n1"
        await office.knows("a")
        tell(office, "DELETED", "a")
        await until(lambda: any("team/a was reported as deleted but exists" in line for line in office.lines))
        await office.knows("a")

    play(story)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_watch_pretends_no_memory_is_given_twice(seed: int) -> None:
    chance = Random(seed)

    async def story(office: Office) -> None:
        office.add_node("n1")
        agent_has_seen_everything(office)
        await until(lambda: office.scheduler.state.vendors)
        for number in range(25):
            office.add_pod(f"p{number}", chance.choice((3000, 6000, 9000)))
            names = [name for (_, name), pod in office.server.pods.items() if pod["spec"].get("nodeName")]
            if names and chance.random() < 0.7:
                LIES[chance.choice([*LIES])](office, chance.choice(names))
            if names and chance.random() < 0.3:
                office.end(chance.choice(names))
            await asyncio.sleep(chance.choice((0, 0.01, 0.03)))
            for name in (f"p{number}", f"p{chance.randrange(number + 1)}"):
                await office.bind(name, "n1")
            assert all(memory <= CARD for memory in given_by(office.server).values()), given_by(office.server)
        await office.knows(*(name for _, name in office.server.pods))

    play(story, pace=SOON)
