# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Placement of pods: which nodes are feasible for a pod, in which order, and which GPUs it gets.

Times are arguments, in seconds of any steady clock. If kube-scheduler sends full Node objects (a what-if query), the
answer holds no slot.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from cotenant.core.cluster import Node as CoreNode
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Demand, Reason, Slot
from cotenant.core.placement.check import plain_text
from cotenant.core.placement.ranking import Fit, rate
from cotenant.core.queueing.backfill import Reservation
from cotenant.core.queueing.eviction import Way
from cotenant.core.sharing.gates import GAIN
from cotenant.core.sharing.speeds import Belief
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.request import PodRequest, request_of
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.scheduler.feasibility import Feasibility
from cotenant.kube.scheduler.preemption_search import Candidate, Evictable, candidate_nodes, without_tenants
from cotenant.kube.scheduler.protocol import (
    HIGHEST,
    ExtenderArgs,
    FilterResult,
    HostPriority,
    MetaVictims,
    NodeQuery,
    PreemptionArgs,
    PreemptionResult,
    victims_of,
)
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.rankers import Rankers
from cotenant.kube.scheduler.reasons import Reasons
from cotenant.kube.scheduler.refusing import invalid_request, nearest_first
from cotenant.kube.scheduler.view import View, Views
from cotenant.kube.state.allocation import Allocation, planned_allocation
from cotenant.kube.state.cluster import ClusterState
from cotenant.signals import Signal

SHORTLIST, HOLD_S = 1, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The node and the GPUs that were chosen for a pod, as its Binding must carry them."""

    request: PodRequest
    node: str
    allocation: Allocation | None
    """None if the pod needs no GPU: then nothing is held for it, and nothing is to be assumed"""
    annotations: Mapping[str, str]


class Placer:
    """Places pods by the cluster's policy, or by the one that a pod names."""

    def __init__(
        self,
        state: ClusterState,
        quotas: Quotas,
        *,
        policy: str = "binpack",
        shortlist: int = SHORTLIST,
        hold_s: float = HOLD_S,
        settings: Settings = DEFAULTS,
        known: Knowledge | None = None,
        belief: Belief | None = None,
        must_wait: Callable[[Pod], Reason | None] = lambda pod: None,
        reserved: Callable[[Pod, Demand], Reservation | None] = lambda pod, demand: None,
    ) -> None:
        """InputError if the policy does not exist.

        `must_wait` returns why a pod must wait although it may fit; `reserved` what it must leave for another pod.
        """
        self._state, self._settings, self._shortlist, self._hold_s = state, settings, shortlist, hold_s
        self.views = Views(state, settings, Rankers(known, belief), policy=policy, reserved=reserved)
        self.feasibility = Feasibility(state, quotas, must_wait)
        self.considered: Signal[[View, frozenset[str], Slot, float | None]] = Signal()
        """a slot was chosen for a pod among these nodes, with this crowding (None: the sharing gate was not applied)"""
        self.refused: Signal[[View, frozenset[str], float, Collection[str], str]] = Signal()
        """a pod was refused on these nodes, with this crowding: classes of reasons, and what its gang or quota said"""
        self.reasons = Reasons(state, settings, self.views, self.feasibility)

    def filter(self, args: ExtenderArgs, now: float, query: NodeQuery | None = None) -> FilterResult:
        """The best nodes for a pod, or a reason class for every node. Holds the slot if only one node is left."""
        query = NodeQuery.of(args) if query is None else query
        try:
            view = self.views.of(args.pod, query)
        except InputError as error:
            return query.refuse(dict.fromkeys(query.names, str(error)))
        if view is None:
            return query.answer(query.names)
        names, waits = self.feasibility.best(view, query.every, self._shortlist)
        if not names:
            uid = args.pod.metadata.uid
            if query.whole is None and self._state.node_of(uid) is None and not self._state.is_reserved(uid):
                self._state.release(uid)
            classes = self.reasons.classes(view, query, waits)
            if query.whole is None:
                outside = waits if waits is not None and waits.check != GAIN else ""
                self.refused.send(view, query.every, self.feasibility.crowding, classes.values(), str(outside))
            return query.refuse(classes)
        if len(names) == 1 and query.whole is None:
            self._hold(view, names[0], now, query.every)
        return query.answer(names)

    def prioritize(self, args: ExtenderArgs, now: float) -> list[HostPriority]:
        """10 for the best node, whose slot is held; 0 for all nodes if the request is invalid."""
        query = NodeQuery.of(args)
        names: list[str] = []
        try:
            view = self.views.of(args.pod, query)
            if view is not None:
                names, _ = self.feasibility.best(view, query.every, len(query.names))
                if names and query.whole is None:
                    self._hold(view, names[0], now, query.every)
        except InputError:  # `filter` has reported it
            pass
        ranks = {name: rank for rank, name in enumerate(names)}
        return [HostPriority(host=name, score=max(0, HIGHEST - ranks.get(name, HIGHEST))) for name in query.names]

    def choose(self, pod: Pod, node: str, now: float, moment: int) -> Choice | Reason:
        """Choose the GPUs of a node for a pod. `moment` is in nanoseconds since 1970.

        The choice is held until `state.assume` or `state.release`: the caller must call one of them.
        """
        try:
            view = self.views.of(pod)
            if view is None:
                return Choice(request=request_of(pod, self._settings), node=node, allocation=None, annotations={})
            allocation = self._allocation_on(view, node)
            for other in range(len(view.request.others) if isinstance(allocation, Reason) else 0):
                view_of_other = self.views.of(pod, other=other)
                assert view_of_other is not None
                found = self._allocation_on(view_of_other, node)
                if not isinstance(found, Reason):
                    view, allocation = view_of_other, found
                    break
            if isinstance(allocation, Reason):
                return allocation
            machine = view.cluster.node(node).machine
            annotations = binding_annotations(
                pod,
                view.request,
                allocation.record,
                machine,
                moment=moment,
                region=REGION,
                settings=self._settings,
            )
        except InputError as error:
            return invalid_request(error)
        self._state.begin_binding(allocation)
        self.views.observe(view.request.demand)
        return Choice(request=view.request, node=node, allocation=allocation, annotations=annotations)

    def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """The nodes on which evicting these victims would let the pod fit."""
        victims = victims_of(args)
        try:
            view = self.views.of(args.pod)
        except InputError:
            return PreemptionResult(node_name_to_meta_victims={})
        helped = {name: one for name, one in victims.items() if view is None or _would_fit_without(view, name, one)}
        return PreemptionResult(node_name_to_meta_victims=helped)

    def would_fit(self, pod: Pod, names: frozenset[str] | None = None) -> bool:
        """Whether `filter` would find a node for the pod now among these (default: all)."""
        try:
            view = self.views.of(pod)
        except InputError:
            return False
        return view is None or bool(self.feasibility.best(view, view.nodes if names is None else names, 1)[0])

    def preemption_candidates(
        self, pod: Pod, names: frozenset[str], evictable: Evictable, most: int | None = None
    ) -> Iterator[Candidate | None]:
        """Slots that a pod could have if victims were evicted, on the nodes where that does least harm, unordered.

        There are none if the pod fits already or waits for something else. The iterator yields often, mostly None, so
        that the caller can pause in between: a step takes about 1 ms, and some tens of ms if one node has many
        possible victims. All steps see the state of the cluster as it was at the first. `most` limits the search to
        the nodes on which least is missing.
        """
        try:
            view = self.views.of(pod)
        except InputError:
            return
        if view is None or any(self.feasibility.fits(view, names.difference(evictable.required), 1)):
            return
        here = (names | evictable.required.keys()) & view.nodes
        nearest = dict.fromkeys([*nearest_first(dict(self.reasons.of_nodes(view, here, None))), *sorted(here)])
        nodes = islice(nearest, most)
        evictable = evictable.sparing(view.protected_tenants())
        for found in candidate_nodes(view.ranker.policy, view.request.demand, view.cluster, nodes, evictable):
            yield None if found is None else self._candidate(view, *found)

    def _candidate(self, view: View, node: CoreNode, way: Way) -> Candidate | None:
        """None if the pod would be refused there for another reason."""
        fit = Fit(way.score, Slot(node.name, way.gpus))
        if self.feasibility.gated(view, fit) is not None or self.feasibility.over_quota(view, fit) is not None:
            return None
        return Candidate(planned_allocation(view.pod, view.request, fit.slot, node.machine), way.victims, way.harm)

    def _hold(self, view: View, node: str, now: float, offered: frozenset[str]) -> None:
        """Hold the best slot of a node, unless the pod is being bound: kube-scheduler may have given that bind up."""
        uid = view.pod.metadata.uid
        if self._state.node_of(uid) is None:
            (fit,) = view.ranker.top(view.request.demand, view.cluster, [node])
            # A slot that is held has passed the sharing gate before; and a quota may have excluded better nodes.
            crowding = None if self._state.held(uid) else self.feasibility.crowding
            limited = self.feasibility.limited(view.pod)
            self.considered.send(view, frozenset((node,)) if limited else offered, fit.slot, crowding)
            self._state.hold_slot(view.pod, view.request, fit.slot, now + self._hold_s)

    def _allocation_on(self, view: View, node: str) -> Allocation | Reason:
        """The best slot that the node has now, whatever was held before."""
        already = self._state.node_of(view.pod.metadata.uid)
        if already is not None:
            return Reason("bound", f"is bound to node {plain_text(already)}")
        if (waits := self.feasibility.must_wait(view.pod)) is not None:
            return waits
        if node not in view.nodes:
            return self.reasons.not_open(node)
        fits = view.ranker.top(view.request.demand, view.cluster, [node])
        if not fits:
            (why,) = view.ranker.reasons(view.request.demand, view.cluster, [node]).values()
            return why
        return self.feasibility.over_quota(view, fits[0]) or planned_allocation(
            view.pod, view.request, fits[0].slot, view.cluster.node(node).machine
        )


def _would_fit_without(view: View, name: str, victims: MetaVictims) -> bool:
    leaving = {pod.uid for pod in victims.pods or ()}
    if name not in view.nodes or leaving & view.protected_tenants():
        return False
    node = without_tenants(view.cluster.node(name), leaving.__contains__)
    return rate(view.ranker.policy, view.request.demand, node) is not None
