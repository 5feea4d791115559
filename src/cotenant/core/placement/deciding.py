# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`rank` and `decide`, the functions that every engine calls; equal arguments give equal answers."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from itertools import islice

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job, Placement, Reason
from cotenant.core.placement.least_room import may_fit, room_of
from cotenant.core.placement.queue import Head, Queue, account_of, with_pressure
from cotenant.core.placement.ranking import Draw, Policy, Ranker, Ranking, rate
from cotenant.core.placement.scores import Score
from cotenant.core.queueing.advance import NONE, Advance, restricted
from cotenant.core.queueing.backfill import End, QueuePosition, Reservation, Reserver
from cotenant.core.queueing.fair import FairShares, Standing, gpus_taken
from cotenant.core.queueing.limits import LeastAmounts, LimitCheck
from cotenant.core.sharing.gates import PLACE, Verdict
from cotenant.core.sharing.orders import promises, taken
from cotenant.core.units import Seconds
from cotenant.core.values import value


@value()
class Decision:
    """What one scheduling pass placed, and the cluster after it."""

    placements: tuple[Placement, ...]
    cluster: Cluster
    crowding: float = 0.0
    """waiting jobs per GPU; 0 if the policy has no sharing gate"""
    kept: Collection[str] = ()
    """nodes that were kept free for an overdue job, if no GPUs are reserved for the first job"""
    reservation: Reservation | None = None
    """the GPUs that are reserved for the first job that did not fit"""
    overtaking: Mapping[str, bool] = field(default_factory=dict)
    """jobs that were placed although the reservation is for a job before them, and whether it allows them to use the
    reserved GPUs; the others fit beside them"""


# Invariant of a pass: nothing is freed while it runs, so a kind of job that failed once fails for the rest of the pass,
# except that behind a reservation a shorter job of the kind may be allowed what a longer one is not.
# The heap holds the first untried job of each kind that has not failed; its root is the first of all of them in queue
# order. A pass therefore costs one attempt per placement and one or two per kind, however many jobs wait.

DEPTH = 1000
"""jobs of one kind among which a pass looks for the next one that ends before a reservation starts"""
FIRST_LOOK = 32
"""kinds that do not fit, after which a pass drops all others that cannot fit either; then twice as many, and so on"""


def rank(
    policy: Policy,
    job: Job,
    cluster: Cluster,
    nodes: Collection[str] | None = None,
    *,
    most: int | None = None,
    ranker: Ranker | None = None,
    crowding: float | None = 0.0,
) -> Ranking:
    """The best slot of each of the nodes (default: all) that has one, best first, and the reasons of the others."""
    ranker = Ranker(policy) if ranker is None else ranker
    fits = ranker.top(job.demand, cluster, nodes, most)
    verdict = _verdict(policy, fits[0].score, crowding) if fits else PLACE
    return Ranking(tuple(fits), ranker.reasons(job.demand, cluster, nodes), verdict)


def decide(
    policy: Policy,
    queue: Iterable[Job],
    cluster: Cluster,
    now: Seconds,
    *,
    ranker: Ranker | None = None,
    draw: Draw | None = None,
    ends: Iterable[End] | None = None,
    reservation: Reservation | None = None,
    shares: FairShares | None = None,
    limits: LimitCheck | None = None,
    advance: Advance | None = None,
) -> Decision:
    """One scheduling pass: jobs in queue order, each on its best slot; jobs that fit nowhere are skipped.

    With the estimated ends of the running jobs, GPUs are reserved for the first job that does not fit, and later jobs
    must not delay it. `reservation` is that of the last pass; its job need not be in the queue if nothing was freed
    since. Without `ends`, later jobs start wherever they fit, and nodes are kept free only for an overdue job.

    An overdue job skips the sharing gate. The queue is not changed: the caller removes the jobs that were placed.

    With the queue order `fair` and `shares`, accounts are compared before the jobs of each, and what an account gets in
    this pass counts at once. With `limits`, a job whose account has reached a limit is skipped. With `advance`, a job
    is placed on no GPU that is reserved for others before it has ended.
    """
    ranker = Ranker(policy) if ranker is None else ranker
    waiting = queue if isinstance(queue, Queue) else Queue(policy, queue, now, by_account=limits is not None)
    crowding = len(waiting) / max(1, cluster.gpus) if policy.gate is not None else 0.0
    standing = None if shares is None or not policy.fair else _standing(shares, waiting, reservation, now)
    reservation = None if reservation is None else _moved(reservation, standing)
    heads = waiting.heads(standing)
    heapify(heads)
    kinds = waiting.kinds()
    failed: set[tuple[int, bool, frozenset[str], bool]] = set()
    """kinds that did not fit, whether they were overdue, on which GPUs they must not start, and whether they were
    allowed to use what is reserved for the first job"""
    advance = advance if advance is not None and advance.reservations else None
    if limits is not None:
        waiting.least.on(cluster)
    placements: list[Placement] = []
    kept: list[str] = []
    backfill = None if ends is None else _Backfill(Reserver(ends), ranker, now, crowding, reservation)
    look_at = FIRST_LOOK
    while heads:
        if len(failed) >= look_at:
            look_at *= 2
            heads = _without_hopeless(heads, waiting, kinds, cluster, policy, backfill)
            continue
        position, number, index, kind = heads[0]
        job = kind[index][1]
        if standing is not None and (behind := with_pressure(position, standing, account_of(job))) != position:
            heapreplace(heads, (behind, number, index, kind))  # its account got GPUs since it was put here
            continue
        overdue = not kept and _is_overdue(policy, job, now)
        closed = NONE if advance is None else advance.closed(job, now)
        if (kinds[number], overdue, closed, True) in failed:
            _go_on(heads, _next_other(advance, kind, index, closed, now), standing)
            continue
        gate = None if overdue else crowding
        seen, allowed = (cluster, True) if backfill is None else backfill.view(job, position, cluster)
        known = (kinds[number], overdue, closed, allowed) in failed
        tried, placed = restricted(job, closed), None
        over = not known and limits is not None and _is_over(limits, job, waiting.least, kinds[number])
        if not known and not over:
            placed = place_gang(ranker, tried, seen, draw, gate, kept)
            over = placed is not None and limits is not None and _goes_over(limits, placed, cluster)
        if over:
            heappop(heads)  # the others of its group have the same account and demand
            if backfill is not None:
                backfill.over_limit(job)
            continue
        following: int | None = None
        if placed is not None:
            placements.extend(placed.placements)
            if limits is not None:
                limits.give(placed.placements, cluster)
            if standing is not None:
                standing.give(account_of(job), gpus_taken(placed.placements, cluster))
            cluster = placed.cluster if backfill is None else backfill.placed(job, placed, cluster, allowed=allowed)
            following = index + 1 if index + 1 < len(kind) else None
        else:
            if not known:
                failed.add((kinds[number], overdue, closed, allowed))
                if backfill is not None:
                    backfill.refused(tried, position, cluster, gate)
                elif overdue:
                    kept = idlest_nodes(policy, job, cluster)
            # No other job of this kind fits in this pass, unless it may use other GPUs.
            others = (
                None if backfill is None or allowed else backfill.next_allowed(kind, index),
                _next_other(advance, kind, index, closed, now),
            )
            following = min((one for one in others if one is not None), default=None)
        _go_on(heads, following, standing)
    if backfill is None:
        return Decision(tuple(placements), cluster, crowding, kept)
    left = backfill.reservation or backfill.last
    return Decision(tuple(placements), cluster, crowding, kept, left, backfill.overtaking)


def _without_hopeless(
    heads: list[Head],
    waiting: Queue,
    kinds: list[int],
    cluster: Cluster,
    policy: Policy,
    backfill: "_Backfill | None",
) -> list[Head]:
    """The heap without the kinds that cannot fit by free amounts alone, which need no attempt: nothing is freed in a
    pass. A kind stays if its refusal has a consequence: GPUs or nodes may be kept free for its first job."""
    rooms = room_of(cluster, policy.checks)
    if rooms is None or (backfill is None and policy.overdue is not None):
        return heads
    if backfill is not None and backfill.reservation is None:
        drained = backfill.reserver.drained
        later = None if drained is None or backfill.last is not None else room_of(drained, policy.checks)
        if later is None:
            return heads
        rooms += later  # what fits there gets a reservation
    left = [head for head in heads if may_fit(rooms, waiting.needs(kinds[head[1]], head[3][0][1]))]
    heapify(left)
    return left


def _go_on(heads: list[Head], following: int | None, standing: Standing | None) -> None:
    """Puts another job of its group in the place of the first job; None: no other one of the group is tried."""
    _, number, _, kind = heads[0]
    if following is None:
        heappop(heads)
    else:
        position, job = kind[following]
        heapreplace(heads, (with_pressure(position, standing, account_of(job)), number, following, kind))


def _next_other(
    advance: Advance | None, kind: list[tuple[QueuePosition, Job]], index: int, closed: frozenset[str], now: Seconds
) -> int | None:
    """The index of the next job of a kind that may start on a GPU on which this one must not."""
    if advance is None or not closed:
        return None
    behind = range(index + 1, min(len(kind), index + 1 + DEPTH))
    return next((i for i in behind if not closed <= advance.closed(kind[i][1], now)), None)


def _is_over(limits: LimitCheck, job: Job, least: LeastAmounts, kind: int) -> bool:
    """Whether a limit refuses a job wherever it is placed."""
    return limits.refuse(job.account, least.of(kind, job)) is not None


def _goes_over(limits: LimitCheck, placed: Decision, cluster: Cluster) -> bool:
    """Whether a limit refuses a job where it would be placed."""
    return limits.refuse_placed(placed.placements, cluster) is not None


def _standing(shares: FairShares, waiting: Queue, reservation: Reservation | None, now: Seconds) -> Standing:
    """How the accounts stand that run jobs, wait or have the reservation, whose job need not be in the queue."""
    reserved = () if reservation is None else (account_of(reservation.job),)
    return shares.standing(waiting.accounts().union(reserved), now)


def _moved(reservation: Reservation, standing: Standing | None) -> Reservation:
    """The reservation of the last pass at the position that its job has now."""
    if standing is None:
        return reservation
    position = with_pressure(reservation.position, standing, account_of(reservation.job))
    return replace(reservation, position=position)


@dataclass(slots=True)
class _Backfill:
    """The part of a pass that is about reservations: for whom, and what other jobs may use."""

    reserver: Reserver
    ranker: Ranker
    now: Seconds
    crowding: float
    last: Reservation | None
    """that of the last pass, until its job was tried in this one"""
    reservation: Reservation | None = None
    overtaking: dict[str, bool] = field(default_factory=dict)
    """see `Decision`"""
    beside: Cluster | None = None
    """the cluster without what is reserved, once it was needed and until the reservation changes"""

    def view(self, job: Job, position: QueuePosition, cluster: Cluster) -> tuple[Cluster, bool]:
        """The cluster as a job may use it, and whether it may use what is reserved, if anything is."""
        if self.reservation is None and self.last is not None and position > self.last.position:
            # Its job was not tried in this pass, which it would have been if something were free for it.
            self.reservation = self._reserve(self.last.job, self.last.position, cluster, self.crowding)
            self.last = None
        if self.reservation is None or self.reservation.allows(job, self.now):
            return cluster, True
        if self.beside is None:
            self.beside = self.reservation.without_reserved(cluster)
        return self.beside, False

    def placed(self, job: Job, found: Decision, cluster: Cluster, *, allowed: bool) -> Cluster:
        """The cluster after a job was placed in its view."""
        if allowed:
            cluster, self.beside = found.cluster, None
        else:
            self.beside = found.cluster
            for placement in found.placements:
                cluster = cluster.place(placement)
        end = End.of(found.placements, self.now)
        self.reserver.new.append(end)
        if self.reservation is not None:
            self.overtaking[job.id] = allowed
            self.reservation = self.reservation.overtaken_by(end) if allowed else self.reservation
        self._forget_last(job)
        return cluster

    def refused(self, job: Job, position: QueuePosition, cluster: Cluster, crowding: float | None) -> None:
        """A job does not fit: if it is the first one, GPUs are reserved for it."""
        if self.reservation is None:
            self.reservation = self._reserve(job, position, cluster, crowding)
        self._forget_last(job)

    def next_allowed(self, kind: list[tuple[QueuePosition, Job]], index: int) -> int | None:
        """The index of the next job of a kind that may use the reserved GPUs."""
        reservation = self.reservation
        if reservation is None or not reservation.known:
            return None
        behind = range(index + 1, min(len(kind), index + 1 + DEPTH))
        return next((i for i in behind if reservation.allows(kind[i][1], self.now)), None)

    def over_limit(self, job: Job) -> None:
        """Drops the reservation of the last pass if it was for the account of this job, which has reached a limit."""
        if self.last is not None and self.last.job.account == job.account:
            self.last = None

    def _forget_last(self, job: Job) -> None:
        if self.last is not None and job.id == self.last.job.id:
            self.last = None

    def _reserve(
        self, job: Job, position: QueuePosition, cluster: Cluster, crowding: float | None
    ) -> Reservation | None:
        """A reservation for a job: that of the last pass if it is still possible, since GPUs become free for it."""

        def place(tentative: Cluster) -> tuple[Placement, ...] | None:
            found = place_gang(self.ranker, job, tentative, None, crowding)
            return None if found is None else found.placements

        if self.last is not None and self.last.job.id == job.id and self.last.job.demand == job.demand:
            renewed = self.last.renewed(cluster, self.now, place)
            if renewed is not None:
                return renewed
        return self.reserver.reserve(job, position, cluster, self.now, place)


def _is_overdue(policy: Policy, job: Job, now: Seconds) -> bool:
    return policy.overdue is not None and policy.overdue(job, now)


def _verdict(policy: Policy, score: Score, crowding: float | None) -> Verdict:
    return PLACE if policy.gate is None or crowding is None else policy.gate(score, crowding)


def idlest_nodes(policy: Policy, job: Job, cluster: Cluster) -> list[str]:
    """One node for each replica of a job: those with the most idle GPUs on which it would fit if they were empty."""

    def idle(name: str) -> int:
        node = cluster.node(name)
        return len(node.machine.gpus) - len(taken(node))

    able = (
        name
        for name in sorted(cluster.names, key=lambda name: (-idle(name), name))
        if rate(policy, job.demand, Cluster.of([cluster.node(name).machine]).at(0)) is not None
    )
    return list(islice(able, job.replicas))


def place_gang(
    ranker: Ranker,
    job: Job,
    cluster: Cluster,
    draw: Draw | None = None,
    crowding: float | None = 0.0,
    closed: Collection[str] = (),
) -> Decision | None:
    """Places all replicas of a job, each on the best slot that the earlier ones leave; None unless all of them fit.

    Closed nodes are not used. A crowding of None skips the sharing gate.

    If the policy's own choices leave no room for the last replicas, the roomiest slots are tried; after that, the
    alternative demands of the job. The job of the placements has the demand with which it was placed.
    """
    for demand in (job.demand, *job.alternatives):
        attempt = job if demand is job.demand else replace(job, demand=demand, alternatives=())
        decision = _one_after_the_other(ranker, attempt, cluster, draw, crowding, closed)
        if decision is None and job.replicas > 1 and (ranker.policy.gate is None or crowding is None):
            decision = _one_after_the_other(ranker.roomiest(), attempt, cluster, draw, crowding, closed)
        if decision is not None:
            return decision
    return None


def _one_after_the_other(
    ranker: Ranker, job: Job, cluster: Cluster, draw: Draw | None, crowding: float | None, closed: Collection[str]
) -> Decision | None:
    placements = []
    for replica in range(job.replicas):
        fit = ranker.best(job.demand, cluster, draw, closed)
        if fit is None:
            return None  # the tentative cluster is dropped
        verdict = _verdict(ranker.policy, fit.score, crowding)
        if verdict.reason is not None:
            return None
        placements.append(Placement(job, fit.slot, replica, verdict.trial, crowding is None))
        cluster = cluster.place(placements[-1])
    return Decision(tuple(placements), cluster)


def judge_again(policy: Policy, placement: Placement, cluster: Cluster, crowding: float) -> Verdict:
    """The verdict on a tenant as if it arrived now, with all that was measured since it was placed.

    No tenant may be slower than promised, and the sharing gate judges again. Pass the crowding of the time when it was
    placed: a shorter queue is no reason to send a tenant back to it. An overdue tenant only must not break a promise.
    """
    if policy.gate is None:
        return PLACE
    slot, demand = placement.slot, placement.job.demand
    node = cluster.finish(placement).node(slot.node)
    kept = promises(policy.known.belief, demand, node, list(slot.gpus))
    if isinstance(kept, Reason):
        return Verdict(kept)
    score = tuple(order(demand, node, [slot.gpus])[0] for order in policy.nodes)
    return _verdict(policy, score, None if placement.overdue else crowding)
