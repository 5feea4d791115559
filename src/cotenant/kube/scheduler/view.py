# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as it is for one pod: without the pod itself, and without what is reserved for another one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cotenant.core.cluster import Cluster
from cotenant.core.cluster import Node as CoreNode
from cotenant.core.model import Demand
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.backfill import Reservation
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.inventory import machine_of
from cotenant.kube.codec.policy import policy_of
from cotenant.kube.codec.request import PodRequest, request_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.node_names import Overlaps
from cotenant.kube.scheduler.protocol import NodeQuery
from cotenant.kube.scheduler.rankers import Rankers
from cotenant.kube.scheduler.refusing import Refusals
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor


@dataclass(frozen=True, slots=True)
class View:
    """The request of a pod, and the cluster as it is for this pod."""

    pod: Pod
    request: PodRequest
    cluster: Cluster
    """without the pod itself"""
    nodes: frozenset[str]
    """nodes that accept new pods and have GPUs of its vendor"""
    ranker: Ranker
    refusals: Refusals
    reservation: Reservation | None = None
    """what is reserved for another pod; `cluster` is without it"""
    overlaps: Overlaps = field(default_factory=Overlaps)

    def open_nodes(self, names: frozenset[str]) -> frozenset[str] | None:
        """Those of these nodes that are open to the pod; None if that is the whole cluster."""
        here = self.overlaps.of(self.nodes, names)
        return None if len(here) == len(self.cluster) else here

    def protected_tenants(self) -> frozenset[str]:
        """The tenants that must not be evicted for the pod: what they leave is reserved for another one."""
        if self.reservation is None:
            return frozenset()
        gpus, cluster = self.reservation.gpus, self.cluster
        nodes = (cluster.node(name) for name in {name for name, _ in gpus} if name in cluster.index)
        return frozenset(
            one.job for node in nodes for one in node.tenants if any((node.name, gpu) in gpus for gpu in one.gpus)
        )


class Views:
    """Makes the view of each pod. It knows the policy of each pod, and a ranker for each policy."""

    def __init__(
        self,
        state: ClusterState,
        settings: Settings,
        rankers: Rankers,
        *,
        policy: str,
        reserved: Callable[[Pod, Demand], Reservation | None],
    ) -> None:
        """`policy` is that of pods that name none; InputError if it does not exist."""
        self._state, self._settings, self._rankers = state, settings, rankers
        self._policy, self._reserved, self._refusals, self._overlaps = policy, reserved, Refusals(), Overlaps()
        self._beside: tuple[Cluster, Reservation, Cluster] | None = None
        rankers.of(policy, state.cluster)

    def of(self, pod: Pod, query: NodeQuery | None = None, other: int | None = None) -> View | None:
        """None if the pod requests no GPU; InputError if its request is invalid. `other` is the number of another
        request of the same pod."""
        request = request_of(pod, self._settings)
        if other is not None:
            request = request.others[other]
        if request.vendor is None:
            return None
        state, vendor = self._state, request.vendor
        ranker = self._rankers.of(policy_of(pod.metadata.annotations, self._policy, request), state.cluster)
        reservation = self._reserved(pod, request.demand)
        # The slot that is held for the pod stays its own, though GPUs may have been reserved for another one since.
        beside = None if reservation is None else self.beside(reservation, state.cluster)
        cluster = state.without(pod.metadata.uid, beside)
        open_nodes = state.open_nodes(vendor)
        if request.node is not None:
            open_nodes &= {request.node}
        if query is None or query.whole is None:
            return View(pod, request, cluster, open_nodes, ranker, self._refusals, reservation, self._overlaps)
        nodes = {name: cluster.node(name) for name in query.names if name in open_nodes}
        unknown = (node for node, _ in query.whole.values() if node.metadata.name not in state.nodes)
        nodes |= {node.name: node for node in _empty_nodes(unknown, vendor)}
        # What-if queries are rare, and must not evict anything from the caches of the real cluster.
        return View(pod, request, Cluster.of(nodes.values()), frozenset(nodes), Ranker(ranker.policy, 1), Refusals())

    def beside(self, reservation: Reservation, cluster: Cluster) -> Cluster:
        """The cluster as pods see it that may not use what is reserved; computed once for each state of both."""
        if self._beside is None or self._beside[0] is not cluster or self._beside[1] is not reservation:
            self._beside = cluster, reservation, reservation.without_reserved(cluster)
        return self._beside[2]

    def must_leave_reserved(self, pod: Pod) -> bool:
        """Whether GPUs are reserved for another pod that this one may not use."""
        try:
            request = request_of(pod, self._settings)
        except InputError:
            return False
        return request.vendor is not None and self._reserved(pod, request.demand) is not None

    def policy_of(self, pod: Pod) -> str:
        """The name of the pod's policy; InputError if its request is invalid."""
        return policy_of(pod.metadata.annotations, self._policy, request_of(pod, self._settings))

    def named_policy_of(self, pod: Pod) -> str:
        """The name of the pod's policy, as far as it is known if the request is invalid."""
        return policy_of(pod.metadata.annotations, self._policy)

    def ranker(self, pod: Pod, request: PodRequest | None = None) -> Ranker:
        """The ranker of the pod's policy; InputError if the policy does not exist. The request is read if it is not
        given."""
        request = request_of(pod, self._settings) if request is None else request
        return self._rankers.of(policy_of(pod.metadata.annotations, self._policy, request), self._state.cluster)

    def warm_up(self) -> None:
        """Rates the whole cluster once, so that the first pod need not wait for it."""
        ranker, cluster = self._rankers.of(self._policy, self._state.cluster), self._state.cluster
        ranker.top(Demand(), cluster, None, 1)
        ranker.shortlist(Demand(), cluster, None, 1)

    def observe(self, demand: Demand) -> None:
        """A pod with this demand was placed."""
        self._rankers.observe(demand)


def _empty_nodes(nodes: Iterable[Node], vendor: Vendor) -> Iterable[CoreNode]:
    """Nodes of a what-if query that do not exist, with the GPUs that they would have."""
    for node in nodes:
        found = machine_of(node)
        if found is not None and found[1] is vendor:
            yield CoreNode.of(found[0])
