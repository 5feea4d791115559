# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures pods with ResourceClaims on a real cluster: claims that our scheduler allocates before it removes the gate
of their pod, compared with claims that kube-scheduler allocates itself from the slices of a driver of whole GPUs.

Both claim one whole GPU for each pod, on the same fake nodes, with the same configuration of kube-scheduler, which has
no extender. The slices are as NVIDIA's driver publishes them. Rounds alternate, because the load of a machine changes.
"""

import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.cluster_server import machine
from bench.clusters import engine_in_cluster
from bench.harness import Figure, at_least, benchmark, p99
from bench.rounds import (
    WHERE,
    Meter,
    claimed_round,
    create_claimed_pods,
    listed,
    make_template,
    open_watch,
    prepare,
    rate_figure,
    scale,
)
from cotenant.kube.api.claims import VERSION
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.claims import WHOLE
from cotenant.kube.codec.queueing import GATE
from tests.cluster.claiming import API
from tests.cluster.engine import Engine

NODES, PODS, ROUNDS = 1_000, 1_000, 3
MANY_NODES, PACED, EVERY_S = 5_000, 200, 0.05
"""nodes and pods of the latency, and the time from one pod to the next"""
SETTINGS = "claims: {enabled: true}\n"
HAS = {"cpu": "64", "memory": "256Gi", "pods": "200"}
"""of each node"""
NVIDIA = "gpu.nvidia.com"
OURS, STOCK = "ours", "stock"
"""names of the templates"""


@benchmark("dra-throughput")
def dra_throughput() -> Iterator[Figure]:
    """Measures pods per second with claims that we allocate, and with claims that kube-scheduler allocates."""
    with _cluster(NODES) as engine:
        _publish_slices(engine, NODES)
        rounds = [
            (claimed_round(engine, PODS, STOCK, by_us=False), claimed_round(engine, PODS, OURS, by_us=True))
            for _ in range(ROUNDS)
        ]
    stock, ours = zip(*rounds, strict=True)
    yield rate_figure("allocated by kube-scheduler", stock)
    yield rate_figure("allocated by us, at the gate", ours)
    shares = [with_us.rate / without.rate for without, with_us in rounds]
    by_cpu = [sum(one.cpu_ms.values()) / sum(other.cpu_ms.values()) for one, other in rounds]
    where = f"{PODS:,} pods on {NODES:,} nodes x 8 GPUs, median of {ROUNDS} alternating rounds"
    note = f"{where}: {listed(shares, '.2f')}; by CPU time of all components {listed(by_cpu, '.2f')}"
    share = statistics.median(shares)
    yield at_least("of kube-scheduler's own allocation", share, "times", limit=1.0, baseline=1.0, note=note)


@benchmark("dra-latency")
def dra_latency() -> Iterator[Figure]:
    """Measures the time from the decision about a pod to the removal of its gate."""
    for nodes in (NODES, MANY_NODES):
        with _cluster(nodes) as engine:
            yield from _latency(engine, nodes)


@contextmanager
def _cluster(nodes: int) -> Iterator[Engine]:
    """A cluster with fake nodes, our scheduler with claims, which is stopped, and both templates."""
    with engine_in_cluster(settings=SETTINGS) as engine:
        prepare(engine, map(machine, range(nodes)), HAS)
        conditions = f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == 'gpu'"
        about = {"metadata": {"name": NVIDIA}, "spec": {"selectors": [{"cel": {"expression": conditions}}]}}
        engine.cluster.post(f"{API}/deviceclasses", {"apiVersion": VERSION, "kind": "DeviceClass", **about})
        for name, device_class in ((OURS, WHOLE), (STOCK, NVIDIA)):
            make_template(engine, name, {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]})
        yield engine


def _publish_slices(engine: Engine, nodes: int) -> None:
    """Creates a slice with whole GPUs for each node, as NVIDIA's driver does."""
    for one in map(machine, range(nodes)):
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {
                    "type": {"string": "gpu"},
                    "uuid": {"string": gpu.uuid},
                    "productName": {"string": gpu.type},
                    "brand": {"string": "Nvidia"},
                    "architecture": {"string": "Ampere"},
                    "cudaComputeCapability": {"version": "8.0.0"},
                    "driverVersion": {"version": "580.65.6"},
                    "cudaDriverVersion": {"version": "13.0.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number:02x}"},
                },
                "capacity": {"memory": {"value": f"{gpu.memory}Mi"}},
            }
            for number, gpu in enumerate(one.gpus)
        ]
        pool = {"name": one.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NVIDIA, "nodeName": one.name, "pool": pool, "devices": devices}
        about = {"metadata": {"name": f"{one.name}-{NVIDIA}"}, "spec": spec}
        engine.cluster.post(f"{API}/resourceslices", {"apiVersion": VERSION, "kind": "ResourceSlice", **about})


def _latency(engine: Engine, nodes: int) -> Iterator[Figure]:
    """Creates one pod after the other, and reads from a watch when it got its record and when its gate was removed."""
    scale(engine, 1)
    seen: dict[str, dict[str, float]] = {}
    done = threading.Event()
    answer = open_watch(engine, f"/api/v1/namespaces/{WHERE}/pods?watch=1", {})

    def read() -> None:
        for line in answer:
            moment, pod = time.monotonic(), json.loads(line)["object"]
            times = seen.setdefault(pod["metadata"]["name"], {"created": moment})
            if pod["status"].get("resourceClaimStatuses"):
                times.setdefault("claimed", moment)
            if RECORD in pod["metadata"].get("annotations", {}):
                times.setdefault("decided", moment)
            if all(gate["name"] != GATE for gate in pod["spec"].get("schedulingGates", ())):
                times.setdefault("open", moment)
            if pod["spec"].get("nodeName"):
                times.setdefault("bound", moment)
            if len(seen) == PACED and all("bound" in one for one in seen.values()):
                done.set()
                return

    threading.Thread(target=read, daemon=True).start()
    meter = Meter(engine)
    for number in range(PACED):
        create_claimed_pods(engine, [number], OURS, by_us=True)
        time.sleep(EVERY_S)
    if not done.wait(120):
        raise TimeoutError(f"{sum('bound' in one for one in seen.values())} of {PACED} pods were bound")
    spent = meter.round(0.0, PACED)
    where = f"{nodes:,} nodes"
    steps = {
        "decision to gate removed": ("decided", "open"),
        "claim made to gate removed": ("claimed", "open"),
        "gate removed to bound": ("open", "bound"),
    }
    for name, (begin, end) in steps.items():
        took = [1000 * (one[end] - one[begin]) for one in seen.values()]
        figures = f"median {statistics.median(took):.1f}, worst {max(took):.1f}"
        note = f"of {PACED} pods, one each {1000 * EVERY_S:.0f} ms; {figures}"
        yield Figure(name=f"{name}, p99, {where}", figure=p99(took), unit="ms", note=note)
    cost = ", ".join(f"{who} {ms:.1f}" for who, ms in sorted(spent.cpu_ms.items()))
    yield Figure(name=f"CPU of ours, {where}", figure=spent.cpu_ms.get("ours", 0.0), unit="ms/pod", note=f"all: {cost}")
