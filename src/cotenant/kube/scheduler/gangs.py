# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gangs: their members, how many of them exist, and the slots that are held for a whole gang or not at all.

A scheduling gate cannot be put back on a pod. So a gang that was released and could not be bound as a whole is refused
by the extender until slots are held for all of it again. Times are in seconds of any steady clock.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job, Placement, Reason
from cotenant.core.placement.deciding import idlest_nodes, place_gang
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.backfill import Reservation, Reserver
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.isolation import wish_of
from cotenant.kube.codec.policy import policy_of
from cotenant.kube.codec.queueing import MOST_MEMBERS, Gang, gang_of, gates_of_others, hold_of
from cotenant.kube.codec.request import PodRequest
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.refusing import invalid_request
from cotenant.kube.state.allocation import Allocation, planned_allocation
from cotenant.kube.state.cluster import ClusterState

Key = tuple[str, str]
"""namespace and name of a gang"""
EVERY_S = 30.0
"""between two events about missing pods on one gang: hundreds of its pods may be created one after the other"""
RECENT_S = 15.0
"""how long a pod whose bind was sent back still counts as arrived: kube-scheduler tries it again every 5 s"""
NO_CAPACITY = "capacity"
"""the check that refuses pods if there are not enough slots for all of them at once"""
GroupSize = Callable[[str, str], int | Reason]
"""how many pods a PodGroup wants at once, by namespace and name, or why that is not known"""
NO_GROUPS = Reason("gang", "the PodGroups of the cluster are not known")
NEVER_FITS = Reason("never", "it would not fit if all other pods had ended")


@dataclass(frozen=True, slots=True)
class GangStatus:
    """How complete a gang is."""

    gang: Gang
    present: int
    """pods that run, are about to run, or have succeeded"""
    ready: tuple[Pod, ...]
    """pods that wait for nothing except the others, the oldest first"""
    held: int = 0
    """pods that their owners hold in the queue"""
    problem: Reason | None = None
    """why its size is not known; `gang.size` is then more than any gang has, so that it is never complete"""

    @property
    def missing(self) -> int:
        """Number of pods that must be placed for the gang to be complete."""
        return max(0, self.gang.size - self.present)

    @property
    def must_wait(self) -> Reason | None:
        """Why none of its waiting pods may be placed alone."""
        if not self.missing:
            return None
        if self.problem is not None:
            return self.problem
        if len(self.ready) < self.missing and self.held:
            text = "only {available} of the {needed} pods of its gang can start; others are held"
            return Reason("gang", text, self.gang.size, self.present + len(self.ready))
        if len(self.ready) < self.missing:
            text = "only {available} of the {needed} pods of its gang exist"
            return Reason("gang", text, self.gang.size, self.present + len(self.ready))
        return Reason("gang", "its gang waits for free slots for all {needed} pods that it still needs", self.missing)

    @property
    def incomplete(self) -> list[tuple[Pod, str]]:
        """The pods that wait for others of the gang, with what is missing."""
        return [(pod, str(self.must_wait)) for pod in self.ready] if len(self.ready) < self.missing else []


@dataclass(slots=True)
class Grant:
    """Slots that are held for a gang until all of it is bound."""

    gang: Gang
    members: frozenset[str]
    until: float
    complete: bool = False
    """whether the binds of all members have arrived, so that they are bound"""
    has_slot: Callable[[str], bool] = lambda uid: True
    """whether something is still held for a member"""
    arrivals: dict[str, float] = field(default_factory=dict)
    """when kube-scheduler last wanted to bind each member"""

    def arrive(self, uid: str, now: float) -> None:
        """kube-scheduler wants to bind a member. In a large gang, the first bind may have been sent back by the time
        that the last one arrives, and is on its way again: so arrivals count for `RECENT_S`."""
        self.arrivals[uid] = now
        if not self.complete and len(self.arrived(now)) == len(self.members):
            self.complete, self.until = True, max(self.until, now + RECENT_S)

    def arrived(self, now: float) -> set[str]:
        """The members whose bind arrived recently, and which have not been refused since."""
        recent = (uid for uid in self.members if now - self.arrivals.get(uid, -inf) <= RECENT_S)
        return set(filter(self.has_slot, recent))


@dataclass(frozen=True, slots=True)
class RevokedGang:
    """A gang that was released and waits again."""

    pods: tuple[Pod, ...]
    why: str


class Gangs:
    """The pods of all gangs that this scheduler places."""

    def __init__(self, state: ClusterState, group_size: GroupSize = lambda namespace, name: NO_GROUPS) -> None:
        self._state, self._group_size = state, group_size
        self._pods: dict[Key, dict[str, tuple[Gang, Pod]]] = {}
        self._key: dict[str, Key] = {}
        self._grants: dict[Key, Grant] = {}
        self._paused: dict[Key, float] = {}
        self._changed: dict[Key, None] = {}
        self._reported: dict[Key, float] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether a pod belongs to a gang."""
        return uid in self._key

    def add(self, pod: Pod, gang: Gang) -> None:
        """Add a pod; to update it, call `remove` first."""
        self._pods.setdefault(gang.key, {})[pod.metadata.uid] = gang, pod
        self._key[pod.metadata.uid] = gang.key
        self._changed[gang.key] = None

    def remove(self, uid: str) -> bool:
        """Remove a pod; return whether it belonged to a gang."""
        key = self._key.pop(uid, None)
        if key is None:
            return False
        self._changed[key] = None
        del self._pods[key][uid]
        if not self._pods[key]:
            del self._pods[key]
        return True

    def group_changed(self, namespace: str, group: str) -> None:
        """The PodGroup object of a gang was created, replaced or deleted."""
        for key, members in self._pods.items():
            if key[0] == namespace and any(gang.group == group for gang, _ in members.values()):
                self._changed[key] = None

    def all(self) -> Iterator[GangStatus]:
        """The status of every gang."""
        return map(self._status, self._pods)

    def changed(self, now: float) -> list[GangStatus]:
        """The gangs whose pods have changed since they were last returned here, each at most every `EVERY_S`."""
        self._reported = {key: until for key, until in self._reported.items() if until > now}
        due = [key for key in self._changed if key not in self._reported]
        for key in due:
            del self._changed[key]
            self._reported[key] = now + EVERY_S
        return [self._status(key) for key in due if key in self._pods]

    def must_wait(self, pod: Pod) -> Reason | None:
        """Why a pod may not be placed now, though kube-scheduler asks for it; None if it may."""
        try:
            gang = gang_of(pod)
        except InputError as error:
            return invalid_request(error)
        if gang is None or self.grant_of(pod.metadata.uid) is not None:
            return None
        if gang.key not in self._pods:  # kube-scheduler saw it before our watch
            gang, problem = self._sized(gang)
            return GangStatus(gang, 0, (), problem=problem).must_wait
        return self._status(gang.key).must_wait

    def status_of(self, uid: str) -> GangStatus | None:
        """The status of the gang of a pod; None if it is in none."""
        key = self._key.get(uid)
        return None if key is None else self._status(key)

    def can_be_released(self, gang: Gang, now: float) -> bool:
        """Whether nothing is held for the gang, and it was not revoked just now."""
        return gang.key not in self._grants and self._paused.get(gang.key, now) <= now

    def grant(self, gang: Gang, members: Iterable[str], until: float) -> None:
        """Slots are held for all these members."""
        self._grants[gang.key] = Grant(gang, frozenset(members), until, has_slot=self._has_slot)

    def grant_of(self, uid: str) -> Grant | None:
        """The grant that a pod is a member of."""
        grant = self._grants.get(self._key.get(uid, ("", "")))
        return grant if grant is not None and uid in grant.members else None

    def revoke(self, gang: Gang) -> None:
        """Nothing is held for the gang any more."""
        self._grants.pop(gang.key, None)

    def revoke_all(self) -> None:
        """Nothing is held for any gang."""
        self._grants.clear()

    def expire(self, now: float, pause_s: float) -> list[RevokedGang]:
        """Remove the grants of bound gangs, and revoke grants that are late or have lost a member."""
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        revoked = []
        for key, grant in list(self._grants.items()):
            unbound = {uid for uid in grant.members if self._state.node_of(uid) is None}
            left = [uid for uid in unbound if self._waits(key, uid)]
            is_late = now >= grant.until
            has_lost = not grant.complete and any(self._is_lost(key, uid) for uid in unbound)
            if left and not is_late and not has_lost:
                continue
            del self._grants[key]
            for uid in left:
                self._state.release(uid)
            if is_late:
                self._paused[key] = now + pause_s  # other pods may be able to use the slots
            if left:
                late = f"{len(left)} of {len(grant.members)} pods could not be bound in time"
                why = late if is_late else "one of its pods is gone"
                pods = tuple(self._pods[key][uid][1] for uid in left)
                revoked.append(RevokedGang(pods, f"gang {grant.gang.name} waits again as a whole: {why}"))
        return revoked

    def _status(self, key: Key) -> GangStatus:
        members = self._pods[key].values()
        waiting = (pod for _, pod in members if self._waits(key, pod.metadata.uid))
        free = [pod for pod in waiting if not gates_of_others(pod.spec.scheduling_gates)]
        ready = [pod for pod in free if hold_of(pod) is None]
        ready.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))
        largest = max((gang for gang, _ in members), key=lambda gang: gang.size)
        gang, problem = self._sized(largest)
        present = sum(self._is_present(pod) for _, pod in members)
        return GangStatus(gang, present, tuple(ready), len(free) - len(ready), problem)

    def _sized(self, gang: Gang) -> tuple[Gang, Reason | None]:
        """The gang with the size that its PodGroup states, if it has one, or why that size cannot be used."""
        if gang.group is None:
            return gang, None
        size = self._group_size(gang.namespace, gang.group)
        if isinstance(size, int) and size <= MOST_MEMBERS:
            return replace(gang, size=size), None
        text = f"its PodGroup {gang.group} wants {{needed}} pods at once; a gang has at most {{available}}"
        problem = size if isinstance(size, Reason) else Reason("gang", text, size, MOST_MEMBERS)
        return replace(gang, size=MOST_MEMBERS + 1), problem

    def _waits(self, key: Key, uid: str) -> bool:
        found = self._pods.get(key, {}).get(uid)
        return found is not None and uid in self._state.waiting and not self._is_present(found[1])

    def _is_lost(self, key: Key, uid: str) -> bool:
        found = self._pods.get(key, {}).get(uid)
        return found is None or not (self._is_present(found[1]) or uid in self._state.waiting)

    def _has_slot(self, uid: str) -> bool:
        return self._state.held(uid) is not None or self._state.node_of(uid) is not None

    def _is_present(self, pod: Pod) -> bool:
        if has_ended(pod):
            return pod.status.phase == "Succeeded"
        if pod.metadata.deletion_timestamp:
            return False
        return bool(pod.spec.node_name) or self._state.node_of(pod.metadata.uid) is not None


Shape = tuple[Demand, str, frozenset[str], str | None, tuple[Demand, ...]]


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod that waits in the queue, as it was read when it last changed."""

    pod: Pod
    request: PodRequest
    submitted: Seconds
    """since 1970"""
    estimate: Seconds | None
    """expected duration"""
    attained: Seconds
    """how long it has run before"""
    avoided: frozenset[str] = frozenset()
    """nodes on which kube-scheduler would not place it, for reasons of its own"""

    @property
    def uid(self) -> str:
        """The UID of the pod."""
        return self.pod.metadata.uid

    @property
    def shape(self) -> Shape:
        """The demand, the policy, the avoided nodes, the only node and other demands: pods with the same shape fit the
        same slots."""
        request = self.request
        policy, others = (
            policy_of(self.pod.metadata.annotations, "", request),
            tuple(one.demand for one in request.others),
        )
        return request.demand, policy, self.avoided, request.node, others


def without_sharers(pods: Iterable[QueuedPod]) -> tuple[QueuedPod, ...]:
    """The pods of a gang without those whose claims an earlier one has all, too, on the same nodes and with the same
    isolation. They need no slots: they join the earlier one as soon as it has the claims."""
    found: dict[object, QueuedPod] = {}
    for one in pods:
        key = claims_or_uid(one.pod, one.request), one.shape, wish_of(one.pod.metadata.annotations)
        found.setdefault(key, one)
    return tuple(found.values())


def claims_or_uid(pod: Pod, request: PodRequest) -> object:
    """The claims of a pod, which others may have, too; its UID if it requests GPUs by itself."""
    claims = frozenset(container.claim for container in request.containers)
    return claims if claims and "" not in claims else pod.metadata.uid


def by_shape(pods: Sequence[QueuedPod]) -> list[list[QueuedPod]]:
    """The pods grouped by shape, the hardest to place first."""
    shapes: dict[Shape, list[QueuedPod]] = {}
    for pod in pods:
        shapes.setdefault(pod.shape, []).append(pod)
    return sorted(shapes.values(), key=lambda alike: _ease(alike[0].request.demand))


def _ease(demand: Demand) -> tuple[int, int, int]:
    steady = demand.steady
    return -steady.gpus, -steady.memory, -steady.compute


@dataclass(frozen=True, slots=True)
class GangSlots:
    """Finds slots for pods that start together, by the policy of each pod, and holds all of them or none."""

    state: ClusterState
    quotas: Quotas
    placer: Placer

    def hold(
        self,
        pods: Sequence[QueuedPod],
        until: float,
        kept: Collection[str] = (),
        *,
        overdue: bool = False,
        reservation: Reservation | None = None,
    ) -> Reason | None:
        """Hold a slot for each pod, or return why that is impossible; InputError if a policy does not exist.

        `kept` are nodes that are kept free for another pod, and `reservation` is what the pods must leave to another
        one. Overdue pods are exempt from the sharing gate.
        """
        shapes, cluster = by_shape(pods), self.state.cluster
        cluster = cluster if reservation is None else self.placer.views.beside(reservation, cluster)
        placements = self._place(shapes, cluster, kept, overdue=overdue)
        if placements is None:
            for other in _others(pods):
                if (why_not := self.hold(other, until, kept, overdue=overdue, reservation=reservation)) is None:
                    return None
            return Reason(NO_CAPACITY, "no free slots for {needed} such pods at once", len(pods))
        planned = self._planned(shapes, placements)
        why_not = self.quotas.refusal(self.state, planned)
        if why_not is None:
            for allocation in planned:
                self.state.hold(allocation, until)
        return why_not

    def would_fit(self, pod: QueuedPod) -> bool:
        """Whether a pod would have a slot if nothing were reserved."""
        return self._place([[pod]], self.state.cluster) is not None

    def reserve(
        self,
        unit: Job,
        pods: Sequence[QueuedPod],
        reserver: Reserver,
        today: Seconds,
        last: Reservation | None,
        *,
        overdue: bool = False,
    ) -> Reservation | Reason:
        """Reserve slots for pods that do not fit now; or why they never fit, or a quota would refuse them then.

        `last` is the reservation of the last pass, which stays as long as it is possible.
        """
        shapes, cluster, found = by_shape(pods), self.state.cluster, None

        def place(tentative: Cluster) -> list[Placement] | None:
            return self._place(shapes, tentative, overdue=overdue)

        if last is not None and last.job.id == unit.id:
            found = last.renewed(cluster, today, place)
        if found is None:
            found = reserver.reserve(unit, (0, (), 0.0, unit.id), cluster, today, place)
        if found is None:
            return NEVER_FITS
        ended = [end.job for end in found.waits_for]
        return self.quotas.refusal(self.state, self._planned(shapes, found.placements), ended) or found

    def _place(
        self, shapes: list[list[QueuedPod]], cluster: Cluster, kept: Collection[str] = (), *, overdue: bool = False
    ) -> list[Placement] | None:
        """A slot for each pod, in the order of the shapes; None unless all of them fit."""
        placements: list[Placement] = []
        crowding = None if overdue else self.placer.feasibility.crowding
        for alike in shapes:
            first = alike[0]
            ranker = self.placer.views.ranker(first.pod, first.request)
            closed = self._closed_to(first).union(kept)
            found = place_gang(ranker, _job(first, len(alike)), cluster, None, crowding, closed)
            if found is None:
                return None
            placements += found.placements
            cluster = found.cluster
        return placements

    def _planned(self, shapes: list[list[QueuedPod]], placements: Sequence[Placement]) -> list[Allocation]:
        return [
            planned_allocation(one.pod, one.request, to.slot, self.state.cluster.node(to.slot.node).machine)
            for one, to in zip((one for alike in shapes for one in alike), placements, strict=True)
        ]

    def nodes_to_keep(self, pods: Sequence[QueuedPod]) -> list[str]:
        """The nodes on which the pods would fit soonest if no other pod were placed there; none if they never fit."""
        shapes, cluster = by_shape(pods), self.state.cluster
        first = shapes[0][0]
        closed = self._closed_to(first)
        empty = Cluster.of(node.machine for node in cluster if node.name not in closed)
        for alike in shapes:
            ranker = Ranker(self.placer.views.ranker(alike[0].pod).policy, 1)  # not the shared one: its cache is kept
            decision = place_gang(ranker, _job(alike[0], len(alike)), empty, None, None)
            if decision is None:
                return []
            empty = decision.cluster
        policy = self.placer.views.ranker(first.pod).policy
        return idlest_nodes(policy, _job(first, len(pods)), cluster.leave(*closed) if closed else cluster)

    def _closed_to(self, pod: QueuedPod) -> set[str]:
        """The nodes that do not accept such a pod."""
        assert pod.request.vendor is not None
        open_nodes = self.state.open_nodes(pod.request.vendor)
        if pod.request.node is not None:
            open_nodes &= {pod.request.node}
        return set(self.state.cluster.names).difference(open_nodes) | pod.avoided


def _others(pods: Sequence[QueuedPod]) -> Iterator[list[QueuedPod]]:
    """The pods with the other requests that they accept, in their order; those that have fewer keep their last."""
    most = max(len(one.request.others) for one in pods)
    for place in range(most):
        yield [
            replace(one, request=one.request.others[min(place, len(one.request.others) - 1)])
            if one.request.others
            else one
            for one in pods
        ]


def _job(first: QueuedPod, replicas: int) -> Job:
    return Job(id=first.uid, demand=first.request.demand, replicas=replicas)
