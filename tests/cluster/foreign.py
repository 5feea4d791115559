# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What other systems' clients would make of a cluster, by their documented rules: Aliyun's `kubectl inspect gpushare`
and `arena top node`. They read nodes, pods and ConfigMaps; nothing here is of cotenant.
"""

import json
from collections import Counter
from typing import NamedTuple

from tests.cluster.api import Json
from tests.cluster.cluster import Cluster

MEMORY, COUNT, WHOLE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu"
ALLOCATION, INDEX, POD = "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"
GROUP = "topology.kubernetes.io/gpu-group"
SHARE_LABELS = {"gpushare": {"true"}, "cgpu": {"true"}, "ack.node.gpu.schedule": {"share", "cgpu"}}
TOPOLOGY_LABEL = "ack.node.gpu.schedule=topology"


class NodeMemory(NamedTuple):
    """A row of `kubectl inspect gpushare`."""

    allocated: dict[int, int]
    """by the index of the GPU, in the unit of the cluster"""
    of_each: int
    """of every GPU: this client divides the memory of the node evenly"""
    gpus: int
    total: int


def pods_on(cluster: Cluster, node: str) -> list[Json]:
    """The pods of a node that have not ended."""
    found = cluster.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
    return [pod for pod in found if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def requested(pod: Json, resource: str) -> int:
    limits = (one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"])
    return sum(int(of.get(resource, 0)) for of in limits)


def allocation(pod: Json) -> Counter[int]:
    """Memory of a pod by GPU: the newer annotation if there is one, else the older, which has one GPU only."""
    said = pod["metadata"].get("annotations", {})
    if ALLOCATION in said:
        found: Counter[int] = Counter()
        for of_container in json.loads(said[ALLOCATION]).values():
            found.update({int(gpu): amount for gpu, amount in of_container.items()})
        return found
    return Counter({int(said[INDEX]): int(said[POD])}) if INDEX in said else Counter()


def inspect_gpushare(cluster: Cluster) -> dict[str, NodeMemory]:
    """The table of `kubectl inspect gpushare`, by node."""
    rows = {}
    for node in cluster.get("/api/v1/nodes")["items"]:
        has, name = node["status"].get("allocatable", {}), node["metadata"]["name"]
        total, gpus = int(has.get(MEMORY, 0)), int(has.get(COUNT, 0))
        if total > 0:
            taken = sum((allocation(pod) for pod in pods_on(cluster, name) if requested(pod, MEMORY)), Counter())
            rows[name] = NodeMemory(dict(taken), total // gpus, gpus, total)
    return rows


def arena_share_node(cluster: Cluster, name: str) -> tuple[int, int, int, int] | None:
    """GPUs allocated and in all, GiB allocated and in all, as `arena top node` counts a node in share mode."""
    node = cluster.get(f"/api/v1/nodes/{name}")
    labels, has = node["metadata"]["labels"], node["status"]["capacity"]
    if not any(labels.get(key) in values for key, values in SHARE_LABELS.items()):
        return None
    taken = sum(map(allocation, pods_on(cluster, name)), Counter())
    return len(taken), int(has.get(COUNT, 0)), sum(taken.values()), int(has.get(MEMORY, 0))


def arena_topology_node(cluster: Cluster, name: str) -> Json | None:
    """A node in topology mode, as `arena top node -d` shows it; nothing without its label or its ConfigMap."""
    key, _, value = TOPOLOGY_LABEL.partition("=")
    node = cluster.get(f"/api/v1/nodes/{name}")
    maps = cluster.get(f"/api/v1/namespaces/kube-system/configmaps?labelSelector={key}%3D{value}")["items"]
    data = [one["data"] for one in maps if one["metadata"]["labels"].get("nodename") == name]
    if node["metadata"]["labels"].get(key) != value or not data:
        return None
    pods = [pod for pod in pods_on(cluster, name) if requested(pod, WHOLE)]
    return {
        "total": int(node["status"]["capacity"].get(WHOLE, 0)),
        "allocated": sum(requested(pod, WHOLE) for pod in pods),
        "instances": {pod["metadata"]["name"]: pod["metadata"]["annotations"][GROUP] for pod in pods},
        "devices": json.loads(data[0]["devices"]),
        "links": json.loads(data[0]["linkType"]),
    }
