# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster autoscaler, built from its Go module, with node groups whose nodes are objects without a machine.

The provider is the project's own `kwok`: a new node is the template of its group, written into the cluster.
"""

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import binaries
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import SMALL, Module, Say, build, requires, source_of
from tests.cluster.cluster import Cluster
from tests.cluster.images import program_image
from tests.native.kit import made

PATH = "k8s.io/autoscaler/cluster-autoscaler"
VERSION = "0.0.0-20250515151314-3374be70d0d2"
"""1.33.0-beta.0, as its own sources name it: its releases have no version that Go understands"""
SUMS = ("h1:ezAK20vH8EBQLo3ObdCQ1qXknCCoHlAHhGjwD75txhs=", "h1:LN4Pei46lTAKP0hhkjloLZHeGP/dKz3FwnsSBXlPh+0=")
"""of the module and its go.mod, as published modules that use it have them: Go's database has no entry for it"""
APIS = (f"{PATH}/apis", "0.0.0-20240830133931-adfbe7e45277")
"""which the autoscaler finds in its own repository"""
NAMESPACE = "autoscaler"
IMAGE = "localhost/cluster-autoscaler:1"
GROUP = "autoscaler.example/group"
"""the label that names a node's group"""
OPTIONS = ("--cloud-provider=kwok", "--leader-elect=false", "--scale-down-enabled=false", "--scan-interval=2s", "--v=2")


def module() -> Module:
    """The autoscaler, with the versions of Kubernetes' modules that it replaces its own by."""
    sums = f"{PATH} v{VERSION} {SUMS[0]}\n{PATH} v{VERSION}/go.mod {SUMS[1]}\n"
    theirs = _source()
    replaces = [line for line in (theirs / "go.mod").read_text().splitlines() if line.startswith("replace k8s.io/")]
    kept = [line for line in replaces if "=> ./" not in line]
    sources = {
        "main.go": "package main\n",
        "go.mod": requires({PATH: VERSION, APIS[0]: APIS[1]}) + "\n".join(kept) + "\n",
        "go.sum": sums + (theirs / "go.sum").read_text(),
    }
    return Module("autoscaler", sources, [PATH])


def _source() -> Path:
    """Its files. Go's database does not have it, so the checksums above decide."""
    return source_of(PATH, VERSION, SUMS)


def autoscaler(say: Say) -> Path:
    """The folder with the program."""
    options = ["-tags", "kwok", "-ldflags", SMALL]
    return made("autoscaler", [VERSION, *options], functools.partial(_build, say, options))


def _build(say: Say, options: list[str], folder: Path) -> None:
    build(say, folder, module(), options)


def install(cluster: Cluster, program: Path, *templates: Json) -> None:
    """Starts the autoscaler in a cluster, with a node group for each template of a node."""
    cluster.add_image(program_image(IMAGE, program / "cluster-autoscaler", "/cluster-autoscaler"))
    settings = {"apiVersion": "v1alpha1", "readNodesFrom": "configmap", "nodegroups": {"fromNodeLabelKey": GROUP}}
    settings |= {"nodes": {"skipTaint": True}, "configmap": {"name": "kwok-provider-templates"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": templates}
    about = {"namespace": NAMESPACE}
    objects: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "autoscaler", **about}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "autoscaler"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "autoscaler", **about}],
        },
        _config_map("kwok-provider-config", {"config": json.dumps(settings)}),
        _config_map("kwok-provider-templates", {"templates": json.dumps(listed)}),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "autoscaler", **about},
            "spec": {"serviceAccountName": "autoscaler", "containers": [_container()]},
        },
    ]
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("apply", "--filename=-", feed=feed)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/autoscaler"
    wait_for("the autoscaler", lambda: cluster.get(path)["status"]["phase"] == "Running")


def _config_map(name: str, data: Mapping[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def _container() -> Json:
    words = ["/cluster-autoscaler", f"--namespace={NAMESPACE}", *OPTIONS]
    own = [{"name": "POD_NAMESPACE", "value": NAMESPACE}]
    return {"name": "autoscaler", "image": IMAGE, "imagePullPolicy": "Never", "command": words, "env": own}


if __name__ == "__main__":
    binaries.main(sys.argv[1:], lambda say: binaries.store(say, module()), lambda say: str(autoscaler(say)))
