# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An assignment is what the scheduler wrote, whatever somebody writes who may edit the pod's namespace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.codec.annotations import is_assignment
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.install.admission import API
from cotenant.kube.install.policies import ONLY_THE_SCHEDULER
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.attacker import PODS, SLICE, TEAM, VISIBLE, annotated, refusal
from tests.cluster.engine import Engine
from tests.cluster.pods import container, path_of
from tests.cluster.tenant import SEES, STAYS
from tests.cluster.test_admission import NAMES_GPUS

DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
VARIABLE, LIMITS = f"cotenant.io/0.{VISIBLE}", "cotenant.io/0.limits"
FORGED: tuple[dict[str, str | None], ...] = (
    {RECORD: "mine"},
    {RECORD: None},
    {VARIABLE: "all"},
    {LIMITS: "gpu any memory=0"},
    {"cotenant.io/1.limits": "x"},
    {NUMBERS: "[]"},
)
"""None: removed"""
APPLY = {"Content-Type": "application/apply-patch+yaml"}
REGISTRY = f"/apis/{API}"
MUTATING = f"{REGISTRY}/mutatingwebhookconfigurations"


def bound(name: str, annotations: Any) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
    return {**annotated(name, annotations), "kind": "Binding", "target": target}


def assignment_of(engine: Engine, name: str) -> dict[str, str]:
    annotations = engine.cluster.get(path_of(name, TEAM))["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if is_assignment(key) or key == NUMBERS}


@contextmanager
def nobody_answers(engine: Engine) -> Iterator[None]:
    """The webhook cannot be reached; the policies are there."""
    path = f"{MUTATING}/{SCHEDULER}"
    before = engine.cluster.get(path)["webhooks"]
    away = {"url": "https://127.0.0.1:1", "caBundle": before[0]["clientConfig"]["caBundle"]}
    engine.cluster.patch(path, {"webhooks": [{**one, "clientConfig": away} for one in before]})
    probe = annotated("probe", {}, spec={"containers": [container("main", "", SLICE)]})
    try:
        wait_for("the webhook to be away", lambda: "failed calling webhook" in tried(engine, probe))
        yield
    finally:
        engine.cluster.patch(path, {"webhooks": before})
        wait_for("the webhook to be back", lambda: tried(engine, probe) == "")


def tried(engine: Engine, pod: Json) -> str:
    """What the administrator is told who would create a pod."""
    try:
        engine.cluster.post(f"{PODS}?dryRun=All", pod)
    except RefusedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("guards", ["both", "the policy alone"])
def test_an_assignment_stays_what_the_scheduler_wrote(engine: Engine, mallory: str, guards: str) -> None:
    engine.create("placed", SLICE, STAYS, namespace=TEAM)
    engine.create("waiting", {"nvidia.com/gpumem": 40000}, SEES, namespace=TEAM)
    engine.started("placed", TEAM)
    engine.waits("waiting", TEAM)
    before = assignment_of(engine, "placed")
    assert {RECORD, VARIABLE, LIMITS, NUMBERS} <= set(before)
    with {"both": both, "the policy alone": nobody_answers}[guards](engine):
        for forged in FORGED:
            check_all_ways(engine, mallory, forged)
    assert assignment_of(engine, "placed") == before
    assert not refusal(engine, mallory, "POST", f"{PODS}/waiting/binding", bound("waiting", {})), "no GPU comes with it"
    engine.ended("waiting", TEAM)
    assert (engine.said("waiting", namespace=TEAM)["gpus"], RECORD in assignment_of(engine, "waiting")) == ([], False)


@contextmanager
def both(_engine: Engine) -> Iterator[None]:
    yield


def check_all_ways(engine: Engine, token: str, forged: dict[str, str | None]) -> None:
    (key, value), *_ = forged.items()
    expected = f"annotation {key} {ONLY_THE_SCHEDULER}"
    change = annotated("placed", forged)
    for part in ("", "/status"):
        assert expected in refusal(engine, token, "PATCH", f"{PODS}/placed{part}", change), part
    for part in ("/ephemeralcontainers", "/resize"):  # here the server drops annotations, in the versions we know
        refusal(engine, token, "PATCH", f"{PODS}/placed{part}", change)
    if value is not None:
        for part in ("", "/status"):
            path = f"{PODS}/placed{part}?fieldManager=me&force=true"
            assert expected in refusal(engine, token, "PATCH", path, change, APPLY), part
        for path in (f"{PODS}/waiting/binding", f"/api/v1/namespaces/{TEAM}/bindings"):
            assert expected in refusal(engine, token, "POST", path, bound("waiting", forged)), path


def test_without_the_webhook_a_forged_pod_does_not_come_in_at_all(engine: Engine, mallory: str) -> None:
    plain = {"containers": [container("main", "", env=[{"name": VISIBLE, "value": "all"}])]}
    labels = {"app": "forged"}
    template = {
        "metadata": {"labels": labels, "annotations": {RECORD: "mine", VARIABLE: "all"}},
        "spec": {"containers": [container("main", "")]},
    }
    deployment = {"metadata": {"name": "forged"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    with nobody_answers(engine):
        for key in (RECORD, VARIABLE, LIMITS):
            made = annotated("forged", {key: "1"}, spec={"containers": [container("main", "")]})
            assert ONLY_THE_SCHEDULER in refusal(engine, mallory, "POST", PODS, made)
        asking = annotated("asking", {}, spec={"containers": [container("main", "", SLICE)]})
        assert "gpus.pods.cotenant.io" in refusal(engine, mallory, "POST", PODS, asking)
        seeing = refusal(engine, mallory, "POST", PODS, annotated("seeing", {}, spec=plain))
        assert NAMES_GPUS in seeing
        assert not refusal(engine, mallory, "POST", DEPLOYMENTS, deployment)
        wait_for("the controller to be refused", lambda: failure(engine, "forged"))
        assert engine.cluster.get(f"{PODS}?labelSelector=app%3Dforged")["items"] == []
        engine.cluster.delete(f"{DEPLOYMENTS}/forged")


def failure(engine: Engine, deployment: str) -> str | None:
    """Why a deployment has no pods."""
    found = engine.cluster.get(f"{DEPLOYMENTS}/{deployment}")["status"]
    said = [one["message"] for one in found.get("conditions", []) if one["type"] == "ReplicaFailure"]
    return next((message for message in said if ONLY_THE_SCHEDULER in message), None)
