# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod of higher priority displaces by claims exactly what it must, and has the GPU when that is really free."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from cotenant.core.queueing.eviction import harm_of
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.scheduler.preemption_search import Candidate
from cotenant.kube.settings import KubeSettings, PreemptionPart, SchedulerPart
from tests.kube.control_plane import ControlPlane, given_by, play, until
from tests.kube.test_claims import CLAIMS, add, add_pod, allocation, bind, is_ready


async def full(plane: ControlPlane, **low: int) -> None:
    """A node for each of these pods with claims, which take 12,000 of 16,000 MiB and have these priorities."""
    preemptor = plane.scheduler.preemptor
    preemptor.settle_s, preemptor.again_s, plane.scheduler.releaser.preempt_s = 0.0, 0.05, 0.02
    for name, priority in low.items():
        plane.add_node(f"n-{name}")
        await until(lambda name=name: f"n-{name}" in plane.scheduler.state.vendors)  # type: ignore[misc]
        add(plane.server, name, "12000Mi", priority=priority)
        await until(lambda name=name: is_ready(plane.server, name))  # type: ignore[misc]
        bind(plane.server, name)
        await plane.knows(name)


def is_decided(plane: ControlPlane, name: str) -> bool:
    return RECORD in plane.pod(name)["metadata"]["annotations"]


def test_the_least_important_pod_leaves_and_the_claim_is_allocated_after_its_end() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, a=5, b=1, c=3)
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["b"])
        await until(lambda: plane.scheduler.state.is_reserved("uid-high"))
        add(server, "thief", "8000Mi")
        await plane.knows("thief", "high")
        assert not is_decided(plane, "high")
        assert allocation(server, "high") is None
        plane.end("b")
        await until(lambda: is_ready(server, "high"))
        assert decode_record(plane.pod("high")["metadata"]["annotations"][RECORD]).node == "n-b"
        assert not is_decided(plane, "thief")
        assert server.evicted == ["b"]
        assert max(given_by(server).values()) <= 16_000
        await until(lambda: plane.events("Preempted") and plane.events("Preempting"))

    play(story, CLAIMS)


def test_pods_of_the_device_plugin_and_of_claims_displace_each_other() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, low=0)
        plane.add_pod("plugin", 12_000, priority=5)
        await plane.knows("plugin")
        assert not (await plane.filter("plugin", "n-low"))["NodeNames"]
        await until(lambda: server.evicted == ["low"])
        plane.end("low")
        await plane.knows("low")
        assert await plane.place("plugin", "n-low") == "n-low"
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["low", "plugin"])
        plane.end("plugin")
        await until(lambda: is_ready(server, "high"))

    play(story, CLAIMS)


def test_disruption_budgets_and_settings_protect_pods_with_claims() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, spared=0, other=3)
        server.budgets["spared"] = 0
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["other"])
        await until(lambda: plane.events("PreemptionRefused"))
        plane.end("other")
        await until(lambda: is_ready(server, "high"))
        assert server.evicted == ["other"]

    play(story, CLAIMS)


@pytest.mark.slow
def test_no_pod_leaves_for_one_of_the_same_priority_or_if_preemption_is_disabled() -> None:
    async def story(plane: ControlPlane) -> None:
        await full(plane, low=5)
        add(plane.server, "same", "12000Mi", priority=5)
        add(plane.server, "never", "12000Mi", priority=10, preemptionPolicy="Never")
        await plane.knows("same", "never")
        passes = plane.scheduler.preemptor.passes
        await until(lambda: plane.events("Queued") and plane.scheduler.preemptor.passes >= passes)
        assert plane.server.evicted == []

    play(story, CLAIMS)

    async def disabled(plane: ControlPlane) -> None:
        await full(plane, low=0)
        add(plane.server, "high", "12000Mi", priority=10)
        await until(lambda: plane.events("Queued"))
        assert plane.server.evicted == []

    part: Any = SchedulerPart(preemption=PreemptionPart(enabled=False))
    play(disabled, KubeSettings(claims=CLAIMS.claims, scheduler=part))


async def pair(plane: ControlPlane, *, bound: bool = True, **priorities: int) -> None:
    """Two pods with one claim, the first of which has it already."""
    first, second = priorities
    add_pod(plane.server, second, claim=first, priority=priorities[second])
    await until(lambda: not plane.pod(second)["spec"]["schedulingGates"])
    if bound:
        plane.server.merge(second, {"spec": {"nodeName": f"n-{first}"}}, "team")
    await plane.knows(second)


@pytest.mark.parametrize("bound", [True, False])
def test_pods_that_share_a_claim_leave_together(bound: bool) -> None:
    """Otherwise a second pod with each claim, which need not even start, would protect its owner from all others."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, both=0, alone=5)
        await pair(plane, both=0, partner=0, bound=bound)
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: sorted(server.evicted) == ["both", "partner"])
        plane.end("both")
        await until(lambda: "uid-both" not in plane.scheduler.state.allocations_on("n-both"))
        await plane.preemption_passes()
        assert not is_decided(plane, "high"), "the other pod still has the GPU"
        plane.end("partner")
        await until(lambda: is_ready(server, "high"))
        assert decode_record(plane.pod("high")["metadata"]["annotations"][RECORD]).node == "n-both"
        assert sorted(server.evicted) == ["both", "partner"]

    play(story, CLAIMS)


def test_one_pod_leaves_rather_than_two_of_the_same_priority() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, both=0, alone=0)
        await pair(plane, both=0, partner=0)
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["alone"])

    play(story, CLAIMS)


def test_the_highest_priority_of_the_pods_that_share_a_claim_counts() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, both=0, alone=5)
        await pair(plane, both=0, partner=20)
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["alone"])
        plane.end("alone")
        await until(lambda: is_ready(server, "high"))
        add(server, "next", "12000Mi", priority=10)
        await plane.knows("next")
        await plane.preemption_passes()
        assert server.evicted == ["alone"]

    play(story, CLAIMS)


def test_a_budget_of_one_of_the_pods_that_share_a_claim_protects_both() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, both=0, alone=5)
        await pair(plane, both=0, partner=0)
        server.budgets["partner"] = 0
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["alone"])

    play(story, CLAIMS)


def test_a_pod_that_waits_for_a_reserved_slot_with_the_same_claim_is_not_evicted() -> None:
    async def story(plane: ControlPlane) -> None:
        scheduler = plane.scheduler
        await full(plane, both=0)
        running = scheduler.state.bound("uid-both")
        assert running is not None
        scheduler.state.hold(replace(running, uid="uid-joins"), inf, reserved=True)
        assert scheduler.state.needed_by("uid-both") == {"uid-both", "uid-joins"}
        found = scheduler.preemptor._with_sharers(Candidate(running, ("uid-both",), harm_of(())))
        assert found.victims == ("uid-both",)

    play(story, CLAIMS)


def test_a_pod_that_leaves_frees_nothing_while_another_uses_its_claim() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, both=0)
        await pair(plane, both=0, partner=0)
        server.merge("both", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "team")
        await plane.knows("both")
        add(server, "high", "12000Mi", priority=10)
        await until(lambda: server.evicted == ["partner"])

    play(story, CLAIMS)
