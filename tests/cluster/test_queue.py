# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that wait for their turn, on a real cluster: in our order, and whatever those do who would like to be first."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from cotenant.kube.api.names import SCHEDULER_USER
from cotenant.kube.codec.queueing import ATTAINED, ESTIMATE, GANG, GANG_SIZE, GATE
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.attacker import PODS, SLICE, TEAM, annotated, refusal
from tests.cluster.binaries import Binaries
from tests.cluster.conftest import QUEUE_LABEL, QUEUED
from tests.cluster.engine import SLEEP, V100, Engine, running_engine
from tests.cluster.pods import container, path_of
from tests.cluster.test_serving import cotenant, refused
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


def prepare(engine: Engine) -> None:
    """The namespace whose pods wait."""
    with suppress(RefusedError):  # it is there already
        engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": QUEUED}})
    account = f"/api/v1/namespaces/{QUEUED}/serviceaccounts/default"
    wait_for("the account that pods need", lambda: engine.cluster.get(account))


@pytest.fixture
def queue(engine: Engine) -> Engine:
    """The engine, with the namespace whose pods wait."""
    prepare(engine)
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
        lambda: "with 1 before it in the queue (aged)" in why(queue, "long", namespace=QUEUED),
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
    wait_for("its place", lambda: "with 0 before it" in why(queue, "next", namespace=QUEUED))
    assert is_gated(queue, "next")
    queue.delete("runs", QUEUED)
    queue.started("next", QUEUED)


def test_a_held_pod_stays_at_its_gate_until_it_is_released(queue: Engine) -> None:
    """The scheduler itself may not remove the gate, which the API server guarantees."""
    on = ("--on", "kubernetes", "-n", QUEUED)
    queue.create("runs", BOTH, namespace=QUEUED)
    queue.started("runs", QUEUED)
    queue.create("next", BOTH, namespace=QUEUED)
    code, said = refused(queue, "hold", *on, "pod/runs")
    assert (code, "it does not wait in cotenant's queue" in said) == (2, True)
    assert json.loads(cotenant(queue, "hold", *on, "pod/next", "-o", "json"))["held"]
    wait_for("the hold", lambda: "held by admin since 20" in why(queue, "next", namespace=QUEUED))
    queue.delete("runs", QUEUED)
    queue.create("later", BOTH, namespace=QUEUED)
    queue.started("later", QUEUED)
    assert is_gated(queue, "next"), "the pod behind it has passed it"
    patch = ("patch", "pod", "next", "-n", QUEUED, "--type=merge", '-p={"spec": {"schedulingGates": []}}')
    with pytest.raises(RuntimeError, match="holds the pod"):
        queue.cluster.kubectl(*patch, f"--as={SCHEDULER_USER}")
    queue.delete("later", QUEUED)
    assert not json.loads(cotenant(queue, "release", *on, "pod/next", "-o", "json"))["held"]
    queue.started("next", QUEUED)
    assert "is not held" in refused(queue, "release", *on, "pod/next")[1]


def test_who_would_exceed_the_quota_waits_and_starts_when_that_is_raised(queue: Engine) -> None:
    quotas = f"/api/v1/namespaces/{QUEUED}/resourcequotas"
    api = queue.cluster
    hard = {"requests.nvidia.com/gpumem": "1500"}
    api.post(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    try:
        wait_for("the quota", lambda: api.get(f"{quotas}/gpus").get("status", {}).get("used"))
        both = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 500}  # Kubernetes itself counts 500, we what it really takes
        queue.create("first", both, namespace=QUEUED)
        queue.started("first", QUEUED)
        queue.create("second", both, namespace=QUEUED)
        wait_for("its place", lambda: "with 0 before it" in why(queue, "second", namespace=QUEUED))
        assert is_gated(queue, "second")
        api.patch(f"{quotas}/gpus", {"spec": {"hard": {"requests.nvidia.com/gpumem": "2000"}}})
        queue.started("second", QUEUED)
    finally:
        api.delete(f"{quotas}/gpus")


def test_what_kube_scheduler_cannot_place_does_not_hold_the_queue_up(queue: Engine) -> None:
    queue.create("nowhere", BOTH, namespace=QUEUED, nodeSelector={"kubernetes.io/hostname": "nowhere"})
    wait_for("its turn", lambda: not is_gated(queue, "nowhere"))
    queue.create("next", BOTH, namespace=QUEUED)
    queue.started("next", QUEUED)
    assert "nodeName" not in queue.cluster.get(path_of("nowhere", QUEUED))["spec"]
    assert not is_gated(queue, "nowhere")


def test_the_order_of_srpt_under_the_policy_cotenant(programs: Binaries, tmp_path: Path) -> None:
    settings = f"scheduler: {{policy: cotenant}}\nqueue: {{namespaces: [{QUEUED}], order: srpt}}\n"
    with running_engine(tmp_path, programs, settings=settings, gpus=[V100]) as engine:
        prepare(engine)
        whole = {"nvidia.com/gpu": 1}
        engine.create("runs", whole, namespace=QUEUED)
        engine.started("runs", QUEUED)
        says = {
            "unknown": {},
            "long": {ESTIMATE: "2h"},
            "resumed": {ESTIMATE: "10h", ATTAINED: "9h"},
            "short": {ESTIMATE: "1m"},
        }
        for name, annotations in says.items():
            engine.create(name, whole, namespace=QUEUED, annotations=annotations)
        order = ["short", "resumed", "long", "unknown"]
        for place, name in enumerate(order):
            words = f"with {place} before it in the queue (srpt)"
            wait_for(f"{name}: {words}", lambda: words in why(engine, name, namespace=QUEUED))  # noqa: B023
        for before, name in zip(["runs", *order], order, strict=False):
            engine.delete(before, QUEUED)
            engine.started(name, QUEUED)
            assert all(is_gated(engine, later) for later in order[order.index(name) + 1 :])


def test_a_gate_that_nobody_asked_for_is_not_put_on_and_a_label_that_is_taken_off_changes_nothing(
    engine: Engine, mallory: str
) -> None:
    own = annotated("own", {}, spec={"schedulingGates": [{"name": GATE}], "containers": [container("c", SLEEP, SLICE)]})
    assert not refusal(engine, mallory, "POST", PODS, own)
    assert not is_gated(engine, "own", TEAM)
    engine.started("own", TEAM)
    engine.create("runs", BOTH)
    engine.started("runs")
    engine.create("labelled", BOTH, namespace=TEAM, labels={QUEUE_LABEL: "yes"})
    assert is_gated(engine, "labelled", TEAM)
    assert not refusal(engine, mallory, "PATCH", f"{PODS}/labelled", {"metadata": {"labels": {QUEUE_LABEL: None}}})
    assert "with 0 before it" in why(engine, "labelled", namespace=TEAM)
    assert is_gated(engine, "labelled", TEAM)
    engine.delete("runs")
    engine.started("labelled", TEAM)


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
