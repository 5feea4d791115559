# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Quotas of memory and compute: count x memory, percent of the card it lands on, init containers at their peak."""

import json
from typing import Any

import msgspec
import pytest

from cotenant.core.model import Reason
from cotenant.kube.api.objects import Pod, decode_object
from cotenant.kube.scheduler.placement import Choice
from cotenant.kube.scheduler.quota import Quotas, ResourceQuota
from cotenant.kube.state.cluster import ClusterState
from tests.kube.worlds import (
    CORES,
    GPU,
    MEMORY,
    PERCENT,
    annotated,
    args,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)

NAMES = ("large", "small")


@pytest.fixture
def state() -> ClusterState:
    return state_of(node(machine("large", memory=40000)), node(machine("small", memory=10000)))


def quota(hard: dict[str, str | int], namespace: str = "team", name: str = "gpus", **spec: Any) -> ResourceQuota:
    told = {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": hard, **spec}}
    return decode_object(json.dumps(told).encode(), ResourceQuota, "a quota")


def quotas(*all_of: ResourceQuota) -> Quotas:
    found = Quotas()
    for one in all_of:
        found.quota_changed(None, one)
    return found


@pytest.mark.parametrize(
    ("hard", "amounts", "sentence"),
    [
        ({f"requests.{MEMORY}": "5k"}, {GPU: 2, MEMORY: 3000}, "6000 MiB of GPU memory, quota gpus leaves {} 5000"),
        ({f"limits.{MEMORY}": 5000}, {GPU: 2, MEMORY: 3000}, "6000 MiB of GPU memory, quota gpus leaves {} 5000"),
        ({MEMORY: 5000}, {GPU: 1, PERCENT: 60}, "24000 MiB of GPU memory, quota gpus leaves {} 5000"),
        ({CORES: 99}, {GPU: 2, MEMORY: 1000, CORES: 50}, "1000 milli-GPU, quota gpus leaves {} 990"),
        ({f"limits.{GPU}": 1}, {GPU: 2, MEMORY: 3000}, "2 GPUs, quota gpus leaves {} 1"),
        ({"limits.aliyun.com/gpu-count": 1}, {GPU: 2, MEMORY: 3000}, "2 GPUs, quota gpus leaves {} 1"),
        ({"requests.aliyun.com/gpu-count": 1}, {GPU: 2, MEMORY: 3000}, "2 GPUs, quota gpus leaves {} 1"),
        ({"requests.gpushare/gpu-count": 1}, {"aliyun.com/gpu-count": 2}, "2 GPUs, quota gpus leaves {} 1"),
        ({"aliyun.com/gpu-mem": 5}, {GPU: 2, MEMORY: 3000}, "6000 MiB of GPU memory, quota gpus leaves {} 5120"),
    ],
)
def test_what_is_too_much_is_refused_in_numbers(
    state: ClusterState, hard: dict[str, str | int], amounts: dict[str, int], sentence: str
) -> None:
    placer, pod = placer_of(state, quotas=quotas(quota(hard))), waiting("a", amounts)
    refused = placer.choose(pod, "large", 0.0, 1)
    assert isinstance(refused, Reason)
    assert str(refused) == f"needs {sentence.format('its namespace')}"
    assert state.held("uid-a") is None
    assert isinstance(placer.choose(waiting("b", amounts, namespace="other"), "large", 0.0, 1), Choice)


def test_pods_of_the_namespace_count_until_they_end_and_holds_count_too(state: ClusterState) -> None:
    placer = placer_of(state, quotas=quotas(quota({MEMORY: 10000})))
    amounts = {GPU: 1, MEMORY: 4000}
    there = place(state, placer, waiting("a", amounts), "large")
    placer.filter(args(waiting("b", amounts), "large"), 0.0)
    pod = waiting("c", amounts)
    assert placer.filter(args(pod, *NAMES), 0.0).failed_and_unresolvable_nodes == dict.fromkeys(
        NAMES, "GPU quota exceeded"
    )
    assert str(placer.reasons.why(pod).waits) == "needs 4000 MiB of GPU memory, quota gpus leaves its namespace 2000"
    assert placer.filter(args(waiting("b", amounts), *NAMES), 0.0).node_names, "not against itself"
    state.pod_changed(there, None, "5")
    state.node_changed(node(machine("large", memory=40000)), node(machine("large", memory=40000), orphans=("5", [])))
    assert placer.filter(args(pod, *NAMES), 0.0).node_names


def test_a_pod_that_says_nonsense_once_it_runs_still_counts(state: ClusterState) -> None:
    placer = placer_of(state, quotas=quotas(quota({MEMORY: 5000})))
    there = place(state, placer, waiting("a", {GPU: 1, MEMORY: 4000}), "large")
    state.pod_changed(there, annotated(there, {"cotenant.io/link": "nonsense"}))
    assert isinstance(placer.choose(waiting("b", {GPU: 1, MEMORY: 4000}), "large", 0.0, 1), Reason)


@pytest.mark.parametrize("label", ["none", "3", "1025"])
def test_no_label_takes_a_running_pod_out_of_its_quota(state: ClusterState, label: str) -> None:
    amounts = {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 200}
    there = place(state, placer_of(state), labelled(waiting("a", amounts), "2"), "large")
    anew = state_of(node(machine("large", memory=40000)), pods=[labelled(there, label)])
    refused = placer_of(anew, quotas=quotas(quota({MEMORY: 9000}))).choose(waiting("b"), "large", 0.0, 1)
    assert isinstance(refused, Reason)
    assert refused.available == 9000 - 8 * 1024


def labelled(pod: Pod, gpus: str) -> Pod:
    """The pod with a label that divides its request among that many GPUs."""
    metadata = msgspec.structs.replace(pod.metadata, labels={"aliyun.com/gpu-count": gpus})
    return msgspec.structs.replace(pod, metadata=metadata)


def test_a_percentage_that_is_too_much_of_one_gpu_may_fit_a_smaller_one(state: ClusterState) -> None:
    placer = placer_of(state, quotas=quotas(quota({MEMORY: 8000})), shortlist=1)
    found = placer.filter(args(waiting("a", {GPU: 1, PERCENT: 50}), *NAMES), 0.0)
    assert found.node_names == ("small",)


def test_init_containers_count_at_their_peak(state: ClusterState) -> None:
    placer = placer_of(state, quotas=quotas(quota({MEMORY: 8000})))
    init = [{GPU: 1, MEMORY: 7000}, {GPU: 1, MEMORY: 1000, "sidecar": True}, {GPU: 1, MEMORY: 3000}]
    place(state, placer, waiting("a", {GPU: 1, MEMORY: 4000}, init=init), "large")
    refused = placer.choose(waiting("b", {GPU: 1, MEMORY: 1001}), "large", 0.0, 1)
    assert isinstance(refused, Reason)
    assert refused.available == 1000


def test_quotas_change_and_go(state: ClusterState) -> None:
    found = quotas(quota({MEMORY: 1000}), quota({MEMORY: 100000}, name="other"))
    placer, pod = placer_of(state, quotas=found), waiting("a")
    assert not placer.would_fit(pod)
    found.quota_changed(quota({MEMORY: 1000}), quota({MEMORY: 4000}))
    assert placer.would_fit(pod)
    found.quota_changed(quota({MEMORY: 4000}), quota({MEMORY: 0}))
    assert not placer.would_fit(pod)
    found.quota_changed(quota({MEMORY: 0}), None)
    found.quota_changed(quota({MEMORY: 100000}, name="other"), None)
    assert not found.limits("team")


@pytest.mark.parametrize(
    "other",
    [
        quota({"requests.cpu": 0, "pods": "1", GPU: 0, PERCENT: 0}),
        quota({MEMORY: 0}, scopes=["Terminating"]),
        quota({MEMORY: 0}, scopeSelector={"matchExpressions": []}),
        quota({"cambricon.com/mlumem": 0}),
        quota({f"requests.{GPU}": 0, "requests.aliyun.com/gpu": 0}),
        quota({MEMORY: "what"}),
    ],
)
def test_quotas_that_we_do_not_count_refuse_no_pod(state: ClusterState, other: ResourceQuota) -> None:
    assert placer_of(state, quotas=quotas(other)).would_fit(waiting("a"))
