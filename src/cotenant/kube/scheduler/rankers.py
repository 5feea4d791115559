# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The policy by which a pod is placed (the cluster's, or one that the pod names), and a ranker for each policy."""

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Demand
from cotenant.core.placement.ranking import Ranker
from cotenant.core.sharing.speeds import Belief, Predicted
from cotenant.kube.codec.policy import parse_policy

BY_MIX = frozenset({"fgd", "fragmentation", "cotenant"})
"""orders that compare free capacity with the usual demand, which they learn from the pods they see"""
MOST_POLICIES = 8
MOST_DEMANDS = 64
"""demands that a ranker caches: each costs some tens of bytes per node"""


class Rankers:
    """One ranker for each policy that was used recently."""

    def __init__(self, known: Knowledge | None = None, belief: Belief | None = None) -> None:
        """`known` is fixed knowledge about the workload; if it is None, policies learn from the pods they see.

        `belief` predicts the speeds of pods that share a GPU, unless `known` has one.
        """
        self._known, self._belief = known, Predicted() if belief is None else belief
        self._rankers: dict[str, Ranker | Learner] = {}
        self._names: tuple[str, ...] = ()
        self._has_instances = False

    def of(self, spec: str, cluster: Cluster) -> Ranker:
        """The ranker of a policy. InputError with the list of names if the policy does not exist."""
        if cluster.has_instances != self._has_instances:  # policies for MIG instances compare their sizes first
            self._has_instances = cluster.has_instances
            self._rankers.clear()
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
        """A pod with this demand was placed."""
        for one in self._rankers.values():
            if isinstance(one, Learner):
                one.observe(demand)

    def _new(self, spec: str, cluster: Cluster) -> Ranker | Learner:
        inventory = inventory_of(node.machine for node in cluster) if cluster.has_instances else {}
        policy = parse_policy(spec, self._known or Knowledge(inventory=inventory, belief=self._belief))
        if self._known is not None or not BY_MIX & set(spec.replace("/", "+").split("+")):
            return Ranker(policy, MOST_DEMANDS)
        seen = (tenant.demand for node in cluster for tenant in node.tenants)
        return Learner(spec, inventory_of(node.machine for node in cluster), seen=seen, belief=self._belief)
