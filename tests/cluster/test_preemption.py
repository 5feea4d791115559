# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Preemption on a real cluster: whoever is more important displaces exactly what it must, and budgets are obeyed."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cotenant.kube.codec.queueing import GANG, GANG_SIZE
from cotenant.kube.scheduler.events import PREEMPTED, PREEMPTING, PREEMPTION_REFUSED, RELEASED
from tests.cluster.api import Json, wait_for
from tests.cluster.conftest import QUEUE_LABEL
from tests.cluster.engine import SLEEP, Engine, gpus_of
from tests.cluster.pods import container, create_pod, is_gone, path_of
from tests.cluster.test_waiting import messages, why

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CLASSES = {"lowest": -(2**31), "low": 5, "middle": 10, "high": 100, "highest": 10**9}
LARGE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 30_000}
"""on one of the two large cards"""


@pytest.fixture(scope="module", autouse=True)
def classes(installed: Engine) -> Iterator[None]:
    """By which pods get their priorities."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    polite = {"metadata": {"name": "polite"}, "value": 100, "preemptionPolicy": "Never"}
    for body in [{"metadata": {"name": name}, "value": value} for name, value in CLASSES.items()] + [polite]:
        installed.cluster.post(path, body)
    yield
    for name in (*CLASSES, "polite"):
        installed.cluster.delete(f"{path}/{name}")


@contextlib.contextmanager
def budget(engine: Engine, selector: Json) -> Iterator[None]:
    """None of these pods may be evicted meanwhile."""
    spec = {"maxUnavailable": 0, "selector": selector}
    made = engine.cluster.post(BUDGETS, {"metadata": {"name": "keep"}, "spec": spec})
    generation = made["metadata"]["generation"]
    wait_for(
        "the budget to hold",
        lambda: engine.cluster.get(f"{BUDGETS}/keep").get("status", {}).get("observedGeneration") == generation,
    )
    try:
        yield
    finally:
        engine.cluster.delete(f"{BUDGETS}/keep")


def start(engine: Engine, name: str, limits: Mapping[str, int], priority: str = "low", **more: Any) -> None:
    engine.create(name, limits, priorityClassName=priority, labels={"app": name}, **more)
    engine.started(name)


def stays(engine: Engine, name: str) -> bool:
    pod = engine.cluster.get(path_of(name))
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def leaves(engine: Engine, name: str) -> None:
    """Returns when the pod is gone; the newcomer may start when its containers have ended, a moment earlier."""
    wait_for(f"pod {name} to be gone", lambda: is_gone(engine.cluster, name))


def told(engine: Engine, name: str, reason: str) -> str:
    """What an event says, once it is there: they are written in the background."""
    return wait_for(f"event {reason}", lambda: messages(engine, name, reason))[0]


def test_for_want_of_memory_the_least_important_leaves_and_its_card_is_the_newcomers(engine: Engine) -> None:
    start(engine, "low", LARGE)
    start(engine, "middle", LARGE, "middle")
    card = gpus_of(engine.cluster.get(path_of("low")))
    engine.create("polite", LARGE, priorityClassName="polite")
    assert "not enough GPU memory" in engine.waits("polite")
    assert "it would fit on node" not in why(engine, "polite")
    # Of the same priority and refused later: a search for victims takes the older pod first, and has had its turn.
    engine.create("high", LARGE, priorityClassName="high")
    assert gpus_of(engine.started("high")) == card
    leaves(engine, "low")
    assert stays(engine, "middle")
    assert not messages(engine, "polite", PREEMPTING)
    assert told(engine, "low", PREEMPTED) == "evicted from node node1 for a pod of priority 100; its own is 5"
    assert told(engine, "high", PREEMPTING).startswith("evicts low from node node1; its slot is reserved")


def test_for_want_of_compute_one_leaves(engine: Engine) -> None:
    shares = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 80}
    names = [f"busy-{number}" for number in range(3)]
    for name in names:
        start(engine, name, shares)
    engine.create("high", shares, priorityClassName="high")
    engine.started("high")
    assert sum(not is_gone(engine.cluster, name) and stays(engine, name) for name in names) == 2


def test_for_want_of_slots_one_of_those_leaves_who_have_them(engine: Engine) -> None:
    """kube-scheduler counts slots itself and would evict; it is told to leave that to us."""
    each = {"nvidia.com/gpu": 3, "nvidia.com/gpumem": 100}
    names = [f"many-{number}" for number in range(4)]
    for name in names:  # all slots of all three cards
        containers = [container(f"c{number}", SLEEP, each) for number in range(4)]
        create_pod(engine.cluster, name, *containers, priorityClassName="low")
    for name in names:
        engine.started(name)
    engine.create("high", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}, priorityClassName="high")
    engine.started("high")
    (gone,) = [name for name in names if is_gone(engine.cluster, name) or not stays(engine, name)]
    assert told(engine, gone, PREEMPTED)


def test_a_budget_is_obeyed_and_said_and_the_next_leaves_instead(engine: Engine) -> None:
    start(engine, "low", LARGE)
    start(engine, "middle", LARGE, "middle")
    with budget(engine, {"matchLabels": {"app": "low"}}):
        engine.create("high", LARGE, priorityClassName="high")
        engine.started("high")
        assert stays(engine, "low")
        leaves(engine, "middle")
        assert told(engine, "high", PREEMPTION_REFUSED).startswith("cannot evict low: 429")


def test_a_budget_for_everything_keeps_all_who_run_says_so_and_counts_only_while_it_is_there(engine: Engine) -> None:
    start(engine, "low", LARGE, "lowest")
    start(engine, "middle", LARGE, "middle")
    with budget(engine, {}):
        engine.create("high", LARGE, priorityClassName="highest")
        wait_for(
            "the more important one to be asked for, after the other",
            lambda: any("cannot evict middle: 429" in text for text in messages(engine, "high", PREEMPTION_REFUSED)),
        )
        assert "not enough GPU memory" in engine.waits("high")
        assert stays(engine, "low")
        assert stays(engine, "middle")
    engine.started("high")
    leaves(engine, "low")
    assert stays(engine, "middle")


def test_a_pod_that_is_deleted_while_others_leave_for_it_gives_their_place_to_the_next(engine: Engine) -> None:
    own = "import time; time.sleep(601)"
    start(engine, "low", LARGE, code=own, terminationGracePeriodSeconds=90)  # it does not hear the signal
    start(engine, "middle", LARGE, "middle")
    engine.create("high", LARGE, priorityClassName="high")
    assert told(engine, "high", PREEMPTING).startswith("evicts low")
    engine.create("next", LARGE, priorityClassName="lowest")
    assert not is_gone(engine.cluster, "low")
    engine.delete("high")
    engine.kill("time.sleep(601)")
    engine.started("next")
    leaves(engine, "low")
    assert stays(engine, "middle")


def test_one_that_waits_in_the_queue_displaces_others_when_its_turn_comes(engine: Engine) -> None:
    start(engine, "low", LARGE)
    start(engine, "middle", LARGE, "middle")
    engine.create("equal", LARGE, priorityClassName="low", labels={QUEUE_LABEL: ""})
    engine.create("high", LARGE, priorityClassName="high", labels={QUEUE_LABEL: ""})
    engine.started("high")
    leaves(engine, "low")
    assert stays(engine, "middle")
    assert "pods of lower priority could be evicted" in told(engine, "high", RELEASED)
    assert "it would fit on node" not in why(engine, "equal")
    assert engine.cluster.get(path_of("equal"))["spec"]["schedulingGates"], "it may displace nobody"


def test_a_member_of_a_gang_that_was_displaced_has_a_successor_when_there_is_room(engine: Engine) -> None:
    pair = {GANG: "pair", GANG_SIZE: "2"}
    for name in ("g0", "g1"):
        engine.create(name, LARGE, priorityClassName="low", annotations=pair)
    for name in ("g0", "g1"):
        engine.started(name)
    engine.create("high", LARGE, priorityClassName="high")
    engine.started("high")
    wait_for("one of them to be gone", lambda: sum(is_gone(engine.cluster, name) for name in ("g0", "g1")))
    assert sum(not is_gone(engine.cluster, name) and stays(engine, name) for name in ("g0", "g1")) == 1
    engine.create("g2", LARGE, priorityClassName="low", annotations=pair)
    wait_for("the queue", lambda: "gang of 2" in why(engine, "g2"))
    engine.delete("high")
    engine.started("g2")
