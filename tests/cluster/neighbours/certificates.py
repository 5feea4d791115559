# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The controllers and the CA injector of cert-manager, built from its Go module by a program of our own.

`python -m tests.cluster.neighbours.certificates` builds it ahead of the tests.
"""

import json
import sys
from pathlib import Path

import yaml

from tests.cluster import binaries
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import SMALL, Module, Say, build, requires, source_of
from tests.cluster.cluster import Cluster
from tests.cluster.images import program_image
from tests.native.kit import made

PATH = "github.com/cert-manager/cert-manager"
VERSION = "1.21.2"
MAIN = Path(__file__).parent / "cert_manager" / "main.go"
PROGRAM = "/cert-manager"
IMAGE = "localhost/cert-manager:1"
NAMESPACE = "cert-manager"


def module() -> Module:
    """Our program, with the versions that cert-manager names."""
    sums = (source_of(PATH, VERSION) / "go.sum").read_text()
    return Module(
        f"cert-manager-{VERSION}",
        {"main.go": MAIN.read_text(), "go.mod": requires({PATH: VERSION}), "go.sum": sums},
        ["."],
    )


def cert_manager(say: Say) -> Path:
    """The folder with the program, `cluster`."""
    of = module()
    return made(of.name, [MAIN], lambda folder: build(say, folder, of, ["-ldflags", SMALL]))


def install(cluster: Cluster, folder: Path) -> None:
    """The controllers and the CA injector, with the rights that cert-manager's chart gives them. Its webhook is left
    out: it only checks what users write."""
    cluster.add_image(program_image(IMAGE, folder / "cluster", PROGRAM))
    chart = source_of(PATH, VERSION) / "deploy" / "charts" / "cert-manager"
    version = str(cluster.get("/version")["gitVersion"])
    words = ["--namespace", NAMESPACE, "--kube-version", version]
    words += ["--set", "crds.enabled=true,startupapicheck.enabled=false"]
    text = cluster.machines[0].run("helm", "template", "cert-manager", str(chart), *words)
    objects = [one for one in yaml.safe_load_all(text) if one and _component(one) != "webhook"]
    for one in objects:
        if one["kind"] == "Deployment":
            _replace_program(one)
    items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *objects]
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "--server-side", "--filename=-", feed=feed)
    for name in ("cert-manager", "cert-manager-cainjector"):
        _wait_for_deployment(cluster, name)


def _component(one: Json) -> str:
    return str(one["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def _replace_program(deployment: Json) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container |= {"image": IMAGE, "imagePullPolicy": "Never", "command": [PROGRAM, _component(deployment)]}
    for name in ("args", "livenessProbe", "readinessProbe", "resources"):
        container.pop(name, None)
    deployment["spec"]["template"]["spec"].setdefault("securityContext", {})["runAsUser"] = 65532


def _wait_for_deployment(cluster: Cluster, name: str) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}"
    wait_for(name, lambda: cluster.get(path)["status"].get("readyReplicas"))


if __name__ == "__main__":
    binaries.main(sys.argv[1:], lambda say: binaries.store(say, module()), lambda say: str(cert_manager(say)))
