# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The state of the cluster: which pods count, from when until when, and when a node is closed."""

import json
from dataclasses import replace as changed
from math import inf

import pytest
from msgspec.structs import replace

from cotenant.core.model import Slot
from cotenant.kube.api.objects import ContainerState, ContainerStatus, Ended, Node, Pod, PodClaim, Running
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.codec.inventory import AWAY, INVENTORY, ORPHANS
from cotenant.kube.codec.request import request_of
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.kube.worlds import (
    annotated,
    bound,
    chosen,
    free_memory,
    in_phase,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)

N1 = machine("n1")
FULL = (16000, 16000)
TAKEN = (12000, 16000)


def record_of(pod: Pod) -> str:
    return pod.metadata.annotations[RECORD]


def with_states(pod: Pod, *states: ContainerState) -> Pod:
    statuses = tuple(ContainerStatus(name=f"app-{i}", state=state) for i, state in enumerate(states))
    return replace(pod, status=replace(pod.status, container_statuses=statuses))


@pytest.fixture
def state() -> ClusterState:
    return state_of(node(N1))


@pytest.fixture
def running(state: ClusterState) -> Pod:
    return place(state, placer_of(state), waiting("a"), "n1")


def test_a_pod_counts_from_the_choice_on_and_is_counted_once(state: ClusterState) -> None:
    pod = waiting("a")
    state.pod_changed(None, pod)
    choice = chosen(placer_of(state), pod, "n1")
    assert free_memory(state, "n1") == TAKEN
    versions = state.cluster.versions
    state.assume("uid-a")
    assert state.waiting == {}
    there = bound(pod, choice)
    state.pod_changed(pod, there)
    state.pod_changed(there, in_phase(there, "Running"))
    assert free_memory(state, "n1") == TAKEN
    assert state.cluster.versions is versions, "nothing changed, so nothing need be rated again"


def test_a_bind_that_failed_is_free_at_once(state: ClusterState) -> None:
    chosen(placer_of(state), waiting("a"), "n1")
    state.release("uid-a")
    assert free_memory(state, "n1") == FULL


def test_a_watch_that_is_faster_than_the_answer_changes_nothing(state: ClusterState) -> None:
    pod = waiting("a")
    there = bound(pod, chosen(placer_of(state), pod, "n1"))
    state.pod_changed(pod, there)
    state.pod_changed(there, in_phase(there, "Succeeded"))
    state.assume("uid-a")
    assert free_memory(state, "n1") == FULL


def test_an_older_event_after_the_answer_changes_nothing(state: ClusterState) -> None:
    pod = waiting("a")
    chosen(placer_of(state), pod, "n1")
    state.assume("uid-a")
    state.pod_changed(pod, annotated(pod, {"seen": "yes"}))
    assert (free_memory(state, "n1"), state.waiting) == (TAKEN, {})


def test_a_deletion_timestamp_frees_nothing_and_the_end_does(state: ClusterState, running: Pod) -> None:
    leaving = replace(running, metadata=replace(running.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    state.pod_changed(running, leaving)
    assert free_memory(state, "n1") == TAKEN
    state.pod_changed(leaving, in_phase(leaving, "Failed"))
    assert free_memory(state, "n1") == FULL


@pytest.mark.parametrize(
    ("states", "free"),
    [
        ((ContainerState(terminated=Ended()),), FULL),
        ((ContainerState(terminated=Ended()), ContainerState(running=Running())), TAKEN),
        ((ContainerState(),), TAKEN),
        ((), TAKEN),
    ],
)
def test_a_pod_that_is_gone_is_free_if_its_containers_had_ended(
    state: ClusterState, running: Pod, states: tuple[ContainerState, ...], free: tuple[int, ...]
) -> None:
    last = with_states(running, *states)
    state.pod_changed(running, last)
    state.pod_changed(last, None, "7")
    assert free_memory(state, "n1") == free


@pytest.mark.parametrize(("by_list", "free"), [(False, FULL), (True, TAKEN)])
def test_a_pod_with_claims_that_was_never_seen_on_its_node_is_free_unless_that_may_have_been_missed(
    state: ClusterState, running: Pod, by_list: bool, free: tuple[int, ...]
) -> None:
    spec = replace(running.spec, node_name="", resource_claims=(PodClaim(name="gpu"),))
    decided = replace(running, spec=spec)
    anew = state_of(node(N1), pods=[decided])
    assert free_memory(anew, "n1") == TAKEN
    anew.pod_changed(decided, None, "7", by_list=by_list)
    assert free_memory(anew, "n1") == free


@pytest.mark.parametrize(
    ("seen", "held", "free"),
    [("6", False, TAKEN), ("7", False, FULL), ("10", False, FULL), ("7", True, TAKEN), ("word", False, TAKEN)],
)
def test_a_deleted_pod_counts_until_its_agent_has_reported(
    state: ClusterState, running: Pod, seen: str, held: bool, free: tuple[int, ...]
) -> None:
    state.pod_changed(running, None, "7")
    orphans = [decode_record(record_of(running))] if held else []
    state.node_changed(node(N1), node(N1, orphans=(seen, orphans)))
    assert free_memory(state, "n1") == free


def test_an_agent_that_spoke_before_we_heard_of_the_deletion_is_believed(state: ClusterState, running: Pod) -> None:
    state.node_changed(node(N1), node(N1, orphans=("9", [])))
    assert free_memory(state, "n1") == TAKEN, "its pod is there"
    state.pod_changed(running, None, "9")
    assert free_memory(state, "n1") == FULL


def test_a_scheduler_that_starts_anew_counts_what_agents_hold(running: Pod) -> None:
    orphans = ("9", [decode_record(record_of(running))])
    state = state_of(node(N1, orphans=orphans))
    assert free_memory(state, "n1") == TAKEN
    state.node_changed(node(N1, orphans=orphans), node(N1, orphans=("10", [])))
    assert free_memory(state, "n1") == FULL


def test_a_lingering_pod_ends_with_its_node(state: ClusterState, running: Pod) -> None:
    state.pod_changed(running, None, "7")
    state.node_changed(node(N1), None)
    assert len(state.cluster) == 0
    state.node_changed(None, node(N1))
    assert free_memory(state, "n1") == FULL


def test_a_pod_whose_node_is_gone_leaves_nothing_behind(state: ClusterState, running: Pod) -> None:
    state.node_changed(node(N1), None)
    state.pod_changed(running, None, "7")
    state.node_changed(None, node(N1))
    assert free_memory(state, "n1") == FULL


def test_a_pod_that_vanished_while_it_was_bound_counts_as_its_binder_says(state: ClusterState) -> None:
    for accepted, free in ((False, FULL), (True, TAKEN)):
        pod = waiting("a")
        state.pod_changed(None, pod)
        chosen(placer_of(state), pod, "n1")
        state.pod_changed(pod, None, "7")
        assert free_memory(state, "n1") == TAKEN, "nobody knows yet"
        (state.assume if accepted else state.release)("uid-a")
        assert free_memory(state, "n1") == free
    state.node_changed(node(N1), node(N1, orphans=("7", [])))
    assert free_memory(state, "n1") == FULL


def test_pods_may_come_before_their_node(state: ClusterState, running: Pod) -> None:
    late = state_of(pods=[running])
    assert len(late.cluster) == 0
    late.node_changed(None, node(N1))
    assert free_memory(late, "n1") == TAKEN


def test_a_machine_that_changes_keeps_its_tenants_on_their_gpus(state: ClusterState, running: Pod) -> None:
    turned = changed(N1, gpus=(N1.gpus[1], N1.gpus[0]))
    state.node_changed(node(N1), node(turned))
    assert free_memory(state, "n1") == (16000, 12000)
    less = changed(N1, gpus=(N1.gpus[1],))
    state.node_changed(node(turned), node(less))
    assert free_memory(state, "n1") == (16000,)
    state.node_changed(node(less), node("n1"))
    assert len(state.cluster) == 0
    state.node_changed(node("n1"), node(N1))
    assert free_memory(state, "n1") == TAKEN
    assert state.gpus == 2


def test_a_cordon_closes_a_gpu_and_keeps_its_tenants(state: ClusterState, running: Pod) -> None:
    state.node_changed(node(N1), node(N1, annotations={"cotenant.io/cordon": "GPU-n1-1"}))
    assert state.cluster.node("n1").slots == (15, 0)
    assert free_memory(state, "n1") == TAKEN


def strange(pod: Pod, /, **change: object) -> Pod:
    return annotated(pod, {RECORD: json.dumps(json.loads(record_of(pod)) | change)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2, this cotenant reads 1"),
        ({"node": "n2"}, "for another node"),
        ({"pod": "uid-b"}, "copied from another pod"),
        ({"containers": 1}, "containers"),
    ],
)
def test_an_unreadable_record_closes_its_node_until_the_pod_ends(
    state: ClusterState, running: Pod, change: dict[str, object], why: str
) -> None:
    unread = strange(running, **change)
    state.pod_changed(running, unread)
    assert why in state.closed["n1"]["uid-a"]
    assert state.open_nodes(Vendor.NVIDIA) == frozenset()
    state.pod_changed(unread, in_phase(unread, "Succeeded"))
    assert state.closed == {}
    assert state.open_nodes(Vendor.NVIDIA) == {"n1"}


def test_a_node_stays_closed_for_an_unread_pod_that_was_deleted_while_it_ran(state: ClusterState, running: Pod) -> None:
    unread = strange(running, version=2)
    state.pod_changed(running, unread)
    state.pod_changed(unread, None, "7")
    assert "n1" in state.closed
    state.pod_changed(None, waiting("a"))
    state.node_changed(node(N1), node(N1, orphans=("7", [])))
    assert (state.closed, free_memory(state, "n1")) == ({}, FULL)


@pytest.mark.parametrize("key", [INVENTORY, ORPHANS])
def test_a_node_with_an_unreadable_annotation_of_its_agent_accepts_no_pod(
    state: ClusterState, running: Pod, key: str
) -> None:
    broken = node(N1, annotations={key: '{"version":2}'})
    state.node_changed(node(N1), broken)
    assert "version 2" in state.closed["n1"][key]
    assert state.open_nodes(Vendor.NVIDIA) == frozenset()
    state.node_changed(broken, node(N1))
    assert (state.closed, free_memory(state, "n1")) == ({}, TAKEN)


def test_a_node_whose_agent_is_away_accepts_no_pod_until_it_is_back(state: ClusterState, running: Pod) -> None:
    away = node(N1, annotations={AWAY: "its agent ended"})
    state.node_changed(node(N1), away)
    assert state.closed == {"n1": {AWAY: "its agent ended"}}
    assert (state.open_nodes(Vendor.NVIDIA), free_memory(state, "n1")) == (frozenset(), TAKEN)
    freed = list[str]()
    state.freed = freed.append
    state.node_changed(away, node(N1))
    assert (state.closed, state.open_nodes(Vendor.NVIDIA), set(freed)) == ({}, frozenset({"n1"}), {"n1"})


def test_a_node_that_is_gone_is_closed_no_more(state: ClusterState) -> None:
    away = node(N1, annotations={AWAY: "its agent ended"})
    state.node_changed(node(N1), away)
    state.node_changed(away, None)
    assert state.closed == {}


def test_pods_that_others_bound_take_nothing(state: ClusterState) -> None:
    pod = waiting("a")
    state.pod_changed(None, replace(pod, spec=replace(pod.spec, node_name="n1")))
    assert (free_memory(state, "n1"), state.waiting, state.closed) == (FULL, {}, {})


def test_a_hold_of_a_pod_that_others_bind_is_given_up(state: ClusterState) -> None:
    pod = waiting("a")
    state.pod_changed(None, pod)
    state.hold_slot(pod, request_of(pod), Slot("n1", (0,)), 30.0)
    assert free_memory(state, "n1") == TAKEN
    state.pod_changed(pod, replace(pod, spec=replace(pod.spec, node_name="n1")))
    assert free_memory(state, "n1") == FULL


def test_holds_lapse_unless_they_are_being_written() -> None:
    freed: list[str] = []
    state = ClusterState(freed=freed.append)
    state.node_changed(None, node(N1))
    for name, gpu, until in (("a", 0, 30.0), ("b", 1, inf)):
        pod = waiting(name)
        state.hold_slot(pod, request_of(pod), Slot("n1", (gpu,)), until)
    freed.clear()
    assert state.expire(29.9) == []
    assert state.expire(30.0) == ["uid-a"]
    assert free_memory(state, "n1") == (16000, 12000)
    assert freed == ["n1"]


def test_a_new_hold_replaces_the_old_one(state: ClusterState) -> None:
    state.node_changed(None, node(machine("n2")))
    pod = waiting("a")
    for slot in (Slot("n1", (0,)), Slot("n2", (1,))):
        state.hold_slot(pod, request_of(pod), slot, 30.0)
    assert (free_memory(state, "n1"), free_memory(state, "n2")) == (FULL, (16000, 12000))


def test_freed_capacity_is_announced_with_its_node() -> None:
    freed: list[str] = []
    state = ClusterState(freed=freed.append)
    steps: list[tuple[Node | None, Node]] = [(None, node(N1))]
    state.node_changed(*steps[0])
    assert freed == ["n1"]
    there = place(state, placer_of(state), waiting("a"), "n1")
    assert freed == ["n1"], "a pod that comes frees nothing"
    state.pod_changed(there, in_phase(there, "Succeeded"))
    assert freed == ["n1", "n1"]
    state.node_changed(node(N1), node(N1, annotations={"cotenant.io/cordon": ""}))
    assert freed == ["n1", "n1", "n1"]
    unread = strange(there, version=2)
    state.pod_changed(None, unread)
    state.pod_changed(unread, in_phase(unread, "Failed"))
    assert freed == ["n1"] * 4


def test_only_pods_that_this_scheduler_still_has_to_place_wait() -> None:
    state = state_of(pods=[waiting("a"), in_phase(waiting("b"), "Failed")])
    foreign = waiting("c")
    state.pod_changed(None, replace(foreign, spec=replace(foreign.spec, scheduler_name="default-scheduler")))
    assert state.waiting == {"uid-a": waiting("a")}
    state.pod_changed(waiting("a"), None, "7")
    assert not state.waiting


def test_what_a_namespace_uses_is_added_up(state: ClusterState, running: Pod) -> None:
    assert state.used("team", Vendor.NVIDIA) == (4000, 0, 1)
    assert state.used("other", Vendor.NVIDIA) == (0, 0, 0)
    state.pod_changed(running, in_phase(running, "Succeeded"))
    assert state.used("team", Vendor.NVIDIA) == (0, 0, 0)
