# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pending pods are retried when capacity is freed, and only if they would fit."""

import asyncio
import time

from cotenant.kube.api.objects import Metadata, Pod
from tests.kube.api_server import Refusal
from tests.kube.control_plane import ControlPlane, play, until


async def two_nodes(plane: ControlPlane, *pods: str, memory: int = 6000) -> None:
    plane.add_node("n1", memory=4000)
    plane.add_node("n2")
    for name in pods:
        plane.add_pod(name, memory)
    await until(lambda: len(plane.scheduler.state.vendors) == 2)
    await plane.knows(*pods)


def test_only_pods_that_would_fit_are_retried() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_nodes(plane, "b")
        plane.add_pod("a", 20_000)
        await plane.knows("a")
        for name in ("a", "b"):
            assert not (await plane.filter(name, "n1"))["NodeNames"]
        plane.scheduler.retrier.on_freed()
        await until(lambda: plane.annotation("b", "tried-again"))
        assert plane.annotation("a", "tried-again") is None

    play(story)


def test_a_pod_that_is_refused_for_an_unknown_reason_is_retried_less_and_less_often() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.retrier.again_s = 0.05
        await two_nodes(plane, "a")
        assert not (await plane.filter("a", "n1"))["NodeNames"]  # it may not go to n2
        began, seen = time.monotonic(), set[str]()
        while len(seen) < 4:
            plane.scheduler.retrier.on_freed()
            await asyncio.sleep(0.005)
            seen |= {found for found in [plane.annotation("a", "tried-again")] if found}
        assert time.monotonic() - began >= 0.05 + 0.1 + 0.2

    play(story)


def test_a_pod_that_is_gone_or_cannot_be_written_does_not_stop_the_others() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_nodes(plane, "a", "b", "c")
        for name in ("a", "b", "c"):
            assert not (await plane.filter(name, "n1"))["NodeNames"]
        plane.server.remove("a", "team")
        await until(lambda: ("team", "a") not in plane.scheduler.watches.pods.objects)
        plane.server.refusals = [Refusal(422, "Invalid", only="PATCH")]
        plane.scheduler.retrier.on_freed()
        await until(lambda: plane.annotation("c", "tried-again"))
        assert plane.annotation("b", "tried-again") is None

    (line,) = play(story).lines
    assert "retry" in line


def test_a_pod_that_kube_scheduler_saw_first_is_retried_too() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_nodes(plane, "b")
        retrier = plane.scheduler.retrier
        retrier.on_refused(Pod(metadata=Metadata(uid="uid-a")))
        assert not (await plane.filter("b", "n1"))["NodeNames"]
        retrier.on_freed()
        await until(lambda: plane.annotation("b", "tried-again"))  # all have been looked at
        plane.add_pod("a")
        await plane.knows("a")
        retrier.on_freed()
        await until(lambda: plane.annotation("a", "tried-again"))

    play(story)


def test_a_pod_that_kube_scheduler_saw_first_gets_its_numbers_too() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_nodes(plane)
        plane.server.hang_watches()
        plane.add_pod("a")
        assert not (await plane.filter("a", "n1"))["NodeNames"]
        await until(lambda: plane.events("NoRoom"))

    play(story)


def test_a_what_if_query_retries_no_pod_and_writes_no_event() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_nodes(plane, "a")
        nodes = {"items": [plane.server.nodes.pods["", "n1"]]}
        answer = await plane.call("filter", {"Pod": plane.pod("a"), "Nodes": nodes, "NodeNames": None})
        assert answer.json["Error"] == ""
        assert not answer.json["Nodes"]["items"]
        plane.add_pod("b")
        await plane.knows("b")
        assert not (await plane.filter("b", "n1"))["NodeNames"]
        plane.scheduler.retrier.on_freed()
        await until(lambda: plane.annotation("b", "tried-again"))
        await until(lambda: plane.events("NoRoom"))
        assert plane.annotation("a", "tried-again") is None
        assert len(plane.events("NoRoom")) == 1

    play(story)
