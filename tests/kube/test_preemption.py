# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod of higher priority gets the slot of the victims whose loss does least harm, when they have ended."""

from typing import Any

import pytest

from cotenant.kube.settings import KubeSettings, PreemptionPart, SchedulerPart
from tests.kube.control_plane import ControlPlane, play, until


def settings(**preemption: Any) -> KubeSettings:
    return KubeSettings(scheduler=SchedulerPart(preemption=PreemptionPart(**preemption)))


async def full(plane: ControlPlane, **low: int) -> None:
    """A node for each of these pods, which take 12,000 of 16,000 MiB and have these priorities."""
    preemptor = plane.scheduler.preemptor
    preemptor.settle_s, preemptor.again_s = 0.0, 0.05
    for name, priority in low.items():
        plane.add_node(f"n-{name}")
        plane.add_pod(name, 12_000, priority=priority)
        await until(lambda name=name: f"n-{name}" in plane.scheduler.state.vendors)  # type: ignore[misc]
        assert await plane.place(name, f"n-{name}") == f"n-{name}"
        await plane.knows(name)


def nodes(plane: ControlPlane) -> list[str]:
    return sorted(plane.scheduler.state.vendors)


async def refuse(plane: ControlPlane, name: str, memory: int = 12_000, *, priority: int = 10, **spec: Any) -> None:
    """A pod that fits nowhere, and that kube-scheduler knows of that."""
    plane.add_pod(name, memory, priority=priority, **spec)
    await plane.knows(name)
    assert not (await plane.filter(name, *nodes(plane)))["NodeNames"]


async def evicted(plane: ControlPlane, *names: str) -> None:
    await until(lambda: sorted(plane.server.evicted) == sorted(names))
    await plane.knows(*names)


def test_the_place_of_the_evicted_is_the_pods_when_they_have_ended() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, low=0)
        await refuse(plane, "high")
        await evicted(plane, "low")
        await until(lambda: plane.scheduler.state.held("uid-high"))
        assert not (await plane.filter("high", "n-low"))["NodeNames"]  # asked again: nothing has ended yet
        assert plane.scheduler.state.held("uid-high") is not None
        plane.end("low")
        await plane.knows("low")
        plane.add_pod("thief", 8000)
        await plane.knows("thief")
        assert not (await plane.filter("thief", "n-low"))["NodeNames"]
        assert await plane.place("high", "n-low") == "n-low"
        await until(lambda: not plane.scheduler.state.is_reserved("uid-high"))
        assert plane.server.evicted == ["low"]
        await until(lambda: plane.events("Preempted") and plane.events("Preempting"))
        assert plane.events("Preempted") == ["evicted from node n-low for a pod of priority 10; its own is 0"]
        assert plane.events("Preempting")[0].startswith("evicts low from node n-low; its slot is reserved")

    play(story)


def test_the_pod_of_the_lowest_priority_leaves_and_no_other() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=5, b=1, c=3)
        await refuse(plane, "high")
        await evicted(plane, "b")
        await plane.preemption_passes()
        assert plane.server.evicted == ["b"]

    play(story)


@pytest.mark.parametrize(
    ("spec", "preemption"),
    [
        ({"priority": 0}, {}),
        ({"priority": -1}, {}),
        ({"priority": 10, "preemptionPolicy": "Never"}, {}),
        ({"priority": 10}, {"enabled": False}),
        ({"priority": 10}, {"protect_namespaces": ("team",)}),
        ({"priority": 10}, {"protect_label": "keep=yes"}),
    ],
)
def test_no_pod_is_evicted_for(spec: dict[str, Any], preemption: dict[str, Any]) -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, low=0)
        plane.server.merge("low", {"metadata": {"labels": {"keep": "yes"}}}, "team")
        await plane.knows("low")
        await refuse(plane, "high", **spec)
        await plane.preemption_passes()
        assert plane.server.evicted == []

    play(story, settings(**preemption))


def test_an_equal_is_not_evicted_where_others_are_less_important_elsewhere() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, equal=10, low=0)
        plane.add_pod("high", 12_000, priority=10)
        await plane.knows("high")
        assert not (await plane.filter("high", "n-equal"))["NodeNames"]
        await plane.preemption_passes()
        assert plane.server.evicted == []

    play(story)


def test_a_budget_is_kept_and_said_and_the_next_choice_is_taken() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=1, b=2)
        plane.server.budgets["a"] = 0
        await refuse(plane, "high")
        await evicted(plane, "b")
        await until(lambda: plane.events("PreemptionRefused"))
        assert "cannot evict a: 429 TooManyRequests: it would violate" in plane.events("PreemptionRefused")[0]

    play(story)


def test_where_one_of_several_may_not_go_none_is_evicted() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=1)
        plane.add_pod("b", 4000, priority=2)
        assert await plane.place("b", "n-a") == "n-a"
        await plane.knows("b")
        plane.server.budgets["b"] = 0
        await refuse(plane, "high", 16_000)
        await until(lambda: plane.events("PreemptionRefused"))
        await plane.preemption_passes()
        assert plane.server.evicted == []
        assert plane.scheduler.state.held("uid-high") is None

    play(story)


def test_only_nodes_that_would_do_otherwise_are_looked_at() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0, b=1)
        plane.add_pod("high", 12_000, priority=10)
        await plane.knows("high")
        assert not (await plane.filter("high", "n-b"))["NodeNames"]
        await evicted(plane, "b")

    play(story)


def test_two_waiting_pods_evict_one_victim_each_and_not_for_each_other() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0, b=0, c=0)
        await refuse(plane, "one")
        await refuse(plane, "two")
        await until(lambda: len(plane.server.evicted) == 2)
        await plane.preemption_passes()
        assert len(set(plane.server.evicted)) == 2
        held = [plane.scheduler.state.held(f"uid-{name}") for name in ("one", "two")]
        assert {seat.record.node for seat in held if seat} == {f"n-{name}" for name in plane.server.evicted}

    play(story)


def test_a_more_important_pod_takes_over_what_was_reserved() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0)
        await refuse(plane, "middle", priority=5)
        await evicted(plane, "a")
        await refuse(plane, "high")
        await until(lambda: plane.scheduler.state.is_reserved("uid-high"))
        assert plane.scheduler.state.held("uid-middle") is None
        plane.end("a")
        await plane.knows("a")
        assert "not enough" in await plane.place("middle", "n-a")
        assert await plane.place("high", "n-a") == "n-a"
        assert plane.server.evicted == ["a"]

    play(story)


def test_a_pod_that_leaves_already_is_waited_for_and_no_other_is_evicted() -> None:
    """As a scheduler finds it that starts anew."""

    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0, b=0)
        plane.server.merge("a", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "team")
        await plane.knows("a")
        await refuse(plane, "high")
        await until(lambda: plane.scheduler.state.is_reserved("uid-high"))
        await plane.preemption_passes()
        assert plane.server.evicted == []
        assert (await plane.why("high"))["reason"] == "a slot on node n-a is reserved for it until team/a ends"

    play(story)


def test_a_pod_that_is_gone_gives_its_place_back() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0)
        await refuse(plane, "high")
        await evicted(plane, "a")
        plane.server.remove("high", "team")
        await until(lambda: "uid-high" not in plane.scheduler.state.waiting)
        plane.end("a")
        await plane.knows("a")
        plane.add_pod("next", 12_000)
        assert await plane.place("next", "n-a") == "n-a"
        await until(lambda: not plane.scheduler.state.is_reserved("uid-high"))

    play(story)


def test_a_pod_that_finds_another_place_gives_the_first_back() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0)
        await refuse(plane, "high")
        await evicted(plane, "a")
        plane.add_node("new")
        await until(lambda: "new" in plane.scheduler.state.vendors)
        assert await plane.place("high", "n-a", "new") == "new"
        plane.end("a")
        await plane.knows("a", "high")
        plane.add_pod("next", 12_000)
        assert await plane.place("next", "n-a") == "n-a"

    play(story)


def test_a_failed_bind_does_not_lose_the_place() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0)
        await refuse(plane, "high")
        await evicted(plane, "a")
        plane.end("a")
        await plane.knows("a")
        plane.scheduler.state.release("uid-high")  # as a bind does that fails
        await until(lambda: plane.scheduler.state.is_reserved("uid-high"))
        assert await plane.place("high", "n-a") == "n-a"

    play(story)


def test_why_says_what_would_have_to_go() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=3, b=1)
        plane.scheduler.preemptor.settle_s = 60
        await refuse(plane, "high")
        said = await plane.why("high")
        assert said["reason"].endswith("; it would fit on node n-b without team/b")
        assert said["eviction"] == {"node": "n-b", "pods": ["team/b"], "under_way": False}
        plane.add_pod("low", 12_000, priority=1)
        await plane.knows("low")
        assert (await plane.why("low"))["eviction"] is None

    play(story)


def named(**victims: list[str]) -> dict[str, Any]:
    """As kube-scheduler says whom it would evict."""
    return {
        f"n-{node}": {"Pods": [{"UID": f"uid-{pod}"} for pod in pods], "NumPDBViolations": 0}
        for node, pods in victims.items()
    }


def test_where_kube_scheduler_has_to_evict_others_too_it_is_left_to_it() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0, b=0)
        plane.scheduler.preemptor.settle_s = 60
        await refuse(plane, "high")
        asked = {"Pod": plane.pod("high"), "NodeNameToMetaVictims": named(a=["a", "web"], b=["b"])}
        assert (await plane.call("preempt", asked)).json == {"NodeNameToMetaVictims": asked["NodeNameToMetaVictims"]}

    play(story)


def test_where_slots_are_missing_and_memory_too_all_are_evicted_by_us() -> None:
    """kube-scheduler knows of the slot alone, and would be told that it does not help."""

    async def story(plane: ControlPlane) -> None:
        await full(plane, a=0)
        plane.add_pod("b", 4000, priority=0)
        assert await plane.place("b", "n-a") == "n-a"
        plane.add_pod("high", 12_000, priority=10)
        await plane.knows("b", "high")
        asked = {"Pod": plane.pod("high"), "NodeNameToMetaVictims": named(a=["b"])}
        assert (await plane.call("preempt", asked)).json == {"NodeNameToMetaVictims": {}}
        await evicted(plane, "a", "b")
        assert (await plane.call("preempt", asked)).json == {"NodeNameToMetaVictims": {}}

    play(story)
