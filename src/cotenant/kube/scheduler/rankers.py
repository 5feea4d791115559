# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which policy a pod is placed by: the cluster's, or one that the pod names; each with what is remembered of it."""

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Demand
from cotenant.core.placement.ranking import Ranker
from cotenant.kube.codec.policy import parse_policy

BY_MIX = frozenset({"fgd", "fragmentation", "cotenant"})
"""orders that weigh what is free against what is usually asked for, which they learn"""
MOST_POLICIES = 8
MOST_DEMANDS = 64
"""that a ranker remembers: each costs some tens of bytes for every node"""


class Rankers:
    """One ranker for each policy that was asked for lately."""

    def __init__(self, known: Knowledge | None = None) -> None:
        """With what is known once and for all; None: policies learn from the pods that they see."""
        self._known = known
        self._rankers: dict[str, Ranker | Learner] = {}
        self._names: tuple[str, ...] = ()

    def of(self, spec: str, cluster: Cluster) -> Ranker:
        """InputError with the list of names where there is no such policy."""
        found = self._rankers.pop(spec, None) or self._new(spec, cluster)
        self._rankers[spec] = found  # most recent last
        if len(self._rankers) > MOST_POLICIES:
            del self._rankers[next(iter(self._rankers))]
        if cluster.names is not self._names:
            self._names = cluster.names
            for one in self._rankers.values():
                if isinstance(one, Learner):
                    one.machines_changed(inventory_of(node.machine for node in cluster))
        return found.ranker if isinstance(found, Learner) else found

    def observe(self, demand: Demand) -> None:
        """One more pod was placed that asked for this."""
        for one in self._rankers.values():
            if isinstance(one, Learner):
                one.observe(demand)

    def _new(self, spec: str, cluster: Cluster) -> Ranker | Learner:
        policy = parse_policy(spec, self._known)
        if self._known is not None or not BY_MIX & set(spec.replace("/", "+").split("+")):
            return Ranker(policy, MOST_DEMANDS)
        seen = (tenant.demand for node in cluster for tenant in node.tenants)
        return Learner(spec, inventory_of(node.machine for node in cluster), seen=seen)
