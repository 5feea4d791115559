# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The two doors of the core: `rank` and `decide`. Every engine calls these, and equal arguments give equal answers."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job, Placement
from cotenant.core.ranking import Draw, Policy, Ranker, Ranking
from cotenant.core.units import Seconds

Turn = tuple[int, float, str]
"""whose turn it is: higher priority first, then the policy's order, then the id"""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one scheduling pass placed, and the cluster after it."""

    placements: tuple[Placement, ...]
    cluster: Cluster


def turn_of(policy: Policy, job: Job, now: Seconds) -> tuple[int, float]:
    """Whose turn it is, smallest first: priority, then the policy's order."""
    return -job.demand.priority, policy.queue(job, now)


class Queue:
    """Waiting jobs by what they ask, each kind in order. Jobs that ask the same fit or do not fit together, so one
    pass tries each kind until it fails once: thousands may wait at the cost of the few kinds among them."""

    def __init__(self, policy: Policy, jobs: Iterable[Job] = (), now: Seconds = Seconds(0.0)) -> None:
        self._policy = policy
        self._kinds: dict[tuple[Demand, int], list[tuple[Turn, Job]]] = {}
        self._turns: dict[str, Turn] = {}
        for job in jobs:
            self.add(job, now)

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Job]:
        """All waiting jobs, in order."""
        return (job for _, job in sorted(chain.from_iterable(self._kinds.values()), key=_turn))

    def add(self, job: Job, now: Seconds) -> None:
        turn = (*turn_of(self._policy, job, now), job.id)
        self._turns[job.id] = turn
        insort(self._kinds.setdefault((job.demand, job.replicas), []), (turn, job), key=_turn)

    def remove(self, job: Job) -> None:
        kind = (job.demand, job.replicas)
        waiting = self._kinds[kind]
        del waiting[bisect_left(waiting, self._turns.pop(job.id), key=_turn)]
        if not waiting:
            del self._kinds[kind]

    def heads(self) -> list[tuple[Turn, int, int, list[tuple[Turn, Job]]]]:
        """The first of each kind: its turn, the kind's number, a position to advance, and the kind's list."""
        return [(kind[0][0], number, 0, kind) for number, kind in enumerate(self._kinds.values())]


def _turn(item: tuple[Turn, Job]) -> Turn:
    return item[0]


def rank(
    policy: Policy,
    job: Job,
    cluster: Cluster,
    nodes: Collection[str] | None = None,
    *,
    most: int | None = None,
    ranker: Ranker | None = None,
) -> Ranking:
    """The best slot of every node (default: all nodes) that has one, best first, and why the others have none."""
    ranker = Ranker(policy) if ranker is None else ranker
    fits = ranker.top(job.demand, cluster, nodes, most)
    return Ranking(tuple(fits), ranker.reasons(job.demand, cluster, nodes))


def decide(
    policy: Policy,
    queue: Iterable[Job],
    cluster: Cluster,
    now: Seconds,
    *,
    ranker: Ranker | None = None,
    draw: Draw | None = None,
) -> Decision:
    """One scheduling pass: jobs in the policy's order, each on its best slot, those that fit nowhere passed over.

    The queue is not changed; the caller takes out what was placed.
    """
    ranker = Ranker(policy) if ranker is None else ranker
    heads = (queue if isinstance(queue, Queue) else Queue(policy, queue, now)).heads()
    heapify(heads)
    placements: list[Placement] = []
    while heads:
        _, number, position, kind = heads[0]
        placed = place_together(ranker, kind[position][1], cluster, draw)
        if placed is None:  # nothing frees up during a pass: what asks the same cannot fit either
            heappop(heads)
            continue
        placements.extend(placed.placements)
        cluster = placed.cluster
        if position + 1 < len(kind):
            heapreplace(heads, (kind[position + 1][0], number, position + 1, kind))
        else:
            heappop(heads)
    return Decision(tuple(placements), cluster)


def place_together(ranker: Ranker, job: Job, cluster: Cluster, draw: Draw | None = None) -> Decision | None:
    """All replicas of a job, each on the best slot left by the ones before it; None unless all of them fit.

    Where the policy's own choices leave no room for the last ones, the roomiest slots are tried before giving up.
    """
    decision = _one_after_the_other(ranker, job, cluster, draw)
    if decision is None and job.replicas > 1:
        decision = _one_after_the_other(ranker.roomiest(), job, cluster, draw)
    return decision


def _one_after_the_other(ranker: Ranker, job: Job, cluster: Cluster, draw: Draw | None) -> Decision | None:
    placements = []
    for replica in range(job.replicas):
        fit = ranker.best(job.demand, cluster, draw)
        if fit is None:
            return None  # the tentative cluster is simply dropped
        placements.append(Placement(job, fit.slot, replica))
        cluster = cluster.place(placements[-1])
    return Decision(tuple(placements), cluster)
