# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes cluster for tests: one to three real nodes in private namespaces, and any number of fake ones."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import components
from tests.cluster.api import Json, RefusedError, ask, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.gpus import GpuModel, write_runtime
from tests.cluster.images import Image, our_images, pause_image
from tests.cluster.machine import Machine, make_cgroup, remove_cgroups, show_numa_nodes, start_machine

MOST_NODES = 3
NEVER_LOST = "24h"
"""how long a node may be silent where there are fake ones, which have no heart"""


@dataclass(slots=True)
class Cluster:
    """A running cluster; made by `running`."""

    folder: Path
    binaries: Binaries
    images: Sequence[Image]
    machines: list[Machine] = field(default_factory=list)

    @property
    def door(self) -> Path:
        return self.folder / "node1" / "api.sock"

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"

    def get(self, path: str) -> Json:
        return dict(json.loads(ask(self.door, "GET", path)))

    def post(self, path: str, body: Mapping[str, Any] | str) -> Json:
        return dict(json.loads(ask(self.door, "POST", path, body)))

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        return dict(json.loads(ask(self.door, "PATCH", path, body)))

    def delete(self, path: str) -> None:
        ask(self.door, "DELETE", path)

    def text(self, path: str) -> str:
        """An answer that is not one JSON value: a log, the lines of a watch."""
        return ask(self.door, "GET", path)

    def kubectl(self, *arguments: str, user: str = "admin", feed: str = "") -> str:
        """What kubectl prints, for whom `components.USERS` names."""
        credentials = f"--kubeconfig={self.credentials / f'{user}.kubeconfig'}"
        return self.machines[0].run("kubectl", credentials, *arguments, feed=feed)

    def restart_server(self) -> None:
        """Another API server; returns when it answers."""
        self.machines[0].restart("kube-apiserver")
        wait_for("the API server", lambda: self.text("/readyz"))

    def add_user(self, name: str, namespace: str, *more: Mapping[str, Any]) -> None:
        """Somebody who may edit what is in one namespace, and these rules more; `kubectl(..., user=name)` is theirs."""
        wanted = {"metadata": {"name": name}}
        with contextlib.suppress(RefusedError):  # there already
            self.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", wanted)
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self.post(f"{rbac}/roles", {**wanted, "rules": more})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        for kind, role in (("ClusterRole", "edit"), ("Role", name)):
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
            binding = {"metadata": {"name": f"{name}-{role}"}, "subjects": [subject], "roleRef": ref}
            self.post(f"{rbac}/rolebindings", binding)
        answer = self.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", {"spec": {}})
        components.write_kubeconfig(self.credentials, name, answer["status"]["token"])

    def add_node(
        self, gpus: Sequence[GpuModel] = (), *, kubelet: Mapping[str, Any] | None = None, numa: int = 1
    ) -> str:
        """Starts one more real node and waits until pods can run there; its name.

        `kubelet` goes into kubelet's configuration; kubelet finds `numa` NUMA nodes.
        """
        number = len(self.machines) + 1
        if number > MOST_NODES:
            raise ValueError(f"a cluster has at most {MOST_NODES} real nodes")
        machine = start_machine(f"node{number}", self.folder / f"node{number}", self.binaries)
        self.machines.append(machine)
        self.machines[0].network(
            f"link add to{number} type veth peer name eth0 netns {machine.pid}",
            f"link set to{number} master nodes up",
            f"route add {components.pod_range(number)} via {components.node_address(number)}",
        )
        machine.network(
            "link set lo up",
            f"address add {components.node_address(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {components.SERVER}",
        )
        if numa > 1:
            show_numa_nodes(machine, numa)
        self._run_node(number, {}, gpus, kubelet or {})
        self._wait_for_node(machine)
        return machine.name

    def add_image(self, image: Image) -> None:
        """Gives all nodes an image, unless they have one of this name."""
        if image.names not in {one.names for one in self.images}:
            for machine in self.machines:
                _import_image(machine, image)
            self.images = [*self.images, image]

    def add_fake_nodes(self, names: Sequence[str], resources: Mapping[str, str]) -> None:
        """Nodes that are ready and have `resources`, where pods are bound to and never start."""
        has = {"cpu": "64", "memory": "256Gi", "pods": "200", **resources}
        ready = {"type": "Ready", "status": "True", "reason": "Fake"}
        for name in names:
            labels = {"kubernetes.io/hostname": name, "fake": "true"}
            self.post(
                "/api/v1/nodes",
                {
                    "metadata": {"name": name, "labels": labels},
                    "status": {"capacity": has, "allocatable": has, "conditions": [ready]},
                },
            )
        wait_for("the fake nodes", lambda: set(names) <= self._schedulable())

    def start_first(
        self, scheduler: Mapping[str, Any], gpus: Sequence[GpuModel], grace: str, server: Sequence[str]
    ) -> None:
        """Starts the control plane and the node beside it."""
        components.write_credentials(self.credentials)
        machine = start_machine("node1", self.folder / "node1", self.binaries)
        self.machines.append(machine)
        machine.network(
            "link set lo up",
            f"address add {components.FIRST_SERVICE}/32 dev lo",
            "link add nodes type bridge",
            f"address add {components.SERVER}/24 dev nodes",
            "link set nodes up",
            "route add default dev nodes",
        )
        commands = components.control_plane(machine.folder, self.credentials, scheduler, grace, server)
        self._run_node(1, commands, gpus)
        self._wait_for_node(machine)
        wait_for("the default account", lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default"))

    def _run_node(
        self,
        number: int,
        others: Mapping[str, Sequence[str]],
        gpus: Sequence[GpuModel],
        kubelet: Mapping[str, Any] | None = None,
    ) -> None:
        machine = self.machines[number - 1]
        cgroup = make_cgroup(machine)
        runtime = self.binaries.runc / "runc"
        if gpus:
            runtime = write_runtime(machine.folder, number, gpus, runtime)
        its = components.node(number, machine.folder, self.credentials, cgroup, self.binaries, runtime, kubelet or {})
        machine.set_going({**others, **its})

    def _wait_for_node(self, machine: Machine) -> None:
        socket = machine.inside(components.CONTAINERD_SOCKET)
        wait_for(f"containerd on {machine.name}", socket.exists)
        for image in self.images:
            _import_image(machine, image)
        wait_for(f"{machine.name} to be ready (logs: {machine.folder})", lambda: machine.name in self._schedulable())

    def _schedulable(self) -> set[str]:
        ready = {"type": "Ready", "status": "True"}
        return {
            node["metadata"]["name"]
            for node in self.get("/api/v1/nodes")["items"]
            if any(ready.items() <= condition.items() for condition in node["status"].get("conditions", []))
            and not node["spec"].get("taints")
        }


def _import_image(machine: Machine, image: Image) -> None:
    command = ["ctr", "--address", components.CONTAINERD_SOCKET, "--namespace", "k8s.io", "image", "import", "-"]
    with open(image.archive, "rb") as archive:
        done = subprocess.run(
            machine.enter(command),
            stdin=archive,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{', '.join(image.names)} could not be imported on {machine.name}: {done.stdout.strip()}")


@contextlib.contextmanager
def running(
    folder: Path,
    binaries: Binaries,
    *,
    scheduler: Mapping[str, Any] | None = None,
    images: Sequence[Image] | None = None,
    gpus: Sequence[GpuModel] = (),
    grace: str = NEVER_LOST,
    server: Sequence[str] = (),
) -> Iterator[Cluster]:
    """A cluster of one node, whose logs stay in `folder`.

    `scheduler` goes into the scheduler's configuration; `images` are those its nodes have, by default what pods need to
    run Python with this package; `gpus` are the first node's; a node is lost after `grace` without a word from it;
    `server` are further options of the API server.
    """
    remove_cgroups()
    if images is None:
        images = [pause_image(binaries.pause / "pause"), our_images()]
    cluster = Cluster(folder, binaries, images)
    try:
        cluster.start_first(scheduler or {}, gpus, grace, server)
        yield cluster
    finally:
        for machine in reversed(cluster.machines):
            machine.end()
        remove_cgroups()
