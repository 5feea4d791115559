# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where a pod could be, and for what reason each node refuses it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.core.isolation import Rung
from cotenant.core.model import Reason
from cotenant.core.placement.check import plain_text
from cotenant.core.placement.ranking import Fit
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.amounts import other_unit
from cotenant.kube.codec.annotations import rung_of
from cotenant.kube.codec.isolation import wish_of
from cotenant.kube.codec.request import request_of, unenforced
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.events import PLACED
from cotenant.kube.scheduler.feasibility import Feasibility
from cotenant.kube.scheduler.node_names import are_equal
from cotenant.kube.scheduler.protocol import NodeQuery
from cotenant.kube.scheduler.refusing import (
    class_named,
    class_of,
    closed_reason,
    distance,
    invalid_request,
    nearest_first,
)
from cotenant.kube.scheduler.view import View, Views
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState

LEAST_MIB = 100
"""The smallest number that can be meant in MiB; `kubectl inspect gpushare` guesses the unit by the same number."""

_VENDOR = Reason("vendor", "has GPUs of another vendor")
_UNKNOWN = Reason("unknown", "no agent reports GPUs on it")
_EXCLUDED = Reason(
    "excluded", "kube-scheduler excludes it by a node selector, affinity, a taint or a resource that it counts"
)


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


class Reasons:
    """Explains what the search of slots finds, in reasons with numbers and in classes for kube-scheduler."""

    def __init__(self, state: ClusterState, settings: Settings, views: Views, feasibility: Feasibility) -> None:
        self._state, self._settings, self._views, self._feasibility = state, settings, views, feasibility

    def of_nodes(self, view: View, names: Iterable[str], waits: Reason | None) -> Iterable[tuple[str, Reason]]:
        """The reason of each of these nodes that refuses the pod; `waits` is that of nodes on which it would fit."""
        reasons = view.refusals.of(view.ranker.policy, view.request.demand, view.cluster)
        index, nodes = view.cluster.index, view.nodes
        for name in names:
            why = (reasons[index[name]] or waits) if name in nodes else self.not_open(name)
            if why is not None:
                yield name, why

    def classes(self, view: View, query: NodeQuery, waits: Reason | None) -> dict[str, str]:
        """The classes of what `of_nodes` would return, without computing the numbers if possible."""
        names, refusers = query.names, view.ranker.refusers(view.request.demand, view.cluster)
        if refusers is None:
            return {name: class_of(why) for name, why in self.of_nodes(view, names, waits)}
        classes = {check: class_named(check) for check in set(refusers)}
        if "" in classes:  # the pod would fit there
            classes[""] = "" if waits is None else class_of(waits)
        by_node = dict(zip(view.cluster.names, map(classes.__getitem__, refusers), strict=True))
        if not (len(view.nodes) == len(by_node) and are_equal(view.nodes, query.every)):
            known, nodes = by_node, view.nodes  # kube-scheduler offers other nodes than we have
            by_node = {name: known[name] if name in nodes else class_of(self.not_open(name)) for name in names}
        return {name: text for name, text in by_node.items() if text} if "" in classes.values() else by_node

    def not_open(self, node: str) -> Reason:
        """Why a node accepts no new pods of some vendor."""
        if node in self._state.closed:
            return closed_reason(self._state.closed[node])
        return _VENDOR if node in self._state.vendors else _UNKNOWN

    def _excluded(self, pod: Pod, node: str) -> Reason:
        """Why a pod is not offered a node."""
        away = self._state.claims_away.get(node) if pod.spec.resource_claims else None
        return _EXCLUDED if away is None else Reason("claims", plain_text(away))

    def why(self, pod: Pod, offered: frozenset[str] | None = None) -> Why:
        """Where the pod is or could be, and the reason of every other node.

        `offered` are the nodes that kube-scheduler offered for the pod; None if it has not asked about it.
        """
        uid, state = pod.metadata.uid, self._state
        allocation = state.bound(uid) or state.held(uid)
        try:
            view = self._views.of(pod)
            policy = self._views.policy_of(pod)
        except InputError as error:
            policy = self._views.named_policy_of(pod)
            return Why(policy=policy, allocation=allocation, fits=(), reasons={}, waits=invalid_request(error))
        if view is None:
            return Why(policy=policy, allocation=allocation, fits=(), reasons={}, waits=None)
        names = frozenset((*state.vendors, *state.closed))
        here = names if offered is None else names & offered
        fits, waits = self._feasibility.fits(view, here, None)
        fitting = {fit.slot.node for fit in fits}
        reasons = {name: why for name, why in self.of_nodes(view, here, waits) if name not in fitting}
        reasons = nearest_first(reasons) | {name: self._excluded(pod, name) for name in sorted(names - here)}
        return Why(
            policy=policy,
            allocation=allocation,
            fits=tuple(fits),
            reasons=reasons,
            waits=waits,
            offered=offered is not None,
            reserved=view.reservation is not None,
        )

    def nearest(self, pod: Pod, offered: frozenset[str] | None = None) -> list[Refused] | None:
        """Why a pod fits on none of the offered nodes, by reason, nearest to fitting first; None if only `why` can
        tell."""
        state = self._state
        try:
            view = self._views.of(pod)
        except InputError:
            return None
        is_placed = state.bound(pod.metadata.uid) or state.held(pod.metadata.uid)
        if view is None or is_placed or self._feasibility.must_wait(pod):
            return None
        here = view.nodes if offered is None else view.overlaps.of(view.nodes, offered)
        found = view.ranker.nearest(view.request.demand, view.cluster, here)
        if found is None:
            return None
        others: dict[Reason, list[str]] = {}
        elsewhere = {*state.vendors, *state.closed} - here if state.closed or len(here) != len(state.vendors) else ()
        for name in elsewhere:
            is_offered = offered is None or name in offered
            others.setdefault(self.not_open(name) if is_offered else self._excluded(pod, name), []).append(name)
        refused = [*(Refused(*one) for one in found), *(Refused(len(on), min(on), why) for why, on in others.items())]
        return sorted(refused, key=lambda one: distance(one.nearest, one.reason))

    def unenforced(self, pod: Pod) -> tuple[str, ...]:
        """A sentence for each vendor whose GPUs cannot enforce the limits of this pod."""
        try:
            return unenforced(request_of(pod, self._settings))
        except InputError:
            return ()

    def rung(self, pod: Pod, allocation: Allocation) -> Rung | None:
        """What holds a placed pod to its limits; None: its GPUs have no isolation ladder."""
        return rung_of(pod, allocation.record, allocation.vendor, self._settings)

    def other_rung(self, pod: Pod, allocation: Allocation | None) -> Iterator[str]:
        """A sentence if a placed pod has another rung than it wishes for."""
        try:
            wish = wish_of(pod.metadata.annotations)
        except InputError:  # it was changed since
            return
        got = None if allocation is None else self.rung(pod, allocation)
        if got is not None and wish not in (None, Rung.MIG, got):
            yield f"it wishes for isolation {wish} and has {got}; its event {PLACED} says why"

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
