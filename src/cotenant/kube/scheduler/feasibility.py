# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The best slots for a pod, and why it must wait although there are some: its gang, the sharing gate, a quota."""

from collections.abc import Callable
from itertools import islice

from cotenant.core.model import Demand, Reason
from cotenant.core.placement.ranking import Fit
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.view import View
from cotenant.kube.state.allocation import planned_allocation
from cotenant.kube.state.cluster import ClusterState


class Feasibility:
    """Searches the slots of a view."""

    def __init__(self, state: ClusterState, quotas: Quotas, must_wait: Callable[[Pod], Reason | None]) -> None:
        """`must_wait` returns why a pod must wait although it may fit."""
        self._state, self._quotas, self.must_wait = state, quotas, must_wait

    @property
    def crowding(self) -> float:
        """Waiting pods per GPU."""
        return len(self._state.waiting) / max(1, self._state.gpus)

    def limited(self, pod: Pod) -> bool:
        """Whether a quota limits the pods of its namespace."""
        return bool(self._quotas.limits(pod.metadata.namespace))

    def best(self, view: View, names: frozenset[str], most: int) -> tuple[list[str], Reason | None]:
        """The names of the nodes that `fits` finds, without computing their slots if possible."""
        demand, ranker, pod = view.request.demand, view.ranker, view.pod
        checked = self._quotas.limits(pod.metadata.namespace) or ranker.policy.gate or self.must_wait(pod)
        if checked or not ranker.at_once(demand):
            fits, waits = self.fits(view, names, most)
            return [fit.slot.node for fit in fits], waits
        return ranker.shortlist(demand, view.cluster, view.open_nodes(names), most), None

    def fits(self, view: View, names: frozenset[str], most: int | None) -> tuple[list[Fit], Reason | None]:
        """The best of these nodes, best first; or none, and why the pod must wait although some are feasible."""
        namespace, demand = view.pod.metadata.namespace, view.request.demand
        limited = self._quotas.limits(namespace)
        if (waits := self.must_wait(view.pod)) is not None:
            return [], waits
        nodes = view.open_nodes(names)
        fits = view.ranker.top(demand, view.cluster, nodes, None if limited and _by_percent(demand) else most)
        if not fits:
            return [], None
        gated = self.gated(view, fits[0])
        if gated is not None:
            return [], gated
        return self._within_quota(view, fits, most) if limited else (fits, None)

    def gated(self, view: View, fit: Fit) -> Reason | None:
        """Why the sharing gate rejects the best slot."""
        # A slot that is held has passed the gate before, or its pod is overdue and exempt from it.
        gate = None if self._state.held(view.pod.metadata.uid) else view.ranker.policy.gate
        return None if gate is None else gate(fit.score, self.crowding).reason

    def over_quota(self, view: View, fit: Fit) -> Reason | None:
        """Why the quota of the pod's namespace rejects a slot."""
        machine = view.cluster.node(fit.slot.node).machine
        return self._quotas.refusal(self._state, (planned_allocation(view.pod, view.request, fit.slot, machine),))

    def _within_quota(self, view: View, fits: list[Fit], most: int | None) -> tuple[list[Fit], Reason | None]:
        cache: dict[tuple[int, ...], Reason | None] = {}

        def refusal(fit: Fit) -> Reason | None:
            capacities = view.cluster.node(fit.slot.node).machine.memory_capacities
            sizes = tuple(capacities[gpu] for gpu in fit.slot.gpus)  # what the pod would use depends on nothing else
            if sizes not in cache:
                cache[sizes] = self.over_quota(view, fit)
            return cache[sizes]

        found = list(islice((fit for fit in fits if refusal(fit) is None), most))
        return found, None if found else refusal(fits[0])


def _by_percent(demand: Demand) -> bool:
    """Whether what the pod uses depends on the size of the GPU."""
    percents = (demand.memory_percent, *(one.memory_percent for one in demand.containers))
    return any(percent is not None for percent in percents)
