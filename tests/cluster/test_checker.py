# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The checker with wrong observations: it finds each violation, and reports none that is not one. Needs no cluster."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.carrying import was_given_up
from tests.cluster.chaos import NODE_PROGRAMS, OTHERS, Create, Delete, Fault, plan_for
from tests.cluster.checker import BLIND_S, LASTING_S, ORPHANS, Checker, Listed, Process
from tests.cluster.counting import ASSIGNMENT, CLAIMED, NAMES, Capacity, Json, Part, Share, Sum, peak

LARGE, SMALL, ELSEWHERE = "GPU-a", "GPU-b", "GPU-c"
CARDS = {"one": {LARGE: Capacity(1000, 3), SMALL: Capacity(500, 3)}, "two": {ELSEWHERE: Capacity(1000, 3)}}


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def checker(clock: Clock) -> Checker:
    return Checker(CARDS, clock)


def pod(
    name: str,
    memory: int = 400,
    *,
    cores: int = 0,
    card: str = LARGE,
    node: str = "one",
    phase: str = "Running",
    version: int = 1,
    given: Mapping[str, Any] | None = None,
    **limits: int,
) -> Json:
    """A pod with one container, `c`; it was given what it asked for, if nothing else is said."""
    wanted = {"nvidia.com/gpumem": str(memory), **({"nvidia.com/gpucores": str(cores)} if cores else {})}
    wanted |= {f"nvidia.com/{word}": str(amount) for word, amount in limits.items()}
    share = {"gpu": card, "memory": memory, "compute": 10 * cores}
    said = {
        "pod": f"uid-{name}",
        "node": node,
        "exclusive": cores == 100,
        "containers": [{"number": 0, "gpus": [share]}],
    }
    annotations = {ASSIGNMENT: json.dumps({**said, **(given or {})}), NAMES: '["c"]'} if node else {}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "annotations": annotations}
    spec = {"containers": [{"name": "c", "resources": {"limits": wanted}}], **({"nodeName": node} if node else {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def by_claims(name: str, memory: int, **more: Any) -> Json:
    """A pod that requests its card by a claim."""
    made = pod(name, memory, **more)
    (its,) = made["spec"]["containers"]
    made["metadata"]["annotations"][CLAIMED] = json.dumps({"c": its.pop("resources")["limits"]})
    made["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": name}]
    return made


def process(name: str, *, visible: str = LARGE, memory: int = 400, compute: int = 0) -> Process:
    return Process(pid=1, began=1, pod=f"uid-{name}", container="c", visible=visible, memory=(memory,), compute=compute)


def orphans(seen: int, *held: str) -> str:
    return json.dumps({"version": 1, "seen": str(seen), "held": [{"pod": f"uid-{name}"} for name in held]})


def seen(**other: Any) -> Json:
    """What a container says that was given 400 MiB of the large card."""
    room = {"room": 400, "nvml": [400, 0, 400]}
    limits = f"version 1\ngpu {LARGE} memory={400 << 20} host=0 compute=0 paused=0\n"
    right = {
        "gpus": [LARGE],
        "variables": {"NVIDIA_VISIBLE_DEVICES": LARGE, "COTENANT_ISOLATION": "preload"},
        "limits": limits,
        "totals": [400],
        "rooms": [room],
        "preloaded": True,
    }
    return {**right, **other}


def found(checker: Checker) -> str:
    """The first line of the only violation."""
    (only,) = checker.violations
    return only.splitlines()[0]


def mps_client(name: str) -> Json:
    """A pod that wishes for MPS and has it."""
    share = {"gpu": LARGE, "memory": 400, "compute": 0, "rung": "mps"}
    made = pod(name, given={"containers": [{"number": 0, "gpus": [share]}]})
    made["metadata"]["annotations"]["cotenant.io/isolation"] = "mps"
    return made


def test_clients_of_mps_share_a_card_with_each_other_only(checker: Checker) -> None:
    checker.pod("ADDED", mps_client("a"))
    checker.pod("ADDED", mps_client("b"))
    right = {"NVIDIA_VISIBLE_DEVICES": LARGE, "COTENANT_ISOLATION": "mps", "CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    checker.report("uid-a", "c", seen(variables=right))
    checker.living("one", [process("a")._replace(mps=True), process("b")._replace(mps=True)])
    assert not checker.violations
    checker.pod("ADDED", pod("c", memory=100))
    assert "clients of MPS and others" in found(checker)


def test_a_process_beside_clients_of_mps_is_noticed(checker: Checker) -> None:
    checker.living("one", [process("a")._replace(mps=True), process("b")])
    assert "clients of MPS and others, in use by" in found(checker)


def test_a_client_of_mps_that_does_not_know_it_is_noticed(checker: Checker) -> None:
    checker.pod("ADDED", mps_client("a"))
    checker.report("uid-a", "c", seen())
    assert len(checker.violations) == 2


def test_a_pod_that_has_no_mps_though_it_wishes_for_it_is_noticed(checker: Checker) -> None:
    wanting = pod("a")
    wanting["metadata"]["annotations"]["cotenant.io/isolation"] = "mps"
    checker.pod("ADDED", wanting)
    assert "its wish for MPS is True" in found(checker)


def test_what_is_right_is_left_alone(checker: Checker) -> None:
    checker.pod("ADDED", pod("a", node="", phase="Pending"))
    for event in (pod("a"), pod("b"), pod("c", memory=200), pod("x", cores=100, card=SMALL)):
        checker.pod("MODIFIED", event)
    checker.report("uid-a", "c", seen())
    checker.living("one", [process("a"), process("b"), process("c", memory=200)], [pod("a"), pod("b")], orphans(9))
    checker.devices(
        "one", [Listed("a", "c", frozenset({f"{LARGE}::0"})), Listed("b", "c", frozenset({f"{SMALL}::2"}))], {}
    )
    checker.pod("MODIFIED", pod("a", phase="Succeeded"))
    checker.pod("ADDED", pod("d"))
    checker.pod("DELETED", pod("a", phase="Succeeded", version=9))
    assert not checker.violations
    assert not checker.never_explained()


ASSIGNED: dict[str, tuple[list[Json], str]] = {
    "memory": ([pod("a", 600), pod("b", 500)], "1100 MiB of 1000"),
    "compute": ([pod("a", 1, cores=60), pod("b", 1, cores=60)], "1200 compute of 1000"),
    "slots": ([pod(name, 1) for name in "abcd"], "4 slots of 3"),
    "a card that is not shared": ([pod("a", 1, cores=100), pod("b", 1)], "2 pods, one of which has it alone"),
    "no assignment": ([pod("a", given={}) | {"metadata": {"name": "a", "uid": "u"}}], "without an assignment"),
    "another pod's assignment": ([pod("a", given={"pod": "uid-z"})], "is of uid-z on one"),
    "another node's assignment": ([pod("a", given={"node": "two"})], "is of uid-a on two"),
    "another node's card": ([pod("a", card=ELSEWHERE)], "which its node does not have"),
    "a card too few": ([pod("a", gpu=2)], "requested 2 cards"),
    "other cards than before": ([pod("a"), pod("a", card=SMALL)], "its assignment was changed"),
    "not exclusive": ([pod("a", cores=100, given={"exclusive": False})], "alone on its cards: False"),
    "nonsense": ([pod("a", given={"containers": [{}]})], "cannot be read"),
    "less than it asked for": (
        [pod("a", given={"containers": [{"number": 0, "gpus": [{"gpu": LARGE, "memory": 1, "compute": 0}]}]})],
        "requested Request",
    ),
}


@pytest.mark.parametrize("kind", ASSIGNED)
def test_a_wrong_assignment_is_found(checker: Checker, kind: str) -> None:
    events, words = ASSIGNED[kind]
    for event in events:
        checker.pod("MODIFIED", event)
    assert any(words in violation.splitlines()[0] for violation in checker.violations), checker.violations
    for name in {event["metadata"]["name"] for event in events}:
        assert f"MODIFIED {name}" in checker.violations[-1]  # how it came about


SEEN: dict[str, Json] = {
    "cards": seen(gpus=[LARGE, SMALL]),
    "variable": seen(variables={"NVIDIA_VISIBLE_DEVICES": "all", "COTENANT_ISOLATION": "preload"}),
    "isolation": seen(variables={"NVIDIA_VISIBLE_DEVICES": LARGE, "COTENANT_ISOLATION": "none"}),
    "limits": seen(limits=None),
    "sizes": seen(totals=[1000]),
    "NVML": seen(rooms=[{"room": 400, "nvml": [1000, 0, 0]}]),
    "memory it could have": seen(rooms=[{"room": 399, "nvml": [400, 0, 0]}]),
    "library": seen(preloaded=False),
}


@pytest.mark.parametrize("what", SEEN)
def test_a_container_that_sees_something_else_is_found(checker: Checker, what: str) -> None:
    checker.pod("MODIFIED", pod("a"))
    checker.report("uid-a", "c", SEEN[what])
    assert f"a/c sees {what}" in found(checker)


@pytest.mark.parametrize(("room", "beyond", "wrong"), [(0, 806, 0), (0, 2, 1), (500, 806, 1)])
def test_a_client_that_lost_its_mps_server_may_have_less_memory_but_not_more(
    checker: Checker, room: int, beyond: int, wrong: int
) -> None:
    checker.pod("MODIFIED", mps_client("a"))
    variables = {"NVIDIA_VISIBLE_DEVICES": LARGE, "COTENANT_ISOLATION": "mps", "CUDA_MPS_PIPE_DIRECTORY": "/pipe"}
    rooms = [{"room": room, "beyond": beyond, "nvml": [400, 0, 400]}]
    checker.report("uid-a", "c", seen(variables=variables, rooms=rooms))
    assert len(checker.violations) == wrong


def test_a_container_that_sees_no_card_is_found_unless_its_pod_is_deleted(checker: Checker, clock: Clock) -> None:
    for name in ("stays", "leaves"):
        checker.pod("ADDED", pod(name))
        checker.report(f"uid-{name}", "c", seen(gpus=[], preloaded=""))
        checker.living("one", [process(name, visible="void")])
    checker.pod("DELETED", pod("leaves", version=2))
    assert checker.violations == []
    clock.now += BLIND_S + 1
    checker.pod("ADDED", pod("another", memory=100))
    (found,) = checker.violations
    assert found.startswith("stays/c sees no card, and its pod is not deleted")


def test_a_container_without_cards_that_sees_one_is_found(checker: Checker) -> None:
    checker.pod("MODIFIED", pod("a"))
    checker.report("uid-a", "plain", seen())
    assert all("a/plain sees" in violation for violation in checker.violations)
    assert len(checker.violations) == len(SEEN)


def test_what_is_seen_before_the_pod_is_known_is_judged_later(checker: Checker) -> None:
    checker.report("uid-a", "c", seen(gpus=[SMALL]))
    checker.living("one", [process("b", visible=SMALL)])
    assert len(checker.never_explained()) == 2
    for name in "ab":
        checker.pod("ADDED", pod(name))
    assert ["sees cards" in checker.violations[0], f"sees {SMALL}" in checker.violations[1]] == [True, True]
    assert not checker.never_explained()


LIVING: dict[str, tuple[list[Process], str]] = {
    "memory": ([process("a", memory=600), process("b", memory=600)], "1200 MiB"),
    "compute": ([process("a", compute=600), process("b", compute=600)], "1200 compute"),
    "slots": ([process(name, memory=1) for name in "abde"], "4 slots"),
    "a card that is not shared": ([process("a", memory=1), process("x", memory=1)], "should have it alone"),
}


@pytest.mark.parametrize("kind", LIVING)
def test_processes_that_live_together_and_must_not_are_found_whatever_the_api_server_says(
    checker: Checker, kind: str
) -> None:
    processes, words = LIVING[kind]
    for name in "abde":
        checker.pod("MODIFIED", pod(name, 1, phase="Succeeded"))
    checker.pod("MODIFIED", pod("x", 1, cores=100, phase="Succeeded"))
    checker.living("one", processes)
    assert words in found(checker)


def test_a_process_that_sees_another_card_is_found(checker: Checker) -> None:
    checker.pod("MODIFIED", pod("a"))
    checker.living("one", [process("a", visible=SMALL)])
    assert f"a/c sees {SMALL}, was given {LARGE}" in found(checker)


@pytest.mark.parametrize("before", ["DELETED", "MODIFIED"])
def test_a_process_that_outlives_its_pod_still_counts(checker: Checker, before: str) -> None:
    checker.pod("MODIFIED", pod("a", 600))
    checker.pod(before, pod("a", 600, phase="Running" if before == "DELETED" else "Failed", version=5))
    newcomer = pod("b", 600)
    checker.pod("MODIFIED", newcomer)
    left = [] if before == "DELETED" else [pod("a", 600, phase="Failed")]
    checker.living("one", [process("a", memory=600)], [newcomer, *left])
    assert "with processes that outlive pods: GPU-a: 1200 MiB of 1000" in found(checker)


def test_a_pod_that_the_list_does_not_have_yet_outlives_nothing(checker: Checker) -> None:
    checker.pod("MODIFIED", pod("a", 600, phase="Succeeded"))
    checker.pod("MODIFIED", pod("b", 600))
    checker.living("one", [process("b", memory=600)], [pod("a", 600)])
    assert not checker.violations


def test_an_agent_that_takes_the_living_for_ended_is_found(checker: Checker) -> None:
    checker.pod("MODIFIED", pod("a"))
    checker.pod("DELETED", pod("a", version=5))
    checker.living("one", [process("a")], None, orphans(4))
    checker.living("one", [process("a")], None, orphans(7, "a"))
    checker.living("one", [], None, orphans(7))
    assert not checker.violations
    checker.living("one", [process("a")], None, orphans(5))
    assert "claims at 5 that a has ended, and it lives" in found(checker)


def test_an_agent_that_tells_of_other_cards_is_found(checker: Checker) -> None:
    cards = [{"uuid": LARGE, "memory": 2000, "slots": 3}, {"uuid": SMALL, "memory": 500, "slots": 3}]
    said = {"cotenant.io/inventory": json.dumps({"cards": cards}), ORPHANS: orphans(1)}
    checker.node({"metadata": {"name": "one", "annotations": said}})
    assert "the agent of one reports" in found(checker)


def test_a_device_of_two_containers_is_noted_and_no_harm_by_itself(checker: Checker) -> None:
    for _ in range(2):
        checker.devices("one", [Listed(name, "c", frozenset({f"{LARGE}::0"})) for name in "ba"], {})
    assert checker.counts["devices given twice"] == 1
    assert "device GPU-a::0 of one given to ['a/c', 'b/c']" in checker.history()
    assert not checker.violations


@pytest.mark.parametrize("device", [f"{ELSEWHERE}::0", f"{LARGE}::3", LARGE])
def test_a_device_that_there_is_not_is_found(checker: Checker, device: str) -> None:
    checker.devices("one", [Listed("a", "c", frozenset({device}))], {})
    assert f"gave it {device}" in found(checker)


@pytest.mark.parametrize("listed", [[], [Listed("a", "c", frozenset({f"{LARGE}::0", f"{LARGE}::1"}))]])
def test_another_number_of_devices_is_found_when_it_lasts(checker: Checker, clock: Clock, listed: list[Listed]) -> None:
    checker.pod("MODIFIED", pod("a"))
    earlier = dict(checker.pods)
    for moment in (0.0, 0.5 * LASTING_S):
        clock.now = moment
        checker.devices("one", listed, earlier)
        checker.devices("two", [], earlier)
    assert (checker.violations, len(checker.differing)) == ([], 1)
    clock.now = 1.1 * LASTING_S
    checker.devices("one", listed, earlier)
    assert "devices by kubelet" in found(checker)


def test_pods_that_are_gone_when_all_are_told_anew_are_known_to_be(checker: Checker) -> None:
    checker.pod("MODIFIED", pod("a", 600))
    checker.all_pods(5, [pod("b", 600)])
    assert list(checker.pods) == ["uid-b"]
    checker.living("one", [process("a", memory=600)], [pod("b", 600)])
    assert "1200 MiB of 1000" in found(checker)


def test_who_ended_unseen_is_not_beside_those_who_came_when_all_are_told_anew(checker: Checker) -> None:
    checker.pod("MODIFIED", pod("z", 600))
    checker.all_pods(5, [pod("a", 600), pod("z", 600, phase="Succeeded")])
    assert not checker.violations
    checker.all_pods(6, [pod("a", 600), pod("b", 600)])
    assert "1200 MiB of 1000" in found(checker)


ROOM: dict[str, tuple[Json, bool]] = {
    "memory": (pod("w", 500, node=""), True),
    "too much memory": (pod("w", 601, node=""), False),
    "compute": (pod("w", 1, cores=70, node=""), True),
    "two cards": (pod("w", 500, node="", gpu=2), True),
    "two cards with too much memory": (pod("w", 501, node="", gpu=2), False),
    "a card alone": (pod("w", 1, cores=100, node=""), True),
    "two cards alone": (pod("w", 1, cores=100, node="", gpu=2), False),
    "three cards": (pod("w", 1, node="", gpu=3), False),
}


@pytest.mark.parametrize("kind", ROOM)
def test_who_could_run_is_known(clock: Clock, kind: str) -> None:
    checker = Checker({"one": CARDS["one"]}, clock)
    checker.pod("MODIFIED", pod("a", 400, cores=30))
    waiting, could = ROOM[kind]
    checker.pod("ADDED", waiting)
    assert checker.could_run() == (["w on one"] if could else [])
    assert not checker.violations


def test_containers_share_a_card_as_kubernetes_runs_them() -> None:
    def part(kind: str, memory: int) -> Part:
        return Part(kind, kind, (Share(LARGE, memory, 100),))

    parts = [part("init", 500), part("sidecar", 50), part("init", 300), part("app", 100), part("app", 150)]
    assert peak(parts) == {LARGE: Sum(500, 300, 3)}
    assert peak(parts[1:]) == {LARGE: Sum(350, 300, 3)}


def test_a_pod_with_claims_counts_with_the_others_and_kubelet_lists_nothing_of_it(
    checker: Checker, clock: Clock
) -> None:
    early = by_claims("a", 600)
    node = early["spec"].pop("nodeName")
    checker.pod("ADDED", early)  # it has its assignment before it is on its node
    checker.pod("MODIFIED", {**early, "spec": {**early["spec"], "nodeName": node}})
    for _ in range(2):
        checker.devices("one", [], checker.pods)
        clock.now += 1000
    assert not checker.violations
    checker.pod("ADDED", pod("b", 600))
    assert "MiB of" in found(checker)


def test_a_claim_that_is_given_something_else_is_found(checker: Checker) -> None:
    wrong = by_claims("a", 600)
    wrong["metadata"]["annotations"][CLAIMED] = json.dumps({"c": {"nvidia.com/gpumem": 500}})
    checker.pod("ADDED", wrong)
    assert "was given" in found(checker)


def test_a_percentage_is_of_the_card_that_it_is_on(checker: Checker) -> None:
    wants = pod("w", node="")
    wants["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpumem-percentage": "50"}
    checker.pod("MODIFIED", pod("a", 500))
    checker.pod("ADDED", wants)
    assert checker.could_run() == ["w on one", "w on two"]
    checker.pod("MODIFIED", pod("b", 251, card=SMALL))
    checker.pod("MODIFIED", pod("c", 1))
    assert checker.could_run() == ["w on two"]


def terminated(code: int) -> Json:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code}}}]}


@pytest.mark.parametrize(
    ("status", "excused"),
    [
        ({"reason": "UnexpectedAdmissionError"}, True),
        ({"reason": "OutOfnvidia.com/gpu"}, True),
        ({"reason": "OutOfnvidia.com/gpumem"}, False),
        ({"reason": "OutOfnvidia.com/gpucores"}, False),
        (terminated(255), True),
        (terminated(137), True),
        (terminated(1), False),
        (terminated(139), False),
        ({"initContainerStatuses": terminated(1)["containerStatuses"]}, False),
    ],
    ids=str,
)
def test_only_what_a_failing_node_does_to_a_pod_excuses_its_loss(status: Json, excused: bool) -> None:
    assert was_given_up({"status": status}) == excused


def test_a_plan_is_the_same_for_the_same_seed_and_has_everything() -> None:
    plan = plan_for(1, 200)
    assert plan == plan_for(1, 200)
    assert str(plan) != str(plan_for(2, 200))
    assert [one.at for one in plan.actions] == sorted(one.at for one in plan.actions)
    failing = {(one.part, one.how) for one in plan.actions if isinstance(one, Fault)}
    assert failing == {(part, how) for part, ways in {**NODE_PROGRAMS, **OTHERS}.items() for how in ways}
    created = {one.planned.name: one.at for one in plan.actions if isinstance(one, Create)}
    assert len(created) == len(plan.pods) == 200
    deleted = [one for one in plan.actions if isinstance(one, Delete)]
    assert all(one.at >= created[one.name] for one in deleted)
    assert {one.force for one in deleted} == {True, False}
    by_claims = [one for one in plan.pods.values() if one.by_claims]
    assert 10 < len(by_claims) < 100
    assert not any(one.rung or "percentage" in str(one.tenants) for one in by_claims)
