# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Controllers that teams run beside cotenant, built from their Go modules and installed from the manifests in these.

Most are built together, since they share most of their packages. `python -m tests.cluster.neighbours.controllers`
builds all ahead of the tests. Versions and checksums are stored in `modules`, as those of Kubernetes are.
"""

import functools
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster import binaries
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import SMALL, Module, Say, build, requires, source_of
from tests.cluster.cluster import Cluster
from tests.cluster.images import Image, program_image
from tests.native.kit import made

MANAGER = "/manager"
"""where their images have the program"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller: its program, and the kustomization that installs it."""

    name: str
    module: str
    version: str
    built_with: str = "neighbours"
    """those with the same word are built together, from the same versions of the modules that they share"""
    package: str = ""
    """in the module; by default, the module itself is the program"""
    manifests: str = "config"
    """the folder of the module with all its manifests"""
    kustomization: str = "default"
    """in that folder"""
    namespace: str
    deployment: str
    webhook: str | None = None
    """the Service of its webhooks"""
    moves: bool = False
    """whether its manifests have it in the namespace `default`, where tests delete all pods"""
    left_out: str | None = None
    """lines of its kustomization with these words"""
    variables: tuple[tuple[str, str], ...] = ()
    """of its container, beside those of its manifests"""

    @property
    def path(self) -> str:
        return f"{self.module}/{self.package}".rstrip("/")

    @property
    def program(self) -> str:
        """How Go names the program."""
        return self.path.rpartition("/")[2]

    @property
    def image(self) -> str:
        return f"localhost/{self.name}:1"


KUEUE = Controller(
    name="kueue",
    module="sigs.k8s.io/kueue",
    version="0.19.2",
    package="cmd/kueue",
    namespace="kueue-system",
    deployment="kueue-controller-manager",
    webhook="kueue-webhook-service",
)
JOBSET = Controller(
    name="jobset",
    module="sigs.k8s.io/jobset",
    version="0.12.0",
    namespace="jobset-system",
    deployment="jobset-controller-manager",
    webhook="jobset-webhook-service",
)
TRAINER = Controller(
    name="trainer",
    module="github.com/kubeflow/trainer/v2",
    version="2.2.1",
    package="cmd/trainer-controller-manager",
    manifests="manifests",
    kustomization="overlays/manager",
    left_out="third-party/jobset",  # of another address; it is installed before
    namespace="kubeflow-system",
    deployment="kubeflow-trainer-controller-manager",
    webhook="kubeflow-trainer-controller-manager",
)
KUBERAY = Controller(
    name="kuberay",
    built_with="kuberay",  # it does not compile with the controller-runtime of the others
    module="github.com/ray-project/kuberay/ray-operator",
    version="1.6.2",
    namespace="kuberay-system",
    deployment="kuberay-operator",
    moves=True,
    # A worker would wait for its head by a command that only images of Ray have.
    variables=(("ENABLE_INIT_CONTAINER_INJECTION", "false"),),
)
CONTROLLERS = (KUEUE, JOBSET, TRAINER, KUBERAY)
NAMES = ("neighbours", "kuberay")
"""what is built together"""


def module(name: str) -> Module:
    """The controllers that are built together under this name. Their own lists of checksums count, too: Go's database
    does not have every module of theirs."""
    some = _built_with(name)
    sums = {line for one in some for line in (source_of(one.module, one.version) / "go.sum").read_text().splitlines()}
    sources = {
        "main.go": "package main\n",
        "go.mod": requires({one.module: one.version for one in some}),
        "go.sum": "\n".join(sorted(sums)) + "\n",
    }
    return Module(name, sources, [one.path for one in some])


def _built_with(name: str) -> list[Controller]:
    return [one for one in CONTROLLERS if one.built_with == name]


def controllers(say: Say, name: str = "neighbours") -> Path:
    """The folder with the programs that are built together, and a folder for each with its manifests."""
    names = [f"{one.path}@{one.version} {one.manifests}" for one in _built_with(name)]
    return made(name, names, functools.partial(_build, say, name))


def _build(say: Say, name: str, folder: Path) -> None:
    build(say, folder, module(name), ["-ldflags", SMALL])
    for one in _built_with(name):
        copy = folder / "manifests" / one.name
        shutil.copytree(source_of(one.module, one.version) / one.manifests, copy)
        if one.left_out is not None:
            file = copy / one.kustomization / "kustomization.yaml"
            file.parent.chmod(0o755)
            lines = [line for line in file.read_text().splitlines() if one.left_out not in line]
            file.unlink()  # what Go keeps cannot be written to
            file.write_text("\n".join(lines) + "\n")


def image_of(one: Controller, folder: Path) -> Image:
    """The image of a controller, with nothing but its program."""
    return program_image(one.image, folder / one.program, MANAGER)


def install(cluster: Cluster, one: Controller, folder: Path, changes: Sequence[tuple[str, Json]] = ()) -> None:
    """Installs a controller as its manifests say, and returns when it answers.

    `changes` are merged into the YAML that ConfigMaps have under a key such as `controller_manager_config.yaml`.
    """
    cluster.add_image(image_of(one, folder))
    place = folder / "manifests" / one.name / one.kustomization
    objects = [_adapted(found, one) for found in yaml.safe_load_all(cluster.kubectl("kustomize", str(place))) if found]
    if one.moves:
        objects.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one.namespace}})
    for key, change in changes:
        for one_map in objects:
            if one_map["kind"] == "ConfigMap" and key in one_map.get("data", {}):
                one_map["data"][key] = yaml.safe_dump({**yaml.safe_load(one_map["data"][key]), **change})
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    if one.moves:
        feed = feed.replace('"namespace": "default"', f'"namespace": "{one.namespace}"')
    cluster.kubectl("apply", "--server-side", "--filename=-", feed=feed)
    path = f"/apis/apps/v1/namespaces/{one.namespace}/deployments/{one.deployment}"
    wait_for(f"the Deployment of {one.name}", lambda: cluster.get(path)["status"].get("readyReplicas"))
    if one.webhook is not None:
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{one.namespace}/endpointslices"
        label = f"labelSelector=kubernetes.io/service-name%3D{one.webhook}"
        wait_for(f"the webhooks of {one.name}", lambda: cluster.get(f"{slices}?{label}")["items"][0]["endpoints"])


def _adapted(found: Json, one: Controller) -> Json:
    """An object of the manifests, with the image of the tests instead of the published one."""
    if found["kind"] == "Deployment":
        pod = found["spec"]["template"]["spec"]
        pod.setdefault("securityContext", {})["runAsUser"] = 65532  # the published images say so themselves
        for container in pod["containers"]:
            container |= {"image": one.image, "imagePullPolicy": "Never", "command": [MANAGER]}
            container["env"] = [
                *container.get("env", []),
                *({"name": key, "value": text} for key, text in one.variables),
            ]
            container.get("readinessProbe", {}).update({"initialDelaySeconds": 0, "periodSeconds": 1})
    return found


def _store(say: Say) -> None:
    for name in NAMES:
        binaries.store(say, module(name))


if __name__ == "__main__":
    binaries.main(sys.argv[1:], _store, lambda say: "\n".join(str(controllers(say, name)) for name in NAMES))
