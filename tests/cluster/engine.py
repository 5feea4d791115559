# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster with cotenant installed as a user would, and what tests do there with pods that ask for GPUs."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cotenant.kube.api.names import AGENT, HTTPS_PORT, NAMESPACE, SCHEDULER, WEBHOOK, labels_of
from cotenant.kube.codec.assignment import RECORD, Record, decode_record
from cotenant.kube.codec.inventory import AWAY, INVENTORY
from cotenant.kube.install.chart import checked_values, installed_objects, merged, rendered
from cotenant.kube.settings import MetricsPart
from tests.cluster import images, pods
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.cluster import NEVER_LOST, Cluster, running
from tests.cluster.gpus import GpuModel
from tests.cluster.machine import Machine

V100, T4 = GpuModel("Tesla V100-PCIE-32GB", 32768), GpuModel("Tesla T4", 15360)
CARDS = (V100, V100, T4)
COUNT = "nvidia.com/gpu"
SLEEP = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); time.sleep(600)"
"""ends when it is told to: otherwise the first process of a container ignores SIGTERM, and its pod stays a while"""


@dataclass(frozen=True, slots=True)
class Engine:
    """Cotenant in a running cluster; made by `running_engine`."""

    cluster: Cluster

    def create(
        self, name: str, limits: Mapping[str, Any], code: str = SLEEP, *, namespace: str = "default", **pod: Any
    ) -> None:
        """A pod with one container, `main`, that asks for `limits` and runs a piece of Python, once."""
        pods.create_pod(self.cluster, name, pods.container("main", code, limits), namespace=namespace, **pod)

    def started(self, name: str, namespace: str = "default") -> Json:
        """The pod once it runs, or has run."""
        return pods.pod_in(self.cluster, name, "Running", "Succeeded", namespace=namespace)

    def ended(self, name: str, namespace: str = "default") -> Json:
        """The pod once it has ended well."""
        return pods.ended(self.cluster, name, namespace)

    def log(self, name: str, container: str | None = None, namespace: str = "default") -> str:
        return pods.log_of(self.cluster, name, container, namespace)

    def said(self, name: str, container: str | None = None, namespace: str = "default") -> Any:
        """The JSON that a container wrote in one line, once it is there."""

        lines = wait_for(f"{name} to say something", lambda: self.log(name, container, namespace).splitlines())
        return json.loads(lines[-1])

    def delete(self, name: str, namespace: str = "default", *, force: bool = False) -> None:
        """Deletes a pod; unless by force, returns when it is gone."""
        pods.delete_pod(self.cluster, name, namespace, force=force)

    def tidy(self, *kept: str) -> None:
        """Deletes all pods but our own and those of the namespaces `kept`, waits until they are gone, and deletes what
        was said of them."""
        apart = "%2C".join(f"metadata.namespace%21%3D{namespace}" for namespace in (NAMESPACE, *kept))
        others = f"/api/v1/pods?fieldSelector={apart}"
        for namespace in {pod["metadata"]["namespace"] for pod in self.cluster.get(others)["items"]}:
            # Most programs of tests hear no SIGTERM: without a short grace, their pods stay 30 s.
            self.cluster.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=1")
        wait_for("all pods to be gone", lambda: not self.cluster.get(others)["items"])
        self.cluster.delete("/api/v1/namespaces/default/events")

    def record(self, name: str, namespace: str = "default") -> Record:
        """Where a pod was put."""
        return record_of(self.cluster.get(pods.path_of(name, namespace)))

    def waits(self, name: str, namespace: str = "default") -> str:
        """Why a pod is not placed, as its own condition says, once it says something."""

        def look() -> str | None:
            status = self.cluster.get(pods.path_of(name, namespace))["status"]
            found = [one for one in status.get("conditions", []) if one["type"] == "PodScheduled"]
            return found[0].get("message") if found and found[0]["status"] == "False" else None

        return wait_for(f"pod {name} to wait", look)

    def fits(self, limits: Mapping[str, Any], node: str | None = None) -> None:
        """Waits until a pod of this size could be started, and takes it away again: so much is free."""
        where = None if node is None else {"kubernetes.io/hostname": node}
        self.create("measure", limits, "", nodeSelector=where)
        self.ended("measure")
        self.delete("measure")

    def add_node(self, gpus: Sequence[GpuModel] = CARDS, **more: Any) -> str:
        """One more real node with GPUs and an agent; its name."""
        name = self.cluster.add_node(gpus, **more)
        self.wait_for_agent(name)
        return name

    def node(self, name: str) -> Json:
        return self.cluster.get(f"/api/v1/nodes/{name}")

    def machine(self, node: str) -> Machine:
        return next(machine for machine in self.cluster.machines if machine.name == node)

    def wait_for_agent(self, node: str, registrations: int = 1) -> None:
        """Returns when the node's GPUs are known and kubelet can hand them out, after so many registrations with it."""

        def look() -> bool:
            found = self.node(node)
            slots = found["status"].get("allocatable", {}).get(COUNT, "0")
            said = found["metadata"].get("annotations", {})
            told = INVENTORY in said and AWAY not in said and int(slots) > 0
            return told and self._registrations(node) >= registrations

        wait_for(f"the agent of {node}", look)

    def _registrations(self, node: str) -> int:
        return self.agent_log(node).count(f"kubelet knows {COUNT} ")

    def wait_for_scheduler(self) -> None:
        """Returns when the scheduler and the webhook answer, and the API server trusts the webhook."""
        for name in (SCHEDULER, WEBHOOK):
            self.wait_for_deployment(name)
        path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}"
        wait_for("trust", lambda: all("caBundle" in one["clientConfig"] for one in self.cluster.get(path)["webhooks"]))

    def wait_for_deployment(self, name: str) -> None:
        """Returns when a pod of it is ready."""
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}"
        wait_for(name, lambda: self.cluster.get(path)["status"].get("readyReplicas"))

    def our_pods(self, name: str) -> list[Json]:
        """The pods of the scheduler, the webhook or the agents."""
        labels = "%2C".join(f"{key}%3D{value}" for key, value in labels_of(name).items())
        return list(self.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={labels}")["items"])

    def scheduler_log(self, container: str = "scheduler") -> str:
        return "".join(self.log(pod["metadata"]["name"], container, NAMESPACE) for pod in self.our_pods(SCHEDULER))

    def agent_log(self, node: str) -> str:
        found = [pod for pod in self.our_pods(AGENT) if pod["spec"].get("nodeName") == node]
        return "".join(self.log(pod["metadata"]["name"], "agent", NAMESPACE) for pod in found)

    def agent_metrics(self, node: str) -> bytes:
        """The page that a node's agent serves to Prometheus."""
        (pod,) = [pod for pod in self.our_pods(AGENT) if pod["spec"].get("nodeName") == node]
        return self._scraped(f"{pod['metadata']['name']}:{MetricsPart().port}")

    def scheduler_metrics(self) -> bytes:
        (pod,) = self.our_pods(SCHEDULER)
        return self._scraped(f"https:{pod['metadata']['name']}:{HTTPS_PORT}")

    def _scraped(self, where: str) -> bytes:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/metrics"
        return self.cluster.kubectl("get", "--raw", path).encode()

    def restart_scheduler(self) -> None:
        """Another pod of the scheduler, from nothing."""
        self._replace(self.our_pods(SCHEDULER))
        self.wait_for_scheduler()

    def restart_webhook(self) -> None:
        """Another pod of the webhook, with its certificate as it is now."""
        self._replace(self.our_pods(WEBHOOK))
        self.wait_for_deployment(WEBHOOK)

    def restart_agent(self, node: str) -> None:
        """Another pod of a node's agent."""
        self._replace([pod for pod in self.our_pods(AGENT) if pod["spec"].get("nodeName") == node])
        self.wait_for_agent(node)

    def restart_kubelet(self, node: str) -> None:
        """Another kubelet, which forgets device plugins until they register again."""
        before = self._registrations(node)
        self.machine(node).restart("kubelet")
        self.wait_for_agent(node, before + 1)

    def kill(self, words: str, node: str = "node1", number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to what runs in a container, found by words of its command line: `kube agent`."""
        machine = self.machine(node)
        for pid in machine.processes(words):
            machine.kill(pid, number)

    def _replace(self, found: Sequence[Json]) -> None:
        for pod in found:
            self.delete(pod["metadata"]["name"], NAMESPACE)


def record_of(pod: Json) -> Record:
    """Where a pod was put."""
    return decode_record(pod["metadata"]["annotations"][RECORD])


def gpus_of(pod: Json, number: int = 0) -> list[str]:
    """The UUIDs of the GPUs that one container was given."""
    return [share.gpu for share in record_of(pod).held_by(number)]


def chart_values(settings: str | Path | None = None, **more: Any) -> Json:
    """The values of the chart for the images of a test cluster; most tests do without the pages. `more` are values."""
    text = settings.read_text() if isinstance(settings, Path) else settings or ""
    name, _, tag = images.KUBE_SCHEDULER.rpartition(":")
    values: Json = {
        "scheduler": {"image": images.SCHEDULER},
        "webhook": {"image": images.SCHEDULER},
        "agent": {"image": images.AGENT},
        "image": {"pullPolicy": "Never"},
        "kubeScheduler": {"image": name, "tag": tag},
        "devices": {"simulate": "none"},
        "web": {"image": images.SCHEDULER, "enabled": False},
        "settings": yaml.safe_load(text) or {},
    }
    return merged(values, more)


def manifests(settings: str | Path | None = None, **more: Any) -> list[Json]:
    """The objects of the chart with these values."""
    return installed_objects(rendered(checked_values(chart_values(settings, **more))))


def run_install(cluster: Cluster, verb: str, values: Json, *options: str, helm: bool = False) -> str:
    """What `cotenant kube install` or another verb prints in a cluster."""
    file = cluster.folder / "values.json"
    file.write_text(json.dumps(values))
    given = [] if verb == "uninstall" else ["--helm" if helm else "--no-helm", "--values", str(file)]
    where = f"--kubeconfig={cluster.credentials / 'admin.kubeconfig'}"
    command = [sys.executable, "-m", "cotenant", "kube", verb, where, *given, *options]
    return cluster.machines[0].run(*command)


@contextlib.contextmanager
def running_engine(
    folder: Path,
    binaries: Binaries,
    *,
    gpus: Sequence[GpuModel] = CARDS,
    settings: str = "",
    grace: str = NEVER_LOST,
    values: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    server: Sequence[str] = (),
) -> Iterator[Engine]:
    """A cluster of one node with GPUs, and cotenant with these settings (YAML); `values` are further ones of the chart,
    `labels` are those of the node, `server` options of the API server."""
    has = [
        images.pause_image(binaries.pause / "pause"),
        images.our_images(),
        images.kube_scheduler_image(binaries.kubernetes / "kube-scheduler"),
    ]
    with running(folder, binaries, images=has, gpus=gpus, grace=grace, server=server) as cluster:
        cluster.patch("/api/v1/nodes/node1", {"metadata": {"labels": dict(labels or {})}})
        run_install(cluster, "install", chart_values(settings, **(values or {})))
        engine = Engine(cluster)
        try:
            engine.wait_for_scheduler()
            engine.wait_for_agent("node1")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{engine.scheduler_log()}\n{engine.agent_log('node1')}") from None
        yield engine
