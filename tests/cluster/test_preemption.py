# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Preemption on a real cluster: whoever is more important displaces exactly what it must, and budgets are obeyed."""

from collections.abc import Iterator, Mapping

import pytest

from cotenant.kube.scheduler.news import PREEMPTED, PREEMPTING, PREEMPTION_REFUSED
from tests.cluster.api import wait_for
from tests.cluster.engine import SLEEP, Engine, gpus_of
from tests.cluster.pods import container, create_pod, is_gone, path_of
from tests.cluster.test_waiting import messages, why

CLASSES = {"low": 5, "middle": 10, "high": 100}
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


def start(engine: Engine, name: str, limits: Mapping[str, int], priority: str = "low") -> None:
    engine.create(name, limits, priorityClassName=priority, labels={"app": name})
    engine.started(name)


def stays(engine: Engine, name: str) -> bool:
    pod = engine.cluster.get(path_of(name))
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def leaves(engine: Engine, name: str) -> None:
    """Returns when the pod is gone; the newcomer may start when its containers have ended, a moment earlier."""
    wait_for(f"pod {name} to be gone", lambda: is_gone(engine.cluster, name) or None)


def told(engine: Engine, name: str, reason: str) -> str:
    """What an event says, once it is there: they are written in the background."""
    return wait_for(f"event {reason}", lambda: messages(engine, name, reason) or None)[0]


def test_for_want_of_memory_the_least_important_leaves_and_its_card_is_the_newcomers(engine: Engine) -> None:
    start(engine, "low", LARGE)
    start(engine, "middle", LARGE, "middle")
    card = gpus_of(engine.cluster.get(path_of("low")))
    engine.create("polite", LARGE, priorityClassName="polite")
    assert "not enough GPU memory" in engine.waits("polite")
    assert "without" not in why(engine, "polite")
    assert stays(engine, "low")
    engine.delete("polite")
    engine.create("high", LARGE, priorityClassName="high")
    assert gpus_of(engine.started("high")) == card
    leaves(engine, "low")
    assert stays(engine, "middle")
    assert told(engine, "low", PREEMPTED) == "evicted from node node1 for a pod of priority 100; its own is 5"
    assert told(engine, "high", PREEMPTING).startswith("evicts low from node node1; its place is reserved")


def test_for_want_of_compute_one_leaves(engine: Engine) -> None:
    shares = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 80}
    names = [f"busy-{number}" for number in range(3)]
    for name in names:
        start(engine, name, shares)
    engine.create("high", shares, priorityClassName="high")
    engine.started("high")
    assert sum(not is_gone(engine.cluster, name) and stays(engine, name) for name in names) == 2


def test_for_want_of_slots_who_has_them_leaves(engine: Engine) -> None:
    """kube-scheduler counts slots itself and would evict; it is told to leave that to us."""
    each = {"nvidia.com/gpu": 3, "nvidia.com/gpumem": 100}
    containers = [container(f"c{number}", SLEEP, each) for number in range(16)]  # all slots of all three cards
    create_pod(engine.cluster, "many", *containers, priorityClassName="low")
    engine.started("many")
    engine.create("high", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}, priorityClassName="high")
    engine.started("high")
    assert told(engine, "many", PREEMPTED)


def test_a_budget_is_obeyed_and_said_and_the_next_leaves_instead(engine: Engine) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    start(engine, "low", LARGE)
    start(engine, "middle", LARGE, "middle")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}}
    engine.cluster.post(budgets, {"metadata": {"name": "keep"}, "spec": spec})
    try:
        engine.create("high", LARGE, priorityClassName="high")
        engine.started("high")
        assert stays(engine, "low")
        leaves(engine, "middle")
        assert told(engine, "high", PREEMPTION_REFUSED).startswith("cannot evict low: 429")
    finally:
        engine.cluster.delete(f"{budgets}/keep")
