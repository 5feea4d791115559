# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Slots for pods that start together: all of them are held, or none."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job, Reason
from cotenant.core.placement.deciding import idlest_nodes, place_together
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.request import Asked
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.rankers import policy_of
from cotenant.kube.state.accounts import planned_seat
from cotenant.kube.state.books import Books

NO_ROOM = "together"
"""the check that refuses pods for which there is no room together"""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod that waits for its turn, as it was understood when it last changed."""

    pod: Pod
    asked: Asked
    submitted: Seconds
    """since 1970"""
    estimate: Seconds | None
    attained: Seconds

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def kind(self) -> tuple[Demand, str]:
        """What it asks for, and by which policy it is placed."""
        return self.asked.demand, policy_of(self.pod.metadata.annotations, "")


def kinds_of(waiters: Sequence[Waiter]) -> list[list[Waiter]]:
    """Those that ask the same side by side, the hardest to place first."""
    kinds: dict[tuple[Demand, str], list[Waiter]] = {}
    for waiter in waiters:
        kinds.setdefault(waiter.kind, []).append(waiter)
    return sorted(kinds.values(), key=lambda alike: _ease(alike[0].asked.demand))


def _ease(demand: Demand) -> tuple[int, int, int]:
    steady = demand.steady
    return -steady.gpus, -steady.memory, -steady.compute


@dataclass(frozen=True, slots=True)
class Together:
    """Finds slots by the policy of each pod, and holds them."""

    books: Books
    quotas: Quotas
    placer: Placer

    def hold(
        self, waiters: Sequence[Waiter], until: float, kept: Collection[str] = (), *, overdue: bool = False
    ) -> Reason | None:
        """Hold a slot for each of them, or say why there is none for all; InputError where a policy is not known.

        Nothing goes on nodes that are kept. Who is overdue is not asked whether it is worth its place.
        """
        held: list[str] = []
        for alike in kinds_of(waiters):
            why_not = self._hold_alike(alike, until, kept, None if overdue else self.placer.crowding, held)
            if why_not is not None:
                for uid in held:
                    self.books.release(uid)
                return why_not
        return None

    def nodes_to_keep(self, waiters: Sequence[Waiter]) -> list[str]:
        """Those on which they would soonest find room, if nobody else went there; none where there never will be."""
        kinds, cluster = kinds_of(waiters), self.books.cluster
        first = kinds[0][0]
        closed = self._closed(first)
        empty = Cluster.of(node.machine for node in cluster if node.name not in closed)
        for alike in kinds:
            ranker = Ranker(self.placer.ranker(alike[0].pod).policy, 1)  # what is remembered of the real one is kept
            decision = place_together(ranker, _job(alike[0], len(alike)), empty, None, None)
            if decision is None:
                return []
            empty = decision.cluster
        policy = self.placer.ranker(first.pod).policy
        return idlest_nodes(policy, _job(first, len(waiters)), cluster.leave(*closed) if closed else cluster)

    def _hold_alike(
        self, alike: Sequence[Waiter], until: float, kept: Collection[str], crowding: float | None, held: list[str]
    ) -> Reason | None:
        first, cluster = alike[0], self.books.cluster
        closed = self._closed(first).union(kept)
        decision = place_together(
            self.placer.ranker(first.pod), _job(first, len(alike)), cluster, None, crowding, closed
        )
        if decision is None:
            return Reason(NO_ROOM, "no room for {needed} such pods at once", len(alike))
        for waiter, placement in zip(alike, decision.placements, strict=True):
            slot = placement.slot
            seat = planned_seat(waiter.pod, waiter.asked, slot, cluster.node(slot.node).machine)
            why_not = self.quotas.refusal(self.books, seat)
            if why_not is not None:
                return why_not
            self.books.keep(seat, until)
            held.append(waiter.uid)
        return None

    def _closed(self, waiter: Waiter) -> set[str]:
        """Nodes that take no such pods."""
        assert waiter.asked.vendor is not None
        return set(self.books.cluster.names).difference(self.books.takers(waiter.asked.vendor))


def _job(first: Waiter, replicas: int) -> Job:
    return Job(id=first.uid, demand=first.asked.demand, replicas=replicas)
