# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Looks at a cluster from outside, all the time, and tells the checker: pods by a watch, processes by /proc, what
containers write by their logs on disk, devices by kubelet's own list, nodes by what agents have written there."""

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, RLock, Thread

import grpc

from cotenant.kube.agent.proto import podresources_pb2 as pb
from tests.cluster.api import Json, RefusedError
from tests.cluster.checker import ORPHANS, Checker, Listed, Process
from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine

PODS = "/api/v1/namespaces/default/pods"
MARK = "CHAOS_CONTAINER"
"""variable of a tenant: its container's name"""
COUNT = "nvidia.com/gpu"
LIST = "/v1.PodResourcesLister/List"
PODRESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
POD = re.compile(rb"/pod([0-9a-f-]{36})/")
LOOK_S = 0.3
LIST_S = 1.0
WATCH_S = 3
"""a watch without news, before it is begun again"""
GONE = 410
DOWN = (OSError, http.client.HTTPException, RefusedError, json.JSONDecodeError)
"""what it looks like when the API server is away"""


class Observer:
    """Runs three threads that tell a checker what they see; one lock keeps them apart."""

    def __init__(self, cluster: Cluster, checker: Checker) -> None:
        self.lock = RLock()
        self.failures: list[BaseException] = []
        self._cluster, self._checker = cluster, checker
        self._stop = Event()
        self._version = 0
        self._heard: set[Path] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Looks meanwhile, and once more at the end."""
        threads = [Thread(target=self._repeat, args=(work,)) for work in (self._follow, self._look, self._list_devices)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 -- a thread that dies unheard would see nothing wrong
            self.failures.append(error)

    # The API server

    def _follow(self) -> None:
        try:
            if not self._version:
                self._begin()
            self._watch()
        except DOWN as error:
            with self.lock:
                self._checker.note(f"the watch ended: {error!r:.200}")
            self._stop.wait(0.2)

    def _begin(self) -> None:
        answer = self._cluster.get(PODS)
        version = int(answer["metadata"]["resourceVersion"])
        with self.lock:
            self._checker.all_pods(version, answer["items"])
        self._version = version

    def _watch(self) -> None:
        connection = http.client.HTTPConnection("localhost")
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.settimeout(30)
            connection.sock.connect(str(self._cluster.door))
            connection.request("GET", f"{PODS}?watch=1&resourceVersion={self._version}&timeoutSeconds={WATCH_S}")
            answer = connection.getresponse()
            if answer.status != 200:
                self._version = 0 if answer.status == GONE else self._version
                raise RefusedError(answer.status, answer.read().decode(errors="replace"))
            while not self._stop.is_set() and (line := answer.readline()):
                self._heard_of(json.loads(line))

    def _heard_of(self, event: Json) -> None:
        about = event["object"]
        if event["type"] == "ERROR":  # what happened since cannot be had any more
            self._version = 0
            raise RefusedError(about.get("code", 0), about.get("message", ""))
        with self.lock:
            self._checker.pod(event["type"], about)
        self._version = int(about["metadata"]["resourceVersion"])

    # The nodes

    def _look(self) -> None:
        begun = time.monotonic()
        seen = {machine.name: list(tenants(machine)) for machine in self._cluster.machines}
        with self.lock:
            left = [one.pod for many in seen.values() for one in many if not self._is_running(one.pod)]
        pods, said = None, dict[str, str]()
        with contextlib.suppress(*DOWN):
            for node in self._cluster.get("/api/v1/nodes")["items"]:
                said[node["metadata"]["name"]] = node["metadata"].get("annotations", {}).get(ORPHANS)
                with self.lock:
                    self._checker.node(node)
            if left:  # only then does the checker need to know of all pods at one moment
                pods = self._cluster.get(PODS)["items"]
        for machine in self._cluster.machines:
            still = {(one.pid, one.began) for one in tenants(machine)}
            living = [one for one in seen[machine.name] if (one.pid, one.began) in still]
            with self.lock:
                self._checker.living(machine.name, living, pods, said.get(machine.name))
        self._read_logs()
        self._stop.wait(max(0.05, LOOK_S - (time.monotonic() - begun)))

    def _is_running(self, uid: str) -> bool:
        pod = self._checker.pods.get(uid)
        return pod is not None and pod["status"].get("phase") in ("Pending", "Running")

    def _read_logs(self) -> None:
        for machine in self._cluster.machines:
            with contextlib.suppress(FileNotFoundError):  # kubelet removes a folder meanwhile; the next look goes on
                for file in (machine.folder / "pods" / "pods").glob("default_*/*/*.log"):
                    if file not in self._heard and (seen := _said(file)) is not None:
                        self._heard.add(file)
                        with self.lock:
                            self._checker.saw(file.parts[-3].rpartition("_")[2], file.parts[-2], seen)

    def _list_devices(self) -> None:
        for machine in self._cluster.machines:
            with self.lock:
                earlier = dict(self._checker.pods)
            with contextlib.suppress(grpc.RpcError):
                if (listed := devices(machine)) is not None:
                    with self.lock:
                        self._checker.devices(machine.name, listed, earlier)
        self._stop.wait(LIST_S)


def tenants(machine: Machine) -> Iterator[Process]:
    """The tenants' processes of a node that live."""
    for folder in machine.inside("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # it has just ended
            pod = POD.search((folder / "cgroup").read_bytes() + b"/")
            if pod is None:
                continue
            variables = dict(word.split("=", 1) for word in (folder / "environ").read_text().split("\0") if "=" in word)
            state, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if MARK in variables and state not in "ZX":
                yield Process(
                    pid=int(folder.name),
                    began=int(rest[18]),
                    pod=pod[1].decode(),
                    container=variables[MARK],
                    visible=variables.get("NVIDIA_VISIBLE_DEVICES", "all"),
                    memory=_limits(variables),
                    compute=10 * int(variables.get("CUDA_DEVICE_SM_LIMIT", "0")),
                )


def _limits(variables: dict[str, str]) -> tuple[int, ...]:
    cards = variables.get("NVIDIA_VISIBLE_DEVICES", "").count(",") + 1
    said = (variables.get(f"CUDA_DEVICE_MEMORY_LIMIT_{index}", "0m") for index in range(cards))
    return tuple(int(one.removesuffix("m")) for one in said)


def _said(log: Path) -> Json | None:
    """The line of JSON in a container's log, once it is whole."""
    try:
        text = log.read_text()
    except OSError:
        return None
    for line in text.splitlines(keepends=True):
        _, _, flag, said = line.split(" ", 3)
        if flag == "F" and said.startswith("{") and said.endswith("\n"):
            return dict(json.loads(said))
    return None


def devices(machine: Machine) -> list[Listed] | None:
    """What kubelet says who has of our devices; None where it has just started and knows no pod, not even our agent."""
    with grpc.insecure_channel(f"unix:{machine.inside(PODRESOURCES)}") as channel:
        call = channel.unary_unary(
            LIST,
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        answer = call(pb.ListPodResourcesRequest(), timeout=2)
    if not answer.pod_resources:
        return None
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            ids = [one for held in container.devices if held.resource_name == COUNT for one in held.device_ids]
            if ids:
                found.append(Listed(pod.name, container.name, frozenset(ids)))
    return found
