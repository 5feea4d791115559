# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Binding: nothing is given twice, nothing stays held for nothing, and a lost answer is found out."""

import asyncio
from typing import Any

import pytest

from tests.kube.api_server import Refusal
from tests.kube.office import Office, play, until


async def a_node_and_pods(office: Office, *names: str, memory: int = 6000) -> None:
    office.add_node("n1")
    for name in names:
        office.add_pod(name, memory)
    await until(lambda: office.scheduler.state.vendors)
    await office.knows(*names)


def free_mib(office: Office) -> int:
    (node,) = office.scheduler.state.cluster
    return node.free(0).memory


def test_binds_at_the_same_time_do_not_overbook_a_gpu() -> None:
    async def story(office: Office) -> None:
        names = [f"p{number}" for number in range(12)]
        await a_node_and_pods(office, *names)
        errors = await asyncio.gather(*(office.bind(name, "n1") for name in names))
        assert sum(error == "" for error in errors) == 2
        assert all("does not fit on node n1 any more" in error for error in errors if error)
        bound = [name for name in names if office.pod(name)["spec"].get("nodeName")]
        assert len(bound) == 2
        await office.knows(*names)
        assert free_mib(office) == 4000

    play(story)


def test_a_bind_that_was_carried_out_and_not_answered_is_found_out() -> None:
    async def story(office: Office) -> None:
        await a_node_and_pods(office, "a")
        office.server.cut_answers = 1
        assert await office.bind("a", "n1") == ""
        assert free_mib(office) == 10_000

    play(story)


def test_a_bind_that_was_neither_carried_out_nor_answered_is_given_up() -> None:
    async def story(office: Office) -> None:
        office.scheduler.binder.check_s = 0.01
        await a_node_and_pods(office, "a")
        office.server.refusals = [Refusal(500, only="POST")]
        assert "500" in await office.bind("a", "n1")
        assert free_mib(office) == 16_000
        assert await office.bind("a", "n1") == ""

    play(story)


@pytest.mark.parametrize("status", [403, 404, 409, 422])
def test_a_refused_bind_releases_at_once(status: int) -> None:
    async def story(office: Office) -> None:
        await a_node_and_pods(office, "a")
        office.server.refusals = [Refusal(status, "No", only="POST")]
        assert str(status) in await office.bind("a", "n1")
        assert free_mib(office) == 16_000
        assert len(office.lines) == 1

    play(story)


def test_a_throttled_bind_is_tried_again() -> None:
    async def story(office: Office) -> None:
        await a_node_and_pods(office, "a")
        office.server.refusals = [Refusal(429, "TooManyRequests", {"Retry-After": "0"}, only="POST")]
        assert await office.bind("a", "n1") == ""

    play(story)


def test_a_pod_that_vanished_or_was_made_anew_is_not_bound() -> None:
    async def story(office: Office) -> None:
        await a_node_and_pods(office, "a", "b")
        assert "is gone" in await office.bind("a", "n1", uid="uid-of-the-one-before")
        assert "is gone" in await office.bind("never", "n1")
        office.server.remove("b", "team", unseen=True)
        assert "404" in await office.bind("b", "n1")
        assert free_mib(office) == 16_000

    play(story)


def test_a_pod_that_another_bound_meanwhile_is_left_there() -> None:
    async def story(office: Office) -> None:
        await a_node_and_pods(office, "a")
        office.server.hang_watches()
        office.server.merge("a", {"spec": {"nodeName": "elsewhere"}}, "team")
        assert "already assigned to node elsewhere" in await office.bind("a", "n1")
        assert free_mib(office) == 16_000

    play(story)


def test_while_the_server_hangs_the_gpus_stay_held_and_the_end_is_found_out() -> None:
    async def story(office: Office) -> None:
        office.scheduler.binder.answer_s = 0.1
        await a_node_and_pods(office, "a", "b", memory=10_000)
        office.server.hang_everything = True
        assert "has not answered yet" in await office.bind("a", "n1")
        assert "is being bound already" in await office.bind("a", "n1")
        assert "is being bound already" in (await office.filter("a", "n1"))["Error"]
        assert "does not fit" in await office.bind("b", "n1")
        assert free_mib(office) == 6000
        office.server.hang_everything = False
        office.server.drop_connections()
        await until(lambda: free_mib(office) == 16_000)
        assert await office.bind("b", "n1") == ""

    play(story)


def test_a_pod_that_asks_for_no_gpu_is_bound_as_it_is() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        plain: dict[str, Any] = {"metadata": {"name": "a", "namespace": "team", "uid": "uid-a", "annotations": {}}}
        office.server.merge("a", plain, "team")
        await office.knows("a")
        assert await office.bind("a", "n1") == ""
        assert office.pod("a")["metadata"]["annotations"] == {}

    play(story)
