# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The order `fair` divides the GPUs of a cluster among namespaces, and among the users of one by a label."""

from datetime import UTC, datetime

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.kube.api.objects import ContainerState, ContainerStatus, Ended, Pod
from cotenant.kube.settings import QueuePart, parse_settings
from tests.kube.queues import TODAY, World, queued, replace
from tests.kube.worlds import in_phase, machine, node

FAIR = QueuePart(namespaces=("*",), order="fair")
HOUR = 3600.0


def whole(name: str, namespace: str, age: float = 60.0, **about: str) -> Pod:
    """A pod that needs all memory of a GPU."""
    made = queued(name, 16_000, namespace=namespace, age=age)
    return replace(made, metadata=replace(made.metadata, labels=dict(about)))


def at(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def started(pod: Pod, moment: float) -> Pod:
    return replace(pod, status=replace(pod.status, start_time=at(moment)))


def ended(pod: Pod, start: float, end: float) -> Pod:
    state = ContainerState(terminated=Ended(exit_code=0, finished_at=at(end)))
    done = started(in_phase(pod, "Succeeded"), start)
    return replace(done, status=replace(done.status, container_statuses=(ContainerStatus(name="c", state=state),)))


def four_gpus(queue: QueuePart = FAIR) -> World:
    return World.of(node(machine("n1", 4)), queue=queue)


def test_gpus_are_divided_in_one_pass_although_one_namespace_came_first() -> None:
    world = four_gpus()
    world.tell(
        *(whole(f"a{i}", "early", age=100) for i in range(4)), *(whole(f"b{i}", "late", age=10) for i in range(4))
    )
    assert sorted(name for unit in world.go() for name in unit) == ["a0", "a1", "b0", "b1"]


def test_held_slots_count_in_the_next_pass() -> None:
    world = World.of(node(machine("n1", 1)), queue=FAIR)
    world.tell(whole("a0", "early", age=100), whole("a1", "early", age=90))
    assert world.go() == [["a0"]]
    world.tell(whole("b0", "late", age=10))
    world.state.node_changed(None, node(machine("n2", 1)))
    assert world.go() == [["b0"]], "early has a slot already, though it is not bound yet"


def test_weights_decide_how_many_gpus_a_namespace_gets() -> None:
    world = four_gpus(replace(FAIR, weights={"large": 3}))
    world.tell(*(whole(f"{name}{i}", name) for name in ("large", "small") for i in range(4)))
    assert sorted(unit[0][:5] for unit in world.go()) == ["large", "large", "large", "small"]


def test_a_label_divides_the_share_of_its_namespace_only() -> None:
    world = four_gpus(replace(FAIR, account_label="user"))
    many = [whole(f"m{i}", "many", user=f"u{i}") for i in range(4)]
    world.tell(*many, *(whole(f"o{i}", "one", user="u") for i in range(4)))
    assert sorted(unit[0][0] for unit in world.go()) == ["m", "m", "o", "o"], "more users do not get more GPUs"


def test_past_use_counts_and_why_tells_the_numbers() -> None:
    world = World.of(node(machine("n1", 2)), queue=FAIR)
    world.tell(whole("a0", "heavy"), whole("a1", "heavy"))
    world.go()
    for name in ("a0", "a1"):
        assert world.bind(name)
    world.now = 2 * HOUR
    world.tell(in_phase(world.pods["a0"], "Succeeded"), in_phase(world.pods["a1"], "Succeeded"))
    world.tell(whole("a2", "heavy", age=100), whole("b0", "light", age=0), whole("b1", "light", age=0))
    assert "heavy has 0 GPUs; its fair share is 1 (weight 1); it has used" in world.why("a2")
    assert world.why("a2").endswith("GPU-hours where 1.99 would be equal, which counts as 0.5 GPUs more")
    assert "with 1 before it in the queue (fair)" in world.why("a2")
    assert world.go() == [["b0"], ["a2"]], "the correction is at most half of a share"


def test_a_new_scheduler_counts_running_and_ended_pods_by_their_times() -> None:
    first = World.of(node(machine("n1", 2)), queue=FAIR)
    first.tell(whole("run", "heavy"), whole("done", "heavy"))
    first.go()
    assert first.bind("run")
    assert first.bind("done")
    ran, done = started(first.pods["run"], TODAY - HOUR), ended(first.pods["done"], TODAY - 3 * HOUR, TODAY - 2 * HOUR)
    second = World.of(queue=FAIR)
    second.tell(ran, done, whole("next", "heavy"), whole("other", "light"))
    second.state.node_changed(None, node(machine("n1", 2)))  # pods may be known before their nodes
    assert "heavy has 1 GPU; its fair share is 1 (weight 1); it has used 1.99 GPU-hours" in second.why("next")
    second.tell(msgspec.structs.replace(done, spec=done.spec))
    assert "it has used 1.99 GPU-hours" in second.why("next"), "an ended pod counts once"


def test_priority_comes_before_shares() -> None:
    world = World.of(node(machine("n1", 1)), queue=FAIR)
    urgent = whole("urgent", "heavy", age=1)
    world.tell(whole("b0", "light"), replace(urgent, spec=replace(urgent.spec, priority=100)))
    assert world.go() == [["urgent"]]


@pytest.mark.parametrize("weights", ["{'': 2}", "{team/: 1}", "{team: 0}"])
def test_bad_weights_are_refused(weights: str) -> None:
    with pytest.raises(InputError, match="weights"):
        parse_settings(f"queue: {{order: fair, weights: {weights}}}".encode())
