# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Events on pods that wait at their gate: for what they wait, and that they are held or no longer held.

kube-scheduler writes on such a pod only that it has a gate. On a pod with claims that came past the gate, it writes
only that it could not allocate them. These events are for users who may read the pods of their namespace and may not
ask the scheduler: `kubectl describe pod` and `cotenant jobs --on kubernetes` show them.
"""

from functools import partial
from itertools import islice

from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.claims import MISSING
from cotenant.kube.codec.queueing import hold_of, is_gated
from cotenant.kube.scheduler.events import HELD, HOLD_ENDED, QUEUED
from cotenant.kube.scheduler.explaining import why_not
from cotenant.kube.scheduler.queue import Queue
from cotenant.kube.scheduler.shared import Shared

LOOK_S = 5.0
"""between two looks through the queue"""
EVERY_S = 300.0
"""between two events on one pod: as often as kube-scheduler repeats its own about pods that it cannot place"""
MOST = 1000
"""pods about which events are written, the first of the queue: far fewer than events can wait to be written"""


class QueueEvents:
    """Looks through the queue after some of its passes."""

    def __init__(self, shared: Shared, queue: Queue) -> None:
        self._shared, self._queue = shared, queue
        self._due: dict[str, float] = {}  # by UID
        self._look_at = float("-inf")

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`: a hold that began or ended."""
        if old is None or new is None or self._shared.unready_reason() is not None:
            return
        before, now = hold_of(old), hold_of(new)
        if now is not None and now != before:
            self._shared.events.record(new, HELD, str(now))
        elif now is None and before is not None and is_gated(new.spec.scheduling_gates):
            self._due.pop(new.metadata.uid, None)
            self._shared.events.record(new, HOLD_ENDED, f"no longer {before}")

    def on_pass(self, now: float, today: Seconds) -> None:
        """A pass through the queue has ended."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        due: dict[str, float] = {}
        pods = ((one, where) for unit, where in self._queue.in_order(now, today) for one in unit.pods)
        for one, where in islice(pods, MOST):
            due[one.uid] = self._due.get(one.uid, now)
            if due[one.uid] <= now:
                due[one.uid] = now + EVERY_S
                self._shared.events.record(one.pod, QUEUED, partial(self._text, one.pod, where))
        for pod, why in islice(self._queue.invalid(), MOST):
            # What a request lacks at first often appears a moment later, such as a claim that is made from a template.
            uid = pod.metadata.uid
            due[uid] = self._due.get(uid, now + LOOK_S if why.endswith(MISSING) else now)
            if due[uid] <= now and hold_of(pod) is None:
                due[uid] = now + EVERY_S
                self._shared.events.record(pod, QUEUED, f"it waits until this is corrected: {why}", warning=True)
        self._due = due

    def _text(self, pod: Pod, where: str) -> str:
        """The text of the event; empty if the pod does not wait here any more."""
        state = self._shared.state
        waits = state.waiting.get(pod.metadata.uid)
        if waits is None or hold_of(waits) is not None:
            return ""
        if not is_gated(waits.spec.scheduling_gates) and not state.awaits_claims(waits):  # kube-scheduler tells it
            return ""
        return f"{where}; {why_not(pod, self._shared.placer)}"
