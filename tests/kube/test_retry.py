# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pending pods are retried when capacity is freed, and only if they would fit."""

import asyncio
import time

from cotenant.kube.api.objects import Metadata, Pod
from tests.kube.api_server import Refusal
from tests.kube.office import Office, play, until


async def two_nodes(office: Office, *pods: str, memory: int = 6000) -> None:
    office.add_node("n1", memory=4000)
    office.add_node("n2")
    for name in pods:
        office.add_pod(name, memory)
    await until(lambda: len(office.scheduler.state.vendors) == 2)
    await office.knows(*pods)


def test_only_pods_that_would_fit_are_retried() -> None:
    async def story(office: Office) -> None:
        await two_nodes(office, "b")
        office.add_pod("a", 20_000)
        await office.knows("a")
        for name in ("a", "b"):
            assert not (await office.filter(name, "n1"))["NodeNames"]
        office.scheduler.retrier.on_freed()
        await until(lambda: office.annotation("b", "tried-again"))
        assert office.annotation("a", "tried-again") is None

    play(story)


def test_a_pod_that_is_refused_for_an_unknown_reason_is_retried_less_and_less_often() -> None:
    async def story(office: Office) -> None:
        office.scheduler.retrier.again_s = 0.05
        await two_nodes(office, "a")
        assert not (await office.filter("a", "n1"))["NodeNames"]  # it may not go to n2
        began, seen = time.monotonic(), set[str]()
        while len(seen) < 4:
            office.scheduler.retrier.on_freed()
            await asyncio.sleep(0.005)
            seen |= {found for found in [office.annotation("a", "tried-again")] if found}
        assert time.monotonic() - began >= 0.05 + 0.1 + 0.2

    play(story)


def test_a_pod_that_is_gone_or_cannot_be_written_does_not_stop_the_others() -> None:
    async def story(office: Office) -> None:
        await two_nodes(office, "a", "b", "c")
        for name in ("a", "b", "c"):
            assert not (await office.filter(name, "n1"))["NodeNames"]
        office.server.remove("a", "team")
        await until(lambda: ("team", "a") not in office.scheduler.watches.pods.objects)
        office.server.refusals = [Refusal(422, "Invalid", only="PATCH")]
        office.scheduler.retrier.on_freed()
        await until(lambda: office.annotation("c", "tried-again"))
        assert office.annotation("b", "tried-again") is None

    (line,) = play(story).lines
    assert "retry" in line


def test_a_pod_that_kube_scheduler_saw_first_is_retried_too() -> None:
    async def story(office: Office) -> None:
        await two_nodes(office, "b")
        retrier = office.scheduler.retrier
        retrier.on_refused(Pod(metadata=Metadata(uid="uid-a")))
        assert not (await office.filter("b", "n1"))["NodeNames"]
        retrier.on_freed()
        await until(lambda: office.annotation("b", "tried-again"))  # all have been looked at
        office.add_pod("a")
        await office.knows("a")
        retrier.on_freed()
        await until(lambda: office.annotation("a", "tried-again"))

    play(story)


def test_a_pod_that_kube_scheduler_saw_first_gets_its_numbers_too() -> None:
    async def story(office: Office) -> None:
        await two_nodes(office)
        office.server.hang_watches()
        office.add_pod("a")
        assert not (await office.filter("a", "n1"))["NodeNames"]
        await until(lambda: office.events("NoRoom"))

    play(story)


def test_a_what_if_query_retries_no_pod_and_writes_no_event() -> None:
    async def story(office: Office) -> None:
        await two_nodes(office, "a")
        nodes = {"items": [office.server.nodes.pods["", "n1"]]}
        answer = await office.call("filter", {"Pod": office.pod("a"), "Nodes": nodes, "NodeNames": None})
        assert answer.json["Error"] == ""
        assert not answer.json["Nodes"]["items"]
        office.add_pod("b")
        await office.knows("b")
        assert not (await office.filter("b", "n1"))["NodeNames"]
        office.scheduler.retrier.on_freed()
        await until(lambda: office.annotation("b", "tried-again"))
        await until(lambda: office.events("NoRoom"))
        assert office.annotation("a", "tried-again") is None
        assert len(office.events("NoRoom")) == 1

    play(story)
