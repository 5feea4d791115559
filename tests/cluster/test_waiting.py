# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that wait, on a real cluster: they say what is missing, and are tried again as soon as it is there."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.names import NAMESPACE, WHY
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import wait_for
from tests.cluster.engine import Engine
from tests.cluster.pods import path_of

MOST = {"nvidia.com/gpu": 3, "nvidia.com/gpumem": 10_000}


def why(engine: Engine, pod: str, *more: str, namespace: str = "default", user: str = "admin") -> str:
    """What `cotenant why` prints, run where the API server is reached."""
    cluster = engine.cluster
    config = str(cluster.credentials / f"{user}.kubeconfig")
    command = (sys.executable, "-m", "cotenant", "why", f"pod/{pod}", "-n", namespace, "--kubeconfig", config, *more)
    return cluster.machines[0].run(*command)


def messages(engine: Engine, pod: str, reason: str) -> list[str]:
    events = engine.cluster.get("/api/v1/namespaces/default/events")["items"]
    about = [one for one in events if one["involvedObject"]["name"] == pod and one["reason"] == reason]
    return [one["message"] for one in about]


@pytest.mark.defect("HAMi: waiting pods are tried again after five minutes")
def test_a_pod_that_waits_says_the_numbers_and_starts_when_there_is_room(engine: Engine) -> None:
    engine.create("stays", MOST)
    engine.started("stays")
    engine.create("waits", MOST)
    assert "not enough GPU memory" in engine.waits("waits")
    missing = "needs 3 GPUs, each with 10000 MiB free; the node has 2"
    assert missing in wait_for("an event", lambda: messages(engine, "waits", "NoRoom"))[0]
    said = why(engine, "waits").splitlines()
    assert said[0].startswith("pod default/waits is pending (policy binpack):")
    assert said[1:3] == ["it would fit now:", "  with 2 GPUs instead of 3 GPUs (node node1 GPUs 0 1)"]
    assert said[-1].split() == ["node1", *missing.split()]
    engine.delete("stays")
    engine.started("waits")
    assert why(engine, "waits").startswith("pod default/waits is placed (policy binpack): on node node1: GPU-")
    assert messages(engine, "waits", "Placed")
    engine.delete("waits")


def test_a_pod_that_waits_for_its_quota_starts_when_that_is_raised(engine: Engine) -> None:
    api = engine.cluster
    api.post("/api/v1/namespaces", {"metadata": {"name": "poor"}})
    quotas = "/api/v1/namespaces/poor/resourcequotas"
    api.post(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpumem": "500"}}})
    wait_for("the quota", lambda: api.get(f"{quotas}/gpus").get("status", {}).get("used"))
    engine.create("two", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 400}, namespace="poor")  # 800 in all
    assert "quota" in engine.waits("two", "poor")
    api.patch(f"{quotas}/gpus", {"spec": {"hard": {"requests.nvidia.com/gpumem": "800"}}})
    engine.started("two", "poor")
    engine.delete("two", "poor")


@pytest.fixture
def large(engine: Engine) -> Iterator[Engine]:
    """The engine with two nodes of one large GPU each that are not there: pods are bound to them and never start."""
    for name in ("large1", "large2"):
        gpu = Gpu(uuid=f"GPU-{name}", type="NVIDIA H100", memory=MiB(80_000), slots=16)
        has = {"cpu": "64", "memory": "256Gi", "pods": "200", "nvidia.com/gpu": "64", "nvidia.com/gpumem": "80000"}
        told = {INVENTORY: inventory_for(Machine(name=name, gpus=(gpu,)), Vendor.NVIDIA)}
        labels = {"kubernetes.io/hostname": name, "large": "true"}
        status = {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
        about = {"name": name, "labels": labels, "annotations": told}
        engine.cluster.post("/api/v1/nodes", {"metadata": about, "status": status})
    yield engine
    for pod in engine.cluster.get("/api/v1/namespaces/default/pods")["items"]:
        engine.delete(pod["metadata"]["name"], force=True)
    engine.cluster.delete("/api/v1/nodes?labelSelector=large%3Dtrue")


LARGE, SMALL = {"nvidia.com/gpumem": 60_000}, {"nvidia.com/gpumem": 20_000}


def node_of(engine: Engine, pod: str) -> str:
    def look() -> str | None:
        found: str | None = engine.cluster.get(path_of(pod))["spec"].get("nodeName")
        return found

    return wait_for(f"pod {pod} to be bound", look)


def test_nodes_that_affinity_a_taint_or_spreading_excludes_are_never_said_to_fit(large: Engine) -> None:
    # Required node affinity with NotIn excludes the only node with enough free memory.
    large.create("first", LARGE, nodeSelector={"large": "true"}, labels={"app": "spread"})
    taken = node_of(large, "first")
    free = "large2" if taken == "large1" else "large1"
    there = {"kubernetes.io/hostname": free}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [free]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    large.create("not-there", LARGE, affinity={"nodeAffinity": required})
    waits(large, "not-there", excluded={free}, refused={taken})

    # A taint with NoExecute does the same, until the pod tolerates it.
    taint = {"key": "repair", "effect": "NoExecute"}
    large.cluster.patch(f"/api/v1/nodes/{free}", {"spec": {"taints": [taint]}})
    large.create("tainted", LARGE)
    waits(large, "tainted", excluded={free}, refused={taken})
    large.create("tolerant", SMALL, nodeSelector=there, tolerations=[{**taint, "operator": "Exists"}])
    assert node_of(large, "tolerant") == free
    large.cluster.patch(f"/api/v1/nodes/{free}", {"spec": {"taints": None}})
    assert node_of(large, "tainted") == free, "it is tried again when the taint is gone"

    # Spreading: the node with room has one more pod of this label than the other, which has none left.
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    spreads: dict[str, Any] = {"labels": {"app": "spread"}, "topologySpreadConstraints": [spread]}
    large.create("spreads", SMALL, nodeSelector={"large": "true"}, **spreads)
    waits(large, "spreads", excluded={taken}, refused={free})


def waits(engine: Engine, pod: str, *, excluded: set[str], refused: set[str]) -> None:
    """The pod waits, and both `why` and the event give these nodes these reasons and say of none that it fits."""

    def look() -> bool:
        answer = json.loads(why(engine, pod, "--output", "json"))
        checks = {one["node"]: one["check"] for one in answer["refusals"]}
        by_us = {node for node, check in checks.items() if check == "memory"}
        theirs = {node for node, check in checks.items() if check == "excluded"}
        return not answer["fits"] and excluded <= theirs and refused <= by_us

    wait_for(f"the reasons of {pod}", look)
    (event,) = wait_for("an event", lambda: messages(engine, pod, "NoRoom"))
    assert "kube-scheduler excludes it by a node selector, affinity, a taint" in event
    assert "fits" not in event


def test_a_pod_that_no_node_takes_whatever_its_gpus_is_explained_in_the_words_of_kube_scheduler(engine: Engine) -> None:
    engine.create("nowhere", {"nvidia.com/gpumem": 100}, nodeSelector={"kubernetes.io/hostname": "none"})
    assert "didn't match Pod's node affinity/selector" in engine.waits("nowhere")

    def look() -> bool:
        return "didn't match Pod's node affinity/selector" in why(engine, "nowhere")

    wait_for("the words of kube-scheduler", look)


def test_a_quota_of_gpus_by_their_limits_holds_for_parts_of_gpus(engine: Engine) -> None:
    api = engine.cluster
    api.post("/api/v1/namespaces", {"metadata": {"name": "few"}})
    quotas = "/api/v1/namespaces/few/resourcequotas"
    api.post(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpu": "1"}}})
    wait_for("the quota", lambda: api.get(f"{quotas}/gpus").get("status", {}).get("hard"))
    engine.create("one", {"nvidia.com/gpumem": 400}, namespace="few")
    engine.started("one", "few")
    engine.create("two", {"nvidia.com/gpumem": 400}, namespace="few")
    assert "quota" in engine.waits("two", "few")
    engine.delete("one", "few")
    engine.started("two", "few")
    engine.delete("two", "few")


def test_who_may_not_ask_is_told_which_right_is_missing(engine: Engine) -> None:
    api = engine.cluster
    api.add_user("asker", "asking")
    assert f"`get` services/proxy and the secret {WHY} in namespace {NAMESPACE}" in why_refused(engine, "asker")
    api.kubectl("-n", NAMESPACE, "create", "rolebinding", "asker", f"--role={WHY}", "--serviceaccount=asking:asker")
    # The API server takes a moment to know the binding.
    wait_for("the right", lambda: "no pod any in namespace default" in why_refused(engine, "asker"))


def why_refused(engine: Engine, user: str) -> str:
    with pytest.raises(RuntimeError) as raised:
        why(engine, "any", user=user)
    return str(raised.value)
