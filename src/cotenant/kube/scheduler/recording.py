# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Records which pods came, why they waited, their placements with everything that the policy was given, how fast they
were, and how they ended."""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from cotenant.core.model import Job, Slot
from cotenant.core.units import Seconds
from cotenant.history.decisions import Considered, DecisionRecorder, begin_line
from cotenant.history.segments import Segments
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod, has_ended, moment_of
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.keys import own_key, qualified
from cotenant.kube.codec.profiles import ProfileSpec
from cotenant.kube.scheduler.lease import Lead
from cotenant.kube.scheduler.view import View
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.cluster import ClusterState
from cotenant.wire.recording import Arrived, Begin, Ended

V = TypeVar("V")

USER, TEAM = own_key("user"), own_key("team")
"""labels of a pod that reports are grouped by"""
MOST_PENDING = 512
"""pods whose placement is known but which are not bound yet; each may hold a set of node names"""
MOST_ARRIVED = 20_000
"""pods of which is known that they came, and why they were refused"""
MOST_REFUSALS = 16
"""that are recorded about one pod"""
FASTEST = 10.0
"""speed that a recording can have"""
MOST_RECORDED = 256 * 1024 * 1024
"""bytes of files"""
PAGE_BYTES = 4 * 1024 * 1024


class Cursor(NamedTuple):
    """A place in a recording: parts are numbered, and deleted as a whole."""

    part: int
    line: int


class PodRecorder:
    """Follows pods from the decision about them to their end."""

    def __init__(self, recorder: DecisionRecorder, state: ClusterState, lead: Lead) -> None:
        self._recorder, self._state, self._lead = recorder, state, lead
        self._pending: dict[str, Considered] = {}
        self._arrived: dict[str, set[frozenset[str]]] = {}
        """the classes of reasons with which each pod was refused, because each is recorded once"""
        self._speeds: dict[str, _MeanSpeed] = {}
        """of bound pods"""

    def began(self) -> None:
        """This scheduler leads from now on: a part begins with what the previous leader placed."""
        self._pending.clear()
        self._recorder.snapshot(self._state.cluster)

    def considered(self, view: View, offered: frozenset[str], slot: Slot, crowding: float | None) -> None:
        """`filter` chose a slot, which is now held. The decision is recorded when the pod is bound there."""
        job = self._job(view)
        found = _considered(view, job, offered, (slot,), crowding)
        _remember(self._pending, job.id, found.with_beliefs(), MOST_PENDING)

    def refused(
        self, view: View, offered: frozenset[str], crowding: float, reasons: Collection[str], waits: str
    ) -> None:
        """`filter` refused a pod with these classes of reasons; or `waits` is why it waits although it may fit."""
        job = self._job(view)
        known, classes = self._arrived[job.id], frozenset(reasons)
        if classes in known or len(known) >= MOST_REFUSALS:
            return
        known.add(classes)
        found = _considered(view, job, offered, (), crowding)
        self._recorder.decided(replace(found, waits=waits).with_beliefs())

    def reported(self, spec: ProfileSpec) -> None:
        """An agent reported speeds of pods. Those of other nodes or namespaces do not count."""
        now = time.time()
        for pod in spec.pods:
            there = self._state.bound(pod.uid)
            if pod.speed is None or there is None or (there.node, there.namespace) != (spec.node, spec.namespace):
                continue
            self._speeds.setdefault(pod.uid, _MeanSpeed(now)).add(min(FASTEST, pod.speed), now)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """The watch showed a change of a pod."""
        pod = new or old
        assert pod is not None
        uid = pod.metadata.uid
        if new is not None and new.spec.node_name and uid in self._pending:
            self._bound(new, self._pending.pop(uid))
        ends = new is None or has_ended(new)
        if ends and old is not None and not has_ended(old):
            self._pending.pop(uid, None)
            self._arrived.pop(uid, None)
            speed = self._speeds.pop(uid, None)
            # What happens while another scheduler leads is in its recording.
            if not self._lead.is_replaced() and old.spec.node_name and RECORD in pod.metadata.annotations:
                self._ended(pod, speed, gone=new is None)

    def page(self, since: float, start: Cursor) -> tuple[list[str], Cursor | None]:
        """Some of the recorded lines, and where the next ones begin; None: there are no more."""
        found: list[str] = []
        size = 0
        for part in self._recorder.parts():
            if part < start.part:
                continue
            skip = start.line if part == start.part else 0
            for number, line in enumerate(self._recorder.part(part, since)[skip:], skip):
                if found and size + len(line) > PAGE_BYTES:
                    return found, Cursor(part, number)
                found.append(line.decode())
                size += len(line)
        return found, None

    def flush(self) -> None:
        """Waits until all lines are written."""
        self._recorder.flush()

    def close(self) -> None:
        """Writes what is left."""
        self._recorder.close()

    def _job(self, view: View) -> Job:
        """The pod as a job; its arrival is recorded if it is seen for the first time."""
        about = view.pod.metadata
        created = moment_of(about.creation_timestamp)
        job = Job(id=about.uid, demand=view.request.demand, submitted=created)
        if about.uid not in self._arrived:
            _remember(self._arrived, about.uid, set(), MOST_ARRIVED)
            self._recorder.job(
                Arrived(
                    at=created or Seconds(time.time()),
                    job=job,
                    name=qualified(about.namespace, about.name),
                    user=about.labels.get(USER, ""),
                    team=about.labels.get(TEAM, ""),
                    namespace=about.namespace,
                ),
                view.cluster,
            )
        return job

    def _bound(self, pod: Pod, decision: Considered) -> None:
        if decision.slots[0].node == pod.spec.node_name:
            self._recorder.decided(decision)

    def _ended(self, pod: Pod, speed: "_MeanSpeed | None", *, gone: bool) -> None:
        outcomes = {"Succeeded": "finished", "Failed": "failed"}
        outcome = "cancelled" if gone else outcomes.get(pod.status.phase, "lost")
        started, now, uid = moment_of(pod.status.start_time), time.time(), pod.metadata.uid
        mean = None if speed is None else speed.until(now)
        self._recorder.ended(
            lambda: Ended(at=Seconds(now), job=uid, outcome=outcome, started=started or None, speed=mean)
        )


def make_recorder(
    segments: Segments, settings: KubeSettings, errors: ErrorLog, state: ClusterState, lead: Lead
) -> PodRecorder:
    """The recorder of a scheduler with these settings."""
    queue = settings.queue

    def begin() -> Begin:
        return begin_line(time.time(), "kubernetes", settings.scheduler.policy, queue.order, queue.backfill)

    recorder = DecisionRecorder(segments, begin, lambda text: errors.report("decisions", text))
    return PodRecorder(recorder, state, lead)


@dataclass(slots=True)
class _MeanSpeed:
    """The mean over time of the speeds that a pod reported."""

    since: float
    speed: float = 0.0
    total: float = 0.0
    seconds: float = 0.0

    def add(self, speed: float, now: float) -> None:
        """It reports this speed from now on."""
        self._close(now)
        self.speed = speed

    def until(self, now: float) -> float:
        self._close(now)
        return self.total / self.seconds if self.seconds else self.speed

    def _close(self, now: float) -> None:
        passed = max(0.0, now - self.since) if self.speed else 0.0  # no speed was reported yet
        self.total, self.seconds, self.since = self.total + self.speed * passed, self.seconds + passed, now


def _considered(
    view: View, job: Job, offered: frozenset[str], slots: tuple[Slot, ...], crowding: float | None
) -> Considered:
    return Considered(
        at=time.time(),
        policy=view.ranker.policy,
        job=job,
        cluster=view.cluster,
        slots=slots,
        crowding=crowding,
        offered=view.open_nodes(offered),
    )


def _remember(known: dict[str, V], uid: str, value: V, most: int) -> None:
    """Adds an entry, and drops the oldest if there are too many."""
    known[uid] = value
    if len(known) > most:
        del known[next(iter(known))]
