# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue beside an API server: gates are removed, gangs bound at one moment, and failures cost nothing."""

import asyncio
from typing import Any

import pytest

from cotenant.kube.codec.queueing import GANG, GANG_SIZE, GATE
from cotenant.kube.settings import KubeSettings, QueuePart, SchedulerPart
from tests.kube.api_server import Refusal
from tests.kube.control_plane import ControlPlane, play, until
from tests.metrics.nodes import values

QUEUE = KubeSettings(queue=QueuePart(namespaces=("team",)))
OTHER = "example.com/other"


def add(
    plane: ControlPlane, name: str, memory: int = 6000, *, gang: int = 0, gates: tuple[str, ...] = (GATE,), **more: Any
) -> None:
    """A pod that waits at its gate; of one gang, where that has a size."""
    said = {GANG: "g", GANG_SIZE: str(gang)} if gang else None
    plane.add_pod(name, memory, said, schedulingGates=[{"name": gate} for gate in gates], **more)
    about = {"creationTimestamp": f"2026-01-01T00:00:0{len(plane.server.pods)}Z"}
    plane.server.merge(name, {"metadata": about}, "team")


def gates(plane: ControlPlane, *names: str) -> list[str]:
    return [gate["name"] for name in names for gate in plane.pod(name)["spec"]["schedulingGates"]]


async def with_node(plane: ControlPlane, memory: int = 16_000) -> None:
    plane.add_node("n1", memory=memory)
    await until(lambda: plane.scheduler.state.vendors)


def test_gates_are_removed_as_capacity_allows_and_why_tells_the_place_in_the_queue() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        for name in ("a", "b", "c", "d"):
            add(plane, name)
        await until(lambda: not gates(plane, "a", "b"))
        why = await plane.why("d")
        assert why["state"] == "waiting"
        assert why["reason"].startswith("it waits with 1 before it in the queue (aged)")
        assert await plane.place("a", "n1") == "n1"
        assert await plane.place("b", "n1") == "n1"
        assert gates(plane, "c", "d") == [GATE, GATE]
        plane.end("a")
        await until(lambda: not gates(plane, "c"))
        assert gates(plane, "d") == [GATE]
        await until(lambda: len(plane.events("Released")) == 3)
        page = await plane.scheduler.metrics.page.text()
        assert values(page, "cotenant_scheduler_decisions_total")["released  queue"] == 3
        assert values(page, "cotenant_scheduler_step_duration_seconds_count")["queue"] >= 2

    play(story, QUEUE)


def test_gates_of_others_stay() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane, "a", gates=(OTHER, GATE))
        await until(lambda: gates(plane, "a") == [OTHER])

    play(story)


def test_a_pod_with_other_gates_joins_the_queue_when_they_are_removed() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane, "a", gates=(OTHER, GATE))
        add(plane, "b")
        await until(lambda: not gates(plane, "b"))
        assert gates(plane, "a") == [OTHER, GATE]
        plane.server.merge("a", {"spec": {"schedulingGates": [{"name": GATE}]}}, "team")
        await until(lambda: not gates(plane, "a"))

    play(story, QUEUE)


def test_a_pod_of_high_priority_is_released_to_preempt_and_no_other_is() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.releaser.preempt_s = 0.01
        plane.scheduler.preemptor.settle_s = 0.0
        await with_node(plane)
        plane.add_pod("runs", 12_000)
        assert await plane.place("runs", "n1") == "n1"
        add(plane, "equal", 12_000)
        add(plane, "huge", 99_000, priority=10)
        add(plane, "high", 12_000, priority=10)
        await until(lambda: not gates(plane, "high"))
        await plane.knows("high")
        assert not (await plane.filter("high", "n1"))["NodeNames"]
        await until(lambda: plane.server.evicted == ["runs"])
        plane.end("runs")
        await plane.knows("runs")
        assert await plane.place("high", "n1") == "n1"
        assert gates(plane, "equal", "huge") == [GATE, GATE]
        await until(lambda: len(plane.events("Released")) == 1)

    play(story, QUEUE)


def test_a_pod_behind_a_reserved_gang_is_not_released_to_preempt_and_one_of_higher_priority_is() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.releaser.preempt_s = 0.01
        plane.add_node("n1", 2)
        await until(lambda: plane.scheduler.state.vendors)
        for name in ("r0", "r1"):
            plane.add_pod(name, 16_000)
            assert await plane.place(name, "n1") == "n1"
        for name in ("a", "b"):
            add(plane, name, 16_000, gang=2, priority=5)
        await until(lambda: plane.scheduler.backfill.current)
        add(plane, "equal", 16_000, priority=5)
        await plane.knows("equal")
        assert (await plane.why("equal"))["eviction"] is None
        assert "GPUs are reserved for pod team/a" in (await plane.why("equal"))["reason"]
        add(plane, "higher", 16_000, priority=6)
        await until(lambda: not gates(plane, "higher"))
        assert gates(plane, "a", "b", "equal") == [GATE] * 3
        await until(lambda: plane.events("Released"))
        assert "could be evicted" in plane.events("Released")[0]

    play(story, QUEUE)


def test_no_pod_is_evicted_for_a_released_gang_that_finds_its_nodes_full() -> None:
    async def story(plane: ControlPlane) -> None:
        preemptor = plane.scheduler.preemptor
        preemptor.settle_s, preemptor.again_s = 0.0, 0.05
        for name in ("n1", "n2"):
            plane.add_node(name)
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        plane.add_pod("runs", 12_000)
        assert await plane.place("runs", "n1") == "n1"
        await plane.knows("runs")
        for name in ("a", "b"):
            add(plane, name, gang=2, priority=10)
        await until(lambda: not gates(plane, "a", "b"))
        await plane.knows("a", "b")
        assert not (await plane.filter("a", "n1"))["NodeNames"], "it may not go to n2"
        assert (await plane.why("a"))["eviction"] is None
        plane.add_pod("alone", 12_000, priority=5)
        assert "n1" in await plane.place("alone", "n1")
        await until(lambda: plane.scheduler.state.is_reserved("uid-alone"))
        assert not plane.scheduler.state.is_reserved("uid-a")

    play(story)


def test_gates_that_are_no_longer_configured_are_removed_with_or_without_capacity() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane, 1000)
        add(plane, "a")
        await until(lambda: not gates(plane, "a"))
        assert not plane.events("Released")

    play(story)


def test_what_could_not_be_written_gives_its_slot_back_and_is_tried_again() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        plane.server.refusals = [Refusal(422, "Invalid", only="PATCH")]
        add(plane, "a", 12_000)
        await until(lambda: plane.lines)
        add(plane, "b", 12_000)
        await until(lambda: not gates(plane, "a"))
        assert gates(plane, "b") == [GATE]

    (line,) = play(story, QUEUE).lines
    assert "release" in line


def test_a_gang_is_bound_at_one_moment() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane, "a", gang=2)
        await until(lambda: plane.events("GangWaits") == ["only 1 of the 2 pods of its gang exist"])
        assert (await plane.why("a"))["reason"] == "only 1 of the 2 pods of its gang exist"
        assert "gang" in await plane.place("a", "n1")
        add(plane, "b", gang=2)
        await until(lambda: not gates(plane, "a", "b"))
        await plane.knows("a", "b")
        plane.scheduler.releaser.join_s = 0.2
        assert "1 of 2 pods of gang g are ready to be bound" in await plane.place("a", "n1")
        plane.scheduler.releaser.join_s = 4.0
        assert [*await asyncio.gather(plane.place("a", "n1"), plane.place("b", "n1"))] == ["n1", "n1"]
        binds = [asked.path for asked in plane.server.asked if asked.path.endswith("/binding")]
        assert len(binds) == 2

    play(story)


def test_of_a_gang_too_large_to_meet_all_are_bound_once_each_was_about_to_be() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        for name in ("a", "b"):
            add(plane, name, gang=2)
        await until(lambda: not gates(plane, "a", "b"))
        await plane.knows("a", "b")
        plane.scheduler.releaser.join_s = 0.05
        assert "1 of 2 pods of gang g are ready to be bound" in await plane.place("a", "n1")
        assert await plane.place("b", "n1") == "n1"
        assert await plane.place("a", "n1") == "n1"

    play(story)


@pytest.mark.slow
def test_a_gang_that_is_not_bound_in_time_says_so_and_is_retried_later() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        for name in ("a", "b"):
            add(plane, name, gang=2)
        await until(lambda: not gates(plane, "a", "b"))
        await until(lambda: plane.events("GangGivenUp"))
        assert "2 of 2 pods could not be bound in time" in plane.events("GangGivenUp")[0]
        assert plane.annotation("a", "tried-again") is None
        await until(lambda: plane.annotation("a", "tried-again") and plane.annotation("b", "tried-again"))
        await plane.knows("a", "b")
        assert [*await asyncio.gather(plane.place("a", "n1"), plane.place("b", "n1"))] == ["n1", "n1"]

    play(story, KubeSettings(scheduler=SchedulerPart(hold_s=1.0)))


def test_a_new_scheduler_binds_no_gang_by_halves() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane, 10_000)
        for name in ("a", "b"):  # they were let go by the one before, and now there is room for one
            add(plane, name, gang=2, gates=())
        await plane.knows("a", "b")
        assert "gang must start as a whole" in (await plane.place("a", "n1"))
        assert not [asked for asked in plane.server.asked if asked.path.endswith("/binding")]
        wanted = "its gang waits for free slots for all 2 pods that it still needs"
        await until(lambda: plane.events("NoRoom") == [wanted])

    play(story)
