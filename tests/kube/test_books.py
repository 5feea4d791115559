# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The books: who counts, from when, until when, and what happens to a node of which something is not understood."""

import json
from dataclasses import replace as changed
from math import inf

import pytest
from msgspec.structs import replace

from cotenant.core.model import Slot
from cotenant.kube.api.objects import ContainerState, ContainerStatus, Ended, Node, Pod, Running
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.codec.inventory import AWAY, INVENTORY, ORPHANS
from cotenant.kube.codec.request import asked_of
from cotenant.kube.state.books import Books
from cotenant.node.devices.vendors import Vendor
from tests.kube.worlds import (
    annotated,
    books_of,
    bound,
    chosen,
    free_memory,
    in_phase,
    machine,
    node,
    place,
    placer_of,
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
def books() -> Books:
    return books_of(node(N1))


@pytest.fixture
def running(books: Books) -> Pod:
    return place(books, placer_of(books), waiting("a"), "n1")


def test_a_pod_counts_from_the_choice_on_and_is_counted_once(books: Books) -> None:
    pod = waiting("a")
    books.pod_changed(None, pod)
    choice = chosen(placer_of(books), pod, "n1")
    assert free_memory(books, "n1") == TAKEN
    versions = books.cluster.versions
    books.assume("uid-a")
    assert books.waiting == {}
    there = bound(pod, choice)
    books.pod_changed(pod, there)
    books.pod_changed(there, in_phase(there, "Running"))
    assert free_memory(books, "n1") == TAKEN
    assert books.cluster.versions is versions, "nothing changed, so nothing need be rated again"


def test_a_bind_that_failed_is_free_at_once(books: Books) -> None:
    chosen(placer_of(books), waiting("a"), "n1")
    books.release("uid-a")
    assert free_memory(books, "n1") == FULL


def test_a_watch_that_is_faster_than_the_answer_changes_nothing(books: Books) -> None:
    pod = waiting("a")
    there = bound(pod, chosen(placer_of(books), pod, "n1"))
    books.pod_changed(pod, there)
    books.pod_changed(there, in_phase(there, "Succeeded"))
    books.assume("uid-a")
    assert free_memory(books, "n1") == FULL


def test_an_older_event_after_the_answer_changes_nothing(books: Books) -> None:
    pod = waiting("a")
    chosen(placer_of(books), pod, "n1")
    books.assume("uid-a")
    books.pod_changed(pod, annotated(pod, {"seen": "yes"}))
    assert (free_memory(books, "n1"), books.waiting) == (TAKEN, {})


def test_a_deletion_timestamp_frees_nothing_and_the_end_does(books: Books, running: Pod) -> None:
    leaving = replace(running, metadata=replace(running.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    books.pod_changed(running, leaving)
    assert free_memory(books, "n1") == TAKEN
    books.pod_changed(leaving, in_phase(leaving, "Failed"))
    assert free_memory(books, "n1") == FULL


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
    books: Books, running: Pod, states: tuple[ContainerState, ...], free: tuple[int, ...]
) -> None:
    last = with_states(running, *states)
    books.pod_changed(running, last)
    books.pod_changed(last, None, "7")
    assert free_memory(books, "n1") == free


@pytest.mark.parametrize(
    ("seen", "held", "free"),
    [("6", False, TAKEN), ("7", False, FULL), ("10", False, FULL), ("7", True, TAKEN), ("word", False, TAKEN)],
)
def test_a_ghost_counts_until_its_agent_says_otherwise(
    books: Books, running: Pod, seen: str, held: bool, free: tuple[int, ...]
) -> None:
    books.pod_changed(running, None, "7")
    orphans = [decode_record(record_of(running))] if held else []
    books.node_changed(node(N1), node(N1, orphans=(seen, orphans)))
    assert free_memory(books, "n1") == free


def test_an_agent_that_spoke_before_we_heard_of_the_deletion_is_believed(books: Books, running: Pod) -> None:
    books.node_changed(node(N1), node(N1, orphans=("9", [])))
    assert free_memory(books, "n1") == TAKEN, "its pod is there"
    books.pod_changed(running, None, "9")
    assert free_memory(books, "n1") == FULL


def test_a_scheduler_that_starts_anew_counts_what_agents_hold(running: Pod) -> None:
    orphans = ("9", [decode_record(record_of(running))])
    books = books_of(node(N1, orphans=orphans))
    assert free_memory(books, "n1") == TAKEN
    books.node_changed(node(N1, orphans=orphans), node(N1, orphans=("10", [])))
    assert free_memory(books, "n1") == FULL


def test_a_ghost_goes_with_its_node(books: Books, running: Pod) -> None:
    books.pod_changed(running, None, "7")
    books.node_changed(node(N1), None)
    assert len(books.cluster) == 0
    books.node_changed(None, node(N1))
    assert free_memory(books, "n1") == FULL


def test_a_pod_whose_node_is_gone_leaves_nothing_behind(books: Books, running: Pod) -> None:
    books.node_changed(node(N1), None)
    books.pod_changed(running, None, "7")
    books.node_changed(None, node(N1))
    assert free_memory(books, "n1") == FULL


def test_a_pod_that_vanished_while_it_was_bound_counts_as_its_binder_says(books: Books) -> None:
    for accepted, free in ((False, FULL), (True, TAKEN)):
        pod = waiting("a")
        books.pod_changed(None, pod)
        chosen(placer_of(books), pod, "n1")
        books.pod_changed(pod, None, "7")
        assert free_memory(books, "n1") == TAKEN, "nobody knows yet"
        (books.assume if accepted else books.release)("uid-a")
        assert free_memory(books, "n1") == free
    books.node_changed(node(N1), node(N1, orphans=("7", [])))
    assert free_memory(books, "n1") == FULL


def test_pods_may_come_before_their_node(books: Books, running: Pod) -> None:
    late = books_of(pods=[running])
    assert len(late.cluster) == 0
    late.node_changed(None, node(N1))
    assert free_memory(late, "n1") == TAKEN


def test_a_machine_that_changes_keeps_its_tenants_on_their_cards(books: Books, running: Pod) -> None:
    turned = changed(N1, gpus=(N1.gpus[1], N1.gpus[0]))
    books.node_changed(node(N1), node(turned))
    assert free_memory(books, "n1") == (16000, 12000)
    less = changed(N1, gpus=(N1.gpus[1],))
    books.node_changed(node(turned), node(less))
    assert free_memory(books, "n1") == (16000,)
    books.node_changed(node(less), node("n1"))
    assert len(books.cluster) == 0
    books.node_changed(node("n1"), node(N1))
    assert free_memory(books, "n1") == TAKEN
    assert books.gpus == 2


def test_a_cordon_closes_a_card_and_keeps_who_is_there(books: Books, running: Pod) -> None:
    books.node_changed(node(N1), node(N1, annotations={"cotenant.io/cordon": "GPU-n1-1"}))
    assert books.cluster.node("n1").slots == (15, 0)
    assert free_memory(books, "n1") == TAKEN


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
def test_a_record_that_nobody_understands_closes_its_node_until_the_pod_ends(
    books: Books, running: Pod, change: dict[str, object], why: str
) -> None:
    unread = strange(running, **change)
    books.pod_changed(running, unread)
    assert why in books.closed["n1"]["uid-a"]
    assert books.takers(Vendor.NVIDIA) == frozenset()
    books.pod_changed(unread, in_phase(unread, "Succeeded"))
    assert books.closed == {}
    assert books.takers(Vendor.NVIDIA) == {"n1"}


def test_a_node_stays_closed_for_an_unread_pod_that_was_deleted_while_it_ran(books: Books, running: Pod) -> None:
    unread = strange(running, version=2)
    books.pod_changed(running, unread)
    books.pod_changed(unread, None, "7")
    assert "n1" in books.closed
    books.pod_changed(None, waiting("a"))
    books.node_changed(node(N1), node(N1, orphans=("7", [])))
    assert (books.closed, free_memory(books, "n1")) == ({}, FULL)


@pytest.mark.parametrize("key", [INVENTORY, ORPHANS])
def test_a_node_whose_agent_is_not_understood_takes_nobody(books: Books, running: Pod, key: str) -> None:
    broken = node(N1, annotations={key: '{"version":2}'})
    books.node_changed(node(N1), broken)
    assert "version 2" in books.closed["n1"][key]
    assert books.takers(Vendor.NVIDIA) == frozenset()
    books.node_changed(broken, node(N1))
    assert (books.closed, free_memory(books, "n1")) == ({}, TAKEN)


def test_a_node_whose_agent_is_away_takes_nobody_until_it_is_back(books: Books, running: Pod) -> None:
    away = node(N1, annotations={AWAY: "it was told to end"})
    books.node_changed(node(N1), away)
    assert books.closed == {"n1": {AWAY: "it was told to end"}}
    assert (books.takers(Vendor.NVIDIA), free_memory(books, "n1")) == (frozenset(), TAKEN)
    freed = list[str]()
    books.freed = freed.append
    books.node_changed(away, node(N1))
    assert (books.closed, books.takers(Vendor.NVIDIA), set(freed)) == ({}, frozenset({"n1"}), {"n1"})


def test_a_node_that_is_gone_is_closed_no_more(books: Books) -> None:
    away = node(N1, annotations={AWAY: "it was told to end"})
    books.node_changed(node(N1), away)
    books.node_changed(away, None)
    assert books.closed == {}


def test_pods_that_others_bound_take_nothing(books: Books) -> None:
    pod = waiting("a")
    books.pod_changed(None, replace(pod, spec=replace(pod.spec, node_name="n1")))
    assert (free_memory(books, "n1"), books.waiting, books.closed) == (FULL, {}, {})


def test_a_hold_of_a_pod_that_others_bind_is_given_up(books: Books) -> None:
    pod = waiting("a")
    books.pod_changed(None, pod)
    books.hold(pod, asked_of(pod), Slot("n1", (0,)), 30.0)
    assert free_memory(books, "n1") == TAKEN
    books.pod_changed(pod, replace(pod, spec=replace(pod.spec, node_name="n1")))
    assert free_memory(books, "n1") == FULL


def test_holds_lapse_unless_they_are_being_written() -> None:
    told: list[str] = []
    books = Books(freed=told.append)
    books.node_changed(None, node(N1))
    for name, gpu, until in (("a", 0, 30.0), ("b", 1, inf)):
        pod = waiting(name)
        books.hold(pod, asked_of(pod), Slot("n1", (gpu,)), until)
    told.clear()
    assert books.expire(29.9) == []
    assert books.expire(30.0) == ["uid-a"]
    assert free_memory(books, "n1") == (16000, 12000)
    assert told == ["n1"]


def test_a_new_hold_replaces_the_old_one(books: Books) -> None:
    books.node_changed(None, node(machine("n2")))
    pod = waiting("a")
    for slot in (Slot("n1", (0,)), Slot("n2", (1,))):
        books.hold(pod, asked_of(pod), slot, 30.0)
    assert (free_memory(books, "n1"), free_memory(books, "n2")) == (FULL, (16000, 12000))


def test_it_is_told_where_room_came() -> None:
    told: list[str] = []
    books = Books(freed=told.append)
    steps: list[tuple[Node | None, Node]] = [(None, node(N1))]
    books.node_changed(*steps[0])
    assert told == ["n1"]
    there = place(books, placer_of(books), waiting("a"), "n1")
    assert told == ["n1"], "a pod that comes frees nothing"
    books.pod_changed(there, in_phase(there, "Succeeded"))
    assert told == ["n1", "n1"]
    books.node_changed(node(N1), node(N1, annotations={"cotenant.io/cordon": ""}))
    assert told == ["n1", "n1", "n1"]
    unread = strange(there, version=2)
    books.pod_changed(None, unread)
    books.pod_changed(unread, in_phase(unread, "Failed"))
    assert told == ["n1"] * 4


def test_waiting_pods_are_found_by_name() -> None:
    books = books_of(pods=[waiting("a"), in_phase(waiting("b"), "Failed")])
    foreign = waiting("c")
    books.pod_changed(None, replace(foreign, spec=replace(foreign.spec, scheduler_name="default-scheduler")))
    assert set(books.waiting) == {"uid-a"}
    assert books.pod("team", "a") == waiting("a")
    assert books.pod("team", "b") is None
    books.pod_changed(waiting("a"), None, "7")
    assert books.pod("team", "a") is None


def test_what_a_namespace_uses_is_added_up(books: Books, running: Pod) -> None:
    assert books.used("team", Vendor.NVIDIA) == (4000, 0)
    assert books.used("other", Vendor.NVIDIA) == (0, 0)
    books.pod_changed(running, in_phase(running, "Succeeded"))
    assert books.used("team", Vendor.NVIDIA) == (0, 0)
