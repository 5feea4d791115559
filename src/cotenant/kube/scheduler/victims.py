# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pods that have GPUs, as preemption sees them: who may be evicted, at what cost, and who leaves anyway.

Times are arguments: seconds of any steady clock.
"""

from collections import Counter
from datetime import datetime

from cotenant.core.queueing.eviction import Stake
from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.settings import PreemptionPart, has_label

USUAL_GRACE_S = 30.0
MOST_GRACE_S = 600.0
"""who may take longer to end is not waited for"""
PATIENCE_S = 60.0
"""after its grace, a pod is not counted on to leave any more: its node may be lost"""


def priority_of(pod: Pod) -> int:
    """As the API server made it of its class."""
    return pod.spec.priority or 0


class Victims:
    """Follows pods as the reflector tells them."""

    def __init__(self, settings: PreemptionPart) -> None:
        self.pods: dict[str, Pod] = {}
        """those that were given GPUs and have not ended, by UID"""
        self.leaving: dict[str, float] = {}
        """since when they were asked to leave, by UID; also those whose pod is gone"""
        self._settings = settings
        self._priorities: Counter[int] = Counter()
        self._spared: dict[str, float] = {}

    def pod_changed(self, old: Pod | None, new: Pod | None, now: float) -> None:
        """After the state were told."""
        uid = (new or old or Pod()).metadata.uid
        before = self.pods.pop(uid, None)
        if before is not None:
            self._priorities[priority_of(before)] -= 1
            self._priorities += Counter()  # forgets zeros
        if new is None or not new.spec.node_name or has_ended(new) or RECORD not in new.metadata.annotations:
            self._spared.pop(uid, None)
            return
        self.pods[uid] = new
        self._priorities[priority_of(new)] += 1
        if new.metadata.deletion_timestamp is not None:
            self.leaves_from(uid, now)

    def any_below(self, priority: int) -> bool:
        """Whether there is anybody whom a pod of this priority could displace."""
        return min(self._priorities, default=priority) < priority

    def leaves_from(self, uid: str, now: float) -> None:
        """It was asked to leave."""
        self.leaving.setdefault(uid, now)

    def leaves(self, uid: str, now: float) -> bool:
        """Whether it can be counted on to end soon."""
        if uid not in self.leaving:
            return False
        grace = self.pods[uid].metadata.deletion_grace_period_seconds if uid in self.pods else None
        return now < self.leaving[uid] + min(MOST_GRACE_S, USUAL_GRACE_S if grace is None else grace) + PATIENCE_S

    def spare(self, uid: str, until: float) -> None:
        """It cannot be evicted now."""
        self._spared[uid] = until

    def stake_of(self, uid: str, below: int, now: float) -> Stake | None:
        """What is lost with a pod; None where it may not be evicted for one of that priority."""
        pod = self.pods.get(uid)
        if pod is None or priority_of(pod) >= below or uid in self.leaving or now < self._spared.get(uid, now):
            return None
        if pod.metadata.namespace in self._settings.protect_namespaces:
            return None
        if has_label(pod.metadata.labels, self._settings.protect_label):
            return None
        return Stake(priority_of(pod), _seconds(pod.status.start_time or pod.metadata.creation_timestamp))

    def forget(self, now: float) -> None:
        """Those who left long ago, and those who did not although they were asked to: they may be asked again."""
        for uid in [uid for uid in self.leaving if not self.leaves(uid, now)]:
            if uid not in self.pods or self.pods[uid].metadata.deletion_timestamp is None:
                del self.leaving[uid]


def _seconds(moment: str | None) -> Seconds:
    try:
        return Seconds(0.0 if moment is None else datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return Seconds(0.0)
