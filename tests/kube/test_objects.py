# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Objects of the API server: what we read of them, what is passed over, and what is refused."""

import json
from typing import Any

import pytest

from cotenant.core.model import ContainerKind
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod, containers_of, decode_node, decode_pod, has_ended
from tests.kube.pods import pod


def decoded(**of: Any) -> Pod:
    return decode_pod(json.dumps(of).encode())


def test_a_pod_is_read_and_what_is_not_ours_is_passed_over() -> None:
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": None}],
        "containerStatuses": [
            {"name": "a", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            {"name": "b", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
        ],
    }
    seen = decoded(
        apiVersion="v1", metadata={"name": "p", "ownerReferences": [{}]}, spec={"dnsPolicy": 5}, status=status
    )
    running, ended = seen.status.container_statuses
    assert running.state.running is not None
    assert running.state.terminated is None
    assert ended.state.terminated is not None
    assert ended.state.terminated.exit_code == 137
    assert seen.status.conditions[0].type == "Ready"
    assert not has_ended(seen)


def test_a_node_is_read() -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"gpushare": "true"}, "annotations": {"GPU_TOPOLOGY": "{}"}},
        "spec": {"unschedulable": True, "podCIDR": "10.0.0.0/24"},
        "status": {"capacity": {"cpu": "8"}, "allocatable": {"aliyun.com/gpu-mem": "60"}, "images": [{}]},
    }
    seen = decode_node(json.dumps(node).encode())
    assert seen.spec.unschedulable
    assert (seen.metadata.labels, seen.status.allocatable) == ({"gpushare": "true"}, {"aliyun.com/gpu-mem": "60"})


def test_an_empty_object_has_nothing() -> None:
    assert decode_pod(b"{}") == Pod()
    assert decode_node(b"{}") == Node()


def test_containers_come_in_the_order_in_which_they_start() -> None:
    seen = [(kind, one.name) for kind, one in containers_of(pod({}, {}, init=[{}, {"sidecar": True}]))]
    assert seen == [
        (ContainerKind.INIT, "init-0"),
        (ContainerKind.SIDECAR, "init-1"),
        (ContainerKind.APP, "app-0"),
        (ContainerKind.APP, "app-1"),
    ]


@pytest.mark.parametrize(
    ("phase", "ended"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_a_pod_that_ended_runs_no_more(phase: str, ended: bool) -> None:
    assert has_ended(decoded(status={"phase": phase})) is ended


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"metadata": {"annotations": {"a": 1}}}, r"not a pod: metadata.annotations\[...\]: Expected str, got int"),
        ({"spec": {"containers": None}}, "not a pod: spec.containers: Expected array, got null"),
        ({"spec": {"containers": [{}] * 1001}}, "not a pod: spec.containers: Expected array of length <= 1000"),
        ({"spec": {"priority": "high"}}, "not a pod: spec.priority: Expected int | null, got str"),
        ({"spec": {"containers": [{"resources": {"limits": {"a": 0.5}}}]}}, "got float"),
    ],
)
def test_an_object_that_is_not_as_kubernetes_defines_it_names_the_field(of: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        decoded(**of)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"\xff"', b"\xff", b"[" * 100_000, b"null"])
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^not a pod: "):
        decode_pod(content)


@pytest.mark.parametrize("content", [b'{"a":' * 100_000, b'{"spec":{"a":' + b"[" * 100_000])
def test_depth_is_bounded_also_in_what_we_do_not_read(content: bytes) -> None:
    with pytest.raises(InputError, match="not a pod: nested too deeply"):
        decode_pod(content)


def test_an_object_larger_than_any_is_not_read() -> None:
    with pytest.raises(InputError, match="not a pod: 50000000 bytes, expected at most 4194304"):
        decode_pod(b" " * 50_000_000)
