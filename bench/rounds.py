# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds on a real cluster with fake nodes: how fast pods are bound, and the CPU time of each component for a pod.

The nodes have no kubelet, so a pod that is bound costs nothing more. Pods are created before their scheduler starts, so
that only scheduling is measured.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness import Figure
from cotenant.core.model import Machine
from cotenant.kube.api.claims import VERSION
from cotenant.kube.api.names import NAMESPACE, SCHEDULER
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.install.configuration import CLIENT_LIMITS
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import Json, wait_for
from tests.cluster.claiming import API, IGNORED, VOID
from tests.cluster.engine import Engine
from tests.cluster.images import PAUSE

WHERE = "bench"
"""namespace of the pods"""
UNBOUND_S = 900.0
GONE_S = 300.0
LEASE_OPTION = "--lease="
PARTS = {"kube-scheduler": "kube-scheduler", "kube-apiserver": "API server", "etcd": "etcd", "cotenant": "ours"}
"""process name -> component"""
CLAIMS = f"{API}/namespaces/{WHERE}/resourceclaims"
STOCK: Mapping[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "clientConnection": CLIENT_LIMITS,
}
"""configuration of a kube-scheduler without an extender"""
REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round."""

    rate: float
    """pods per second, from the first to the last that is bound"""
    cpu_ms: Mapping[str, float]
    """CPU milliseconds for each pod, by component"""
    load: float
    """load of the machine before the round"""
    writes: Mapping[str, float] = field(default_factory=dict)
    """requests to the API server that write, for each pod, by verb and resource"""


def rate_figure(name: str, rounds: Sequence[Round]) -> Figure:
    """The median rate, with the CPU time of each component."""
    rates = [one.rate for one in rounds]
    cpu = [
        f"{who} {statistics.median(one.cpu_ms.get(who, 0.0) for one in rounds):.1f}"
        for who in (*PARTS.values(), "others")
    ]
    total = statistics.median(sum(one.cpu_ms.values()) for one in rounds)
    writes = statistics.median(sum(one.writes.values()) for one in rounds)
    loads = listed([one.load for one in rounds], ".0f")
    note = (
        f"{listed(rates, '.0f')}; CPU ms a pod: {total:.1f} ({', '.join(cpu)}); {writes:.1f} writes a pod;"
        f" load before: {loads}"
    )
    return Figure(name=name, figure=statistics.median(rates), unit="pods/s", note=note)


def listed(values: Iterable[float], form: str) -> str:
    """Several values as text."""
    return ", ".join(f"{value:{form}}" for value in values)


def prepare(engine: Engine, machines: Iterable[Machine], has: Mapping[str, str]) -> None:
    """Creates the namespace and the nodes. Our scheduler, which has no other replica to elect a leader with, is stopped
    until `scale`, and runs on the real node."""
    cluster = engine.cluster
    make_namespace(engine, WHERE)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    ours = cluster.get(path)["spec"]["template"]["spec"]["containers"][:1]
    for key in ("command", "args"):
        ours[0] |= {key: without_lease(ours[0].get(key, []))}
    pod = {"nodeName": cluster.machines[0].name, "hostNetwork": True, "containers": ours}
    cluster.patch(path, {"spec": {"replicas": 0, "template": {"spec": pod}}})
    ready = {"type": "Ready", "status": "True", "reason": "Fake"}
    for one in machines:
        about = {"name": one.name, "labels": {"kubernetes.io/hostname": one.name, "fake": "true"}}
        told = {INVENTORY: inventory_for(one, Vendor.NVIDIA)}
        status = {"capacity": has, "allocatable": has, "conditions": [ready]}
        cluster.post("/api/v1/nodes", {"metadata": about | {"annotations": told}, "status": status})


def make_namespace(engine: Engine, name: str) -> None:
    """Creates a namespace in which pods can be created."""
    engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_for("its account", lambda: engine.cluster.get(account))


def without_lease(words: list[str]) -> list[str]:
    """The command line without its lease option."""
    return [word for word in words if not word.startswith(LEASE_OPTION)]


@contextlib.contextmanager
def stopped(
    engine: Engine, configuration: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Runs a block without kube-scheduler, which starts afterwards with this configuration and these variables."""
    first = engine.cluster.machines[0]
    with first.without("kube-scheduler"):
        file = first.folder / "scheduler.json"
        access = json.loads(file.read_text())["clientConnection"]
        said = dict(configuration)
        said |= {"clientConnection": said.get("clientConnection", {}) | {"kubeconfig": access["kubeconfig"]}}
        file.write_text(json.dumps(said | {"leaderElection": {"leaderElect": False}}))
        (first.folder / "kube-scheduler.env").write_text(json.dumps(variables or {}))
        yield


def create_pods(
    engine: Engine,
    numbers: Iterable[int],
    spec: Mapping[str, Any],
    resources: Mapping[str, Any],
    *,
    prepared: bool = True,
    where: str = WHERE,
) -> None:
    """Creates a pod with one container for each number; it stays on fake nodes. Our webhook ignores it unless it is to
    be prepared."""
    container: Json = {"name": "main", "image": PAUSE, "imagePullPolicy": "Never", "resources": dict(resources)}
    labels = {} if prepared else IGNORED
    container |= {} if prepared else {"env": VOID}
    spec = {"nodeSelector": {"fake": "true"}, "containers": [container], **spec}
    for number in numbers:
        pod = {"metadata": {"name": f"pod-{number}", "labels": labels}, "spec": spec}
        engine.cluster.post(f"/api/v1/namespaces/{where}/pods", pod)


def make_template(engine: Engine, name: str, devices: Mapping[str, Any]) -> None:
    """Creates a template of claims, without spaces as kubectl does: otherwise the API server would take each patch of a
    claim for a change of its parameters, and refuse it."""
    kind = {"apiVersion": VERSION, "kind": "ResourceClaimTemplate"}
    template = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
    text = json.dumps({**kind, **template}, separators=(",", ":"))
    engine.cluster.post(f"{API}/namespaces/{WHERE}/resourceclaimtemplates", text)


def create_claimed_pods(engine: Engine, numbers: Iterable[int], template: str, *, by_us: bool) -> None:
    """Creates pods with a claim each. If we do not allocate it, the pod has no gate."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
    resources = {"requests": {"cpu": "100m"}, "claims": [{"name": "gpu"}]}
    create_pods(engine, numbers, {"resourceClaims": claims}, resources, prepared=by_us)


def claimed_round(engine: Engine, pods: int, template: str, *, by_us: bool) -> Round:
    """A round with a claim for each pod, which Kubernetes makes before the round begins.

    If our scheduler allocates the claims, it starts after kube-scheduler, which sees gated pods until then.
    """

    def are_made() -> bool:
        found = engine.cluster.get(f"{CLAIMS}?limit=1")
        return bool(len(found["items"]) + found["metadata"].get("remainingItemCount", 0) == pods)

    with stopped(engine, STOCK):
        create_claimed_pods(engine, range(pods), template, by_us=by_us)
        wait_for("the claims", are_made)
        meter = Meter(engine)
        watch = Watch(engine, pods, meter)
    if by_us:
        scale(engine, 1)
    result = meter.round(watch.rate(), pods)
    clean(engine, CLAIMS)
    return result


class Meter:
    """Measures the CPU time and the writes of the cluster from its creation on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._load, self._cpu, self._writes = os.getloadavg()[0], cpu_s(engine), _writes(engine)

    def restart_cpu(self) -> None:
        """Count CPU time from now on."""
        self._cpu = cpu_s(self._engine)

    def round(self, rate: float, pods: int) -> Round:
        """The result of a round with this rate."""
        spent, writes = cpu_s(self._engine), _writes(self._engine)
        return Round(
            rate,
            {who: 1000 * (spent[who] - self._cpu.get(who, 0.0)) / pods for who in spent},
            self._load,
            {what: found / pods for what in writes if (found := writes[what] - self._writes.get(what, 0.0))},
        )


def cpu_s(engine: Engine) -> Mapping[str, float]:
    """CPU seconds used so far, by component."""
    ticks: Counter[str] = Counter()
    for file in engine.cluster.machines[0].inside("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            ticks[PARTS.get(name, "others")] += sum(map(int, rest.split()[11:13]))
    return {who: count / os.sysconf("SC_CLK_TCK") for who, count in ticks.items()}


def _writes(engine: Engine) -> Mapping[str, float]:
    """Requests so far that write, by verb and resource; leases are not counted."""
    found: defaultdict[str, float] = defaultdict(float)
    for labels, count in REQUESTS.findall(engine.cluster.text("/metrics")):
        one = dict(LABEL.findall(labels))
        if one["verb"] in WRITES and one["resource"] not in ("leases", ""):
            found["/".join(filter(None, (f"{one['verb']} {one['resource']}", one["subresource"])))] += float(count)
    return found


class Watch:
    """Watches the API server and records when each pod is bound. CPU time counts from the first of them, because the
    start of a scheduler takes CPU time too."""

    def __init__(self, engine: Engine, pods: int, meter: Meter, where: str = WHERE) -> None:
        self._pods, self._meter = pods, meter
        self._bound: dict[str, float] = {}
        self._all = threading.Event()
        query = "watch=1&includeObject=None&fieldSelector=spec.nodeName%21%3D"
        light = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}  # names, or looking on would take its share
        self._answer = open_watch(engine, f"/api/v1/namespaces/{where}/pods?{query}", light)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def rate(self) -> float:
        """Pods per second, from the first to the last that is bound."""
        if not self._all.wait(UNBOUND_S):
            raise TimeoutError(f"{len(self._bound)} of {self._pods} pods were bound in {UNBOUND_S:g} s")
        times = sorted(self._bound.values())
        return (len(times) - 1) / (times[-1] - times[0])

    def _read(self) -> None:
        for line in self._answer:
            for row in json.loads(line)["object"].get("rows") or []:
                if not self._bound:
                    self._meter.restart_cpu()
                self._bound.setdefault(row["cells"][0], time.monotonic())
            if len(self._bound) == self._pods:
                self._all.set()
                break
        self._answer.close()


def open_watch(engine: Engine, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """The response of a watch, whose lines are its events."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(engine.cluster.door))
    connection.request("GET", path, headers=dict(headers))
    return connection.getresponse()


def scale(engine: Engine, replicas: int) -> None:
    """Starts or stops our scheduler, and waits for it."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    engine.cluster.patch(path, {"spec": {"replicas": replicas}})
    if replicas:
        engine.wait_for_scheduler()
    else:
        wait_for("our scheduler to be gone", lambda: not engine.our_pods(SCHEDULER))


def clean(engine: Engine, *paths: str, where: str = WHERE) -> None:
    """Stops our scheduler and deletes the pods with grace period 0, because no kubelet would report their end; then all
    objects of other kinds."""
    scale(engine, 0)
    for path in (f"/api/v1/namespaces/{where}/pods", *paths):
        wait_for(f"{path} to be empty", _emptied(engine, path), GONE_S)


def _emptied(engine: Engine, path: str) -> Callable[[], bool]:
    def look() -> bool:
        engine.cluster.delete(f"{path}?gracePeriodSeconds=0")
        left: Sequence[Json] = engine.cluster.get(f"{path}?limit=1")["items"]
        return not left

    return look
