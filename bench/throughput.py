# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the number of pods per second that a real kube-scheduler binds, with and without our extender.

Pods are created before their scheduler starts, so that only scheduling is measured; the nodes are fake. One
kube-scheduler runs with the configuration that we install, or with the same configuration without the extender. Rounds
alternate, because the load of a machine changes.

kube-scheduler itself takes longer for pods that request resources such as GPUs, because it parses their names again for
each node. This cost is measured without an extender too, with resources that we do not manage.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster_server import machine
from bench.harness import Figure, at_least, benchmark
from cotenant.kube.api.names import NAMESPACE, SCHEDULER
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.install.configuration import kube_scheduler, scheduler_terms_of
from cotenant.kube.settings import SCHEDULER_NAME, KubeSettings
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import wait_for
from tests.cluster.binaries import binaries
from tests.cluster.engine import Engine, running_engine
from tests.cluster.images import PAUSE
from tests.cluster.machine import why_impossible

NODES, PODS, ROUNDS = 1_000, 2_000, 3
WHERE = "bench"
"""namespace of the pods"""
UNBOUND_S = 900.0
GONE_S = 300.0
PLAIN: Mapping[str, str] = {"cpu": "100m"}
SHARED: Mapping[str, str] = {"cpu": "100m", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
COUNTED: Mapping[str, str] = {"cpu": "100m", "example.com/gpu": "1", "example.com/gpumem": "4000"}
HAS = {
    "cpu": "64",
    "memory": "256Gi",
    "pods": "200",
    "nvidia.com/gpu": "80",
    "example.com/gpu": "80",
    "example.com/gpumem": "320k",
}
"""of each node"""
LEASE_OPTION = "--lease"
NO_EXTENDER: Mapping[str, Any] = {"extenders": []}
SHARE = 0.7
OTHERS = "a trivial extender 0.58 to 0.81"
PARTS = {"kube-scheduler": "kube-scheduler", "kube-apiserver": "API server", "etcd": "etcd", "cotenant": "ours"}
"""process name -> component"""
WEBHOOK = re.compile(
    r'^apiserver_admission_webhook_admission_duration_seconds_(sum|count)\{.*name="gpus[.].*\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class _Round:
    """The result of one round."""

    rate: float
    """pods per second, from the first to the last that is bound"""
    cpu_ms: Mapping[str, float]
    """CPU milliseconds for each pod, by component"""
    load: float
    """load of the machine before the round"""


@benchmark("kube-throughput")
def kube_throughput() -> Iterator[Figure]:
    """Measures pods per second with and without the extender, and the time of the webhook for each pod."""
    if why := why_impossible():
        raise RuntimeError(f"needs a cluster: {why}")
    with (
        tempfile.TemporaryDirectory(prefix="throughput") as folder,
        running_engine(Path(folder) / "cluster", binaries(print)) as engine,
    ):
        _prepare(engine)
        rounds = [(_plain_round(engine), _counted_round(engine), _shared_round(engine)) for _ in range(ROUNDS)]
        webhook_ms = _webhook_ms(engine)
    plain, counted, ours = zip(*rounds, strict=True)
    yield _rate("plain pods, no extender", plain)
    yield _rate("the same resources, no extender", counted)
    yield _rate("with the extender", ours)
    where = f"{PODS:,} pods on {NODES:,} nodes x 8 GPUs, median of {ROUNDS} alternating rounds"
    shares = [with_us.rate / without.rate for without, _, with_us in rounds]
    note = f"{where}: {_listed(shares, '.2f')}"
    share = statistics.median(shares)
    yield at_least("of plain pods without an extender", share, "times", limit=SHARE, baseline=OTHERS, note=note)
    shares = [with_us.rate / without.rate for _, without, with_us in rounds]
    share, note = statistics.median(shares), _listed(shares, ".2f")
    yield Figure(name="of the same resources without one", figure=share, unit="times", note=note)
    yield Figure(name="webhook, for each pod", figure=webhook_ms, unit="ms", note="as the API server measures it")


def _rate(name: str, rounds: tuple[_Round, ...]) -> Figure:
    rates = [one.rate for one in rounds]
    cpu = [
        f"{who} {statistics.median(one.cpu_ms.get(who, 0.0) for one in rounds):.1f}"
        for who in (*PARTS.values(), "others")
    ]
    loads = _listed([one.load for one in rounds], ".0f")
    note = f"{_listed(rates, '.0f')}; CPU ms a pod: {', '.join(cpu)}; load before: {loads}"
    return Figure(name=name, figure=statistics.median(rates), unit="pods/s", note=note)


def _listed(values: list[float], form: str) -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def _prepare(engine: Engine) -> None:
    cluster = engine.cluster
    cluster.post("/api/v1/namespaces", {"metadata": {"name": WHERE}})
    wait_for("its account", lambda: cluster.get(f"/api/v1/namespaces/{WHERE}/serviceaccounts/default"))
    # Our scheduler and the only kube-scheduler run on a real node; neither has another replica to elect a leader with.
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    ours = cluster.get(path)["spec"]["template"]["spec"]["containers"][:1]
    for key in ("command", "args"):
        ours[0] |= {key: _without_lease(ours[0].get(key, []))}
    pod = {"nodeName": cluster.machines[0].name, "hostNetwork": True, "containers": ours}
    cluster.patch(path, {"spec": {"replicas": 0, "template": {"spec": pod}}})
    ready = {"type": "Ready", "status": "True", "reason": "Fake"}
    for number in range(NODES):
        one = machine(number)
        about = {"name": one.name, "labels": {"kubernetes.io/hostname": one.name, "fake": "true"}}
        told = {INVENTORY: inventory_for(one, Vendor.NVIDIA)}
        status = {"capacity": HAS, "allocatable": HAS, "conditions": [ready]}
        cluster.post("/api/v1/nodes", {"metadata": about | {"annotations": told}, "status": status})


def _without_lease(words: list[str]) -> list[str]:
    """The command line without its lease option."""
    if LEASE_OPTION not in words:
        return words
    at = words.index(LEASE_OPTION)
    return words[:at] + words[at + 2 :]


def _plain_round(engine: Engine) -> _Round:
    """A round with pods that need no GPU and kube-scheduler without the extender."""
    return _round(engine, PLAIN, NO_EXTENDER)


def _counted_round(engine: Engine) -> _Round:
    """The same with pods whose resources kube-scheduler counts itself."""
    return _round(engine, COUNTED, NO_EXTENDER)


def _shared_round(engine: Engine) -> _Round:
    """Runs with our extender, and pods that request a share of a GPU."""
    _scale(engine, 1)
    return _round(engine, SHARED, {})


def _round(engine: Engine, limits: Mapping[str, str], instead: Mapping[str, Any]) -> _Round:
    first = engine.cluster.machines[0]
    with first.without("kube-scheduler"):
        file = first.folder / "scheduler.json"
        access = json.loads(file.read_text())["clientConnection"]
        said = kube_scheduler(scheduler_terms_of(KubeSettings()))
        said |= {"clientConnection": said.get("clientConnection", {}) | {"kubeconfig": access["kubeconfig"]}, **instead}
        said |= {"leaderElection": {"leaderElect": False}}
        file.write_text(json.dumps(said))
        _create_pods(engine, limits)
        watch = _Watch(engine)
        load, before = os.getloadavg()[0], _cpu_s(engine)
    rate = watch.rate()
    spent = _cpu_s(engine)
    _clean(engine)
    return _Round(rate, {who: 1000 * (spent[who] - before.get(who, 0.0)) / PODS for who in spent}, load)


def _cpu_s(engine: Engine) -> Mapping[str, float]:
    """CPU seconds used so far, by component."""
    ticks: Counter[str] = Counter()
    for file in engine.cluster.machines[0].inside("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            ticks[PARTS.get(name, "others")] += sum(map(int, rest.split()[11:13]))
    return {who: count / os.sysconf("SC_CLK_TCK") for who, count in ticks.items()}


def _webhook_ms(engine: Engine) -> float:
    """Average for each pod that requested a GPU."""
    told = dict(WEBHOOK.findall(engine.cluster.text("/metrics")))
    return 1000 * float(told["sum"]) / float(told["count"])


def _create_pods(engine: Engine, limits: Mapping[str, str]) -> None:
    container = {"name": "main", "image": PAUSE, "imagePullPolicy": "Never", "resources": {"limits": dict(limits)}}
    spec = {"schedulerName": SCHEDULER_NAME, "nodeSelector": {"fake": "true"}, "containers": [container]}
    for number in range(PODS):
        pod = {"metadata": {"name": f"pod-{number}"}, "spec": spec}
        engine.cluster.post(f"/api/v1/namespaces/{WHERE}/pods", pod)


class _Watch:
    """Watches the API server and records when each pod is bound."""

    def __init__(self, engine: Engine) -> None:
        self._bound: dict[str, float] = {}
        self._all = threading.Event()
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.connect(str(engine.cluster.door))
        query = "watch=1&includeObject=None&fieldSelector=spec.nodeName%21%3D"
        light = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}  # names, or looking on would take its share
        self._connection.request("GET", f"/api/v1/namespaces/{WHERE}/pods?{query}", headers=light)
        self._thread = threading.Thread(target=self._read, args=(self._connection.getresponse(),), daemon=True)
        self._thread.start()

    def rate(self) -> float:
        """Pods per second, from the first to the last that is bound."""
        if not self._all.wait(UNBOUND_S):
            raise TimeoutError(f"{len(self._bound)} of {PODS} pods were bound in {UNBOUND_S:g} s")
        times = sorted(self._bound.values())
        return (len(times) - 1) / (times[-1] - times[0])

    def _read(self, answer: http.client.HTTPResponse) -> None:
        for line in answer:
            for row in json.loads(line)["object"].get("rows") or []:
                self._bound.setdefault(row["cells"][0], time.monotonic())
            if len(self._bound) == PODS:
                self._all.set()
                break
        self._connection.close()


def _scale(engine: Engine, replicas: int) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    engine.cluster.patch(path, {"spec": {"replicas": replicas}})
    if replicas:
        engine.wait_for_scheduler()
    else:
        wait_for("our scheduler to be gone", lambda: not engine.our_pods(SCHEDULER))


def _clean(engine: Engine) -> None:
    """Stops the scheduler and deletes the pods with grace period 0, because no kubelet would report their end."""
    _scale(engine, 0)
    pods = f"/api/v1/namespaces/{WHERE}/pods"

    def look() -> bool:
        engine.cluster.delete(f"{pods}?gracePeriodSeconds=0")
        return not engine.cluster.get(f"{pods}?limit=1")["items"]

    wait_for("the pods to be gone", look, GONE_S)
