# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Why nodes will not do: in numbers for people, and as a few classes for kube-scheduler.

It writes every distinct sentence with the number of its nodes into the pod's condition, which must stay short however
many nodes there are: so no class has a number in it, nor a name that somebody chose.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cotenant.core.cluster import Cluster, Versions
from cotenant.core.model import Demand, Reason
from cotenant.core.placement.checks import feasibility, plain_text
from cotenant.core.placement.ranking import Policy
from cotenant.core.placement.slots import refusal_of
from cotenant.errors import InputError
from cotenant.kube.codec.inventory import AWAY

MOST_DEMANDS = 16
"""for which it is remembered"""

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
    "link": "GPUs not linked as asked",
    "anti-affinity": "GPU group must keep apart",
    "affinity": "GPU group is elsewhere",
    "health": "GPUs unhealthy or cordoned",
    "type": "no GPU of that type",
    "uuid": "no GPU of those named",
    "count": "too few GPUs",
    "away": "GPU agent away",
    "closed": "GPU books unclear",
    "vendor": "GPUs of another vendor",
    "unknown": "no GPUs known",
}
"""by the check that refused, those first that are nearest to fitting"""
NEAREST = {check: place for place, check in enumerate(CLASSES)}


def nonsense(error: InputError) -> Reason:
    """Why a pod that asks for nonsense can have nothing."""
    return Reason("request", plain_text(str(error)))


def unclear(troubles: Mapping[str, str]) -> Reason:
    """Why a node takes nobody new, from what is said of it."""
    return Reason("away" if set(troubles) == {AWAY} else "closed", plain_text("; ".join(troubles.values())))


def class_of(reason: Reason) -> str:
    """The class that stands for a reason."""
    return class_named(reason.check)


def class_named(check: str) -> str:
    """The class that stands for a check; one of which nothing is known here is its own."""
    return CLASSES.get(check, f"GPU {check}")


def distance(name: str, reason: Reason) -> tuple[int, float, str]:
    """How far a node is from taking a pod, for comparing."""
    missing = 1 - reason.available / reason.needed if reason.needed else 0.0
    return NEAREST.get(reason.check, len(NEAREST)), missing, name


def nearest_first(reasons: Mapping[str, Reason]) -> dict[str, Reason]:
    """The nodes on which least is missing first."""
    return dict(sorted(reasons.items(), key=lambda item: distance(*item)))


@dataclass(slots=True)
class _Known:
    names: tuple[str, ...]
    seen: Versions
    reasons: list[Reason | None]


class Refusals:
    """Remembers, per demand, why each node will not do; only nodes that changed are asked again, of equal ones one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, Demand], _Known] = {}

    def of(self, policy: Policy, demand: Demand, cluster: Cluster) -> list[Reason | None]:
        """In the order of the cluster's nodes; None where it fits."""
        key = policy.name, policy.known.belief.version, demand
        known = self._known.pop(key, None)
        if known is None or known.names is not cluster.names:
            known = _Known(cluster.names, np.zeros(len(cluster), dtype=np.int64), [None] * len(cluster))
        self._known[key] = known  # most recent last
        if len(self._known) > MOST_DEMANDS:
            del self._known[next(iter(self._known))]
        stale = (known.seen != cluster.versions).nonzero()[0].tolist()
        feasible, alike = feasibility(demand, policy.checks), dict[int, Reason | None]()
        for i in stale:
            version = int(cluster.versions[i])
            if version not in alike or feasible.by_name:
                alike[version] = refusal_of(feasible, cluster.at(i))
            known.reasons[i] = alike[version]
        known.seen = cluster.versions
        return _at_home(demand, cluster, known.reasons)


def _at_home(demand: Demand, cluster: Cluster, reasons: list[Reason | None]) -> list[Reason | None]:
    """The same, where a pod must join its group on its node."""
    home = {name for name, _ in cluster.groups.get(demand.affinity, ())} if demand.affinity is not None else None
    if not home:
        return reasons
    elsewhere = Reason("affinity", f"group {plain_text(demand.affinity or '')} is on another node")
    return [why if name in home else elsewhere for name, why in zip(cluster.names, reasons, strict=True)]
