# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that do not admit a pod with claims, by its node selector, affinity or tolerations, are not chosen for it."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from cotenant.kube.api.objects import decode_node, decode_pod
from cotenant.kube.codec.inventory import AWAY, CLAIMS_AWAY
from cotenant.kube.codec.node_matching import MOST_CONDITIONS, admits, has_too_many
from cotenant.kube.scheduler import admitting
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.test_claims import CLAIMS, add, is_ready
from tests.kube.test_claims_in_full import record, until_why, with_nodes
from tests.kube.test_claims_preemption import full

NODE = {
    "metadata": {"name": "n1", "labels": {"zone": "a", "gpus": "8"}},
    "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "x", "effect": "Prefer"}]},
}
TOLERATES = [{"key": "gpu", "operator": "Exists"}]


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


def by(key: str, operator: str, *values: str, of: str = "matchExpressions") -> dict[str, Any]:
    return {of: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"nodeSelector": None, "affinity": None}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "gpus": "4"}}, False),
        ({"nodeSelector": {"absent": ""}}, False),
        ({"affinity": affinity(by("zone", "In", "b", "a"))}, True),
        ({"affinity": affinity(by("zone", "In", "b"))}, False),
        ({"affinity": affinity(by("zone", "In", "b"), by("gpus", "Exists"))}, True),
        ({"affinity": affinity(by("zone", "NotIn", "a"))}, False),
        ({"affinity": affinity(by("absent", "NotIn", "a"))}, True),
        ({"affinity": affinity(by("absent", "DoesNotExist"))}, True),
        ({"affinity": affinity(by("zone", "DoesNotExist"))}, False),
        ({"affinity": affinity(by("gpus", "Gt", "4"))}, True),
        ({"affinity": affinity(by("gpus", "Lt", "4"))}, False),
        ({"affinity": affinity(by("zone", "Gt", "4"))}, False),
        ({"affinity": affinity(by("metadata.name", "In", "n1", of="matchFields"))}, True),
        ({"affinity": affinity(by("metadata.name", "In", "n2", of="matchFields"))}, False),
        ({"affinity": affinity({**by("zone", "In", "a"), **by("metadata.name", "In", "n2", of="matchFields")})}, False),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity(by("zone", "OfALaterVersion"))}, True),
        ({"affinity": {"podAffinity": {}}}, True),
        ({"tolerations": []}, False),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, True),
        ({"tolerations": [{"key": "gpu", "operator": "Equal", "value": "no"}]}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, False),
        ({"tolerations": [{"key": "other", "operator": "Exists"}]}, False),
    ],
)
def test_what_admits_a_pod(spec: dict[str, Any], expected: bool) -> None:
    pod = decode_pod(json.dumps({"spec": {"tolerations": TOLERATES, **spec}}).encode())
    assert admits(pod.spec, decode_node(json.dumps(NODE).encode())) is expected


def test_a_cordoned_node_admits_only_who_tolerates_it() -> None:
    node = decode_node(json.dumps({"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}).encode())
    tolerates = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert not admits(decode_pod(b"{}").spec, node)
    assert admits(decode_pod(json.dumps({"spec": {"tolerations": tolerates}}).encode()).spec, node)


def test_a_pod_goes_to_the_node_that_it_selects_and_waits_until_there_is_one() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 16_000), n3=(1, 16_000))
        server.nodes.merge("n2", {"metadata": {"labels": {"zone": "b"}}})
        server.nodes.merge("n3", {"spec": {"taints": [{"key": "repair", "effect": "NoExecute"}]}})
        await until(lambda: plane.scheduler.admission.version >= 5)
        add(server, "there", "1Gi", nodeSelector={"zone": "b"})
        await until(lambda: is_ready(server, "there"))
        assert record(server, "there").node == "n2"
        add(server, "late", "1Gi", nodeSelector={"zone": "c"})
        await until_why(plane, "late", "kube-scheduler excludes it by a node selector")
        server.nodes.merge("n1", {"metadata": {"labels": {"zone": "c"}}})
        await until(lambda: is_ready(server, "late"))
        assert record(server, "late").node == "n1"
        add(server, "large", "15Gi")
        await until_why(plane, "large", "kube-scheduler excludes it by a node selector")
        server.nodes.merge("n3", {"spec": {"taints": None}})
        await until(lambda: is_ready(server, "large"))
        assert record(server, "large").node == "n3"
        assert not plane.events("NoRoom")

    play(story, CLAIMS)


def test_a_pod_with_claims_goes_to_no_node_whose_kubelet_has_not_registered_the_driver() -> None:
    """A pod without claims does: kubelet there starts it by the device plugin."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        server.nodes.merge("n1", {"metadata": {"annotations": {CLAIMS_AWAY: "kubelet does not know the driver"}}})
        await until(lambda: plane.scheduler.state.claims_away)
        add(server, "claims", "1Gi")
        await until_why(plane, "claims", "kubelet does not know the driver")
        plane.add_pod("plain")
        assert await plane.place("plain", "n1") == "n1"
        server.nodes.merge("n1", {"metadata": {"annotations": {CLAIMS_AWAY: None}}})
        await until(lambda: is_ready(server, "claims"))
        server.nodes.merge("n2", {"metadata": {"annotations": {CLAIMS_AWAY: "as well"}}})
        await until(lambda: "n2" in plane.scheduler.state.claims_away)
        for key in (CLAIMS_AWAY, AWAY):
            server.nodes.merge("n2", {"metadata": {"annotations": {key: "\x1b[2J" + "x" * 1000}}})
        state, text = plane.scheduler.state, "\\x1b[2J" + "x" * 296
        await until(lambda: state.claims_away["n2"] == text)
        await until(lambda: list(state.closed.get("n2", {}).values()) == [text])
        server.nodes.remove("n2", "")
        await until(lambda: not plane.scheduler.state.claims_away)

    play(story, CLAIMS)


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": affinity(*[by(f"k{number}", "Exists") for number in range(20_000)])},
        {"affinity": affinity(by("zone", "In", *map(str, range(20_000))))},
        {"tolerations": [{"key": str(number), "operator": "Exists"} for number in range(5000)]},
        {"nodeSelector": {str(number): "" for number in range(5000)}},
    ],
)
def test_a_pod_with_very_many_conditions_is_compared_with_no_node(spec: dict[str, Any]) -> None:
    """Each of thousands of nodes would be compared with each condition, while the scheduler does nothing else."""

    async def story(plane: ControlPlane) -> None:
        await with_nodes(plane, n1=(1, 16_000))
        with patch.object(admitting, "admits", side_effect=AssertionError):
            add(plane.server, "many", "1Gi", **spec)
            await plane.knows("many")
            await until_why(plane, "many", f"more than {MOST_CONDITIONS} conditions")

    play(story, CLAIMS)


def test_hundreds_of_named_nodes_are_few_conditions() -> None:
    names = by("kubernetes.io/hostname", "In", *(f"node-{number}" for number in range(900)))
    for spec, expected in (({"affinity": affinity(names)}, False), ({"affinity": affinity(names, names)}, True)):
        assert has_too_many(decode_pod(json.dumps({"spec": spec}).encode()).spec) is expected


def test_no_pod_is_evicted_on_a_node_that_does_not_admit_the_other() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await full(plane, a=1, b=5)
        server.nodes.merge("n-b", {"metadata": {"labels": {"zone": "b"}}})
        await until(lambda: plane.scheduler.admission.version >= 3)
        add(server, "high", "12000Mi", priority=10, nodeSelector={"zone": "b"})
        await until(lambda: server.evicted == ["b"])  # although a is less important

    play(story, CLAIMS)
