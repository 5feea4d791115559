# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Placement of pods: which nodes are feasible for a pod, in which order, and which GPUs it gets.

Times are arguments, in seconds of any steady clock. If kube-scheduler sends full Node objects (a what-if query), the
answer holds no slot.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from cotenant.core.cluster import Cluster
from cotenant.core.cluster import Node as CoreNode
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Demand, Reason, Slot
from cotenant.core.placement.check import plain_text
from cotenant.core.placement.ranking import Fit, Ranker, rate
from cotenant.core.queueing.backfill import Reservation
from cotenant.core.queueing.eviction import Way
from cotenant.core.sharing.speeds import Belief
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.amounts import other_unit
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.inventory import machine_of
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.policy import policy_of
from cotenant.kube.codec.request import PodRequest, request_of, unenforced
from cotenant.kube.codec.settings import DEFAULTS, Settings
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
from cotenant.kube.scheduler.refusing import (
    Refusals,
    class_named,
    class_of,
    closed_reason,
    distance,
    invalid_request,
    nearest_first,
)
from cotenant.kube.state.allocation import Allocation, planned_allocation
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor

SHORTLIST, HOLD_S = 1, 30.0
LEAST_MIB = 100
"""The smallest number that can be meant in MiB; `kubectl inspect gpushare` guesses the unit by the same number."""

_VENDOR = Reason("vendor", "has GPUs of another vendor")
_UNKNOWN = Reason("unknown", "no agent reports GPUs on it")
_EXCLUDED = Reason(
    "excluded", "kube-scheduler excludes it by a node selector, affinity, a taint or a resource that it counts"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The node and the GPUs that were chosen for a pod, as its Binding must carry them."""

    request: PodRequest
    node: str
    allocation: Allocation | None
    """None if the pod needs no GPU: then nothing is held for it, and nothing is to be assumed"""
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Where a pod is or could be, and why it is not elsewhere."""

    policy: str
    allocation: Allocation | None
    """what it uses, or what is held for it"""
    fits: tuple[Fit, ...]
    """feasible slots, best first"""
    reasons: Mapping[str, Reason]
    """why every other node refuses it, with numbers; the nodes that are nearest to fitting come first"""
    waits: Reason | None
    """why it waits although a slot is feasible (quota, gang, sharing gate), or why its request is invalid"""
    offered: bool = False
    """whether kube-scheduler has asked about the pod, so that nodes that it excludes are not in `fits`"""
    reserved: bool = False
    """whether GPUs are reserved for another pod that this one may not use"""


class Refused(NamedTuple):
    """Nodes that refuse a pod for the same reason."""

    nodes: int
    nearest: str
    """the node on which least is missing"""
    reason: Reason
    """the reason of that node, with its numbers"""


@dataclass(frozen=True, slots=True)
class _View:
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
        self._state, self._quotas, self._settings = state, quotas, settings
        self._must_wait, self._reserved = must_wait, reserved
        self._beside: tuple[Cluster, Reservation, Cluster] | None = None
        self._policy, self._shortlist, self._hold_s = policy, shortlist, hold_s
        self._rankers, self._refusals = Rankers(known, belief), Refusals()
        self._rankers.of(policy, state.cluster)

    def warm_up(self) -> None:
        """Rate the whole cluster once, so that the first pod need not wait for it."""
        self._rankers.of(self._policy, self._state.cluster).top(Demand(), self._state.cluster, None, 1)

    def filter(self, args: ExtenderArgs, now: float) -> FilterResult:
        """The best nodes for a pod, or a reason class for every node. Holds the slot if only one node is left."""
        query = NodeQuery.of(args)
        try:
            view = self._view(args.pod, query)
        except InputError as error:
            return query.refuse(dict.fromkeys(query.names, str(error)))
        if view is None:
            return query.answer(query.names)
        names, waits = self._best(view, query.every, self._shortlist)
        if not names:
            uid = args.pod.metadata.uid
            if query.whole is None and self._state.node_of(uid) is None and not self._state.is_reserved(uid):
                self._state.release(uid)
            return query.refuse(self._classes(view, query, waits))
        if len(names) == 1 and query.whole is None:
            self._hold(view, names[0], now)
        return query.answer(names)

    def prioritize(self, args: ExtenderArgs, now: float) -> list[HostPriority]:
        """10 for the best node, whose slot is held; 0 for all nodes if the request is invalid."""
        query = NodeQuery.of(args)
        names: list[str] = []
        try:
            view = self._view(args.pod, query)
            if view is not None:
                names, _ = self._best(view, query.every, len(query.names))
                if names and query.whole is None:
                    self._hold(view, names[0], now)
        except InputError:  # `filter` has reported it
            pass
        ranks = {name: rank for rank, name in enumerate(names)}
        return [HostPriority(host=name, score=max(0, HIGHEST - ranks.get(name, HIGHEST))) for name in query.names]

    def choose(self, pod: Pod, node: str, now: float, moment: int) -> Choice | Reason:
        """Choose the GPUs of a node for a pod. `moment` is in nanoseconds since 1970.

        The choice is held until `state.assume` or `state.release`: the caller must call one of them.
        """
        try:
            view = self._view(pod)
            if view is None:
                return Choice(request=request_of(pod, self._settings), node=node, allocation=None, annotations={})
            allocation = self._allocation_on(view, node)
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
        self._rankers.observe(view.request.demand)
        return Choice(request=view.request, node=node, allocation=allocation, annotations=annotations)

    def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """The nodes on which evicting these victims would let the pod fit."""
        victims = victims_of(args)
        try:
            view = self._view(args.pod)
        except InputError:
            return PreemptionResult(node_name_to_meta_victims={})
        helped = {name: one for name, one in victims.items() if view is None or _would_fit_without(view, name, one)}
        return PreemptionResult(node_name_to_meta_victims=helped)

    def unenforced(self, pod: Pod) -> tuple[str, ...]:
        """A sentence for each vendor whose GPUs cannot enforce the limits of this pod."""
        try:
            return unenforced(request_of(pod, self._settings))
        except InputError:
            return ()

    def memory_note(self, pod: Pod) -> str:
        """Where the memory of a pod comes from, if it leaves that to its profile."""
        try:
            return request_of(pod, self._settings).note
        except InputError:  # it is why the pod waits
            return ""

    def unit_note(self, pod: Pod) -> str | None:
        """How to state memory in MiB, if the pod fits no GPU in GiB but would in MiB; else None."""
        try:
            request = request_of(pod, self._settings)
        except InputError:
            return None
        large = [one.amounts for one in request.containers if one.amounts.dialect.memory_mib and one.amounts.unit > 1]
        if not large or request.vendor is None:
            return None
        nodes = map(self._state.cluster.node, self._state.open_nodes(request.vendor))
        largest = max((size for node in nodes for size in node.machine.memory_capacities), default=0)
        for one in large:
            meant = one.container.memory // one.unit
            if LEAST_MIB <= meant <= largest < one.container.memory:
                return f"it requests {meant} GiB on a GPU; if it means {meant} MiB, {other_unit(one.dialect)}"
        return None

    def why(self, pod: Pod, offered: frozenset[str] | None = None) -> Why:
        """Where the pod is or could be, and the reason of every other node.

        `offered` are the nodes that kube-scheduler offered for the pod; None if it has not asked about it.
        """
        uid, state = pod.metadata.uid, self._state
        allocation = state.bound(uid) or state.held(uid)
        try:
            view = self._view(pod)
            policy = self._policy_of(pod)
        except InputError as error:
            policy = policy_of(pod.metadata.annotations, self._policy)
            return Why(policy=policy, allocation=allocation, fits=(), reasons={}, waits=invalid_request(error))
        if view is None:
            return Why(policy=policy, allocation=allocation, fits=(), reasons={}, waits=None)
        names = frozenset((*state.vendors, *state.closed))
        here = names if offered is None else names & offered
        fits, waits = self._fits(view, here, None)
        fitting = {fit.slot.node for fit in fits}
        reasons = {name: why for name, why in self._reasons(view, here, waits) if name not in fitting}
        reasons = nearest_first(reasons) | dict.fromkeys(sorted(names - here), _EXCLUDED)
        return Why(
            policy=policy,
            allocation=allocation,
            fits=tuple(fits),
            reasons=reasons,
            waits=waits,
            offered=offered is not None,
            reserved=view.reservation is not None,
        )

    def ranker(self, pod: Pod) -> Ranker:
        """The ranker of the pod's policy; InputError if the policy does not exist."""
        return self._rankers.of(self._policy_of(pod), self._state.cluster)

    def _policy_of(self, pod: Pod) -> str:
        return policy_of(pod.metadata.annotations, self._policy, request_of(pod, self._settings))

    @property
    def crowding(self) -> float:
        """Waiting pods per GPU."""
        return len(self._state.waiting) / max(1, self._state.gpus)

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

    def nearest(self, pod: Pod, offered: frozenset[str] | None = None) -> list[Refused] | None:
        """Why a pod fits on none of the offered nodes, by reason, nearest to fitting first; None if only `why` can
        tell."""
        state = self._state
        try:
            view = self._view(pod)
        except InputError:
            return None
        if view is None or state.bound(pod.metadata.uid) or state.held(pod.metadata.uid) or self._must_wait(pod):
            return None
        here = view.nodes if offered is None else view.nodes & offered
        found = view.ranker.nearest(view.request.demand, view.cluster, here)
        if found is None:
            return None
        others: dict[Reason, list[str]] = {}
        for name in {*state.vendors, *state.closed} - here:
            is_offered = offered is None or name in offered
            others.setdefault(self._not_open(name) if is_offered else _EXCLUDED, []).append(name)
        refused = [*(Refused(*one) for one in found), *(Refused(len(on), min(on), why) for why, on in others.items())]
        return sorted(refused, key=lambda one: distance(one.nearest, one.reason))

    def would_fit(self, pod: Pod, names: frozenset[str] | None = None) -> bool:
        """Whether `filter` would find a node for the pod now among these (default: all)."""
        try:
            view = self._view(pod)
        except InputError:
            return False
        return view is None or bool(self._best(view, view.nodes if names is None else names, 1)[0])

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
            view = self._view(pod)
        except InputError:
            return
        if view is None or any(self._fits(view, names.difference(evictable.required), 1)):
            return
        here = (names | evictable.required.keys()) & view.nodes
        nearest = dict.fromkeys([*nearest_first(dict(self._reasons(view, here, None))), *sorted(here)])
        nodes = islice(nearest, most)
        evictable = evictable.sparing(_protected(view))
        for found in candidate_nodes(view.ranker.policy, view.request.demand, view.cluster, nodes, evictable):
            yield None if found is None else self._candidate(view, *found)

    def _candidate(self, view: _View, node: CoreNode, way: Way) -> Candidate | None:
        """None if the pod would be refused there for another reason."""
        fit = Fit(way.score, Slot(node.name, way.gpus))
        if self._gated(view, fit) is not None or self._over_quota(view, fit) is not None:
            return None
        return Candidate(planned_allocation(view.pod, view.request, fit.slot, node.machine), way.victims, way.harm)

    def _view(self, pod: Pod, query: NodeQuery | None = None) -> _View | None:
        """None if the pod requests no GPU; InputError if its request is invalid."""
        request = request_of(pod, self._settings)
        if request.vendor is None:
            return None
        state, vendor = self._state, request.vendor
        ranker = self._rankers.of(policy_of(pod.metadata.annotations, self._policy, request), state.cluster)
        reservation = self._reserved(pod, request.demand)
        # The slot that is held for the pod stays its own, though GPUs may have been reserved for another one since.
        beside = None if reservation is None else self.beside(reservation, state.cluster)
        cluster = state.without(pod.metadata.uid, beside)
        open_nodes = state.open_nodes(vendor)
        if query is None or query.whole is None:
            return _View(pod, request, cluster, open_nodes, ranker, self._refusals, reservation)
        nodes = {name: cluster.node(name) for name in query.names if name in open_nodes}
        unknown = (node for node, _ in query.whole.values() if node.metadata.name not in state.nodes)
        nodes |= {node.name: node for node in _empty_nodes(unknown, vendor)}
        # What-if queries are rare, and must not evict anything from the caches of the real cluster.
        return _View(pod, request, Cluster.of(nodes.values()), frozenset(nodes), Ranker(ranker.policy, 1), Refusals())

    def _best(self, view: _View, names: frozenset[str], most: int) -> tuple[list[str], Reason | None]:
        """The names of the nodes that `_fits` finds, without computing their slots if possible."""
        demand, ranker, pod = view.request.demand, view.ranker, view.pod
        checked = self._quotas.limits(pod.metadata.namespace) or ranker.policy.gate or self._must_wait(pod)
        if checked or not ranker.at_once(demand):
            fits, waits = self._fits(view, names, most)
            return [fit.slot.node for fit in fits], waits
        return ranker.shortlist(demand, view.cluster, _wanted(view, names), most), None

    def _fits(self, view: _View, names: frozenset[str], most: int | None) -> tuple[list[Fit], Reason | None]:
        """The best of these nodes, best first; or none, and why the pod must wait although some are feasible."""
        namespace, demand = view.pod.metadata.namespace, view.request.demand
        limited = self._quotas.limits(namespace)
        if (waits := self._must_wait(view.pod)) is not None:
            return [], waits
        wanted = _wanted(view, names)
        fits = view.ranker.top(demand, view.cluster, wanted, None if limited and _by_percent(demand) else most)
        if not fits:
            return [], None
        gated = self._gated(view, fits[0])
        if gated is not None:
            return [], gated
        return self._within_quota(view, fits, most) if limited else (fits, None)

    def _gated(self, view: _View, fit: Fit) -> Reason | None:
        """Why the sharing gate rejects the best slot."""
        # A slot that is held has passed the gate before, or its pod is overdue and exempt from it.
        gate = None if self._state.held(view.pod.metadata.uid) else view.ranker.policy.gate
        return None if gate is None else gate(fit.score, self.crowding).reason

    def _within_quota(self, view: _View, fits: list[Fit], most: int | None) -> tuple[list[Fit], Reason | None]:
        cache: dict[tuple[int, ...], Reason | None] = {}

        def refusal(fit: Fit) -> Reason | None:
            capacities = view.cluster.node(fit.slot.node).machine.memory_capacities
            sizes = tuple(capacities[gpu] for gpu in fit.slot.gpus)  # what the pod would use depends on nothing else
            if sizes not in cache:
                cache[sizes] = self._over_quota(view, fit)
            return cache[sizes]

        found = list(islice((fit for fit in fits if refusal(fit) is None), most))
        return found, None if found else refusal(fits[0])

    def _hold(self, view: _View, node: str, now: float) -> None:
        """Hold the best slot of a node, unless the pod is being bound: kube-scheduler may have given that bind up."""
        if self._state.node_of(view.pod.metadata.uid) is None:
            (fit,) = view.ranker.top(view.request.demand, view.cluster, [node])
            self._state.hold_slot(view.pod, view.request, fit.slot, now + self._hold_s)

    def _over_quota(self, view: _View, fit: Fit) -> Reason | None:
        machine = view.cluster.node(fit.slot.node).machine
        return self._quotas.refusal(self._state, (planned_allocation(view.pod, view.request, fit.slot, machine),))

    def _allocation_on(self, view: _View, node: str) -> Allocation | Reason:
        """The best slot that the node has now, whatever was held before."""
        already = self._state.node_of(view.pod.metadata.uid)
        if already is not None:
            return Reason("bound", f"is bound to node {plain_text(already)}")
        if (waits := self._must_wait(view.pod)) is not None:
            return waits
        if node not in view.nodes:
            return self._not_open(node)
        fits = view.ranker.top(view.request.demand, view.cluster, [node])
        if not fits:
            (why,) = view.ranker.reasons(view.request.demand, view.cluster, [node]).values()
            return why
        return self._over_quota(view, fits[0]) or planned_allocation(
            view.pod, view.request, fits[0].slot, view.cluster.node(node).machine
        )

    def _reasons(self, view: _View, names: Iterable[str], waits: Reason | None) -> Iterable[tuple[str, Reason]]:
        reasons = view.refusals.of(view.ranker.policy, view.request.demand, view.cluster)
        index, nodes = view.cluster.index, view.nodes
        for name in names:
            why = (reasons[index[name]] or waits) if name in nodes else self._not_open(name)
            if why is not None:
                yield name, why

    def _classes(self, view: _View, query: NodeQuery, waits: Reason | None) -> dict[str, str]:
        """The classes of what `_reasons` would return, without computing the numbers if possible."""
        names, refusers = query.names, view.ranker.refusers(view.request.demand, view.cluster)
        if refusers is None:
            return {name: class_of(why) for name, why in self._reasons(view, names, waits)}
        classes = {check: class_named(check) for check in set(refusers)}
        if "" in classes:  # the pod would fit there
            classes[""] = "" if waits is None else class_of(waits)
        by_node = dict(zip(view.cluster.names, map(classes.__getitem__, refusers), strict=True))
        if not (len(view.nodes) == len(by_node) == len(names) and view.nodes <= query.every):
            known, nodes = by_node, view.nodes  # kube-scheduler offers other nodes than we have
            by_node = {name: known[name] if name in nodes else class_of(self._not_open(name)) for name in names}
        return {name: text for name, text in by_node.items() if text} if "" in classes.values() else by_node

    def _not_open(self, node: str) -> Reason:
        if node in self._state.closed:
            return closed_reason(self._state.closed[node])
        return _VENDOR if node in self._state.vendors else _UNKNOWN


def _wanted(view: _View, names: frozenset[str]) -> frozenset[str] | None:
    """Those of these nodes that are open to the pod; None if that is the whole cluster."""
    here = view.nodes if view.nodes <= names else view.nodes & names
    return None if len(here) == len(view.cluster) else here


def _protected(view: _View) -> frozenset[str]:
    """The tenants that must not be evicted for a pod: what they leave is reserved for another one."""
    if view.reservation is None:
        return frozenset()
    gpus = view.reservation.gpus
    nodes = (view.cluster.node(name) for name in {name for name, _ in gpus} if name in view.cluster.index)
    return frozenset(
        one.job for node in nodes for one in node.tenants if any((node.name, gpu) in gpus for gpu in one.gpus)
    )


def _by_percent(demand: Demand) -> bool:
    """Whether what the pod uses depends on the size of the GPU."""
    percents = (demand.memory_percent, *(one.memory_percent for one in demand.containers))
    return any(percent is not None for percent in percents)


def _empty_nodes(nodes: Iterable[Node], vendor: Vendor) -> Iterable[CoreNode]:
    """Nodes of a what-if query that do not exist, with the GPUs that they would have."""
    for node in nodes:
        found = machine_of(node)
        if found is not None and found[1] is vendor:
            yield CoreNode.of(found[0])


def _would_fit_without(view: _View, name: str, victims: MetaVictims) -> bool:
    leaving = {pod.uid for pod in victims.pods or ()}
    if name not in view.nodes or leaving & _protected(view):
        return False
    node = without_tenants(view.cluster.node(name), leaving.__contains__)
    return rate(view.ranker.policy, view.request.demand, node) is not None
