# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that wait for their turn, on a real cluster: in our order, and whatever those do who would like to be first."""

import json
from contextlib import suppress

import pytest

from cotenant.kube.codec.turns import ESTIMATE, GANG, GANG_SIZE, GATE
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.attacker import PODS, SLICE, TEAM, refusal
from tests.cluster.conftest import QUEUED
from tests.cluster.engine import Engine
from tests.cluster.pods import path_of
from tests.cluster.test_waiting import why

BOTH = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 30_000}
"""the two large cards"""
WAYS: dict[str, Json] = {
    "application/merge-patch+json": {"spec": {"schedulingGates": []}},
    "application/strategic-merge-patch+json": {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}},
}


def is_gated(engine: Engine, name: str, namespace: str = QUEUED) -> bool:
    pod = engine.cluster.get(path_of(name, namespace))
    return GATE in [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]


@pytest.fixture
def queue(engine: Engine) -> Engine:
    """The engine, with the namespace whose pods wait."""
    with suppress(RefusedError):  # it is there already
        engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": QUEUED}})
    account = f"/api/v1/namespaces/{QUEUED}/serviceaccounts/default"
    wait_for("the account that pods need", lambda: engine.cluster.get(account))
    return engine


def test_the_shorter_job_goes_first_when_there_is_room(queue: Engine) -> None:
    queue.create("runs", BOTH, namespace=QUEUED)
    queue.started("runs", QUEUED)
    for name, estimate in (("long", "20h"), ("short", "1m")):
        queue.create(name, BOTH, namespace=QUEUED, annotations={ESTIMATE: estimate})
    assert is_gated(queue, "long")
    assert is_gated(queue, "short")
    wait_for(
        "the place in the queue",
        lambda: "with 1 before it in the queue (aged)" in why(queue, "long", namespace=QUEUED) or None,
    )
    queue.delete("runs", QUEUED)
    queue.started("short", QUEUED)
    assert is_gated(queue, "long"), "only as many are let go as fit"
    queue.delete("short", QUEUED)
    queue.started("long", QUEUED)


def test_pods_of_other_namespaces_and_without_gpus_do_not_wait(queue: Engine) -> None:
    queue.create("plain", {}, namespace=QUEUED)
    queue.create("elsewhere", SLICE)
    assert not is_gated(queue, "plain")
    assert not is_gated(queue, "elsewhere", "default")
    queue.started("plain", QUEUED)
    queue.started("elsewhere")


def test_a_restarted_scheduler_goes_on_with_the_queue(queue: Engine) -> None:
    queue.create("runs", BOTH, namespace=QUEUED)
    queue.started("runs", QUEUED)
    queue.create("next", BOTH, namespace=QUEUED)
    queue.restart_scheduler()
    assert is_gated(queue, "next")
    queue.delete("runs", QUEUED)
    queue.started("next", QUEUED)


def test_nobody_else_takes_the_gate_away_or_binds_a_pod_that_has_one(engine: Engine, mallory: str) -> None:
    alone = {GANG: "alone", GANG_SIZE: "2"}
    engine.create("waits", SLICE, namespace=TEAM, annotations=alone)
    assert is_gated(engine, "waits", TEAM)
    for kind, patch in WAYS.items():
        assert GATE in refusal(engine, mallory, "PATCH", f"{PODS}/waits", patch, {"Content-Type": kind})
    pod: Json = engine.cluster.get(f"{PODS}/waits")
    whole = json.loads(json.dumps(pod))
    whole["spec"]["schedulingGates"] = []
    assert GATE in refusal(engine, mallory, "PUT", f"{PODS}/waits", whole)
    binding = {"metadata": {"name": "waits"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"}}
    assert refusal(engine, mallory, "POST", f"{PODS}/waits/binding", binding)
    assert is_gated(engine, "waits", TEAM)
    assert not refusal(engine, mallory, "PATCH", f"{PODS}/waits", {"metadata": {"labels": {"mine": "yes"}}})
