# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What brings charts from a repository into a cluster: the engine of Argo CD, and Flux's helm-controller.

`python -m tests.cluster.neighbours.gitops` builds them ahead of the tests. The engine sorts the objects of an
application, runs hooks, applies, compares and prunes. A program of our own calls it, as Argo CD's controller does.
"""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from cotenant.kube.api.names import NAMESPACE
from cotenant.kube.install.chart import chart_folder
from tests.cluster import binaries
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import SMALL, Module, Say, build, requires, source_of
from tests.cluster.cluster import Cluster
from tests.native.kit import made

ENGINE = ("github.com/argoproj/argo-cd/gitops-engine", "0.0.0-20260914071520-c9c369efcc5b")
"""of Argo CD 3.6, before its release"""
HELM_CONTROLLER = ("github.com/fluxcd/helm-controller", "1.6.1")
SOURCES = ("github.com/fluxcd/source-controller", "1.9.0")
"""only its custom resources are used"""
MAIN = Path(__file__).parent / "argo_cd" / "main.go"
CHARTS_PORT = 9002
FLUX = "flux-system"
RELEASE = f"/apis/helm.toolkit.fluxcd.io/v2/namespaces/{FLUX}/helmreleases/cotenant"
ARTIFACTS = f"/apis/source.toolkit.fluxcd.io/v1/namespaces/{FLUX}/externalartifacts"
RECONCILE = "reconcile.fluxcd.io/requestedAt"
LONG_S = 240.0


def module() -> Module:
    """Both together: they share most of their packages."""
    texts = [source_of(*one) for one in (ENGINE, HELM_CONTROLLER)]
    sums = {line for one in texts for line in (one / "go.sum").read_text().splitlines()}
    theirs = (texts[1] / "go.mod").read_text().splitlines()
    # A module of which it needs a version without a release. Its own part, ./api, has releases.
    replaces = [line for line in theirs if line.startswith("replace ") and "=> ./" not in line and "=>" in line]
    sources = {
        "main.go": MAIN.read_text(),
        "go.mod": requires(dict((ENGINE, HELM_CONTROLLER))) + "\n".join(replaces) + "\n",
        "go.sum": "\n".join(sorted(sums)) + "\n",
    }
    return Module("gitops", sources, [".", HELM_CONTROLLER[0]])


def programs(say: Say) -> Path:
    """The folder with our program, `cluster`, and `helm-controller`."""
    of = module()
    return made(of.name, [MAIN, of.sources["go.mod"]], lambda folder: build(say, folder, of, ["-ldflags", SMALL]))


def _as_administrator(cluster: Cluster, *command: str) -> list[str]:
    return ["env", f"KUBECONFIG={cluster.credentials / 'admin.kubeconfig'}", *command]


@contextmanager
def _inside(cluster: Cluster, log: Path, *command: str) -> Iterator[None]:
    """A program that runs on the node as the administrator of the cluster."""
    entered = cluster.machines[0].enter(_as_administrator(cluster, *command))
    with open(log, "wb") as out, subprocess.Popen(entered, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.kill()


class Application:
    """Manifests that the engine of Argo CD brings into a cluster."""

    def __init__(self, cluster: Cluster, found: Path) -> None:
        self._cluster, self._program = cluster, found / "cluster"
        self._file = cluster.folder / "application.yaml"

    def compare(self, text: str) -> list[str]:
        """The objects that differ from the manifests, by their kinds and names."""
        return list(self._run("compare", text)["different"])

    def sync(self, text: str) -> dict[str, str]:
        """What became of each object, by its kind and name, once the cluster is as the manifests say."""
        said = self._run("sync", text)
        assert said["phase"] == "Succeeded", said
        return dict(said["results"])

    def _run(self, verb: str, text: str) -> Json:
        self._file.write_text(text)
        command = _as_administrator(self._cluster, str(self._program), verb, NAMESPACE, str(self._file))
        return dict(json.loads(self._cluster.machines[0].run(*command)))


class Flux:
    """The helm-controller, and the release that it keeps in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def release(self, values: Json) -> Json:
        """Brings the chart with these values into the cluster, installed or upgraded."""
        spec: Json = {
            "interval": "1h",
            "releaseName": "cotenant",
            "targetNamespace": NAMESPACE,
            "storageNamespace": NAMESPACE,
            "install": {"createNamespace": True},
            "driftDetection": {"mode": "enabled"},
            "chartRef": {"kind": "ExternalArtifact", "name": "cotenant"},
            "values": values,
        }
        kind = {"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease"}
        feed = json.dumps({**kind, "metadata": {"name": "cotenant", "namespace": FLUX}, "spec": spec})
        self._cluster.kubectl("apply", "--server-side", "--filename=-", feed=feed)
        return self.reconcile()

    def reconcile(self) -> Json:
        """Lets the controller compare once more, as `flux reconcile` does; the state of the release then."""
        now = str(time.time_ns())
        self._cluster.patch(RELEASE, {"metadata": {"annotations": {RECONCILE: now}}})

        def look() -> Json | None:
            found = self._cluster.get(RELEASE)
            status = found["status"]
            ready = [one for one in status.get("conditions", []) if one["type"] == "Ready"]
            current = status.get("observedGeneration") == found["metadata"]["generation"]
            done = status.get("lastHandledReconcileAt") == now and ready and ready[0]["status"] == "True"
            return dict(status) if current and done else None

        return wait_for("Flux", look, LONG_S)

    def delete(self) -> None:
        """Deletes the release, and waits until the controller has removed it."""
        self._cluster.kubectl("delete", "helmrelease", "cotenant", f"--namespace={FLUX}", f"--timeout={LONG_S:g}s")

    def events(self, reason: str) -> list[str]:
        """What the events with this reason say."""
        found = self._cluster.get(f"/api/v1/namespaces/{FLUX}/events?fieldSelector=reason%3D{reason}")["items"]
        return [one["message"] for one in found]


@contextmanager
def flux(cluster: Cluster, folder: Path, found: Path) -> Iterator[Flux]:
    """The helm-controller of the folder `found`, which takes the chart as an artifact of another source: an archive
    that a server of the tests has."""
    archives = folder / "charts"
    archives.mkdir(parents=True)
    cluster.machines[0].run("helm", "package", str(chart_folder()), "--destination", str(archives))
    (archive,) = archives.iterdir()
    # The controller watches all kinds of sources.
    definitions = [source_of(*one) / "config" / "crd" / "bases" for one in (HELM_CONTROLLER, SOURCES)]
    cluster.kubectl("apply", "--server-side", *(f"--filename={one}" for one in definitions))
    cluster.post("/api/v1/namespaces", {"metadata": {"name": FLUX}})
    _publish(cluster, archive)
    serve = (sys.executable, "-m", "http.server", str(CHARTS_PORT), "--bind=127.0.0.1", f"--directory={archives}")
    options = ("--metrics-addr=0", "--health-addr=:9440", "--feature-gates=ExternalArtifact=true")
    with (
        _inside(cluster, folder / "charts.log", *serve),
        _inside(cluster, folder / "flux.log", str(found / "helm-controller"), *options),
    ):
        yield Flux(cluster)


def _publish(cluster: Cluster, archive: Path) -> None:
    """Names the archive of the chart to Flux."""
    kind = {"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact"}
    made_now = {**kind, "metadata": {"name": "cotenant", "namespace": FLUX}, "spec": {}}
    wait_for("the kind of artifacts", lambda: cluster.post(ARTIFACTS, made_now))
    artifact = {
        "url": f"http://127.0.0.1:{CHARTS_PORT}/{archive.name}",
        "path": archive.name,
        "digest": f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}",
        "revision": yaml.safe_load((chart_folder() / "Chart.yaml").read_text())["version"],
        "lastUpdateTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    cluster.patch(f"{ARTIFACTS}/cotenant/status", {"status": {"artifact": artifact}})


if __name__ == "__main__":
    binaries.main(sys.argv[1:], lambda say: binaries.store(say, module()), lambda say: str(programs(say)))
