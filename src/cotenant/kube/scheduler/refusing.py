# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Why nodes refuse a pod: with numbers for people, and as a few classes for kube-scheduler.

kube-scheduler writes every distinct message with its number of nodes into the pod's condition, which must stay short
however many nodes there are. So no class contains a number or a name that a user chose.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cotenant.core.cluster import Cluster, Versions
from cotenant.core.model import Demand, Reason
from cotenant.core.placement.check import plain_text
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.ranking import Policy
from cotenant.core.placement.slots import refusal_of
from cotenant.errors import InputError
from cotenant.kube.codec.inventory import AWAY, INVENTORY, ORPHANS
from cotenant.wire.text import counted

MOST_DEMANDS = 16
"""demands for which refusals are cached"""
OF_NODES = frozenset((AWAY, INVENTORY, ORPHANS))
"""annotations of nodes that close them"""

CLASSES: Mapping[str, str] = {
    "gang": "GPU gang must start as a whole",
    "quota": "GPU quota exceeded",
    "gain": "GPU sharing not worth it",
    "memory": "not enough GPU memory",
    "compute": "not enough GPU compute",
    "slots": "no free GPU share",
    "exclusive": "no unused GPU",
    "alone": "no idle GPU",
    "container": "not enough GPU for all containers",
    "measured-memory": "GPU memory shared too tightly",
    "least-speed": "GPU neighbours too slow",
    "sharing-score": "GPU neighbours too busy",
    "numa": "GPUs not on one NUMA node",
    "link": "GPUs not linked as requested",
    "anti-affinity": "GPU group must keep apart",
    "affinity": "GPU group is elsewhere",
    "health": "GPUs unhealthy or cordoned",
    "type": "no GPU of that type",
    "uuid": "none of the requested GPUs",
    "count": "too few GPUs",
    "away": "GPU agent away",
    "claims": "no ResourceClaims served",
    "closed": "GPU state unclear",
    "vendor": "GPUs of another vendor",
    "unknown": "no GPUs known",
}
"""by the check that refused; checks that are nearest to fitting come first"""
NEAREST = {check: place for place, check in enumerate(CLASSES)}


def invalid_request(error: InputError) -> Reason:
    """Why a pod with an invalid request cannot be placed."""
    return Reason("request", plain_text(str(error)))


def closed_reason(messages: Mapping[str, str]) -> Reason:
    """Why a closed node accepts no new pods; the messages are those of `ClusterState.closed`.

    Messages about pods are for the scheduler's log: the owner of another pod must not read their names.
    """
    of_node = [text for source, text in messages.items() if source in OF_NODES]
    pods = len(messages) - len(of_node)
    of_pods = [f"the assignment of {counted(pods, 'pod')} on it cannot be read"] if pods else []
    return Reason("away" if set(messages) == {AWAY} else "closed", plain_text("; ".join((*of_node, *of_pods))))


def class_of(reason: Reason) -> str:
    """The class of a reason."""
    return class_named(reason.check)


def class_named(check: str) -> str:
    """The class of a check; a check that is not in the table is its own class."""
    return CLASSES.get(check, f"GPU {check}")


def distance(name: str, reason: Reason) -> tuple[int, float, str]:
    """How far a node is from accepting a pod, as a sort key."""
    missing = 1 - reason.available / reason.needed if reason.needed else 0.0
    return NEAREST.get(reason.check, len(NEAREST)), missing, name


def nearest_first(reasons: Mapping[str, Reason]) -> dict[str, Reason]:
    """Sorted so that the nodes on which least is missing come first."""
    return dict(sorted(reasons.items(), key=lambda item: distance(*item)))


@dataclass(slots=True)
class _Cached:
    names: tuple[str, ...]
    seen: Versions
    reasons: list[Reason | None]


class Refusals:
    """Caches, per demand, why each node refuses it. Only changed nodes are checked again, and of equal nodes one."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, int, Demand], _Cached] = {}

    def of(self, policy: Policy, demand: Demand, cluster: Cluster) -> list[Reason | None]:
        """The reasons in the order of the cluster's nodes; None if the demand fits."""
        key = policy.name, policy.known.belief.version, demand
        cached = self._cache.pop(key, None)
        if cached is None or cached.names is not cluster.names:
            cached = _Cached(cluster.names, np.zeros(len(cluster), dtype=np.int64), [None] * len(cluster))
        self._cache[key] = cached  # most recent last
        if len(self._cache) > MOST_DEMANDS:
            del self._cache[next(iter(self._cache))]
        versions = cluster.versions
        stale = (cached.seen != versions).nonzero()[0].tolist()
        feasible, alike = feasibility(demand, policy.checks), dict[int, Reason | None]()
        for i in stale:
            version = int(versions[i])
            if version not in alike or feasible.by_name:
                alike[version] = refusal_of(feasible, cluster.at(i))
            cached.reasons[i] = alike[version]
        cached.seen = versions
        return _in_group(demand, cluster, cached.reasons)


def _in_group(demand: Demand, cluster: Cluster, reasons: list[Reason | None]) -> list[Reason | None]:
    """The same reasons, unless the pod must join its group: then all nodes except the group's refuse it."""
    group = {name for name, _ in cluster.groups.get(demand.affinity, ())} if demand.affinity is not None else None
    if not group:
        return reasons
    elsewhere = Reason("affinity", f"group {plain_text(demand.affinity or '')} is on another node")
    return [why if name in group else elsewhere for name, why in zip(cluster.names, reasons, strict=True)]
