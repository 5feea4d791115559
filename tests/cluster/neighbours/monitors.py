# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The Prometheus Operator, built from its Go module, and what Prometheus would discover in the cluster.

`python -m tests.cluster.neighbours.monitors` builds it ahead of the tests. Debian's Prometheus has no discovery in
clusters: `targets` lists what discovery with `role: pod` would find, with the labels that it would give.
"""

import gzip
import json
import re
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import binaries
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import SMALL, Module, Say, build, requires, source_of
from tests.cluster.cluster import Cluster
from tests.cluster.images import program_image
from tests.native.kit import made

PATH = "github.com/prometheus-operator/prometheus-operator"
VERSION = "0.85.0"
IMAGE = "localhost/prometheus-operator:1"
PROGRAM = "/operator"
NAMESPACE = "monitoring"
KINDS = f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}"


def module() -> Module:
    """The operator, with the versions that it names."""
    sources = {
        "main.go": "package main\n",
        "go.mod": requires({PATH: VERSION}),
        "go.sum": (source_of(PATH, VERSION) / "go.sum").read_text(),
    }
    return Module(f"prometheus-operator-{VERSION}", sources, [f"{PATH}/cmd/operator"])


def operator(say: Say) -> Path:
    """The folder with the program, `operator`."""
    of = module()
    return made(of.name, [], lambda folder: build(say, folder, of, ["-ldflags", SMALL]))


def install(cluster: Cluster, folder: Path) -> None:
    """Installs the operator from the manifests of its module, and returns when it is ready."""
    cluster.add_image(program_image(IMAGE, folder / "operator", PROGRAM))
    manifests = source_of(PATH, VERSION) / "example"
    definitions = manifests / "prometheus-operator-crd"  # YAML that Python's parser does not read
    cluster.kubectl("apply", "--server-side", f"--filename={definitions}")
    items: list[Json] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for file in sorted((manifests / "rbac" / "prometheus-operator").glob("*.yaml")):
        one = yaml.safe_load(file.read_text().replace("namespace: default", f"namespace: {NAMESPACE}"))
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container |= {"image": IMAGE, "imagePullPolicy": "Never", "command": [PROGRAM]}
            container.pop("resources")  # a fifth of a CPU is too little on a busy machine
        if one["kind"] != "ServiceMonitor":
            items.append(one)
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "--server-side", "--filename=-", feed=feed)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/prometheus-operator"
    wait_for("the Prometheus Operator", lambda: cluster.get(path)["status"].get("readyReplicas"))


def create_prometheus(cluster: Cluster) -> None:
    """A Prometheus that selects all monitors and rules of the cluster. Without replicas: the operator still writes its
    configuration."""
    spec = {"version": "v2.42.0", "replicas": 0, "scrapeInterval": "1s", "evaluationInterval": "1s"}
    spec |= {f"{kind}{what}Selector": {} for kind in ("podMonitor", "rule") for what in ("", "Namespace")}
    made_of = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": "team"}}
    cluster.post(f"{KINDS}/prometheuses", {**made_of, "spec": spec})


def configuration(cluster: Cluster) -> Any:
    """What the operator has written for that Prometheus, with the variables that its pod replaces."""
    data = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/prometheus-team")["data"]
    text = gzip.decompress(b64decode(data["prometheus.yaml.gz"])).decode()
    return yaml.safe_load(text.replace("$(SHARD)", "0").replace("$(POD_NAME)", "prometheus-team-0"))


def rule_files(cluster: Cluster) -> dict[str, str]:
    """The files with rules that the operator has written for it, by name."""
    found = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/prometheus-team-rulefiles-0")
    return dict(found.get("data", {}))


def targets(cluster: Cluster, discovery: Json) -> list[Json]:
    """What `kubernetes_sd_configs` with `role: pod` finds: each port of each container, in the namespaces that it
    names."""
    assert discovery["role"] == "pod", discovery
    names = discovery.get("namespaces", {}).get("names", [])
    pods = cluster.get("/api/v1/pods")["items"]
    return [
        {"targets": [labels["__address__"]], "labels": labels}
        for pod in pods
        if not names or pod["metadata"]["namespace"] in names
        for labels in _labels_of_ports(pod)
    ]


def _labels_of_ports(pod: Json) -> Iterator[dict[str, str]]:
    about, status = pod["metadata"], pod["status"]
    ready = next((one["status"] for one in status.get("conditions", []) if one["type"] == "Ready"), "unknown")
    common = {
        "namespace": about["namespace"],
        "pod_name": about["name"],
        "pod_phase": status["phase"],
        "pod_ready": ready.lower(),
        "pod_ip": status.get("podIP", ""),
        "pod_node_name": pod["spec"].get("nodeName", ""),
    }
    for key, value in about.get("labels", {}).items():
        safe = re.sub(r"[^a-zA-Z0-9_]", "_", key)
        common |= {f"pod_label_{safe}": value, f"pod_labelpresent_{safe}": "true"}
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            own = {
                "pod_container_name": container["name"],
                "pod_container_port_name": port.get("name", ""),
                "pod_container_port_number": str(port["containerPort"]),
                "pod_container_port_protocol": port.get("protocol", "TCP"),
            }
            labels = {f"__meta_kubernetes_{key}": value for key, value in {**common, **own}.items()}
            yield {"__address__": f"{common['pod_ip']}:{port['containerPort']}", **labels}


if __name__ == "__main__":
    binaries.main(sys.argv[1:], lambda say: binaries.store(say, module()), lambda say: str(operator(say)))
