# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kueue on a real cluster: it admits a job by its quota first, and cotenant places the pods then."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cotenant.kube.codec.queueing import GATE
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.conftest import QUEUED
from tests.cluster.engine import Engine, record_of
from tests.cluster.examples import apply
from tests.cluster.pods import path_of
from tests.cluster.test_queue import prepare
from tests.cluster.test_waiting import why

QUEUE = "kueue.x-k8s.io/queue-name"
ADMISSION = "kueue.x-k8s.io/admission"
"""Kueue's scheduling gate"""
JOBS = "/apis/batch/v1/namespaces/default/jobs"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


@pytest.fixture
def vision(beside: Engine) -> Iterator[Engine]:
    """The queues of the example, its first job, which runs, and its second one."""
    apply(beside, "neighbours/kueue.yaml")
    pod_of(beside, "first")
    apply(beside, "neighbours/kueue-second.yaml")
    yield beside
    for namespace in ("default", QUEUED):  # before their queues: Kueue holds a pod by a finalizer
        beside.cluster.kubectl("delete", "job,pod", "--all", "--timeout=60s", f"--namespace={namespace}")
    objects = ("localqueue/vision", "clusterqueue/vision", "resourceflavor/shared-gpus", "workloadpriorityclass/urgent")
    beside.cluster.kubectl("delete", "--timeout=60s", *objects)


def is_suspended(engine: Engine, job: str) -> bool:
    return bool(engine.cluster.get(f"{JOBS}/{job}")["spec"]["suspend"])


def pod_of(engine: Engine, job: str) -> Json:
    """The pod of a Job, once it runs."""

    def look() -> Json | None:
        found = engine.cluster.get(f"{path_of('')[:-1]}?labelSelector=job-name%3D{job}")["items"]
        return next((dict(pod) for pod in found if pod["status"]["phase"] == "Running"), None)

    return wait_for(f"a pod of {job}", look)


def used(engine: Engine) -> dict[str, str]:
    """What Kueue counts in the queue of the example."""
    flavors = engine.cluster.get(f"{KUEUE}/clusterqueues/vision")["status"]["flavorsUsage"]
    return {one["name"]: one["total"] for one in flavors[0]["resources"]}


def test_a_job_starts_when_the_quota_allows_it_and_amounts_count_on_each_gpu(vision: Engine) -> None:
    first = pod_of(vision, "first")
    assert [share.memory for share in record_of(first).held_by(0)] == [15_000] * 2
    wanted = {"nvidia.com/gpu": "2", "quota.example/gpu-memory-mib": "30k", "quota.example/gpu-compute-percent": "60"}
    assert wait_for("its quota", lambda: used(vision) == wanted)
    assert is_suspended(vision, "second")
    vision.cluster.delete(f"{JOBS}/first?propagationPolicy=Background")
    second = pod_of(vision, "second")
    assert [share.memory for share in record_of(second).held_by(0)] == [30_000]


def test_a_job_of_higher_priority_gets_the_memory_of_the_one_that_kueue_suspends(vision: Engine) -> None:
    before = pod_of(vision, "first")
    urgent: Json = vision.cluster.get(f"{JOBS}/second")
    template = {"spec": urgent["spec"]["template"]["spec"]}
    labels = {QUEUE: "vision", "kueue.x-k8s.io/priority-class": "urgent"}
    vision.cluster.post(JOBS, {"metadata": {"name": "urgent", "labels": labels}, "spec": {"template": template}})
    wait_for("Kueue to suspend the first one", lambda: is_suspended(vision, "first"))
    after = pod_of(vision, "urgent")
    assert [share.memory for share in record_of(after).held_by(0)] == [30_000]
    with suppress(RefusedError):
        assert "deletionTimestamp" in vision.cluster.get(path_of(before["metadata"]["name"]))["metadata"]


def gates(engine: Engine, name: str) -> set[str]:
    spec = engine.cluster.get(path_of(name, QUEUED))["spec"]
    return {gate["name"] for gate in spec.get("schedulingGates", [])}


def test_a_pod_passes_the_gate_of_kueue_first_and_then_ours(vision: Engine) -> None:
    prepare(vision)
    queue: dict[str, Any] = {"metadata": {"name": "vision", "namespace": QUEUED}, "spec": {"clusterQueue": "vision"}}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", **queue}
    vision.cluster.post(f"{KUEUE}/namespaces/{QUEUED}/localqueues", body)
    limits = {"nvidia.com/gpumem": 20_000}
    vision.create("single", limits, namespace=QUEUED, labels={QUEUE: "vision"})
    assert {GATE, ADMISSION} <= gates(vision, "single")
    said = why(vision, "single", namespace=QUEUED)
    assert f"it joins the queue when its other scheduling gates are removed: {ADMISSION}" in said
    vision.cluster.delete(f"{JOBS}/second?propagationPolicy=Background")
    vision.cluster.delete(f"{JOBS}/first?propagationPolicy=Background")
    assert [share.memory for share in record_of(vision.started("single", QUEUED)).held_by(0)] == [20_000]
    wait_for("its quota", lambda: used(vision)["quota.example/gpu-memory-mib"] == "20k")
    vision.cluster.delete(f"{KUEUE}/namespaces/{QUEUED}/localqueues/vision")
