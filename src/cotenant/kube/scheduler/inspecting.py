# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The use of all GPUs in the JSON of other systems' extenders, for scripts that read their `inspect` routes."""

from collections.abc import Iterable

from cotenant.core.cluster import Node
from cotenant.core.footprint import claims
from cotenant.core.model import MACHINE_TYPE_LABEL, Link
from cotenant.core.placement.topology import STATIC_TABLES
from cotenant.core.units import MiB
from cotenant.kube.api.names import Json
from cotenant.kube.codec.dialect import in_units
from cotenant.kube.state.cluster import ClusterState

GPUSHARE, TOPOLOGY = "gpushare-scheduler", "gputopology-scheduler"
INSPECT = "inspect"
KINDS = (Link.PSB, Link.PIX, Link.PXB, Link.PHB, Link.NODE, Link.SYS)
"""Links by the number that the topology work gives them, from 1; n NVLinks are 6 + n, 6 links at most."""


def gpushare_report(state: ClusterState, unit: MiB, node: str | None = None) -> Json:
    """Memory that is assigned on each GPU, in the unit of the dialect, and to which pods."""
    nodes = []
    for here in _nodes(state, node):
        known = state.allocations_on(here.name)
        taken = {tenant.job: claims(tenant.demand, tenant.gpus, here.machine.gpus) for tenant in here.tenants}
        devices: list[Json] = []
        for index, gpu in enumerate(here.machine.gpus):
            pods: list[Json] = [
                {
                    "name": known[uid].name,
                    "namespace": known[uid].namespace,
                    "usedGPU": in_units(on_gpus[index].memory, unit),
                }
                for uid, on_gpus in taken.items()
                if index in on_gpus and uid in known
            ]
            devices.append(
                {
                    "id": index,
                    "totalGPU": gpu.memory_capacity // unit,
                    "usedGPU": sum(pod["usedGPU"] for pod in pods),
                    "pods": pods,
                }
            )
        nodes.append(
            {
                "name": here.name,
                "totalGPU": sum(one["totalGPU"] for one in devices),
                "usedGPU": sum(one["usedGPU"] for one in devices),
                "devs": devices,
            }
        )
    return _whole(nodes, node)


def topology_report(state: ClusterState, policy: str, node: str | None = None) -> Json:
    """The GPUs of each node, how many are in use, and how they are linked."""
    nodes = []
    for here in _nodes(state, node):
        used = {gpu for tenant in here.tenants for gpu in tenant.gpus}
        count = len(here.machine.gpus)
        links = here.machine.links or ()
        kind = here.machine.labels.get(MACHINE_TYPE_LABEL)
        table = STATIC_TABLES.get(kind or "")
        nodes.append(
            {
                "name": here.name,
                "totalGPU": count,
                "usedGPU": len(used & set(range(count))),
                "topology": [
                    [0 if a == b else _kind(links[a][b]) for b in range(len(links))] for a in range(len(links))
                ],
                "type": kind or ", ".join(dict.fromkeys(gpu.type for gpu in here.machine.gpus)),
                "staticConfig": None if table is None else {str(gpus): sets for gpus, sets in table.items()},
            }
        )
    return {**_whole(nodes, node), "policy": policy}


def _nodes(state: ClusterState, name: str | None) -> Iterable[Node]:
    return [here for here in state.cluster if name in (None, here.name)]


def _kind(score: int) -> int:
    if score >= Link.NVLINK:
        return len(KINDS) + min(6, score // Link.NVLINK)
    return next((number for number, link in enumerate(KINDS, start=1) if score >= link), 0)


def _whole(nodes: list[Json], node: str | None) -> Json:
    missing = node is not None and not nodes
    return {"nodes": nodes, **({"error": f"node {node} has no GPUs, or there is no such node"} if missing else {})}
