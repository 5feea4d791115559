# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Records which pods came, their placements with everything that the policy was given, and how they ended."""

import time
from collections.abc import Iterator

from cotenant.core.model import Job, Slot
from cotenant.core.units import Seconds
from cotenant.history.decisions import Considered, DecisionRecorder, parts_since
from cotenant.kube.api.objects import Pod, has_ended, moment_of
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.keys import own_key, qualified
from cotenant.kube.scheduler.view import View
from cotenant.wire.recording import Arrived, Ended

USER, TEAM = own_key("user"), own_key("team")
"""labels of a pod that reports are grouped by"""
MOST_PENDING = 512
"""pods whose placement is known but which are not bound yet; each may hold a set of node names"""
PAGE_BYTES = 4 * 1024 * 1024


class PodRecorder:
    """Follows pods from the decision about them to their end."""

    def __init__(self, recorder: DecisionRecorder) -> None:
        self._recorder = recorder
        self._pending: dict[str, Considered] = {}
        self._arrived: dict[str, None] = {}

    def considered(self, view: View, offered: frozenset[str], slot: Slot, crowding: float | None) -> None:
        """`filter` chose a slot, which is now held. The decision is recorded when the pod is bound there."""
        pod, request = view.pod, view.request
        about, created = pod.metadata, moment_of(pod.metadata.creation_timestamp)
        job = Job(id=about.uid, demand=request.demand, submitted=created)
        if about.uid not in self._arrived:
            self._remember(self._arrived, about.uid, None)
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
        considered = Considered(
            at=time.time(),
            policy=view.ranker.policy,
            job=job,
            cluster=view.cluster,
            slots=(slot,),
            crowding=crowding,
            offered=None if view.open_nodes(offered) is None else offered & view.nodes,
        )
        self._remember(self._pending, about.uid, considered.with_beliefs())

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
            if old.spec.node_name and RECORD in pod.metadata.annotations:
                self._ended(pod, gone=new is None)

    def page(self, since: float, skip: int) -> tuple[list[str], int | None]:
        """Some of the recorded lines, and how many to skip to get the next ones; None: there are no more."""
        found: list[str] = []
        size = number = 0
        lines: Iterator[bytes] = parts_since(self._recorder.lines(), since)
        for number, line in enumerate(lines):
            if number < skip:
                continue
            if found and size + len(line) > PAGE_BYTES:
                return found, number
            found.append(line.decode())
            size += len(line)
        return found, None

    def _bound(self, pod: Pod, decision: Considered) -> None:
        if decision.slots[0].node == pod.spec.node_name:
            self._recorder.decided(decision)

    def _ended(self, pod: Pod, *, gone: bool) -> None:
        outcomes = {"Succeeded": "finished", "Failed": "failed"}
        outcome = "cancelled" if gone else outcomes.get(pod.status.phase, "lost")
        started, now, uid = moment_of(pod.status.start_time), time.time(), pod.metadata.uid
        self._recorder.ended(lambda: Ended(at=Seconds(now), job=uid, outcome=outcome, started=started or None))

    @staticmethod
    def _remember(known: "dict[str, Considered] | dict[str, None]", uid: str, value: "Considered | None") -> None:
        """Adds an entry, and drops the oldest if there are too many."""
        known[uid] = value  # type: ignore[assignment]
        if len(known) > MOST_PENDING:
            del known[next(iter(known))]
