# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Binding: nothing is given twice, nothing stays held for nothing, and a lost answer is found out."""

import asyncio
from typing import Any

import pytest

from tests.kube.api_server import Refusal
from tests.kube.control_plane import ControlPlane, play, until


async def a_node_and_pods(plane: ControlPlane, *names: str, memory: int = 6000) -> None:
    plane.add_node("n1")
    for name in names:
        plane.add_pod(name, memory)
    await until(lambda: plane.scheduler.state.vendors)
    await plane.knows(*names)


def free_mib(plane: ControlPlane) -> int:
    (node,) = plane.scheduler.state.cluster
    return node.free(0).memory


def test_binds_at_the_same_time_do_not_overbook_a_gpu() -> None:
    async def story(plane: ControlPlane) -> None:
        names = [f"p{number}" for number in range(12)]
        await a_node_and_pods(plane, *names)
        errors = await asyncio.gather(*(plane.bind(name, "n1") for name in names))
        assert sum(error == "" for error in errors) == 2
        assert all("does not fit on node n1 any more" in error for error in errors if error)
        bound = [name for name in names if plane.pod(name)["spec"].get("nodeName")]
        assert len(bound) == 2
        await plane.knows(*names)
        assert free_mib(plane) == 4000

    play(story)


def test_a_bind_that_was_carried_out_and_not_answered_is_found_out() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_node_and_pods(plane, "a")
        plane.server.cut_answers = 1
        assert await plane.bind("a", "n1") == ""
        assert free_mib(plane) == 10_000

    play(story)


def test_a_bind_that_was_neither_carried_out_nor_answered_is_given_up() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.binder.check_s = 0.01
        await a_node_and_pods(plane, "a")
        plane.server.refusals = [Refusal(500, only="POST")]
        assert "500" in await plane.bind("a", "n1")
        assert free_mib(plane) == 16_000
        assert await plane.bind("a", "n1") == ""

    play(story)


@pytest.mark.parametrize("status", [403, 404, 409, 422])
def test_a_refused_bind_releases_at_once(status: int) -> None:
    async def story(plane: ControlPlane) -> None:
        await a_node_and_pods(plane, "a")
        plane.server.refusals = [Refusal(status, "No", only="POST")]
        assert str(status) in await plane.bind("a", "n1")
        assert free_mib(plane) == 16_000
        assert len(plane.lines) == 1

    play(story)


def test_a_throttled_bind_is_tried_again() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_node_and_pods(plane, "a")
        plane.server.refusals = [Refusal(429, "TooManyRequests", {"Retry-After": "0"}, only="POST")]
        assert await plane.bind("a", "n1") == ""

    play(story)


def test_a_pod_that_vanished_or_was_made_anew_is_not_bound() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_node_and_pods(plane, "a", "b")
        assert "is gone" in await plane.bind("a", "n1", uid="uid-of-the-one-before")
        assert "is gone" in await plane.bind("never", "n1")
        plane.server.remove("b", "team", unseen=True)
        assert "404" in await plane.bind("b", "n1")
        assert free_mib(plane) == 16_000

    play(story)


def test_a_pod_that_another_bound_meanwhile_is_left_there() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_node_and_pods(plane, "a")
        plane.server.hang_watches()
        plane.server.merge("a", {"spec": {"nodeName": "elsewhere"}}, "team")
        assert "already assigned to node elsewhere" in await plane.bind("a", "n1")
        assert free_mib(plane) == 16_000

    play(story)


def test_while_the_server_hangs_the_gpus_stay_held_and_the_end_is_found_out() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.binder.answer_s = 0.1
        await a_node_and_pods(plane, "a", "b", memory=10_000)
        plane.server.hang_everything = True
        assert "has not answered yet" in await plane.bind("a", "n1")
        assert "is being bound already" in await plane.bind("a", "n1")
        assert "is being bound already" in (await plane.filter("a", "n1"))["Error"]
        assert "does not fit" in await plane.bind("b", "n1")
        assert free_mib(plane) == 6000
        plane.server.hang_everything = False
        plane.server.drop_connections()
        await until(lambda: free_mib(plane) == 16_000)
        assert await plane.bind("b", "n1") == ""

    play(story)


def test_a_pod_that_asks_for_no_gpu_is_bound_as_it_is() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plain: dict[str, Any] = {"metadata": {"name": "a", "namespace": "team", "uid": "uid-a", "annotations": {}}}
        plane.server.merge("a", plain, "team")
        await plane.knows("a")
        assert await plane.bind("a", "n1") == ""
        assert plane.pod("a")["metadata"]["annotations"] == {}

    play(story)
