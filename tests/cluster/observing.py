# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Observes a cluster from outside all the time, for the checker: pods by a watch, processes by /proc, the reports of
containers by their logs on disk, devices by kubelet's own list, nodes by what agents have written there."""

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
"""duration of a watch, after which the next one begins"""
GONE = 410
DOWN = (OSError, http.client.HTTPException, RefusedError, json.JSONDecodeError)
"""errors if the API server does not answer"""


class Observer:
    """Runs three threads that pass what they observe to a checker, under one lock."""

    def __init__(self, cluster: Cluster, checker: Checker) -> None:
        self.lock = RLock()
        self.failures: list[BaseException] = []
        self._cluster, self._checker = cluster, checker
        self._stop = Event()
        self._version = 0
        self._read: set[Path] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observes meanwhile, and once more at the end."""
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
        except BaseException as error:  # noqa: BLE001 -- a thread that died unnoticed would find no violation
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
                self._handle(json.loads(line))

    def _handle(self, event: Json) -> None:
        about = event["object"]
        if event["type"] == "ERROR":  # the changes since then are no longer available
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
        pods, orphans = None, dict[str, str]()
        with contextlib.suppress(*DOWN):
            for node in self._cluster.get("/api/v1/nodes")["items"]:
                orphans[node["metadata"]["name"]] = node["metadata"].get("annotations", {}).get(ORPHANS)
                with self.lock:
                    self._checker.node(node)
            if left:  # only then does the checker need to know of all pods at one moment
                pods = self._cluster.get(PODS)["items"]
        for machine in self._cluster.machines:
            still = {(one.pid, one.began) for one in tenants(machine)}
            living = [one for one in seen[machine.name] if (one.pid, one.began) in still]
            with self.lock:
                self._checker.living(machine.name, living, pods, orphans.get(machine.name))
        self._read_logs()
        self._stop.wait(max(0.05, LOOK_S - (time.monotonic() - begun)))

    def _is_running(self, uid: str) -> bool:
        pod = self._checker.pods.get(uid)
        return pod is not None and pod["status"].get("phase") in ("Pending", "Running")

    def _read_logs(self) -> None:
        for machine in self._cluster.machines:
            with contextlib.suppress(FileNotFoundError):  # kubelet removes a folder meanwhile; the next look goes on
                for file in (machine.folder / "pods" / "pods").glob("default_*/*/*.log"):
                    if file not in self._read and (seen := _report_in(file)) is not None:
                        self._read.add(file)
                        with self.lock:
                            self._checker.report(file.parts[-3].rpartition("_")[2], file.parts[-2], seen)

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
                    mps="CUDA_MPS_PIPE_DIRECTORY" in variables,
                )


def _limits(variables: dict[str, str]) -> tuple[int, ...]:
    cards = variables.get("NVIDIA_VISIBLE_DEVICES", "").count(",") + 1
    texts = (variables.get(f"CUDA_DEVICE_MEMORY_LIMIT_{index}", "0m") for index in range(cards))
    return tuple(int(one.removesuffix("m")) for one in texts)


def _report_in(log: Path) -> Json | None:
    """The line of JSON in a container's log, once it is whole."""
    try:
        text = log.read_text()
    except OSError:
        return None
    for line in text.splitlines(keepends=True):
        _, _, flag, text = line.split(" ", 3)
        if flag == "F" and text.startswith("{") and text.endswith("\n"):
            return dict(json.loads(text))
    return None


def devices(machine: Machine) -> list[Listed] | None:
    """Our devices by container, as kubelet lists them; None if it has just started and knows no pod yet."""
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
