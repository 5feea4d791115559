# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The search for victims: which pods may be evicted at what cost, and on which nodes that would let a pod fit.

There may be thousands of nodes, so the search yields often. Times are arguments, in seconds of any steady clock.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand
from cotenant.core.placement.ranking import Policy
from cotenant.core.queueing.eviction import Harm, Stake, Way, harm_of, least_harm, level
from cotenant.kube.api.objects import Pod, has_ended, moment_of
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.claims import is_decided
from cotenant.kube.settings import PreemptionPart
from cotenant.kube.state.allocation import Allocation

MOST_CANDIDATES = 16
"""nodes on which the exact victims are computed"""
USUAL_GRACE_S = 30.0
MOST_GRACE_S = 600.0
"""longest grace period of a pod that preemption waits for"""
OVERTIME_S = 60.0
"""after its grace period, a pod no longer counts as leaving: its node may be lost"""


def priority_of(pod: Pod) -> int:
    """The priority that the API server derived from the pod's class."""
    return pod.spec.priority or 0


class Victims:
    """The pods that have GPUs: which of them may be evicted, and which are leaving anyway."""

    def __init__(self, settings: PreemptionPart) -> None:
        self.pods: dict[str, Pod] = {}
        """pods that have GPUs and have not ended, by UID"""
        self.leaving: dict[str, float] = {}
        """when the eviction of each was requested, by UID; also those whose pod is gone"""
        self._settings = settings
        self._priorities: Counter[int] = Counter()
        self._spared: dict[str, float] = {}

    def pod_changed(self, old: Pod | None, new: Pod | None, now: float) -> None:
        """Called after the state of the cluster has taken in the change."""
        uid = (new or old or Pod()).metadata.uid
        before = self.pods.pop(uid, None)
        if before is not None:
            self._priorities[priority_of(before)] -= 1
            self._priorities += Counter()  # drops zeros
        has_gpus = new is not None and RECORD in new.metadata.annotations and not has_ended(new)
        if new is None or not has_gpus or not (new.spec.node_name or is_decided(new)):
            self._spared.pop(uid, None)
            return
        self.pods[uid] = new
        self._priorities[priority_of(new)] += 1
        if new.metadata.deletion_timestamp is not None:
            self.mark_leaving(uid, now)

    def any_below(self, priority: int) -> bool:
        """Whether any pod has a lower priority than this."""
        return min(self._priorities, default=priority) < priority

    def mark_leaving(self, uid: str, now: float) -> None:
        """The eviction of the pod was requested."""
        self.leaving.setdefault(uid, now)

    def is_leaving(self, uid: str, now: float) -> bool:
        """Whether the pod can be expected to end soon."""
        if uid not in self.leaving:
            return False
        grace = self.pods[uid].metadata.deletion_grace_period_seconds if uid in self.pods else None
        return now < self.leaving[uid] + min(MOST_GRACE_S, USUAL_GRACE_S if grace is None else grace) + OVERTIME_S

    def spare(self, uid: str, until: float) -> None:
        """The pod cannot be evicted until then."""
        self._spared[uid] = until

    def stake_of(self, uid: str, below: int, now: float) -> Stake | None:
        """What is lost with a pod; None if it may not be evicted for a pod of that priority."""
        pod = self.pods.get(uid)
        if pod is None or priority_of(pod) >= below or uid in self.leaving or now < self._spared.get(uid, now):
            return None
        if self._settings.protects(pod.metadata.namespace, pod.metadata.labels):
            return None
        return Stake(priority_of(pod), moment_of(pod.status.start_time or pod.metadata.creation_timestamp))

    def forget(self, now: float) -> None:
        """Forget pods that left long ago, and those that did not leave after the request: they may be evicted again."""
        for uid in [uid for uid in self.leaving if not self.is_leaving(uid, now)]:
            if uid not in self.pods or self.pods[uid].metadata.deletion_timestamp is None:
                del self.leaving[uid]


@dataclass(frozen=True, slots=True)
class Evictable:
    """Which tenants, by their UIDs, do not stay."""

    is_leaving: Callable[[str], bool]
    """whether the tenant can be expected to leave by itself"""
    stake_of: Callable[[str], Stake | None]
    """what is lost with the tenant; None if it may not be evicted"""
    required: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """by node, the tenants that must leave in any case, for a resource that only kube-scheduler counts"""

    def sparing(self, tenants: frozenset[str]) -> "Evictable":
        """The same, but these tenants stay: what they leave is not for the pod."""
        if not tenants:
            return self
        return Evictable(
            lambda uid: uid not in tenants and self.is_leaving(uid),
            lambda uid: None if uid in tenants else self.stake_of(uid),
            self.required,
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A slot that a pod could have if its victims were evicted."""

    allocation: Allocation
    victims: tuple[str, ...]
    """UIDs"""
    harm: Harm

    @property
    def node(self) -> str:
        """The node of the slot."""
        return self.allocation.node


def best_candidate(candidates: Iterable[Candidate | None]) -> Candidate | None:
    """The candidate that does least harm; among equals, by name of the node."""
    return min((one for one in candidates if one is not None), key=lambda one: (one.harm, one.node), default=None)


# The search has two passes. The first one finds, for every node, the lowest priority up to which all evictable tenants
# would have to leave for the demand to fit. That is a lower bound of the harm: no set of victims on that node has a
# highest priority below it. The second pass computes the exact victims only on the MOST_CANDIDATES nodes with the
# lowest bound. Tenants that leave by themselves are taken off a node first and cost nothing; those that kube-scheduler
# requires are taken off next, and count as victims with their harm.
def candidate_nodes(
    policy: Policy, demand: Demand, cluster: Cluster, names: Iterable[str], evictable: Evictable
) -> Iterator[tuple[Node, Way] | None]:
    """The best way onto each of the nodes where it does least harm; among equals, the node that is named first."""
    bounds: list[tuple[float, int, Node, dict[str, Stake]]] = []
    for place, name in enumerate(names):
        required = None if _is_apart(demand, cluster, name) else _required_stakes(cluster.node(name), demand, evictable)
        if required is None:
            continue
        node = without_tenants(without_tenants(cluster.node(name), evictable.is_leaving), required.__contains__)
        bound = level(policy, demand, node, _stakes(node, demand, evictable))
        if bound is not None:
            bounds.append((max(bound, harm_of(required.values()).priority), place, node, required))
        yield None
    for _, _, node, required in sorted(bounds, key=lambda one: one[:2])[:MOST_CANDIDATES]:
        stakes = _stakes(node, demand, evictable)
        way = least_harm(policy, demand, node, stakes)
        yield None if way is None else (node, _with_required(way, required, stakes))


def without_tenants(node: Node, leaves: Callable[[str], bool]) -> Node:
    """The node without the tenants that leave."""
    for tenant in node.tenants:
        node = node.without_tenant(tenant.job, tenant.replica) if leaves(tenant.job) else node
    return node


def _required_stakes(node: Node, demand: Demand, evictable: Evictable) -> dict[str, Stake] | None:
    """The stakes of the tenants that must leave in any case; None if one of them may not be evicted."""
    required = {uid for uid in evictable.required.get(node.name, ()) if not evictable.is_leaving(uid)}
    stakes = _stakes(node, demand, evictable)
    return {uid: stakes[uid] for uid in sorted(required)} if required <= stakes.keys() else None


def _with_required(way: Way, required: Mapping[str, Stake], stakes: Mapping[str, Stake]) -> Way:
    victims = tuple(sorted({*way.victims, *required}))
    return replace(way, victims=victims, harm=harm_of(required.get(uid) or stakes[uid] for uid in victims))


def _is_apart(demand: Demand, cluster: Cluster, name: str) -> bool:
    """Whether the group of the demand is on another node."""
    members = () if demand.affinity is None else cluster.groups.get(demand.affinity, ())
    return bool(members) and name not in dict(members)


def _stakes(node: Node, demand: Demand, evictable: Evictable) -> dict[str, Stake]:
    """The stakes of the tenants that may be evicted; members of the demand's own group may not."""
    others = (one for one in node.tenants if demand.affinity is None or one.demand.affinity != demand.affinity)
    found = ((one.job, evictable.stake_of(one.job)) for one in others)
    return {uid: stake for uid, stake in found if stake is not None}
