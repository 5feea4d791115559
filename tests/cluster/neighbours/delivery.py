# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What teams deliver charts with, from its Go modules: cert-manager, the engine of Argo CD, the Prometheus Operator.

`python -m tests.cluster.neighbours.delivery` builds them ahead of the tests. The engine is a part of Argo CD: it sorts
the objects of an application, runs hooks, applies, prunes and compares. `agent` is its own program, which does that
with the manifests of a folder under git.
"""

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.cluster import binaries
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import SMALL, Module, Say, build, requires, source_of
from tests.cluster.cluster import Cluster
from tests.cluster.images import program_image
from tests.native.kit import made

CERT_MANAGER = ("github.com/cert-manager/cert-manager", "1.21.2")
ENGINE = ("github.com/argoproj/argo-cd/gitops-engine", "0.0.0-20260914071520-c9c369efcc5b")
"""of Argo CD 3.6, before its release"""
OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "0.85.0")
MAIN = Path(__file__).parent / "cert_manager" / "main.go"
PROGRAM = "/program"
"""where images have their program"""
CERTIFICATES = "cert-manager"
MONITORING = "monitoring"
"""namespaces"""
ENGINE_PORT = 9001


def modules() -> tuple[Module, Module]:
    """Cert-manager and the engine together, with the versions of Kubernetes' modules that the engine names, and the
    operator, which does not compile with these."""
    (replaced,) = re.findall(r"^replace \(.*?^\)$", _text_of(ENGINE, "go.mod"), re.MULTILINE | re.DOTALL)
    sums = {line for one in (CERT_MANAGER, ENGINE) for line in _text_of(one, "go.sum").splitlines()}
    together = {
        "main.go": MAIN.read_text(),
        "go.mod": f"{requires(dict((CERT_MANAGER, ENGINE)))}\n{replaced}\n",
        "go.sum": "\n".join(sorted(sums)) + "\n",
    }
    alone = {"main.go": "package main\n", "go.mod": requires(dict((OPERATOR,))), "go.sum": _text_of(OPERATOR, "go.sum")}
    return (
        Module("delivery", together, [".", f"{ENGINE[0]}/agent"]),
        Module("prometheus-operator", alone, [f"{OPERATOR[0]}/cmd/operator"]),
    )


def _text_of(module: tuple[str, str], file: str) -> str:
    return (source_of(*module) / file).read_text()


def programs(say: Say) -> Path:
    """The folder with the programs `cluster` (cert-manager), `agent` (the engine) and `operator`."""
    versions = [" ".join(one) for one in (CERT_MANAGER, ENGINE, OPERATOR)]
    return made("delivery", [MAIN, *versions], functools.partial(_build, say))


def _build(say: Say, folder: Path) -> None:
    for one in modules():
        build(say, folder, one, ["-ldflags", SMALL])


def _store(say: Say) -> None:
    for one in modules():
        binaries.store(say, one)


def install_cert_manager(cluster: Cluster, folder: Path) -> None:
    """The controllers and the CA injector, with the rights that cert-manager's chart gives them. Its webhook is left
    out: it only checks what users write."""
    image = f"localhost/{CERTIFICATES}:1"
    cluster.add_image(program_image(image, folder / "cluster", PROGRAM))
    chart = source_of(*CERT_MANAGER) / "deploy" / "charts" / "cert-manager"
    version = str(cluster.get("/version")["gitVersion"])
    words = ["--namespace", CERTIFICATES, "--kube-version", version]
    words += ["--set", "crds.enabled=true,startupapicheck.enabled=false"]
    text = cluster.machines[0].run("helm", "template", CERTIFICATES, str(chart), *words)
    objects = [one for one in yaml.safe_load_all(text) if one and _component(one) != "webhook"]
    for one in objects:
        if one["kind"] == "Deployment":
            _replace_program(one, image, [PROGRAM, _component(one)])
    _apply(cluster, CERTIFICATES, objects)
    for name in (CERTIFICATES, f"{CERTIFICATES}-cainjector"):
        _wait_for_deployment(cluster, CERTIFICATES, name)


def _component(one: Json) -> str:
    return str(one["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def install_operator(cluster: Cluster, folder: Path) -> None:
    """The Prometheus Operator, from the manifests of its module."""
    image = "localhost/prometheus-operator:1"
    cluster.add_image(program_image(image, folder / "operator", PROGRAM))
    manifests = source_of(*OPERATOR) / "example"
    definitions = manifests / "prometheus-operator-crd"  # YAML that Python's parser does not read
    cluster.kubectl("apply", "--server-side", f"--filename={definitions}")
    objects = []
    for file in sorted((manifests / "rbac" / "prometheus-operator").glob("*.yaml")):
        one = yaml.safe_load(file.read_text().replace("namespace: default", f"namespace: {MONITORING}"))
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            _replace_program(one, image, [PROGRAM, *container["args"]])
        if one["kind"] != "ServiceMonitor":
            objects.append(one)
    _apply(cluster, MONITORING, objects)
    _wait_for_deployment(cluster, MONITORING, "prometheus-operator")


def _replace_program(deployment: Json, image: str, command: Sequence[str]) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container |= {"image": image, "imagePullPolicy": "Never", "command": list(command)}
    for name in ("args", "livenessProbe", "readinessProbe", "resources"):
        container.pop(name, None)
    deployment["spec"]["template"]["spec"].setdefault("securityContext", {})["runAsUser"] = 65532


def _apply(cluster: Cluster, namespace: str, objects: Sequence[Json]) -> None:
    items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, *objects]
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "--server-side", "--filename=-", feed=feed)


def _wait_for_deployment(cluster: Cluster, namespace: str, name: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    wait_for(name, lambda: cluster.get(path)["status"].get("readyReplicas"))


class Repository:
    """A folder under git whose manifests the engine of Argo CD brings into a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, log: Path) -> None:
        self._cluster, self._folder, self._log = cluster, folder, log

    def commit(self, text: str) -> None:
        """Stores other manifests."""
        (self._folder / "manifests.yaml").write_text(text)
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        for words in (("add", "."), (*who, "commit", "--quiet", "--allow-empty", "--message=x")):
            subprocess.run(["git", *words], cwd=self._folder, check=True)

    def sync(self) -> str:
        """Lets the engine sync once more; what became of each object."""
        before = self._ends()
        self._cluster.machines[0].run("curl", "--silent", "--fail", f"http://127.0.0.1:{ENGINE_PORT}/api/v1/sync")
        return self.synced(before + 1)

    def synced(self, times: int) -> str:
        """The table of the last sync, once there were so many."""
        wait_for("the engine to sync", lambda: self._ends() >= times, seconds=240)
        return self._log.read_text().rpartition("RESOURCE")[2]

    def _ends(self) -> int:
        text = self._log.read_text()
        failed = [line for line in text.splitlines() if "Failed to synchronize" in line]
        assert failed == [], failed
        return text.count("RESOURCE")


@contextmanager
def repository(cluster: Cluster, programs: Path, folder: Path, text: str) -> Iterator[Repository]:
    """A repository with these manifests, once they are in the cluster; it is synced again only if `sync` is called."""
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", "."], cwd=folder, check=True)
    log = folder.with_suffix(".log")
    found = Repository(cluster, folder, log)
    found.commit(text)
    words = [f"--kubeconfig={cluster.credentials / 'admin.kubeconfig'}", f"--port={ENGINE_PORT}"]
    command = [str(programs / "agent"), str(folder), *words, "--resync-seconds=3600", "--default-namespace=default"]
    with open(log, "wb") as out, subprocess.Popen(cluster.machines[0].enter(command), stdout=out, stderr=out) as agent:
        try:
            found.synced(1)
            yield found
        finally:
            agent.kill()


if __name__ == "__main__":
    binaries.main(sys.argv[1:], _store, lambda say: str(programs(say)))
