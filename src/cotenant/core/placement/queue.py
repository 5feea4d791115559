# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue of waiting jobs: in which order a pass tries them, and which of them it need not try."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain

from cotenant.core.model import Demand, Job
from cotenant.core.placement.least_room import Need, need_of
from cotenant.core.placement.ranking import Policy
from cotenant.core.queueing.backfill import QueuePosition
from cotenant.core.queueing.fair import Account, Standing, in_turn
from cotenant.core.queueing.limits import LeastAmounts
from cotenant.core.units import Seconds

Kind = tuple[Demand, tuple[Demand, ...], int]
"""demand, alternatives and replicas of a job: jobs that agree in these fit or do not fit together"""
NO_ACCOUNT: Account = ("",)
Head = tuple[QueuePosition, int, int, list[tuple[QueuePosition, Job]]]
"""the first untried job of a group: its position in the queue, the group's number, its index, and the group"""


def queue_position(policy: Policy, job: Job, now: Seconds) -> tuple[int, float]:
    """Position in the queue, smallest first: priority, then the policy's queue order."""
    return -job.demand.priority, policy.queue(job, now)


def position_of(policy: Policy, job: Job, now: Seconds) -> QueuePosition:
    """The same with the job's ID, without the pressure of its account."""
    priority, order = queue_position(policy, job, now)
    return priority, (), order, job.id


def with_pressure(position: QueuePosition, standing: Standing | None, account: Account) -> QueuePosition:
    """A stored position, with the pressure of the account if shares are fair."""
    if standing is None:
        return position
    priority, _, order, job = position
    return priority, standing.pressure(account), order, job


def account_of(job: Job) -> Account:
    """The account of a job; jobs without one have an account together."""
    return job.account or NO_ACCOUNT


class Queue:
    """Waiting jobs grouped by kind, and by account if there are fair shares or limits; each group is in queue order.

    Stored positions have no pressure: that of an account changes with every job that starts or ends.
    """

    def __init__(
        self, policy: Policy, jobs: Iterable[Job] = (), now: Seconds = Seconds(0.0), *, by_account: bool = False
    ) -> None:
        """`by_account`: group by account even if the queue order is not `fair`, because accounts have limits."""
        self._policy, self._by_account = policy, by_account or policy.fair
        self._kinds: dict[tuple[int, Account], list[tuple[QueuePosition, Job]]] = {}
        """by the number of the kind, which is compared faster than the kind itself"""
        self._numbers: dict[Kind, tuple[int, int]] = {}
        """the number of each kind, and how many jobs of it wait"""
        self._next_number = 0
        self._needs: dict[int, tuple[Need, ...]] = {}
        """the least that each kind needs, by its number, if it was asked for"""
        self.least = LeastAmounts()
        """the least that each kind counts against limits, by its number"""
        self._places: dict[str, tuple[tuple[int, Account], QueuePosition]] = {}
        for job in jobs:
            self.add(job, now)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Job]:
        """All waiting jobs, in the order of their stored positions."""
        return (job for _, job in sorted(chain.from_iterable(self._kinds.values()), key=_turn))

    def add(self, job: Job, now: Seconds) -> None:
        turn = position_of(self._policy, job, now)
        kind = job.demand, job.alternatives, job.replicas
        number, count = self._numbers.get(kind, (self._next_number, 0))
        if not count:
            self._next_number += 1
        self._numbers[kind] = number, count + 1
        group = number, account_of(job) if self._by_account else NO_ACCOUNT
        self._places[job.id] = group, turn
        insort(self._kinds.setdefault(group, []), (turn, job), key=_turn)

    def remove(self, job: Job) -> None:
        group, turn = self._places.pop(job.id)
        waiting = self._kinds[group]
        _, stored = waiting.pop(bisect_left(waiting, turn, key=_turn))
        if not waiting:
            del self._kinds[group]
        kind = stored.demand, stored.alternatives, stored.replicas  # `job` may have the demand that it was placed with
        number, count = self._numbers.pop(kind)
        if count > 1:
            self._numbers[kind] = number, count - 1
        else:
            self._needs.pop(number, None)
            self.least.forget(number)

    def in_turn(self, standing: Standing | None) -> Iterator[Job]:
        """All waiting jobs in the order in which they start if each fits."""
        if standing is None:
            return iter(self)
        groups = [[job for _, job in group] for group in self._kinds.values()]

        def position(job: Job) -> QueuePosition:
            return self.position(job.id, standing)

        def give(job: Job) -> None:
            standing.give(account_of(job), float(job.demand.steady.gpus * job.replicas))

        return in_turn(groups, position, give)

    def accounts(self) -> set[Account]:
        """The accounts that have waiting jobs."""
        return {account for _, account in self._kinds}

    def position(self, job: str, standing: Standing | None = None) -> QueuePosition:
        """The position of a waiting job."""
        (_, account), turn = self._places[job]
        return with_pressure(turn, standing, account)

    def kinds(self) -> list[int]:
        """The number of the kind of each group, in the order of the numbers of groups in `heads`."""
        return [kind for kind, _ in self._kinds]

    def needs(self, kind: int, job: Job) -> tuple[Need, ...]:
        """The least that each demand of a job of the kind with this number needs."""
        found = self._needs.get(kind)
        if found is None:
            demands = job.demand, *job.alternatives
            found = self._needs[kind] = tuple([need_of(demand, self._policy.checks) for demand in demands])
        return found

    def groups(self) -> Iterator[list[tuple[QueuePosition, Job]]]:
        """The waiting jobs of each group, with their stored positions."""
        return iter(self._kinds.values())

    def heads(self, standing: Standing | None = None) -> list[Head]:
        """The first job of each group."""
        return [
            (with_pressure(group[0][0], standing, account), number, 0, group)
            for number, ((_, account), group) in enumerate(self._kinds.items())
        ]


def _turn(item: tuple[QueuePosition, Job]) -> QueuePosition:
    return item[0]
