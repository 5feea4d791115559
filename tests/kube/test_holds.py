# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A held pod stays at its gate, whatever is free, and others pass it; who holds it is said."""

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.queueing import GATE, HOLD, MOST_MEMBERS, Hold, hold_in, hold_of, hold_text
from cotenant.kube.scheduler.queue_events import MOST, QueueEvents
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.settings import KubeSettings, QueuePart
from tests.kube.api_server import Refusal
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.queues import TODAY, World, open_gate, queued
from tests.kube.reviews import admitted, written
from tests.kube.test_release import add, gates, with_node
from tests.kube.worlds import machine, node

SINCE = "2026-03-01T10:00:00Z"
BY_ALICE = {HOLD: f"{SINCE} alice"}
SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}


def released(pod: Pod) -> Pod:
    rest = {key: value for key, value in pod.metadata.annotations.items() if key != HOLD}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=rest))


def test_a_held_pod_keeps_its_place_and_others_pass_it() -> None:
    world = World.of(node(machine("n1", 1, 16_000)))
    world.tell(queued("first", 6000, age=90, annotations=BY_ALICE), queued("second", 12_000, age=60))
    assert world.go() == [["second"]]
    assert world.why("first").startswith(f"held by alice since {SINCE}")
    world.remove("second")
    world.tell(queued("third", 12_000, age=30))
    world.tell(released(world.pods["first"]))
    assert world.go()[0] == ["first"], "it is older than the third"


def test_nothing_is_reserved_for_a_held_pod() -> None:
    world = World.of(node(machine("n1", 1, 16_000)))
    world.tell(queued("runs", 10_000, age=90))
    assert world.go() == [["runs"]]
    world.tell(queued("large", 12_000, age=80, annotations=BY_ALICE), queued("small", 5000, age=10, estimate="20h"))
    assert world.go() == [["small"]]


def test_a_gang_starts_without_a_held_pod_only_if_it_is_large_enough_without_it() -> None:
    world = World.of(node(machine("n1", 4, 16_000)))
    pods = [queued(f"g{number}", gang=("g", 2), age=60 - number) for number in range(2)]
    world.tell(pods[0], queued("g1", gang=("g", 2), age=59, annotations=BY_ALICE))
    assert world.go() == []
    assert world.why("g0") == "only 1 of the 2 pods of its gang can start; others are held"
    world.tell(queued("g2", gang=("g", 2), age=58))
    assert world.go() == [["g0", "g2"]]


def test_a_held_pod_stays_at_its_gate_though_its_namespace_has_no_queue() -> None:
    world = World.of(node(machine("n1", 1)), queue=QueuePart())
    world.tell(queued("held", annotations=BY_ALICE), queued("free"))
    assert [pod.metadata.name for pod in world.run_pass().open] == ["free"]
    world.tell(released(world.pods["held"]))
    assert "held" in [pod.metadata.name for pod in world.run_pass().open]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (f"{SINCE} alice", Hold("alice", 1_772_359_200.0)),
        (SINCE, Hold("", 1_772_359_200.0)),
        ("true", Hold()),
        ("", Hold()),
        ("yesterday by me", Hold()),
        ("false", None),
        ("False", Hold()),
        (" false", Hold()),
        ("0001-01-01T00:00:00+23:59 alice", Hold()),
        ("9999-12-31T23:59:59.999999Z alice", Hold()),
        (f"{SINCE} \x1b[31m{'x' * 10_000}", Hold("\\x1b[31m" + "x" * 195, 1_772_359_200.0)),
    ],
)
def test_whatever_the_annotation_says_it_is_a_hold_and_bounded(value: str, found: Hold | None) -> None:
    read = hold_in({HOLD: value})
    assert read == found
    assert len(str(read)) < 300


def test_what_is_written_is_read_and_a_pod_without_a_gate_is_not_held() -> None:
    pod = queued("one", annotations={HOLD: hold_text("system:serviceaccount:a:bob", TODAY)})
    assert hold_of(pod) == Hold("system:serviceaccount:a:bob", TODAY)
    assert hold_of(open_gate(pod)) is None
    assert hold_in({}) is None


def test_a_pod_that_is_created_held_gets_a_gate_wherever_it_is() -> None:
    assert admitted(written(SLICE, annotations=BY_ALICE))["spec"]["schedulingGates"] == [{"name": GATE}]
    assert "schedulingGates" not in admitted(written({}, annotations=BY_ALICE))["spec"]


def test_events_say_that_a_pod_waits_is_held_and_no_longer_held() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        for name in ("runs", "waits"):
            add(plane, name, 10_000)
        await until(lambda: not gates(plane, "runs"))
        await until(lambda: plane.events("Queued"))
        (said,) = plane.events("Queued")
        assert said.startswith("it waits with 0 before it in the queue (aged); ")
        assert "needs 10000 MiB on one GPU" in said
        plane.server.merge("waits", {"metadata": {"annotations": BY_ALICE}}, "team")
        await until(lambda: plane.events("Held") == [f"held by alice since {SINCE}"])
        assert (await plane.why("waits"))["reason"].startswith(f"held by alice since {SINCE}")
        assert await plane.place("runs", "n1") == "n1"
        plane.end("runs")
        add(plane, "later", 10_000)
        await until(lambda: not gates(plane, "later"))
        assert gates(plane, "waits") == [GATE]
        plane.server.merge("waits", {"metadata": {"annotations": {HOLD: None}}}, "team")
        await until(lambda: plane.events("HoldEnded"))

    play(story, KubeSettings(queue=QueuePart(namespaces=("team",))))


def test_events_are_written_about_a_bounded_number_of_pods_however_large_their_gangs_are() -> None:
    world, noted = World.of(), list[Pod]()
    for gang in range(MOST // MOST_MEMBERS + 1):
        world.tell(*(queued(f"g{gang}-{number}", gang=(f"g{gang}", MOST_MEMBERS)) for number in range(MOST_MEMBERS)))
    events = SimpleNamespace(record=lambda pod, reason, text: noted.append(pod))
    QueueEvents(cast(Shared, SimpleNamespace(events=events)), world.queue).on_pass(0.0, TODAY)
    assert len(noted) == MOST


def test_a_hold_that_comes_a_moment_before_the_release_counts() -> None:
    """The API server refuses to remove the gate, which `cotenant-queue` lets it do. The pod waits again, quietly."""

    async def story(plane: ControlPlane) -> None:
        plane.server.refusals = [Refusal(403, f"the annotation {HOLD} holds the pod", only="PATCH")]
        add(plane, "one")
        await with_node(plane)
        await until(lambda: not plane.server.refusals)
        await until(lambda: not gates(plane, "one"))
        assert not [line for line in plane.lines if "release" in line]

    play(story, KubeSettings(queue=QueuePart(namespaces=("team",))))
