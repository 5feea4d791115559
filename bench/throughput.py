# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How many pods a second a real kube-scheduler binds with our extender, beside the same one without any extender.

Pods are created before their scheduler starts, so that nothing but binding them is measured; the nodes are fake. Rounds
alternate, since a machine is never the same for long.
"""

import http.client
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.cluster_server import machine
from bench.harness import Figure, at_least, benchmark
from cotenant.kube.codec.dialect import Vendor
from cotenant.kube.install.configuration import KUBE_SCHEDULER
from cotenant.kube.install.names import CONFIGURATION, NAMESPACE, SCHEDULER
from cotenant.kube.inventory import INVENTORY, inventory_for
from cotenant.kube.settings import SCHEDULER_NAME
from tests.cluster.api import wait_for
from tests.cluster.binaries import binaries
from tests.cluster.engine import Engine, running_engine
from tests.cluster.images import PAUSE
from tests.cluster.machine import why_impossible

NODES, PODS, ROUNDS = 1_000, 2_000, 3
WHERE = "bench"
"""the namespace of the pods"""
NOBODY = "nobody"
"""a scheduler that no pod asks for"""
UNBOUND_S = 900.0
PLAIN: Mapping[str, str] = {"cpu": "100m"}
SHARED: Mapping[str, str] = {"cpu": "100m", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
QUICK = {"qps": 1000, "burst": 2000}
"""or a scheduler that binds by itself is held to 50 pods a second"""
SHARE = 0.7


@benchmark("kube-throughput")
def kube_throughput() -> Iterator[Figure]:
    """Pods a second with and without the extender, and what the webhook adds to creating a pod."""
    if why := why_impossible():
        raise RuntimeError(f"needs a cluster: {why}")
    with (
        tempfile.TemporaryDirectory(prefix="throughput") as folder,
        running_engine(Path(folder) / "cluster", binaries(print)) as engine,
    ):
        _prepare(engine)
        rounds = [(_plain_round(engine), _shared_round(engine)) for _ in range(ROUNDS)]
    (plain, plain_creates), (ours, creates) = (
        ([one[which][0] for one in rounds], [one[which][1] for one in rounds]) for which in (0, 1)
    )
    shares = [with_us / without for without, with_us in zip(plain, ours, strict=True)]
    where = f"{PODS:,} pods on {NODES:,} nodes x 8 GPUs, median of {ROUNDS} alternating rounds"
    baseline = f"no extender {statistics.median(plain):.0f}"
    yield Figure(name="bound with the extender", figure=statistics.median(ours), unit="pods/s", baseline=baseline)
    others = "a trivial extender 0.58 to 0.81"
    note = f"{where}: {', '.join(f'{share:.2f}' for share in shares)}"
    share = statistics.median(shares)
    yield at_least("of the same without an extender", share, "times", limit=SHARE, baseline=others, note=note)
    added = statistics.median(creates) - statistics.median(plain_creates)
    yield Figure(name="webhook, added to creating a pod", figure=1000 * added, unit="ms", note="not in the above")


def _prepare(engine: Engine) -> None:
    cluster = engine.cluster
    cluster.post("/api/v1/namespaces", {"metadata": {"name": WHERE}})
    wait_for("its account", lambda: cluster.get(f"/api/v1/namespaces/{WHERE}/serviceaccounts/default"))
    has = {"cpu": "64", "memory": "256Gi", "pods": "200", "nvidia.com/gpu": "80"}
    ready = {"type": "Ready", "status": "True", "reason": "Fake"}
    for number in range(NODES):
        one = machine(number)
        about = {"name": one.name, "labels": {"kubernetes.io/hostname": one.name, "fake": "true"}}
        told = {INVENTORY: inventory_for(one, Vendor.NVIDIA)}
        status = {"capacity": has, "allocatable": has, "conditions": [ready]}
        cluster.post("/api/v1/nodes", {"metadata": about | {"annotations": told}, "status": status})
    first = cluster.machines[0]
    file = first.folder / "scheduler.json"
    said = json.loads(file.read_text())
    said |= {"percentageOfNodesToScore": 100, "clientConnection": said["clientConnection"] | QUICK}
    file.write_text(json.dumps(said))
    first.restart("kube-scheduler")


def _plain_round(engine: Engine) -> tuple[float, float]:
    """Pods a second that the stock scheduler binds while ours is not there, and seconds to create one of them."""
    with engine.cluster.machines[0].without("kube-scheduler"):
        created = _create_pods(engine, "plain", PLAIN, "default-scheduler")
        _scale(engine, 0)
        watch = _Watch(engine)
    rate = watch.rate()
    _clean(engine)
    _scale(engine, 1)
    return rate, created


def _shared_round(engine: Engine) -> tuple[float, float]:
    """The same with ours, whose pods ask for a share of a GPU."""
    _serve(engine, NOBODY)  # it answers the webhook and has nothing to place
    created = _create_pods(engine, "shared", SHARED, SCHEDULER_NAME)
    watch = _Watch(engine)
    _serve(engine, SCHEDULER_NAME)
    rate = watch.rate()
    _clean(engine)
    return rate, created


def _create_pods(engine: Engine, kind: str, limits: Mapping[str, str], scheduler: str) -> float:
    """Seconds for each, one after the other."""
    container = {"name": "main", "image": PAUSE, "imagePullPolicy": "Never", "resources": {"limits": dict(limits)}}
    spec = {"schedulerName": scheduler, "nodeSelector": {"fake": "true"}, "containers": [container]}
    start = time.monotonic()
    for number in range(PODS):
        pod = {"metadata": {"name": f"{kind}-{number}"}, "spec": spec}
        engine.cluster.post(f"/api/v1/namespaces/{WHERE}/pods", pod)
    return (time.monotonic() - start) / PODS


class _Watch:
    """Notes when each pod is bound, from outside and as it happens."""

    def __init__(self, engine: Engine) -> None:
        self._bound: dict[str, float] = {}
        self._all = threading.Event()
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.connect(str(engine.cluster.door))
        self._connection.request("GET", f"/api/v1/namespaces/{WHERE}/pods?watch=1")
        self._thread = threading.Thread(target=self._read, args=(self._connection.getresponse(),), daemon=True)
        self._thread.start()

    def rate(self) -> float:
        """Pods a second from the first that is bound to the last."""
        if not self._all.wait(UNBOUND_S):
            raise TimeoutError(f"{len(self._bound)} of {PODS} pods were bound in {UNBOUND_S:g} s")
        times = sorted(self._bound.values())
        return (len(times) - 1) / (times[-1] - times[0])

    def _read(self, answer: http.client.HTTPResponse) -> None:
        for line in answer:
            pod: Any = json.loads(line)["object"]
            if pod["spec"].get("nodeName"):
                self._bound.setdefault(pod["metadata"]["name"], time.monotonic())
            if len(self._bound) == PODS:
                self._all.set()
                break
        self._connection.close()


def _serve(engine: Engine, scheduler: str) -> None:
    """Starts our kube-scheduler anew, for the pods of this scheduler."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIGURATION}"
    said = yaml.safe_load(engine.cluster.get(path)["data"][KUBE_SCHEDULER])
    said["profiles"] = [{"schedulerName": scheduler}]
    engine.cluster.patch(path, {"data": {KUBE_SCHEDULER: yaml.safe_dump(said)}})
    engine.restart_scheduler()


def _scale(engine: Engine, replicas: int) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    engine.cluster.patch(path, {"spec": {"replicas": replicas}})
    if replicas:
        engine.wait_for_scheduler()
    else:
        wait_for("our scheduler to be gone", lambda: not engine.our_pods(SCHEDULER) or None)


def _clean(engine: Engine) -> None:
    """No kubelet will say that they ended; a scheduler that starts anew knows nothing of them either."""
    pods = f"/api/v1/namespaces/{WHERE}/pods"
    engine.cluster.delete(f"{pods}?gracePeriodSeconds=0")
    wait_for("the pods to be gone", lambda: not engine.cluster.get(f"{pods}?limit=1")["items"] or None)
