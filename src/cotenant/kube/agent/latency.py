# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The latency objectives of the pods of a node: what their programs report is judged, and written on the node.

The agent cannot give a pod more compute: the scheduler does, which knows what the other pods of the GPU were promised.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn

from cotenant.core.sharing.latency import Objective, Search, Window, is_missed, judge, latency_of
from cotenant.core.units import MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import compute_share, record_of
from cotenant.kube.codec.inventory import LONGEST_MS, ServerReport, servers_for
from cotenant.kube.codec.objective import objective_of
from cotenant.metrics.figures import TenantFigures
from cotenant.node.agent import JobEvent, Reported

TICK_S = 0.5
MOST_MISSED = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Times of the windows in which requests are judged, and of the writes that follow."""

    shortest_s: float = 2.0
    settle_s: float = 3.0
    """after a change of the share, until kubelet has brought the limits into the container"""
    renewed_s: float = 60.0
    """between two writes of the node if only the latencies have changed"""


@dataclass(slots=True, kw_only=True)
class _Server:
    namespace: str
    name: str
    objective: Objective
    share: MilliGpu
    since: float
    """begin of the window"""
    counts: Counter[int] = field(default_factory=Counter)
    search: Search = field(default_factory=Search)
    latency: Seconds | None = None
    wanted: MilliGpu = MilliGpu(0)
    missed_total: int = 0


class Servers:
    """The pods with an objective. Called from one event loop; times are those of time.monotonic."""

    def __init__(
        self,
        pods: Callable[[], Iterable[Pod]],
        publish: Callable[[str | None], object],
        windows: Windows = Windows(),  # noqa: B008 -- frozen
    ) -> None:
        self._pods, self._publish, self._windows = pods, publish, windows
        self._servers: dict[str, _Server] = {}
        self._changed = True
        """Pods have changed since they were taken in."""
        self._published: dict[str, ServerReport] | None = None
        """None: nothing was published since the agent started, and the node may carry what an earlier one wrote."""
        self._renew_at = 0.0

    def pods_changed(self) -> None:
        """Takes effect with the next tick or report."""
        self._changed = True

    def handle(self, event: JobEvent) -> None:
        """A message of a pod. Reports of a pod without an objective, or too soon after a change, are dropped."""
        if isinstance(event, Reported) and event.steps.latencies:
            self._take_in(event.at)
            server = self._servers.get(event.job)
            if server is not None and event.at >= server.since:
                server.counts.update(event.steps.latencies)

    def tick(self, now: float) -> None:
        """Judges the windows that are over, and publishes what has changed."""
        self._take_in(now)
        for server in self._servers.values():
            self._close_window(server, now)
        reports = {uid: _report(one) for uid, one in self._servers.items() if one.latency is not None}
        before = self._published
        same = before is not None and _decisions(before) == _decisions(reports)
        if not same or (reports != before and now >= self._renew_at):
            self._published, self._renew_at = reports, now + self._windows.renewed_s
            self._publish(servers_for(reports) if reports else None)

    async def run(self) -> NoReturn:
        """Judges until cancelled."""
        while True:
            self.tick(time.monotonic())
            await asyncio.sleep(TICK_S)

    def shown(self, uid: str, known: TenantFigures) -> TenantFigures:
        """What the metrics say of a pod, with its objective if it has one."""
        server = self._servers.get(uid)
        if server is None:
            return known
        return replace(
            known,
            latency_s=server.latency,
            latency_objective_s=server.objective.seconds,
            latency_percentile=f"{server.objective.percentile:g}",
            latency_missed=server.missed_total,
        )

    def _close_window(self, server: _Server, now: float) -> None:
        """Judges the requests of a server, if they are enough; else they are kept until they are."""
        missed = is_missed(server.counts, server.objective) if now - server.since >= self._windows.shortest_s else None
        latency = latency_of(server.counts, server.objective)
        if missed is None or latency is None:
            return
        server.latency, server.since = latency, now
        server.counts.clear()
        server.missed_total += missed
        window = Window(latency, missed, Seconds(now))
        server.search, server.wanted = judge(server.search, server.share, window, server.objective.seconds)

    def _take_in(self, now: float) -> None:
        if not self._changed:
            return
        self._changed = False
        found: dict[str, _Server] = {}
        for pod in self._pods():
            server = None if has_ended(pod) else _server_of(pod, now)
            if server is None:
                continue
            uid, before = pod.metadata.uid, self._servers.get(pod.metadata.uid)
            if before is None or before.objective != server.objective:
                found[uid] = server
                continue
            found[uid] = before
            if before.share != server.share:
                before.share, before.wanted = server.share, server.share
                before.search, before.since = before.search.at_new_share(), now + self._windows.settle_s
                before.counts.clear()
        self._servers = found


def _server_of(pod: Pod, now: float) -> _Server | None:
    try:
        objective = objective_of(pod.metadata.annotations)
        record = None if objective is None else record_of(pod)
    except InputError:  # written after the pod was admitted, or not about this pod
        return None
    if objective is None or record is None:
        return None
    about, share = pod.metadata, compute_share(record)
    return _Server(
        namespace=about.namespace, name=about.name, objective=objective, share=share, since=now, wanted=share
    )


def _report(server: _Server) -> ServerReport:
    assert server.latency is not None
    return ServerReport(
        percentile=server.objective.percentile,
        objective_ms=round(1000 * server.objective.seconds, 3),
        latency_ms=min(LONGEST_MS, round(1000 * server.latency, 3)),
        missed=min(MOST_MISSED, server.search.missed),
        compute=server.share,
        wanted=server.wanted,
    )


def _decisions(reports: dict[str, ServerReport]) -> dict[str, tuple[int, int, bool]]:
    """What the scheduler acts on; latencies change all the time."""
    return {uid: (one.compute, one.wanted, one.missed > 1) for uid, one in reports.items()}
