# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Events of a pod and answers about it name no pod of another namespace."""

import json

from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.scheduler.explaining import why_not
from cotenant.kube.settings import SCHEDULER_NAME
from tests.kube.api_server import Pod as PodObject
from tests.kube.control_plane import MEMORY, ControlPlane, play, until
from tests.kube.pods import pod_object
from tests.kube.queues import World, queued
from tests.kube.test_queue_backfill import FIFO, WHOLE, end, run, whole
from tests.kube.worlds import annotated, machine, node, place, placer_of, state_of, waiting


def test_the_queue_counts_the_pods_of_other_namespaces() -> None:
    world = World.of(node(machine("n1", 3, WHOLE)), queue=FIFO)
    for number in range(3):
        run(world, whole(f"hidden{number}", namespace="a", estimate="1h"))
    world.tell(whole("secret", gpus=3, namespace="b"))
    world.go()
    end(world, "hidden2")
    world.tell(whole("short", namespace="c", estimate="1m"), whole("long", namespace="c", age=9))
    told = [*world.run_pass().overtook.values(), *map(world.why, ("secret", "long"))]
    assert told[0].startswith("1 pod of another namespace: expected to end before that job can start")
    assert "the last: 1 pod of another namespace (expected to end" in told[1]
    assert "GPUs are reserved for 1 pod of another namespace" in told[2]
    world.now += 2 * 3600.0  # the pods run longer than expected
    told += [world.why("secret")]
    assert "when 3 pods of other namespaces have ended" in told[-1]
    assert not [text for text in told if "hidden" in text or "b/secret" in text]
    assert "short" not in told[1]


def test_a_node_that_is_closed_for_a_pod_does_not_name_it() -> None:
    state = state_of(node(machine("n1")))
    there = place(state, placer_of(state), waiting("hidden", namespace="a"), "n1")
    state.pod_changed(there, annotated(there, {RECORD: "{"}))
    assert "a/hidden" in state.closed["n1"]["uid-hidden"], "the log of the scheduler names it"
    told = why_not(waiting("mine", namespace="b"), placer_of(state))
    assert told == "1 node: the assignment of 1 pod on it cannot be read (n1)"


def test_a_victim_of_another_namespace_is_not_named() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.preemptor.settle_s = 0.0
        plane.add_node("n1")
        plane.add_node("n2")
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        for name, there, priority in (("hidden", "n1", 0), ("secret", "n2", 1)):
            plane.add_pod(name, 12_000, priority=priority)
            assert await plane.place(name, there) == there
        await plane.knows("hidden", "secret")
        plane.server.budgets["hidden"] = 0
        mine: PodObject = pod_object(
            [{"nvidia.com/gpu": 1, MEMORY: 12_000}], [], {}, None, {"schedulerName": SCHEDULER_NAME, "priority": 5}
        )
        mine["metadata"] |= {"name": "mine", "namespace": "other", "uid": "uid-mine"}
        mine = plane.server.merge("mine", mine, "other")
        await until(lambda: ("other", "mine") in plane.scheduler.watches.pods.objects)
        found = await plane.call("filter", {"Pod": mine, "Nodes": None, "NodeNames": ["n1", "n2"]})
        assert not found.json["NodeNames"]
        await until(lambda: plane.server.evicted == ["secret"])
        await until(lambda: plane.events("Preempting") and plane.events("PreemptionRefused"))
        assert plane.events("Preempting")[0].startswith("evicts 1 pod of another namespace from node n2")
        assert plane.events("PreemptionRefused") == [
            "cannot evict 1 pod of another namespace: a disruption budget forbids it; looking for other victims"
        ]
        told = json.dumps([one for (space, _), one in plane.server.events.pods.items() if space == "other"])
        assert "mine" in told
        assert "hidden" not in told
        assert "secret" not in told

    play(story)


def test_pods_of_the_own_namespace_are_named() -> None:
    world = World.of(node(machine("n1", 1, WHOLE)), queue=FIFO)
    run(world, queued("runs", 10_000))
    world.tell(queued("first", 12_000, age=9))
    world.go()
    assert "when pod team/runs has ended" in world.why("first")
