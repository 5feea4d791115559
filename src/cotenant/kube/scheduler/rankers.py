# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The policy by which a pod is placed (the cluster's, or one that the pod names), and a ranker for each policy."""

from collections.abc import Mapping

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Demand
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.errors import InputError
from cotenant.kube.codec.keys import own_key
from cotenant.wire.text import printable

POLICY = own_key("policy")
NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
OTHER_NAMES = {"topology-aware": "topology"}
"""HAMi's names of our orders"""
BY_MIX = frozenset({"fgd", "fragmentation", "cotenant"})
"""orders that compare free capacity with the usual demand, which they learn from the pods they see"""
MOST_POLICIES = 8
MOST_DEMANDS = 64
"""demands that a ranker caches: each costs some tens of bytes per node"""
LONGEST = 200
"""characters of a policy's name"""


def policy_of(annotations: Mapping[str, str], usual: str) -> str:
    """The name of the policy by which a pod is placed: its own annotation, HAMi's annotations, or the usual one."""
    if POLICY in annotations:
        return annotations[POLICY].strip()
    nodes, gpus = (annotations.get(key, "").strip() for key in (NODE_POLICY, GPU_POLICY))
    if not nodes and not gpus:
        return usual
    usual_nodes, _, usual_gpus = usual.partition("/")
    parts = nodes or usual_nodes, gpus or usual_gpus or usual_nodes
    return "/".join(OTHER_NAMES.get(part, part) for part in parts)


class Rankers:
    """One ranker for each policy that was used recently."""

    def __init__(self, known: Knowledge | None = None) -> None:
        """`known` is fixed knowledge about the workload; if it is None, policies learn from the pods they see."""
        self._known = known
        self._rankers: dict[str, Ranker | Learner] = {}
        self._names: tuple[str, ...] = ()

    def of(self, spec: str, cluster: Cluster) -> Ranker:
        """The ranker of a policy. InputError with the list of names if the policy does not exist."""
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
        try:
            if len(spec) > LONGEST:
                raise ValueError(f"{spec[:40]}...: expected at most {LONGEST} characters")
            policy = build_policy(spec, self._known)
        except ValueError as error:
            raise InputError(f"policy: {printable(str(error))}") from None
        if self._known is not None or not BY_MIX & set(spec.replace("/", "+").split("+")):
            return Ranker(policy, MOST_DEMANDS)
        seen = (tenant.demand for node in cluster for tenant in node.tenants)
        return Learner(spec, inventory_of(node.machine for node in cluster), seen=seen)
