# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The answers of the extender: which nodes will do for a pod, in which order, and which GPUs it gets at last.

Times are arguments: seconds of any steady clock. Asked with whole nodes, it answers what would be, and does nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import NamedTuple

from cotenant.core.cluster import Cluster
from cotenant.core.cluster import Node as CoreNode
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Demand, Reason, Slot
from cotenant.core.placement.checks import plain_text
from cotenant.core.placement.ranking import Fit, Ranker, rate
from cotenant.core.queueing.eviction import Way
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.inventory import machine_of
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.policy import policy_of
from cotenant.kube.codec.request import Asked, asked_of, unenforced
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.scheduler.preemption_search import Movable, Room, left_by, ways
from cotenant.kube.scheduler.protocol import (
    HIGHEST,
    ExtenderArgs,
    FilterResult,
    Given,
    HostPriority,
    MetaVictims,
    PreemptionArgs,
    PreemptionResult,
    victims_of,
)
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.rankers import Rankers
from cotenant.kube.scheduler.refusing import Refusals, class_named, class_of, distance, nearest_first, nonsense, unclear
from cotenant.kube.state.accounts import Seat, planned_seat
from cotenant.kube.state.books import Books
from cotenant.node.devices.vendors import Vendor

SHORTLIST, HOLD_S = 1, 30.0

_VENDOR = Reason("vendor", "has GPUs of another vendor")
_UNKNOWN = Reason("unknown", "no agent has told of GPUs on it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a pod goes: what its Binding must carry."""

    asked: Asked
    node: str
    seat: Seat | None
    """None: it asks for no GPU, nothing is held for it and nothing need be assumed"""
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What would become of a pod now, or has."""

    policy: str
    seat: Seat | None
    """where it is, or what is held for it"""
    fits: tuple[Fit, ...]
    """slots that would do, best first"""
    reasons: Mapping[str, Reason]
    """for every other node, with numbers; str(reason) is a sentence. Nearest to fitting first"""
    waits: Reason | None
    """why it waits although a slot would do (quota, gate), or why nobody knows what it asks for"""


class Refused(NamedTuple):
    """Nodes that refuse a pod for the same reason."""

    nodes: int
    nearest: str
    """that on which least is missing"""
    reason: Reason
    """with its numbers"""


@dataclass(frozen=True, slots=True)
class _View:
    """What a pod asks for, and the cluster as it is to it."""

    pod: Pod
    asked: Asked
    cluster: Cluster
    """without the pod itself"""
    takers: frozenset[str]
    """nodes that would take it if it fits"""
    ranker: Ranker
    refusals: Refusals


class Placer:
    """Places pods by the policy of the cluster, or by their own."""

    def __init__(
        self,
        books: Books,
        quotas: Quotas,
        *,
        policy: str = "binpack",
        shortlist: int = SHORTLIST,
        hold_s: float = HOLD_S,
        settings: Settings = DEFAULTS,
        known: Knowledge | None = None,
        turn: Callable[[Pod], Reason | None] = lambda pod: None,
    ) -> None:
        """InputError where there is no such policy. `turn` says why it is not a pod's turn, though it may fit."""
        self._books, self._quotas, self._settings, self._turn = books, quotas, settings, turn
        self._policy, self._shortlist, self._hold_s = policy, shortlist, hold_s
        self._rankers, self._refusals = Rankers(known), Refusals()
        self._rankers.of(policy, books.cluster)

    def warm_up(self) -> None:
        """Look at the whole cluster once, so that the first pod need not wait for it."""
        self._rankers.of(self._policy, self._books.cluster).top(Demand(), self._books.cluster, None, 1)

    def filter(self, args: ExtenderArgs, now: float) -> FilterResult:
        """The best nodes for a pod, or a reason class for every node; holds the slot where only one is left."""
        given = Given.of(args)
        try:
            view = self._view(args.pod, given)
        except InputError as error:
            return given.refuse(dict.fromkeys(given.names, str(error)))
        if view is None:
            return given.answer(given.names)
        names, waits = self._best(view, given.every, self._shortlist)
        if not names:
            uid = args.pod.metadata.uid
            if given.whole is None and self._books.settled(uid) is None and not self._books.is_reserved(uid):
                self._books.release(uid)
            return given.refuse(self._classes(view, given, waits))
        if len(names) == 1 and given.whole is None:
            self._hold(view, names[0], now)
        return given.answer(names)

    def prioritize(self, args: ExtenderArgs, now: float) -> list[HostPriority]:
        """10 for the best node, whose slot is held; 0 for all where nobody can say."""
        given = Given.of(args)
        names: list[str] = []
        try:
            view = self._view(args.pod, given)
            if view is not None:
                names, _ = self._best(view, given.every, len(given.names))
                if names and given.whole is None:
                    self._hold(view, names[0], now)
        except InputError:  # filter has said so
            pass
        places = {name: place for place, name in enumerate(names)}
        return [HostPriority(host=name, score=max(0, HIGHEST - places.get(name, HIGHEST))) for name in given.names]

    def choose(self, pod: Pod, node: str, now: float, moment: int) -> Choice | Reason:
        """The GPUs of that node for a pod, held until `books.assume` or `books.release` (call one of them, always);
        `moment` is in nanoseconds since 1970."""
        try:
            view = self._view(pod)
            if view is None:
                return Choice(asked=asked_of(pod, self._settings), node=node, seat=None, annotations={})
            seat = self._seat_on(view, node)
            if isinstance(seat, Reason):
                return seat
            machine = view.cluster.node(node).machine
            told = binding_annotations(pod, view.asked, seat.record, machine, moment=moment, region=REGION)
        except InputError as error:
            return nonsense(error)
        self._books.keep(seat, inf)
        self._rankers.observe(view.asked.demand)
        return Choice(asked=view.asked, node=node, seat=seat, annotations=told)

    def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """Those nodes on which evicting these victims would make room."""
        victims = victims_of(args)
        try:
            view = self._view(args.pod)
        except InputError:
            return PreemptionResult(node_name_to_meta_victims={})
        helped = {name: who for name, who in victims.items() if view is None or _makes_room(view, name, who)}
        return PreemptionResult(node_name_to_meta_victims=helped)

    def unenforced(self, pod: Pod) -> tuple[str, ...]:
        """A sentence for each vendor whose GPUs cannot enforce the limits of this pod."""
        try:
            return unenforced(asked_of(pod, self._settings))
        except InputError:
            return ()

    def why(self, pod: Pod) -> Why:
        """In numbers, for every node."""
        uid, books = pod.metadata.uid, self._books
        policy = policy_of(pod.metadata.annotations, self._policy)
        seat = books.seat_of(uid) or books.held(uid)
        try:
            view = self._view(pod)
        except InputError as error:
            return Why(policy=policy, seat=seat, fits=(), reasons={}, waits=nonsense(error))
        if view is None:
            return Why(policy=policy, seat=seat, fits=(), reasons={}, waits=None)
        names = frozenset((*books.vendors, *books.closed))
        fits, waits = self._fits(view, names, None)
        fitting = {fit.slot.node for fit in fits}
        reasons = {name: why for name, why in self._reasons(view, names, waits) if name not in fitting}
        return Why(policy=policy, seat=seat, fits=tuple(fits), reasons=nearest_first(reasons), waits=waits)

    def ranker(self, pod: Pod) -> Ranker:
        """By the policy of the cluster, or the pod's own; InputError where there is no such policy."""
        return self._rankers.of(policy_of(pod.metadata.annotations, self._policy), self._books.cluster)

    @property
    def crowding(self) -> float:
        """Pods that wait, per GPU."""
        return len(self._books.waiting) / max(1, self._books.gpus)

    def nearest(self, pod: Pod) -> list[Refused] | None:
        """What refuses a pod that fits nowhere, nearest first; None where more is to be said of it, as `why` does."""
        books = self._books
        try:
            view = self._view(pod)
        except InputError:
            return None
        if view is None or books.seat_of(pod.metadata.uid) or books.held(pod.metadata.uid) or self._turn(pod):
            return None
        found = view.ranker.nearest(view.asked.demand, view.cluster, view.takers)
        if found is None:
            return None
        others: dict[Reason, list[str]] = {}
        for name in {*books.vendors, *books.closed} - view.takers:
            others.setdefault(self._not_taken(name), []).append(name)
        refused = [*(Refused(*one) for one in found), *(Refused(len(on), min(on), why) for why, on in others.items())]
        return sorted(refused, key=lambda one: distance(one.nearest, one.reason))

    def would_fit(self, pod: Pod, names: frozenset[str] | None = None) -> bool:
        """Whether filter would find a node for it now, if kube-scheduler gave it these (default: all)."""
        try:
            view = self._view(pod)
        except InputError:
            return False
        return view is None or bool(self._best(view, view.takers if names is None else names, 1)[0])

    def rooms(self, pod: Pod, names: frozenset[str], who: Movable, most: int | None = None) -> Iterator[Room | None]:
        """Places that a pod could have if others left, on those of the nodes where that harms least, in no order.

        Nothing where it fits or waits for something else. Each step takes about a millisecond, with nothing found in
        most, and some tens where many would have to leave one node, so that the caller can let others go first; all of
        them see the books as they were at the first. Only the nodes on which least is missing are looked at where a
        number is given.
        """
        try:
            view = self._view(pod)
        except InputError:
            return
        if view is None or any(self._fits(view, names.difference(who.musts), 1)):
            return
        here = (names | who.musts.keys()) & view.takers
        nearest = dict.fromkeys([*nearest_first(dict(self._reasons(view, here, None))), *sorted(here)])
        for found in ways(view.ranker.policy, view.asked.demand, view.cluster, islice(nearest, most), who):
            yield None if found is None else self._room(view, *found)

    def _room(self, view: _View, node: CoreNode, way: Way) -> Room | None:
        """Unless it would be refused there for something else."""
        fit = Fit(way.score, Slot(node.name, way.gpus))
        if self._gated(view, fit) is not None or self._over_quota(view, fit) is not None:
            return None
        return Room(planned_seat(view.pod, view.asked, fit.slot, node.machine), way.victims, way.harm)

    def _view(self, pod: Pod, given: Given | None = None) -> _View | None:
        """None where the pod asks for nothing of ours; InputError where it asks for nonsense."""
        asked = asked_of(pod, self._settings)
        if asked.vendor is None:
            return None
        books, vendor = self._books, asked.vendor
        ranker = self.ranker(pod)
        cluster = books.without(pod.metadata.uid)
        takers = books.takers(vendor)
        if given is None or given.whole is None:
            return _View(pod, asked, cluster, takers, ranker, self._refusals)
        nodes = {name: cluster.node(name) for name in given.names if name in takers}
        strangers = (node for node, _ in given.whole.values() if node.metadata.name not in books.nodes)
        nodes |= {node.name: node for node in _empty_nodes(strangers, vendor)}
        # What would be is asked rarely, and nothing that is remembered of the real cluster is to be lost for it.
        return _View(pod, asked, Cluster.of(nodes.values()), frozenset(nodes), Ranker(ranker.policy, 1), Refusals())

    def _best(self, view: _View, names: frozenset[str], most: int) -> tuple[list[str], Reason | None]:
        """The names of what `_fits` finds, without the slots where these are not needed to know them."""
        demand, ranker, pod = view.asked.demand, view.ranker, view.pod
        checked = self._quotas.limits(pod.metadata.namespace) or ranker.policy.gate or self._turn(pod)
        if checked or not ranker.at_once(demand):
            fits, waits = self._fits(view, names, most)
            return [fit.slot.node for fit in fits], waits
        return ranker.shortlist(demand, view.cluster, _wanted(view, names), most), None

    def _fits(self, view: _View, names: frozenset[str], most: int | None) -> tuple[list[Fit], Reason | None]:
        """The best nodes of these, best first; or none, and why it is to wait although there are some."""
        namespace, demand = view.pod.metadata.namespace, view.asked.demand
        limited = self._quotas.limits(namespace)
        if (waits := self._turn(view.pod)) is not None:
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
        """Why it had better wait although that fits."""
        # What is held for a pod was found to be worth it, or the pod has waited for too long to be asked.
        gate = None if self._books.held(view.pod.metadata.uid) else view.ranker.policy.gate
        return None if gate is None else gate(fit.score, self.crowding).reason

    def _within_quota(self, view: _View, fits: list[Fit], most: int | None) -> tuple[list[Fit], Reason | None]:
        known: dict[tuple[int, ...], Reason | None] = {}

        def refusal(fit: Fit) -> Reason | None:
            capacities = view.cluster.node(fit.slot.node).machine.memory_capacities
            cards = tuple(capacities[gpu] for gpu in fit.slot.gpus)  # nothing else changes what it would take
            if cards not in known:
                known[cards] = self._over_quota(view, fit)
            return known[cards]

        found = list(islice((fit for fit in fits if refusal(fit) is None), most))
        return found, None if found else refusal(fits[0])

    def _hold(self, view: _View, node: str, now: float) -> None:
        """Unless a bind is under way that kube-scheduler has given up: what is held for that must stay."""
        if self._books.settled(view.pod.metadata.uid) is None:
            (fit,) = view.ranker.top(view.asked.demand, view.cluster, [node])
            self._books.hold(view.pod, view.asked, fit.slot, now + self._hold_s)

    def _over_quota(self, view: _View, fit: Fit) -> Reason | None:
        machine = view.cluster.node(fit.slot.node).machine
        return self._quotas.refusal(self._books, planned_seat(view.pod, view.asked, fit.slot, machine))

    def _seat_on(self, view: _View, node: str) -> Seat | Reason:
        """What a pod is to take of a node: the best that there is now, whatever was held."""
        already = self._books.settled(view.pod.metadata.uid)
        if already is not None:
            return Reason("bound", f"is bound to node {plain_text(already)}")
        if (waits := self._turn(view.pod)) is not None:
            return waits
        if node not in view.takers:
            return self._not_taken(node)
        fits = view.ranker.top(view.asked.demand, view.cluster, [node])
        if not fits:
            (why,) = view.ranker.reasons(view.asked.demand, view.cluster, [node]).values()
            return why
        return self._over_quota(view, fits[0]) or planned_seat(
            view.pod, view.asked, fits[0].slot, view.cluster.node(node).machine
        )

    def _reasons(self, view: _View, names: Iterable[str], waits: Reason | None) -> Iterable[tuple[str, Reason]]:
        reasons = view.refusals.of(view.ranker.policy, view.asked.demand, view.cluster)
        index, takers = view.cluster.index, view.takers
        for name in names:
            why = (reasons[index[name]] or waits) if name in takers else self._not_taken(name)
            if why is not None:
                yield name, why

    def _classes(self, view: _View, given: Given, waits: Reason | None) -> dict[str, str]:
        """What `_reasons` would say, without the numbers where these are not needed to know it."""
        names, refusers = given.names, view.ranker.refusers(view.asked.demand, view.cluster)
        if refusers is None:
            return {name: class_of(why) for name, why in self._reasons(view, names, waits)}
        classes = {check: class_named(check) for check in set(refusers)}
        if "" in classes:  # it would fit there
            classes[""] = "" if waits is None else class_of(waits)
        by_node = dict(zip(view.cluster.names, map(classes.__getitem__, refusers), strict=True))
        if not (len(view.takers) == len(by_node) == len(names) and view.takers <= given.every):
            own, takers = by_node, view.takers  # not all of them, or others too
            by_node = {name: own[name] if name in takers else class_of(self._not_taken(name)) for name in names}
        return {name: said for name, said in by_node.items() if said} if "" in classes.values() else by_node

    def _not_taken(self, node: str) -> Reason:
        if node in self._books.closed:
            return unclear(self._books.closed[node])
        return _VENDOR if node in self._books.vendors else _UNKNOWN


def _wanted(view: _View, names: frozenset[str]) -> frozenset[str] | None:
    """Those of these nodes that would take it; None: all that there are."""
    here = view.takers if view.takers <= names else view.takers & names
    return None if len(here) == len(view.cluster) else here


def _by_percent(demand: Demand) -> bool:
    """Whether what it takes depends on the card."""
    percents = (demand.memory_percent, *(one.memory_percent for one in demand.containers))
    return any(percent is not None for percent in percents)


def _empty_nodes(nodes: Iterable[Node], vendor: Vendor) -> Iterable[CoreNode]:
    """Nodes that are not there (yet) and say which cards they would have."""
    for node in nodes:
        found = machine_of(node)
        if found is not None and found[1] is vendor:
            yield CoreNode.of(found[0])


def _makes_room(view: _View, name: str, victims: MetaVictims) -> bool:
    if name not in view.takers:
        return False
    leaving = {pod.uid for pod in victims.pods or ()}
    node = left_by(view.cluster.node(name), leaving.__contains__)
    return rate(view.ranker.policy, view.asked.demand, node) is not None
