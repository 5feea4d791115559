# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gangs on a real cluster: all of one start, or none."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.kube.codec.queueing import GANG, GANG_SIZE
from cotenant.kube.install.admission import policy_with_binding, rule_for
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.attacker import PODS, SLICE, TEAM, annotated, refusal
from tests.cluster.engine import Engine, gpus_of
from tests.cluster.pods import container, path_of
from tests.cluster.test_failover import EXTENDER, STOCK, leader, send
from tests.cluster.test_waiting import messages, why

LARGE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20_000}
"""one on each of the two large cards"""


def add(engine: Engine, name: str, limits: Any, gang: str, size: int, **more: Any) -> None:
    engine.create(name, limits, annotations={GANG: gang, GANG_SIZE: str(size)}, **more)


def node_of(engine: Engine, name: str) -> str | None:
    node: str | None = engine.cluster.get(path_of(name))["spec"].get("nodeName")
    return node


def test_a_gang_starts_when_the_last_of_it_is_there(engine: Engine) -> None:
    add(engine, "g0", LARGE, "pair", 2)
    wait_for("an event", lambda: messages(engine, "g0", "GangWaits"))
    assert "only 1 of the 2 pods of its gang exist" in why(engine, "g0")
    add(engine, "g1", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000}, "pair", 2)
    for name in ("g0", "g1"):
        engine.started(name)
        wait_for("an event", lambda: messages(engine, name, "Released"))  # noqa: B023


def test_a_gang_without_room_takes_nothing_and_starts_whole_when_there_is_room(engine: Engine) -> None:
    engine.create("fills", LARGE)
    engine.started("fills")
    for name in ("g0", "g1"):
        add(engine, name, LARGE, "wide", 2)
    engine.create("small", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 30_000})  # the other large card is not held
    engine.started("small")
    assert node_of(engine, "g0") is None
    assert node_of(engine, "g1") is None
    engine.delete("small")
    engine.delete("fills")
    engine.started("g0")
    engine.started("g1")


def test_a_gang_that_kube_scheduler_cannot_bind_whole_gives_its_slots_up(engine: Engine) -> None:
    add(engine, "g0", LARGE, "stuck", 2)
    add(engine, "g1", LARGE, "stuck", 2, nodeSelector={"kubernetes.io/hostname": "nowhere"})
    given_up = wait_for("the gang to be given up", lambda: messages(engine, "g0", "GangGivenUp"))
    assert "waits again as a whole" in given_up[0]
    assert node_of(engine, "g0") is None, "not even the one that could have been bound"
    engine.create("other", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 30_000})
    engine.started("other")


def test_a_failed_member_is_replaced_while_the_others_run(engine: Engine) -> None:
    add(engine, "g0", LARGE, "pair", 2)
    add(engine, "g1", LARGE, "pair", 2)
    stays, leaves = engine.started("g0"), engine.started("g1")
    engine.delete("g1")
    add(engine, "g2", LARGE, "pair", 2)
    assert gpus_of(engine.started("g2")) == gpus_of(leaves)
    now = engine.started("g0")
    assert (now["metadata"]["uid"], gpus_of(now)) == (stays["metadata"]["uid"], gpus_of(stays))
    assert [one["restartCount"] for one in now["status"]["containerStatuses"]] == [0]


@contextlib.contextmanager
def unbindable(engine: Engine, name: str) -> Iterator[None]:
    """A pod of this name is not bound meanwhile, whoever asks."""
    rule: Json = {"expression": f"object.metadata.name != '{name}'", "message": "not now"}
    where = {"resourceRules": [rule_for(["CREATE"], ["pods/binding"])]}
    made = policy_with_binding("not-now", where, validations=[rule])
    api = "/apis/admissionregistration.k8s.io/v1"
    kinds = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    for kind, body in zip(kinds, made, strict=True):
        engine.cluster.post(f"{api}/{kind}", body)

    def is_refused() -> bool:
        binding = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"}}
        with pytest.raises(RefusedError) as refused:
            engine.cluster.post(f"{path_of(name)}/binding?dryRun=All", binding)
        return "not now" in str(refused.value)

    try:
        wait_for("the rule to hold", is_refused)
        yield
    finally:
        for kind in kinds:
            engine.cluster.delete(f"{api}/{kind}/not-now")


def assert_apart(*members: Json) -> None:
    """Each has a card of its own: no two of this size fit on one."""
    cards = [gpu for pod in members for gpu in gpus_of(pod)]
    assert len(cards) == len(set(cards)) == len(members), cards


def kill_scheduler(engine: Engine) -> None:
    assert send(engine, leader(engine), signal.SIGKILL, EXTENDER, STOCK)


def test_a_gang_of_which_only_one_could_be_bound_is_made_whole_by_the_next_scheduler(engine: Engine) -> None:
    with unbindable(engine, "g1"):
        for name in ("g0", "g1"):
            add(engine, name, LARGE, "torn", 2)
        first = engine.started("g0")
        assert node_of(engine, "g1") is None
        kill_scheduler(engine)
    assert_apart(first, engine.started("g1"))


def test_a_scheduler_that_dies_while_it_lets_a_gang_go_is_followed_by_one_that_does(engine: Engine) -> None:
    engine.create("fills", LARGE)
    engine.started("fills")
    for name in ("g0", "g1"):
        add(engine, name, LARGE, "wide", 2)
    engine.cluster.delete(path_of("fills"))
    wait_for(
        "a gate to be gone",
        lambda: any("schedulingGates" not in engine.cluster.get(path_of(name))["spec"] for name in ("g0", "g1")),
    )
    kill_scheduler(engine)
    assert_apart(engine.started("g0"), engine.started("g1"))


def test_a_name_from_another_namespace_helps_nobody_and_no_gang_is_beyond_all_bounds(
    engine: Engine, mallory: str
) -> None:
    add(engine, "g0", LARGE, "mine", 2)
    foreign = {GANG: "mine", GANG_SIZE: "2"}
    spec = {"containers": [container("main", "", SLICE)]}
    assert not refusal(engine, mallory, "POST", PODS, annotated("foreign", foreign, spec=spec))
    for pod, namespace in (("g0", "default"), ("foreign", TEAM)):
        wait_for("a word", lambda: "only 1 of the 2 pods" in why(engine, pod, namespace=namespace))  # noqa: B023
    huge = annotated("huge", {GANG: "huge", GANG_SIZE: "1000000"}, spec=spec)
    assert "from 1 to 256" in refusal(engine, mallory, "POST", PODS, huge)
    later = {"metadata": {"annotations": {GANG_SIZE: "1000000"}}}
    assert not refusal(engine, mallory, "PATCH", f"{PODS}/foreign", later), "nobody but itself waits for that"
    wait_for("a word", lambda: "from 1 to 256" in why(engine, "foreign", namespace=TEAM))
    add(engine, "g1", LARGE, "mine", 2)
    engine.started("g0")
    engine.started("g1")
