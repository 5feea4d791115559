# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What each account uses and has used of the GPUs, for the queue order `fair`.

An account is a namespace; with `account-label`, the pods of a namespace are divided by the value of that label, which
cannot take anything from other namespaces. Nothing is stored: every scheduler counts the pods that the watch shows, and
a new one starts from those that exist, also ended ones (docs/decisions/0028-past-use-follows-from-pods.md).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from cotenant.core.queueing.fair import (
    Account,
    FairSettings,
    FairShares,
    Pressure,
    Standing,
    gpus_claimed,
    in_turn,
    parse_account,
)
from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Pod, has_ended, moment_of
from cotenant.kube.codec.assignment import Record, tenant_for, valid_record
from cotenant.kube.codec.request import NOTHING
from cotenant.kube.scheduler.queue_entry import Unit
from cotenant.kube.settings import QueuePart
from cotenant.kube.state.cluster import ClusterState


class Usage:
    """Follows pods as the watch shows them, after the state of the cluster."""

    def __init__(self, state: ClusterState, queue: QueuePart, today: Callable[[], float] = time.time) -> None:
        """`today` is the time in seconds since 1970."""
        self._state, self._label, self._today = state, queue.account_label, today
        weights = tuple((parse_account(name), weight) for name, weight in queue.weights.items())
        self._shares = FairShares(FairSettings(half_life=Seconds(queue.half_life_s), weights=weights), 0.0)
        self._unplaced: dict[str, Pod] = {}
        """pods with GPUs of nodes that are not known yet"""
        self._held: set[str] = set()
        """pods that count because a slot is held for them, and are not bound as far as the watch has shown"""

    def account_of(self, pod: Pod) -> Account:
        namespace = pod.metadata.namespace
        return (namespace, pod.metadata.labels.get(self._label, "")) if self._label else (namespace,)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a change of a pod."""
        uid = (new or old or Pod()).metadata.uid
        self._unplaced.pop(uid, None)
        if new is not None and (self._state.bound(uid) is not None or (old is None and has_ended(new))):
            self._count(uid, new)
        elif self._state.held(uid) is None and self._state.bound(uid) is None:
            self._end(uid)

    def held(self, uids: Iterable[str], account: Account) -> float:
        """Slots are held for waiting pods: they count as used from now on. Return the GPUs that they take."""
        taken = 0.0
        for uid in uids:
            allocation = self._state.held(uid)
            gpus = None if allocation is None else self._gpus(allocation.record)
            if gpus is not None and uid not in self._shares:
                self._held.add(uid)
                self._shares.start(uid, account, gpus, self._now())
                taken += gpus
        return taken

    def standing(self, waiting: Iterable[Account], today: Seconds) -> Standing:
        """How the accounts stand that use GPUs or wait for some."""
        for uid, pod in list(self._unplaced.items()):
            self._count(uid, pod)
        for uid in [one for one in self._held if self._state.held(one) is None and self._state.bound(one) is None]:
            self._end(uid)
        self._shares.gpus = self._state.gpus
        return self._shares.standing(waiting, today)

    def _count(self, uid: str, pod: Pod) -> None:
        """Counts a pod with GPUs since its start, unless it counts already."""
        self._held.discard(uid)
        if uid in self._shares:
            return
        bound = self._state.bound(uid)
        record = valid_record(pod) if bound is None else bound.record
        gpus = None if record is None else self._gpus(record)
        if gpus is None:
            if record is not None:
                self._unplaced[uid] = pod
            return
        self._unplaced.pop(uid, None)
        account, now = self.account_of(pod), self._now()
        started = moment_of(pod.status.start_time) or now
        if bound is None:
            self._shares.charge(account, gpus, started, _end_of(pod) or started, now)
        else:
            self._shares.charge(account, gpus, started, now, now)
            self._shares.start(uid, account, gpus, now)

    def _end(self, uid: str) -> None:
        self._held.discard(uid)
        if uid in self._shares:
            self._shares.end(uid, self._now())

    def _gpus(self, record: Record) -> float | None:
        """GPUs that an assignment takes; None if its node is not known."""
        if record.node not in self._state.cluster.index:
            return None
        machine = self._state.cluster.node(record.node).machine
        tenant = tenant_for(record, NOTHING, machine)
        return gpus_claimed(tenant.demand, tenant.gpus, machine.gpus)

    def _now(self) -> Seconds:
        return Seconds(self._today())


def _end_of(pod: Pod) -> Seconds:
    """When the last container of an ended pod has ended; 0 if the pod does not say."""
    ends = (one.state.terminated for one in pod.status.container_statuses)
    return max((moment_of(end.finished_at) for end in ends if end is not None), default=Seconds(0.0))


def fair_order(units: Sequence[Unit], standing: Standing, *, assume_release: bool) -> Iterator[Unit]:
    """The units by priority, then by the pressure of their accounts, then by age.

    What the caller gives to an account in `standing` counts at once. With `assume_release`, each unit counts as if it
    got its GPUs before the next one is answered.
    """
    groups: dict[tuple[int, Account], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.order[0], unit.job.account), []).append(unit)
    for waiting in groups.values():
        waiting.sort(key=lambda unit: (unit.order[1], unit.job.submitted, unit.job.id))

    def position(unit: Unit) -> tuple[int, Pressure, float, Seconds, str]:
        (priority, place), job = unit.order, unit.job
        return priority, standing.pressure(job.account), place, job.submitted, job.id

    def give(unit: Unit) -> None:
        standing.give(unit.job.account, float(unit.job.demand.steady.gpus * unit.job.replicas))

    return in_turn(groups.values(), position, give if assume_release else None)
