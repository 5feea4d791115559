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
from tests.kube.control_plane import KNOWS, PACE, ControlPlane, a_scheduler, given_by, play, until
from tests.kube.http import ask


def test_nothing_is_answered_until_nodes_pods_and_quotas_are_known() -> None:
    async def told() -> None:
        server = ApiServer()
        server.quotas.refusals = [Refusal(503, "Unavailable", only="list")] * 10_000
        async with server.serving(), a_scheduler(server, KubeSettings(), synced=False) as plane:
            plane.add_pod("a")
            assert (await ask(plane.kube_port, "GET", "/healthz")).status == 200
            assert (await ask(plane.api_port, "GET", "/readyz")).status == 503
            for verb in ("filter", "prioritize", "bind", "preempt"):
                assert (await plane.call(verb, plane.args("a", "n1"))).status == 503
            assert (await ask(plane.api_port, "GET", "/why/team/a", headers=KNOWS)).status == 503
            await until(lambda: bool(plane.lines))
            plane.server.quotas.refusals.clear()
            await until(lambda: plane.scheduler.watches.unready_reason() is None)
            assert (await ask(plane.api_port, "GET", "/readyz")).status == 200
            assert (await plane.call("filter", plane.args("a", "n1"))).status == 200
            (line,) = plane.lines
            assert "503" in line

    asyncio.run(told())


def test_a_long_silence_of_the_server_stops_answers_until_it_ends() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.watches.silence_s = 0.3
        plane.server.nodes.hang_watches()
        await until(lambda: plane.scheduler.watches.unready_reason() is not None)
        answer = await ask(plane.api_port, "GET", "/readyz")
        assert (answer.status, b"the API server has sent nothing about" in answer.body) == (503, True)
        plane.scheduler.watches.silence_s = 180.0
        assert (await ask(plane.api_port, "GET", "/readyz")).status == 200

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
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a")
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("a", "n1") == "n1"
        TROUBLES[trouble](plane.server)
        TROUBLES[trouble](plane.server.nodes)
        plane.end("a")
        plane.add_pod("b", 12_000)
        await plane.knows("b", "a")
        assert await plane.place("b", "n1") == "n1"

    play(story)


def test_pods_that_wait_for_a_quota_are_retried_when_it_is_raised() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.server.quotas.merge("q", quota(4000), "team")
        plane.add_pod("a")
        await until(lambda: plane.scheduler.state.vendors)
        await until(lambda: plane.scheduler.quotas.limits("team"))
        assert "quota" in await plane.place("a", "n1")
        assert "4000" in (await plane.why("a"))["reason"]
        plane.server.quotas.merge("q", quota(8000), "team")
        await until(lambda: plane.annotation("a", "tried-again"))
        assert await plane.place("a", "n1") == "n1"

    play(story)


def quota(memory: int) -> dict[str, object]:
    return {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"requests.nvidia.com/gpumem": memory}}}


# A watch that lies

CARD = 16_000
SOON = replace(PACE, again_s=0.5)


def tell(plane: ControlPlane, event: str, name: str, *lost: str, **changed: object) -> None:
    """An event of a pod as it is, or nearly, by a version that no pod has yet."""
    plane.server.forget()
    pod = plane.server.pods.get(("team", name)) or plane.add_pod(name)
    metadata = {**pod["metadata"], "resourceVersion": str(plane.server.first_kept), **changed}
    whole = {key: value for key, value in pod.items() if key not in lost}
    whole["metadata"] = {key: value for key, value in metadata.items() if key not in lost}
    plane.server.say_event(event, whole)


LIES: dict[str, Callable[[ControlPlane, str], None]] = {
    "deleted, and is there": lambda plane, name: tell(plane, "DELETED", name),
    "deleted, and half of it": lambda plane, name: tell(plane, "DELETED", name, "spec", "status", "annotations"),
    "another of its name": lambda plane, name: tell(plane, "MODIFIED", name, uid="other"),
    "of no name": lambda plane, name: tell(plane, "MODIFIED", name, "name"),
    "without an identity": lambda plane, name: tell(plane, "MODIFIED", name, "uid"),
    "without its record": lambda plane, name: tell(plane, "MODIFIED", name, "annotations"),
    "without a place": lambda plane, name: tell(plane, "MODIFIED", name, "spec"),
    "from the past": lambda plane, name: tell(plane, "MODIFIED", name, "spec", resourceVersion="3"),
    "of another kind": lambda plane, name: tell(plane, "ADDED", name, "namespace", "spec", "kind"),
    "everything again": lambda plane, name: plane.server.repeat_history(100),
    "the last ones again": lambda plane, name: plane.server.repeat_history(2),
    "a bookmark ahead": lambda plane, name: plane.server.say_event(
        "BOOKMARK", {"metadata": {"resourceVersion": str(10**6)}}
    ),
    "no nodes": lambda plane, name: plane.server.nodes.say_event("DELETED", plane.server.nodes.pods["", "n1"]),
    "nothing any more": lambda plane, name: plane.server.hang_watches(),
}


def agent_has_seen_everything(plane: ControlPlane) -> None:
    """What is gone does not run on, as far as the node's agent knows."""
    said = orphans_for(str(10**9), [])
    plane.server.nodes.merge("n1", {"metadata": {"annotations": {ORPHANS: said}}})


@pytest.mark.parametrize("lie", LIES)
def test_no_memory_is_given_twice_because_a_watch_lies_and_the_state_recovers(lie: str) -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        agent_has_seen_everything(plane)
        plane.add_pod("a", 10_000)
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("a", "n1") == "n1"
        await plane.knows("a")
        LIES[lie](plane, "a")
        plane.add_pod("b", 10_000)
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not (await plane.filter("b", "n1"))["NodeNames"]
            assert await plane.bind("b", "n1")
        await plane.knows("a", "b")
        plane.end("a")
        await plane.knows("a")
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("b", "n1") == "n1"

    play(story, pace=SOON)


def test_a_deletion_that_no_watch_shows_frees_capacity_in_time() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a", 10_000)
        plane.add_pod("b", 10_000)
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("a", "n1") == "n1"
        await plane.knows("a")
        plane.server.merge("a", {"status": {"phase": "Failed"}}, "team")
        plane.server.remove("a", "team", unseen=True)
        await until(lambda: ("team", "a") not in plane.scheduler.watches.pods.objects)
        assert await plane.place("b", "n1") == "n1"

    play(story, pace=SOON)


def test_a_pod_that_was_reported_deleted_and_exists_is_logged() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a", 10_000)
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("a", "n1") == "n1"
        await plane.knows("a")
        tell(plane, "DELETED", "a")
        await until(lambda: any("team/a was reported as deleted but exists" in line for line in plane.lines))
        await plane.knows("a")

    play(story)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_watch_pretends_no_memory_is_given_twice(seed: int) -> None:
    chance = Random(seed)

    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        agent_has_seen_everything(plane)
        await until(lambda: plane.scheduler.state.vendors)
        for number in range(25):
            plane.add_pod(f"p{number}", chance.choice((3000, 6000, 9000)))
            names = [name for (_, name), pod in plane.server.pods.items() if pod["spec"].get("nodeName")]
            if names and chance.random() < 0.7:
                LIES[chance.choice([*LIES])](plane, chance.choice(names))
            if names and chance.random() < 0.3:
                plane.end(chance.choice(names))
            await asyncio.sleep(chance.choice((0, 0.01, 0.03)))
            for name in (f"p{number}", f"p{chance.randrange(number + 1)}"):
                await plane.bind(name, "n1")
            assert all(memory <= CARD for memory in given_by(plane.server).values()), given_by(plane.server)
        await plane.knows(*(name for _, name in plane.server.pods))

    play(story, pace=SOON)
