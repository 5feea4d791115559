# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue releases as many pods as fit, in the core's order, gangs as a whole, and none waits forever."""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cotenant.core.model import Job, Slot
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.queueing.overdue import is_overdue
from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Condition, Gate, Pod, Resources
from cotenant.kube.codec.queueing import ATTAINED, GANG, GATE, Gang, estimate_of, is_gated
from cotenant.kube.codec.request import request_of
from cotenant.kube.scheduler.gangs import RECENT_S, Grant
from cotenant.kube.scheduler.placement import Choice
from cotenant.kube.scheduler.queue import MOST_BLOCKED, MOST_REFUSED, MOST_RELEASED, UNSCHEDULABLE_S
from cotenant.kube.settings import QueuePart
from cotenant.kube.state.allocation import planned_allocation
from tests.core.builders import one_bad_pair
from tests.kube.queues import HOLD_S, TODAY, World, open_gate, queued
from tests.kube.worlds import annotated, args, in_phase, machine, node

HOUR = 3600.0


def unschedulable(pod: Pod) -> Pod:
    """As kube-scheduler leaves it that found no node."""
    said = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(said,)))


def one_card(memory: int = 16_000, **about: Any) -> World:
    return World.of(node(machine("n1", 1, memory)), **about)


# The queue.


def test_only_as_many_are_released_as_fit_and_a_slot_is_held_for_each() -> None:
    world = one_card()
    world.tell(*(queued(name, 6000, age=age) for name, age in (("c", 10), ("a", 30), ("b", 20))))
    assert world.go() == [["a"], ["b"]]
    assert world.held("a")
    assert world.held("b")
    assert not world.held("c")
    assert world.go() == []


def test_many_are_released_in_several_passes() -> None:
    world = World.of(node(machine("n1", 8)))
    world.tell(*(queued(f"p{i}", 100) for i in range(MOST_RELEASED + 3)))
    first, second = world.run_pass(), world.run_pass()
    assert (len(first.released), first.more) == (MOST_RELEASED, True)
    assert (len(second.released), second.more) == (3, False)


def too_large(count: int) -> list[Pod]:
    """Pods that fit nowhere, each of its own kind, the first that came first."""
    return [queued(f"huge{i:03}", 17_000 + i, age=1000.0 - i) for i in range(count)]


def test_a_pod_behind_many_classes_that_fit_nowhere_is_examined_too() -> None:
    world = one_card()
    world.tell(*too_large(2 * MOST_REFUSED + 10), queued("small", 2000, age=1))
    first, second, third = world.run_pass(), world.run_pass(), world.run_pass()
    assert [(len(step.released), step.more) for step in (first, second, third)] == [(0, True), (0, True), (1, False)]
    wanted = [f"huge{i:03}" for i in range(MOST_BLOCKED)]
    assert [pod.metadata.name for pod in third.blocked] == wanted, "those of the first in line"
    assert world.run_pass().more, "from the first again"


def test_a_node_that_is_kept_for_an_overdue_pod_stays_kept_during_the_round() -> None:
    world = one_card()
    world.tell(queued("runs", 4000))
    world.go()
    world.bind("runs")
    world.tell(queued("late", 14_000, age=12 * HOUR, estimate="1h"), *too_large(MOST_REFUSED))
    world.tell(queued("small", 2500, age=1))
    assert [world.go() for _ in range(4)] == [[], [], [], []]
    world.tell(in_phase(world.pods["runs"], "Succeeded"))
    assert world.go() + world.go() == [["late"]]


def test_no_pod_is_released_twice_while_its_gate_is_being_removed() -> None:
    world = one_card()
    world.tell(queued("a"))
    (unit,) = world.run_pass().released
    assert not world.run_pass().released
    world.queue.undo_release(unit)
    assert not world.held("a")
    assert world.run_pass().released == [unit]


def test_the_next_pod_is_released_when_capacity_is_freed() -> None:
    world = one_card()
    world.tell(queued("a", 12_000), queued("b", 12_000, age=1))
    assert world.go() == [["a"]]
    assert world.bind("a")
    assert world.go(HOLD_S + 1) == []
    world.tell(in_phase(world.pods["a"], "Succeeded"))
    assert world.go() == [["b"]]


@pytest.mark.parametrize(
    ("order", "first"), [("fifo", "old"), ("sjf", "short"), ("srpt", "short"), ("aged", "short"), ("las", "old")]
)
def test_the_order_is_that_of_the_settings(order: Any, first: str) -> None:
    world = one_card(queue=QueuePart(namespaces=("team",), order=order))
    world.tell(queued("short", 12_000, age=10, estimate="10m"), queued("old", 12_000, age=300, estimate="10h"))
    assert world.go() == [[first]]


@pytest.mark.parametrize("order", ["fifo", "sjf", "srpt", "las", "aged"])
def test_among_equal_pods_the_first_submitted_is_first(order: Any) -> None:
    world = one_card(queue=QueuePart(namespaces=("*",), order=order))
    world.tell(*(queued(name, 12_000, age=age) for name, age in (("a", 10), ("c", 30), ("b", 20))))
    assert world.go() == [["c"]]


@pytest.mark.parametrize(("order", "first"), [("srpt", "done"), ("aged", "done"), ("las", "new"), ("sjf", "new")])
def test_what_a_job_has_had_in_pods_before_counts_where_the_order_asks(order: Any, first: str) -> None:
    world = one_card(queue=QueuePart(namespaces=("*",), order=order))
    world.tell(queued("done", 12_000, estimate="10h", annotations={ATTAINED: "9h55m"}))
    world.tell(queued("new", 12_000, estimate="1h"))
    assert world.go() == [[first]]


def test_a_pod_with_another_gate_is_not_in_the_queue_and_holds_nothing() -> None:
    world = one_card()
    pod = queued("a", 12_000)
    both = msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, scheduling_gates=(Gate("x"), Gate(GATE)))
    )
    members = [queued(f"g{i}", 6000, gang=("g", 2), age=1) for i in range(2)]
    late = msgspec.structs.replace(members[1], spec=both.spec)
    world.tell(both, members[0], late)
    assert world.go() == []
    assert "other scheduling gates are removed: x" in (world.queue.explain(both, world.now, TODAY) or "")
    world.tell(pod)
    assert world.go() == [["a"]]
    world.remove("a")
    world.tell(members[1])
    assert world.go() == [["g0", "g1"]]


def test_a_slot_is_not_held_long_for_one_that_kube_scheduler_finds_no_node_for() -> None:
    world = one_card()
    world.tell(queued("a", 12_000), queued("b", 12_000, age=1))
    assert world.go() == [["a"]]
    world.tell(unschedulable(world.pods["a"]))
    assert world.go(UNSCHEDULABLE_S) == []
    assert world.go(UNSCHEDULABLE_S) == [["b"]]
    assert not world.held("a")


def test_a_slot_is_kept_for_one_that_is_reserved_for_or_being_bound_whatever_was_said_before() -> None:
    world = one_card()
    world.tell(queued("a", 12_000), queued("b", 12_000, age=1))
    assert world.go() == [["a"]]
    world.tell(unschedulable(world.pods["a"]))
    assert world.go(1) == []
    assert isinstance(world.placer.choose(world.pods["a"], "n1", world.now, 1), Choice)
    assert world.go(2 * UNSCHEDULABLE_S) == []
    assert world.held("a")


def test_a_pod_that_is_released_to_preempt_keeps_its_place_in_the_queue() -> None:
    world = one_card()
    world.tell(queued("runs", 12_000))
    world.go()
    world.bind("runs")
    urgent = queued("urgent", 12_000, age=1)
    urgent = msgspec.structs.replace(urgent, spec=msgspec.structs.replace(urgent.spec, priority=5))
    world.tell(queued("old", 12_000, age=300), urgent)
    assert [pod.metadata.name for pod in world.run_pass().blocked] == ["urgent", "old"]
    assert world.queue.release_to_preempt(urgent)
    assert not world.queue.release_to_preempt(urgent), "once"
    assert [pod.metadata.name for pod in world.run_pass().blocked] == ["old"]
    world.tell(open_gate(urgent))
    assert world.queue.awaits_preemption(urgent)
    world.tell(in_phase(world.pods["runs"], "Succeeded"))
    assert world.go() == [["urgent"]], "its place was free before anybody was evicted"
    assert not world.queue.awaits_preemption(urgent)
    assert world.go(HOLD_S) == [["old"]], "it had its turn"


def test_no_pod_is_evicted_for_a_gang_or_for_a_pod_over_its_quota() -> None:
    world = one_card()
    world.limit("poor", 500)
    world.tell(*gang("g", 2, 17_000), queued("poor", 1000, namespace="poor"), queued("large", 17_000))
    assert [pod.metadata.name for pod in world.run_pass().blocked] == ["large"]


def test_a_reserved_slot_is_not_taken_back_by_the_queue() -> None:
    world = one_card()
    world.tell(queued("runs", 12_000))
    world.go()
    world.bind("runs")
    world.tell(queued("a", 4000))
    assert world.go() == [["a"]]
    urgent = queued("urgent", 12_000)
    world.tell(urgent)
    world.run_pass()
    assert world.queue.release_to_preempt(urgent)
    world.tell(open_gate(urgent))
    seat = planned_allocation(urgent, request_of(urgent), Slot("n1", (0,)), world.state.cluster.node("n1").machine)
    world.state.hold(seat, 1000.0, reserved=True)
    assert not world.queue.awaits_preemption(urgent)
    assert world.go() == []
    assert world.state.is_reserved("uid-urgent")


def test_higher_priority_goes_before_the_order() -> None:
    world = one_card()
    urgent = queued("urgent", 12_000, age=1)
    world.tell(queued("old", 12_000, age=300))
    world.tell(msgspec.structs.replace(urgent, spec=msgspec.structs.replace(urgent.spec, priority=5)))
    assert world.go() == [["urgent"]]


def test_a_hold_that_expires_frees_its_slot_for_the_next_pod() -> None:
    world = one_card()
    world.tell(queued("a", 12_000), queued("b", 12_000, age=1))
    assert world.go() == [["a"]]
    assert world.go(HOLD_S - 1) == []
    assert world.go(2) == [["b"]]


def test_a_deleted_pod_leaves_the_queue_and_its_slot() -> None:
    world = one_card()
    world.tell(queued("a", 12_000), queued("b", 12_000, age=1))
    assert world.go() == [["a"]]
    world.remove("a")
    assert world.go() == [["b"]]


def test_small_ones_pass_by_a_large_one_until_it_is_overdue() -> None:
    world = one_card(queue=QueuePart(namespaces=("*",), order="sjf"))
    world.tell(queued("runs", 4000))
    world.go()
    world.bind("runs")
    world.tell(queued("large", 14_000, age=2 * HOUR, estimate="1h"), queued("small", 2000, estimate="1m", age=1))
    assert world.go() == [["small"]]
    assert "with 0 before it" in world.why("large")
    world.tell(queued("late", 14_000, age=12 * HOUR, estimate="1h"), queued("next", 2500, estimate="1m", age=1))
    assert world.go() == [], "the GPU is kept for it, and 2,500 MiB do not fit beside it"
    assert "overdue" in world.why("late")
    world.remove("small")
    world.tell(in_phase(world.pods["runs"], "Succeeded"))
    assert world.go() == [["late"]]


def test_nodes_are_kept_for_the_first_that_is_overdue_and_not_for_the_next_instead() -> None:
    world = World.of(node(machine("large", 1, 16_000)), node(machine("a-small", 1, 8000)))
    for name, memory in (("r0", 4000), ("r1", 5000)):
        world.tell(queued(name, memory))
        world.go()
        assert world.bind(name)
    assert [world.pods[name].spec.node_name for name in ("r0", "r1")] == ["a-small", "large"]
    world.tell(
        queued("late", 14_000, age=12 * HOUR, estimate="1h"), queued("later", 7000, age=11.5 * HOUR, estimate="1h")
    )
    world.tell(queued("next", 2500, estimate="1m", age=1))
    assert world.go() == [["next"]]
    seat = world.state.held("uid-next")
    assert seat is not None
    assert seat.record.node == "a-small"


def test_nothing_is_kept_for_one_that_is_overdue_and_could_never_fit_or_waits_for_its_quota() -> None:
    world = one_card()
    world.limit("poor", 500)
    world.tell(queued("huge", 17_000, age=99 * HOUR, estimate="1m"))
    world.tell(*(queued(f"g{i}", 9000, age=99 * HOUR, estimate="1m", gang=("g", 2)) for i in range(2)))
    world.tell(queued("poor", 1000, age=99 * HOUR, estimate="1m", namespace="poor"), queued("small", 2000, age=1))
    assert world.go() == [["small"]]
    world.tell(queued("next", 2000, age=1))
    assert world.go() == [["next"]]


def test_a_gate_stays_where_a_pod_became_nonsense_and_says_so() -> None:
    world = one_card()
    pod = annotated(queued("a"), {"cotenant.io/estimate": "soon"})
    world.tell(pod)
    assert world.go() == []
    assert "soon" in (world.queue.explain(pod, world.now, TODAY) or "")
    world.tell(annotated(pod, {"cotenant.io/estimate": "1h"}))
    assert world.go() == [["a"]]


def test_gates_are_opened_for_all_when_the_queue_is_off_and_for_those_of_another_scheduler() -> None:
    world = one_card(4000, queue=QueuePart(namespaces=("other",)))
    strange = queued("strange", namespace="other")
    strange = msgspec.structs.replace(strange, spec=msgspec.structs.replace(strange.spec, scheduler_name="another"))
    world.tell(queued("a"), queued("b"), strange, queued("stays", 9000, namespace="other"))
    assert sorted(pod.metadata.name for pod in world.run_pass().open) == ["a", "b", "strange"]
    world.go()
    assert is_gated(world.pods["stays"].spec.scheduling_gates)
    assert not world.run_pass().open


def test_a_pod_whose_label_is_removed_waits_on() -> None:
    world = one_card(4000, queue=QueuePart(label="queue"))
    world.tell(queued("full", 4000), queued("a", 4000, age=1))
    assert world.go() == [["full"]]
    assert not world.run_pass().open


def test_a_quota_keeps_the_next_one_waiting_but_not_those_of_others() -> None:
    world = one_card()
    world.limit("team", 5000)
    world.tell(queued("a", age=30), queued("b", age=20), queued("c", age=10, namespace="other"))
    assert world.go() == [["a"], ["c"]]


def test_words_say_how_many_are_before_a_pod() -> None:
    world = one_card()
    world.tell(*(queued(f"p{i}", 12_000, age=100 - i) for i in range(4)))
    world.go()
    assert world.queue.explain(world.pods["p0"], world.now, TODAY) is None
    assert "with 2 before it in the queue (aged)" in world.why("p3")


# Gangs.


def gang(name: str, size: int, memory: int = 6000, members: int | None = None, **about: Any) -> list[Any]:
    return [queued(f"{name}{i}", memory, gang=(name, size), **about) for i in range(members or size)]


def test_a_gang_waits_until_all_of_it_is_there() -> None:
    world = one_card(queue=QueuePart())
    *most, last = gang("g", 2)
    world.tell(*most)
    step = world.run_pass()
    assert [(pod.metadata.name, text) for pod, text in step.incomplete] == [
        ("g0", "only 1 of the 2 pods of its gang exist")
    ]
    assert not step.released
    assert not world.bind("g0")
    world.tell(last)
    assert world.go() == [["g0", "g1"]]
    assert world.held("g0")
    assert world.held("g1")


def test_a_growing_gang_reports_now_and_then_how_many_pods_are_missing() -> None:
    world = one_card(queue=QueuePart())
    told = []
    for pod in gang("g", 9, members=8):
        world.tell(pod)
        told.extend(world.run_pass(1.0).incomplete)
    assert [text for _, text in told] == ["only 1 of the 9 pods of its gang exist"]
    assert {text for _, text in world.run_pass(30.0).incomplete} == {"only 8 of the 9 pods of its gang exist"}
    assert not world.run_pass(60.0).incomplete


def test_a_gang_without_free_slots_holds_nothing_and_others_are_released() -> None:
    world = one_card()
    world.tell(*gang("g", 3), queued("small", 2000, age=1))
    assert world.go() == [["small"]]
    assert not any(world.held(f"g{i}") for i in range(3))
    assert not world.bind("g0")


def test_no_node_is_offered_to_a_pod_whose_gang_was_not_released() -> None:
    world = one_card()
    world.tell(*(open_gate(pod) for pod in gang("g", 3)))
    assert world.placer.filter(args(world.pods["g0"], "n1"), world.now).node_names in (None, ())
    assert not any(one.score for one in world.placer.prioritize(args(world.pods["g0"], "n1"), world.now))
    world.remove("g2")
    world.tell(open_gate(queued("small", 2000, gang=("g", 3))))
    assert [sorted(unit) for unit in world.go()] == [["g0", "g1", "small"]]
    assert world.placer.filter(args(world.pods["g0"], "n1"), world.now).node_names == ("n1",)


def test_of_a_gang_that_waits_it_is_not_said_that_one_alone_would_not_fit() -> None:
    world = one_card()
    world.tell(*(open_gate(pod) for pod in gang("g", 2, 17_000)))
    assert world.placer.reasons.nearest(world.pods["g0"]) is None
    assert world.placer.reasons.nearest(open_gate(queued("alone", 17_000))) is not None


def test_an_arrival_that_was_refused_since_does_not_count() -> None:
    world = World.of(node(machine("n1", 1)), node(machine("small", 1, 1000)))
    world.tell(*gang("g", 2))
    world.go()
    grant = world.gangs.grant_of("uid-g0")
    assert grant is not None
    grant.arrive("uid-g0", world.now)
    assert not world.placer.filter(args(world.pods["g0"], "small"), world.now).node_names, "n1 will not do any more"
    grant.arrive("uid-g1", world.now)
    assert not grant.complete
    assert world.placer.filter(args(world.pods["g0"], "n1"), world.now).node_names
    grant.arrive("uid-g0", world.now)
    assert grant.complete


def test_an_arrival_of_long_ago_does_not_count() -> None:
    grant = Grant(Gang("team", "g", 2), frozenset({"a", "b"}), until=30.0)
    grant.arrive("a", 0.0)
    grant.arrive("b", RECENT_S + 1)
    assert (grant.complete, grant.until) == (False, 30.0)
    grant.arrive("a", RECENT_S + 5)
    assert (grant.complete, grant.until) == (True, 2 * RECENT_S + 5), "the others are still to be bound"


def test_a_gang_of_unequal_pods_is_placed_as_a_whole() -> None:
    world = World.of(node(machine("n1", 2, 16_000)))
    world.tell(queued("chief", 2000, gang=("g", 3)), *(queued(f"w{i}", 14_000, gang=("g", 3)) for i in range(2)))
    assert [sorted(unit) for unit in world.go()] == [["chief", "w0", "w1"]]
    assert all(map(world.bind, ("chief", "w1", "w0")))


def test_a_gang_that_fits_in_part_holds_nothing() -> None:
    world = one_card()
    world.tell(queued("worker", 14_000, gang=("g", 2)), queued("chief", 4000, gang=("g", 2)))
    world.tell(queued("other", 16_000, age=1))
    assert world.go() == [["other"]]
    assert not world.held("worker")


def test_a_gang_that_is_not_bound_in_time_gives_all_up_and_comes_again() -> None:
    world = one_card()
    world.tell(*gang("g", 2), queued("other", 6000, age=1))
    assert world.go() == [["g0", "g1"]]
    step = world.run_pass(HOLD_S)
    (given_up,) = step.revoked
    assert "2 of 2 pods could not be bound in time" in given_up.why
    assert [unit.pods[0].pod.metadata.name for unit in step.released] == ["other"]
    assert not world.bind("g0"), "its gate is gone, and it must not start alone"
    world.remove("other")
    assert world.go() == [], "not at once: others may have better luck"
    assert world.go(HOLD_S) == [["g0", "g1"]]
    assert world.bind("g0")
    assert world.bind("g1")


def test_a_gang_that_loses_a_pod_before_it_is_bound_waits_for_another() -> None:
    world = one_card()
    world.tell(*gang("g", 2))
    assert world.go() == [["g0", "g1"]]
    world.remove("g1")
    (given_up,) = world.run_pass().revoked
    assert [pod.metadata.name for pod in given_up.pods] == ["g0"]
    assert not world.held("g0")
    assert not world.bind("g0")
    world.tell(queued("g2", 6000, gang=("g", 2)))
    assert world.go() == [["g0", "g2"]]


def test_a_gang_that_loses_a_pod_while_all_are_being_bound_is_not_stopped() -> None:
    world = one_card()
    world.tell(*gang("g", 2))
    world.go()
    for uid in ("uid-g0", "uid-g1"):
        grant = world.gangs.grant_of(uid)
        assert grant is not None
        grant.arrive(uid, world.now)
    world.remove("g1")
    assert not world.run_pass().revoked
    assert world.bind("g0")


def test_a_member_that_failed_is_replaced_alone_while_the_others_run() -> None:
    world = one_card()
    world.tell(*gang("g", 2))
    world.go()
    assert world.bind("g0")
    assert world.bind("g1")
    world.tell(in_phase(world.pods["g1"], "Failed"))
    world.tell(queued("g2", 6000, gang=("g", 2)))
    assert world.go() == [["g2"]]
    assert world.bind("g2")


def test_pods_beyond_the_size_of_a_gang_follow_when_it_is_complete() -> None:
    world = one_card(queue=QueuePart())
    world.tell(*gang("g", 2, 4000, members=3))
    assert world.go() == [["g0", "g1"]]
    assert not world.bind("g2")
    assert world.bind("g0")
    assert world.bind("g1")
    assert world.go() == [["g2"]]


def test_a_gang_of_another_namespace_is_another_gang() -> None:
    world = one_card()
    world.tell(queued("a", gang=("g", 2)), queued("b", gang=("g", 2), namespace="other"))
    assert world.go() == []


def test_a_pod_of_a_gang_that_we_have_not_heard_of_is_refused() -> None:
    world = one_card()
    assert world.gangs.must_wait(queued("a", gang=("g", 2))) is not None


def test_a_pod_without_gpus_belongs_to_no_gang_and_does_not_wait() -> None:
    world = one_card()
    leads = queued("leads", gang=("g", 2))
    containers = tuple(msgspec.structs.replace(one, resources=Resources()) for one in leads.spec.containers)
    world.tell(msgspec.structs.replace(leads, spec=msgspec.structs.replace(leads.spec, containers=containers)))
    assert [pod.metadata.name for pod in world.run_pass().open] == ["leads"]
    world.tell(*gang("g", 2))
    assert world.go() == [["g0", "g1"]]


def test_a_pod_that_was_released_as_overdue_is_exempt_from_the_sharing_gate() -> None:
    world = one_card(policy="cotenant", belief=one_bad_pair(), queue=QueuePart(namespaces=("*",)))
    world.tell(queued("runs", 6000))
    world.go()
    assert world.bind("runs")
    world.tell(queued("late", 6000, age=4 * HOUR, estimate="1m"))
    assert world.go() == [["late"]]
    asked = args(world.pods["late"], "n1")
    assert world.placer.filter(asked, world.now).node_names == ("n1",)
    world.state.release("uid-late")
    assert not world.placer.filter(asked, world.now).node_names, "without a slot of its own it would have to be"


def test_a_pod_that_leaves_its_gang_waits_alone() -> None:
    world = one_card()
    first, second = gang("g", 2)
    world.tell(first)
    assert world.go() == []
    left = dict(first.metadata.annotations)
    del left[GANG], left["cotenant.io/gang-size"]
    world.tell(msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, annotations=left)))
    assert world.go() == [["g0"]]
    world.tell(second)
    assert world.go() == []


# What must never happen.

SIZES = st.sampled_from([2000, 5000, 9000, 16_000])


@settings(max_examples=60)
@given(
    pods=st.lists(
        st.tuples(SIZES, st.integers(1, 90_000), st.sampled_from([None, "1m", "1h", "9h"]), st.integers(1, 2)),
        max_size=14,
    ),
    order=st.sampled_from(["fifo", "sjf", "srpt", "las", "aged"]),
    policy=st.sampled_from(["binpack", "spread", "fragmentation"]),
)
def test_the_queue_releases_what_the_core_would_place_and_where(pods: list[Any], order: Any, policy: str) -> None:
    pods.sort(key=lambda pod: -pod[1])  # the names are in the order of submission, as the core's IDs are
    world = World.of(
        node(machine("n1")), node(machine("n2", 1)), queue=QueuePart(namespaces=("*",), order=order), policy=policy
    )
    made = [
        queued(f"p{i:02}", memory, age=float(age), estimate=estimate, gpus=gpus)
        for i, (memory, age, estimate, gpus) in enumerate(pods)
    ]
    world.tell(*made)
    jobs = [
        Job(
            id=f"{TODAY - pods[i][1]:020} {pod.metadata.uid}",  # of equals, the first that came
            demand=request_of(pod).demand,
            submitted=Seconds(TODAY - pods[i][1]),
            estimate=estimate_of(pod),
        )
        for i, pod in enumerate(made)
    ]
    ranker = world.placer.views.ranker(queued("any"))
    by_order = build_policy("binpack", queue=order)
    assume(by_order.overdue is not None or not any(is_overdue(job, TODAY) for job in jobs))
    wanted = decide(by_order, jobs, world.state.cluster, TODAY, ranker=ranker, ends=())
    assert [f"uid-{name}" for (name,) in world.go()] == [one.job.id.split()[1] for one in wanted.placements]
    for one in wanted.placements:
        seat = world.state.held(one.job.id.split()[1])
        assert seat is not None
        uuids = [share.gpu for share in seat.record.containers[0].gpus]
        gpus = world.state.cluster.node(one.slot.node).machine.gpus
        assert (seat.record.node, uuids) == (one.slot.node, [gpus[i].uuid for i in one.slot.gpus])


class Life:
    """Random things that happen to gangs and single pods."""

    def __init__(self) -> None:
        self.world = World.of(node(machine("n1")), node(machine("n2", 1)))
        self.made = 0
        self.started: dict[str, set[str]] = {}

    def create(self, choice: int) -> None:
        name = f"p{self.made}"
        self.made += 1
        of = None if choice % 3 == 0 else (f"g{choice % 3}", 2 + choice % 3)
        self.world.tell(queued(name, (3000, 7000, 15_000)[choice % 3], gang=of, age=float(choice)))

    def bind(self, choice: int) -> None:
        ready = [name for name, pod in self.world.pods.items() if not pod.spec.node_name and not _gated(pod)]
        if ready:
            self.world.bind(ready[choice % len(ready)])

    def end(self, choice: int) -> None:
        running = [name for name, pod in self.world.pods.items() if pod.spec.node_name]
        if running:
            self.world.tell(in_phase(self.world.pods[running[choice % len(running)]], "Failed"))

    def delete(self, choice: int) -> None:
        if self.world.pods:
            self.world.remove(sorted(self.world.pods)[choice % len(self.world.pods)])

    def step(self, choice: int) -> None:
        for unit in self.world.go(float(choice)):
            assert all(self.world.held(name) for name in unit)

    def check(self) -> None:
        for one in self.world.state.cluster:
            assert min(one.memory) >= 0
            assert min(one.slots) >= 0
        for gathered in self.world.gangs.all():
            for pod in gathered.ready:
                uid = pod.metadata.uid
                grant = self.world.gangs.grant_of(uid)
                free = self.world.gangs.must_wait(pod) is None
                assert free == (grant is not None or gathered.missing == 0)
                if grant is None and self.world.held(pod.metadata.name):
                    assert gathered.missing == 0, "what is held is held for all of a gang"


def _gated(pod: Any) -> bool:
    return is_gated(pod.spec.scheduling_gates)


@settings(max_examples=60)
@given(
    deeds=st.lists(
        st.tuples(st.sampled_from(["create", "create", "bind", "bind", "end", "delete", "step"]), st.integers(0, 40)),
        max_size=40,
    )
)
def test_no_gang_is_released_in_part_and_no_gpu_is_overcommitted_whatever_happens(deeds: list[tuple[str, int]]) -> None:
    life = Life()
    for deed, choice in deeds:
        getattr(life, deed)(choice)
        if deed == "step":
            life.check()
    # In the end all that can run runs, whatever was held for whom.
    for _ in range(12):
        for pod in list(life.world.pods.values()):
            if pod.spec.node_name:
                life.world.tell(in_phase(pod, "Succeeded"))
        life.world.go(2 * HOLD_S)
        life.check()
        for name, pod in list(life.world.pods.items()):
            if not pod.spec.node_name and not _gated(pod):
                life.world.bind(name)
    for name, pod in life.world.pods.items():
        if not pod.spec.node_name:
            turn = life.world.gangs.must_wait(pod)
            assert turn is not None, name
            gathered = next(one for one in life.world.gangs.all() if pod in one.ready)
            assert len(gathered.ready) < gathered.missing or gathered.gang.name == "g2", name
