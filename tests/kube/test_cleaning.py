# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is said of each node when its agent leaves: files that went, files that stay and why, or that it is down."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.kube.api.client import Client, Limits, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.names import AGENT, NAMESPACE, REMOVAL, labels_of
from cotenant.kube.codec.inventory import INVENTORY
from cotenant.kube.install.cleaning import clean_nodes, why_no_removal
from cotenant.kube.install.node_files import remove_files

Json = dict[str, Any]
UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
IN_USE = f"cotenant: /var/lib/cotenant stays, because these use files in it: pod {UID}\n"
REMOVED: Json = {"phase": "Succeeded"}


def failed(message: str) -> Json:
    return {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {"message": message}}}]}


def node(name: str, *, ready: bool = True) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    return {"metadata": {"name": name, "annotations": {INVENTORY: "{}"}}, "status": {"conditions": conditions}}


def pod(name: str, on: str, workload: str = "", namespace: str = "default", uid: str = "") -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "labels": dict(labels_of(workload))}
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": {}}


@dataclass
class Cluster:
    """An API server with these nodes and pods, on which each pod that removes files ends as `ends` says."""

    nodes: list[Json]
    pods: list[Json] = field(default_factory=list)
    ends: Mapping[str, Json] = field(default_factory=dict)
    installed: bool = True
    manager: str = "helm"
    """what created the job of the chart"""
    deleted: list[str] = field(default_factory=list)
    patched: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        if kind.plural == "nodes":
            return msgspec.convert(next(one for one in self.nodes if one["metadata"]["name"] == name), kind.of)
        if kind.plural == "jobs":
            fields = [{"manager": self.manager, "operation": "Apply"}, {"manager": "kube-controller-manager"}]
            return msgspec.convert({"metadata": {"name": name, "managedFields": fields}}, kind.of)
        if not self.installed:
            raise ApiError("GET", 404, "NotFound", "")
        return msgspec.convert({"metadata": {"name": name}, "template": {"spec": {"hostPID": True}}}, kind.of)

    async def pages(self, kind: Kind[Any], which: Selection, *, page: int) -> AsyncIterator[Any]:
        if kind.plural == "resourceslices":  # claims are not enabled
            raise ApiError("GET", 403, "Forbidden", "")
        found = self.nodes if kind.plural == "nodes" else [one for one in self.pods if _matches(one, which)]
        yield SimpleNamespace(items=msgspec.convert(found, list[kind.of]), unread=())  # type: ignore[name-defined]

    async def create(self, kind: Kind[Any], body: Json, *, namespace: str = "") -> Any:
        if kind.plural == "pods":
            on = body["spec"]["nodeName"]
            made = pod(f"{REMOVAL}-{on}", on, REMOVAL, namespace)
            self.pods.append({**made, "spec": body["spec"], "status": self.ends.get(on, {})})
        return msgspec.convert({}, kind.of)

    async def delete(self, kind: Kind[Any], name: str, **_: Any) -> None:
        self.deleted.append(f"{kind.plural} {name}")
        if kind.plural in ("daemonsets", "pods"):
            key, value = ("labels", labels_of(name)) if kind.plural == "daemonsets" else ("name", name)
            self.pods = [one for one in self.pods if one["metadata"].get(key) != value or _is_lost(one)]

    async def patch(self, kind: Kind[Any], name: str, patch: Json, **_: Any) -> None:
        self.patched.append(name)


def _is_lost(one: Json) -> bool:
    """Kubelet of this node does not answer, so its pods stay."""
    return bool(one["spec"]["nodeName"] == "down")


def _matches(one: Json, which: Selection) -> bool:
    labels = {f"{key}={value}" for key, value in one["metadata"]["labels"].items()}
    on = which.fields.removeprefix("spec.nodeName=")
    return (not which.labels or which.labels in labels) and on in ("", one["spec"]["nodeName"])


def cleaned(cluster: Cluster, *named: str) -> list[str]:
    said: list[str] = []
    asyncio.run(clean_nodes(cast(Client, cluster), said.append, named=named))
    return said


def test_each_node_says_what_went_and_what_stays_and_one_that_is_down_holds_up_nothing() -> None:
    agents = [pod(f"agent-{on}", on, AGENT, NAMESPACE) for on in ("free", "used", "down")]
    tenant = pod("train", "used", uid=UID)
    ends = {"free": REMOVED, "used": failed(IN_USE)}
    cluster = Cluster([node("free"), node("used"), node("down", ready=False)], [*agents, tenant], ends)
    assert cleaned(cluster) == [
        "node free: files removed",
        "node used: /var/lib/cotenant stays, because these use files in it: pod default/train; `cotenant kube clean"
        " --node used` removes them later",
        "node down is not ready: /var/lib/cotenant and /run/cotenant-node stay; `cotenant kube clean --node down`"
        " removes them later",
        *(f"node {name}: annotations removed" for name in ("down", "free", "used")),
    ]
    assert cluster.deleted[:2] == ["daemonsets cotenant-agent", "daemonsets cotenant-mps"]
    assert not [one for one in cluster.pods if one["metadata"]["labels"] == labels_of(REMOVAL)]


def test_a_pod_that_does_not_end_is_given_up_with_its_reason() -> None:
    waits = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    cluster, said = Cluster([node("slow")], ends={"slow": waits}), list[str]()
    asyncio.run(remove_files(cast(Client, cluster), {"spec": {}}, ["slow"], said.append, longest_s=0))
    assert said == [
        "node slow: /var/lib/cotenant and /run/cotenant-node stay: the pod that removes them has not ended after 0 s"
        " (ImagePullBackOff); `cotenant kube clean --node slow` removes them later"
    ]
    assert cluster.pods == []


def test_one_node_is_cleaned_without_ending_the_agents_of_others() -> None:
    cluster = Cluster([node("old"), node("ours")], [pod("agent", "ours", AGENT, NAMESPACE)], {"old": REMOVED})
    assert cleaned(cluster, "old") == ["node old: files removed", "node old: annotations removed"]
    assert [one for one in cluster.deleted if "daemonsets" in one] == []
    assert set(cluster.patched) == {"old"}
    with pytest.raises(InputError, match="node ours: it has an agent"):
        cleaned(cluster, "ours")
    with pytest.raises(InputError, match="this cluster has no node missing"):
        cleaned(cluster, "missing")


def test_after_an_uninstallation_the_template_comes_from_the_chart_and_the_namespace_goes_again() -> None:
    cluster = Cluster([node("left")], ends={"left": REMOVED}, installed=False)
    assert cleaned(cluster, "left")[0] == "node left: files removed"
    assert cluster.deleted[-1] == f"namespaces {NAMESPACE}"


@pytest.mark.parametrize("manager", ["helm", "helm-controller", "argocd-controller", "terraform-provider-helm"])
def test_the_job_of_the_chart_removes_what_agents_left_if_it_was_created_as_a_hook(manager: str) -> None:
    cluster = cast(Client, Cluster([node("a")], manager=manager))
    assert asyncio.run(why_no_removal(cluster)) is None


@pytest.mark.parametrize("manager", ["kubectl", "kubectl-client-side-apply", "kustomize-controller"])
def test_it_removes_nothing_if_a_tool_that_knows_no_hooks_applied_it_at_the_installation(manager: str) -> None:
    said = asyncio.run(why_no_removal(cast(Client, Cluster([node("a")], manager=manager))))
    assert said is not None
    assert said.startswith(f"{manager} applied this job, which is a hook for the uninstallation, so nothing is removed")
