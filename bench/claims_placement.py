# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fills a sample of the cluster of a public trace with pods that have ResourceClaims, and counts what stays
unallocated: once kube-scheduler allocates the claims itself, first fit, and once we do, by the policy `fragmentation`.

Both get the same pods in the same order, on the same fake nodes. A pod claims whole GPUs or a share of one, of the GPU
types that its row of the trace names. The CPU of the trace is not compared: nodes have more than enough.
kube-scheduler counts shares of devices from Kubernetes 1.36 on, so this benchmark runs on that version.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from bench.clusters import engine_in_cluster, require_cluster
from bench.harness import Figure, at_most, benchmark
from bench.replay import DATA
from bench.rounds import (
    CLAIMS,
    STOCK,
    WHERE,
    clean,
    create_claimed_pods,
    listed,
    make_template,
    prepare,
    scale,
    stopped,
)
from cotenant.core.model import Demand, Machine
from cotenant.core.units import WHOLE_GPU
from cotenant.kube.api.claims import VERSION
from cotenant.kube.codec.claim_requests import DRIVER, PARAMETERS, SHARED, WHOLE
from cotenant.sim.clusters import open_cluster
from cotenant.sim.fill import shuffled
from cotenant.sim.traces.registry import open_trace
from tests.cluster.claiming import API

NAME = "dra-placement"
KUBERNETES = "1.36.3"
NODES, SEEDS, LOAD = 40, (1, 2), 1.0
SETTINGS = "claims: {enabled: true}\nscheduler: {policy: fragmentation}\nqueue: {backfill: false}\n"
HAS = {"cpu": "640", "memory": "256Gi", "pods": "800"}
DEVICES = "gpu.example.com"
"""the driver and the device class of the claims that kube-scheduler allocates"""
OURS, THEIRS = "ours", "stock"
QUIET_S = 12.0
"""without another pod that is bound, after which a round is over"""


@benchmark(NAME)
def dra_placement() -> Iterator[Figure]:
    """Prints the unallocated share of all GPUs side by side."""
    require_cluster()
    command = [sys.executable, "-m", "bench.claims_placement"]
    done = subprocess.run(command, env=os.environ | {"COTENANT_KUBERNETES": KUBERNETES}, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"the rounds ended with exit code {done.returncode}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    ours, stock = (found[who] for who in (OURS, THEIRS))
    where = (
        f"pods of openb that request {LOAD:.0%} of the GPUs of {NODES} of its nodes, Kubernetes {KUBERNETES},"
        f" seeds {', '.join(map(str, SEEDS))}"
    )
    theirs = sum(stock) / len(stock)
    note = f"{listed(stock, '.1f')}; {where}"
    yield Figure(name="unallocated, kube-scheduler's first fit", figure=theirs, unit="%", note=note)
    note = f"{listed(ours, '.1f')}; mean of {len(SEEDS)} seeds"
    share = sum(ours) / len(ours)
    yield at_most("unallocated, fragmentation through claims", share, "%", limit=theirs, baseline=theirs, note=note)


def main() -> int:
    """Runs all rounds on this version of Kubernetes, and prints the unallocated percentages as JSON."""
    found: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for seed in SEEDS:
        for who, percent in _rounds(seed).items():
            found[who].append(percent)
    print(json.dumps(found))
    return 0


def _rounds(seed: int) -> dict[str, float]:
    """The unallocated percentage of both, for one sample of nodes and pods."""
    machines, demands = _sample(seed)
    total = WHOLE_GPU * sum(len(one.gpus) for one in machines)
    with engine_in_cluster(settings=SETTINGS) as engine:
        prepare(engine, machines, HAS)
        condition = f"device.driver == '{DEVICES}'"
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": condition}}]}
        about = {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": DEVICES}, "spec": spec}
        engine.cluster.post(f"{API}/deviceclasses", about)
        for one in machines:
            engine.cluster.post(f"{API}/resourceslices", _slice(one))
        names = {demand: f"d{number}" for number, demand in enumerate(dict.fromkeys(demands))}
        for demand, name in names.items():
            for who, request in ((OURS, _our_request(demand)), (THEIRS, _stock_request(demand))):
                make_template(engine, f"{name}-{who}", request)
        result = {}
        for who in (THEIRS, OURS):
            with stopped(engine, STOCK):
                pass
            if who == OURS:
                scale(engine, 1)
            for number, demand in enumerate(demands):
                create_claimed_pods(engine, [number], f"{names[demand]}-{who}", by_us=who == OURS)
            placed = [demands[number] for number in _settled(engine)]
            used = sum(demand.total_compute for demand in placed)
            result[who] = 100 * (1 - used / total)
            print(f"seed {seed}, {who}: {len(placed)} of {len(demands)} pods, {used} of {total}", file=sys.stderr)
            clean(engine, CLAIMS)
    return result


def _sample(seed: int) -> tuple[list[Machine], list[Demand]]:
    """Some nodes of the trace that have GPUs, and the demands of its pods in an order of arrival."""
    all_machines = [one for one in open_cluster("openb", data=DATA) if one.gpus]
    machines = [
        replace(one, gpus=tuple(replace(gpu, slots=100) for gpu in one.gpus))
        for one in Random(seed).sample(all_machines, NODES)
    ]
    jobs = [one.job for one in open_trace("openb:default", data=DATA).read() if one.job.demand.gpus]
    types = {gpu.type for one in machines for gpu in one.gpus}
    fitting = [job for job in jobs if not job.demand.use_types or types & set(job.demand.use_types)]
    order = shuffled(fitting, machines, seed, LOAD)
    plain = [
        Demand(gpus=demand.gpus, compute=demand.compute, use_types=demand.use_types)
        for demand in (fitting[at].demand for at in order.arrivals)
    ]
    return machines, plain


def _selectors(demand: Demand, domain: str) -> dict[str, Any]:
    if not demand.use_types:
        return {}
    types = ", ".join(f"'{one}'" for one in demand.use_types)
    return {"selectors": [{"cel": {"expression": f"device.attributes['{domain}'].type in [{types}]"}}]}


def _our_request(demand: Demand) -> dict[str, Any]:
    is_whole = demand.compute >= WHOLE_GPU
    exactly = {"deviceClassName": WHOLE if is_whole else SHARED, "count": demand.gpus, **_selectors(demand, DRIVER)}
    percent = -(-demand.compute // 10)
    share = {"apiVersion": PARAMETERS, "kind": "GpuShare", "memoryPercent": min(99, percent), "compute": percent}
    config = [] if is_whole else [{"opaque": {"driver": DRIVER, "parameters": share}}]
    return {"requests": [{"name": "gpu", "exactly": exactly}], "config": config}


def _stock_request(demand: Demand) -> dict[str, Any]:
    capacity = {"requests": {"compute": str(demand.compute)}}
    exactly = {"deviceClassName": DEVICES, "count": demand.gpus, "capacity": capacity, **_selectors(demand, DEVICES)}
    return {"requests": [{"name": "gpu", "exactly": exactly}]}


def _slice(machine: Machine) -> dict[str, Any]:
    """The GPUs of a node as devices that several claims may share."""
    devices = [
        {
            "name": f"gpu-{number}",
            "allowMultipleAllocations": True,
            "attributes": {"type": {"string": gpu.type}},
            "capacity": {"compute": {"value": str(WHOLE_GPU)}},
        }
        for number, gpu in enumerate(machine.gpus)
    ]
    pool = {"name": machine.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DEVICES, "nodeName": machine.name, "pool": pool, "devices": devices}
    about = {"name": f"{machine.name}-{DEVICES}"}
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": about, "spec": spec}


def _settled(engine: Any) -> Sequence[int]:
    """The numbers of the pods that are bound, when no more are."""
    bound: list[int] = []
    since = time.monotonic()
    while time.monotonic() < since + QUIET_S:
        found = engine.cluster.get(f"/api/v1/namespaces/{WHERE}/pods?fieldSelector=spec.nodeName%21%3D")["items"]
        if len(found) != len(bound):
            bound, since = [int(pod["metadata"]["name"].removeprefix("pod-")) for pod in found], time.monotonic()
        time.sleep(1.0)
    return bound


if __name__ == "__main__":
    sys.exit(main())
