# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of the scheduler. They name no pod, so every client that reaches its ports may read them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from cotenant.kube.api.metrics import count_request, metrics_route
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.server import Routes
from cotenant.kube.codec.claims import is_decided
from cotenant.kube.scheduler.protocol import FilterResult
from cotenant.kube.scheduler.refusing import CLASSES, NEAREST
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.bounds import kinds
from cotenant.metrics.counts import Counts
from cotenant.metrics.page import Page
from cotenant.metrics.table import (
    DECISIONS,
    ERRORS,
    HOLDS,
    LAG,
    LEADER,
    NODES,
    OLDEST,
    QUEUED,
    TERMS,
    WAITS,
)

_CHECKS = {text: check for check, text in CLASSES.items()}


@dataclass(slots=True, kw_only=True)
class SchedulerMetrics:
    """Counts what signals report, and reads the rest from the parts of the scheduler when the page is scraped."""

    shared: Shared
    lengths: Mapping[str, Callable[[], Collection[object]]]
    """What waits, by the name of the queue."""
    lags: Callable[[], Mapping[str, float]]
    """Seconds since the API server last confirmed our copy, by kind of object."""
    page: Page = field(init=False)
    _since: dict[str, float] = field(default_factory=dict)
    """When each waiting pod was first seen, by UID, on the steady clock."""

    def __post_init__(self) -> None:
        counts = self.shared.counts
        self.page = Page(counts, refresh=self.refresh)
        counts.add(DECISIONS, "filter", "placed", "", by=0)
        self.shared.client.answered.subscribe(partial(count_request, counts))
        self.shared.signals.pod_changed.subscribe(self.pod_changed)
        self.shared.signals.lead_won.subscribe(lambda: counts.add(TERMS))

    def routes(self) -> Routes:
        """What Prometheus scrapes."""
        return metrics_route(self.page)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """The state of the cluster has taken in a change of a pod."""
        pod = new or old
        if pod is None:
            return
        uid, shared = pod.metadata.uid, self.shared
        if uid in shared.state.waiting:
            self._since.setdefault(uid, shared.clock())
        elif (since := self._since.pop(uid, None)) is None or new is None:
            return
        elif new.spec.node_name or is_decided(new):  # a pod with claims has its GPUs before it is bound
            shared.counts.observe(WAITS, shared.clock() - since)

    def refresh(self) -> None:
        """Sets the gauges."""
        shared, counts = self.shared, self.shared.counts
        for name, found in self.lengths.items():
            counts.set(QUEUED, len(found()), name)
        counts.set(OLDEST, shared.clock() - min(self._since.values()) if self._since else 0.0)
        counts.set(HOLDS, shared.state.holds)
        counts.set(LEADER, float(shared.lead.unready_reason() is None))
        closed = len(shared.state.closed)
        counts.set(NODES, closed, "closed")
        counts.set(NODES, max(0, len(shared.state.nodes) - closed), "open")
        counts.set_all(LAG, self.lags())
        counts.set_all(ERRORS, kinds(shared.errors.counts))


def count_filtered(counts: Counts, result: FilterResult) -> None:
    """Counts the answer to one `filter`; a refusal counts under the check that was nearest to fitting."""
    if result.node_names:
        counts.add(DECISIONS, "filter", "placed", "")
        return
    checks = [_CHECKS.get(text, "other") for text in set(result.failed_and_unresolvable_nodes.values())]
    nearest = min(checks, key=lambda check: NEAREST.get(check, len(NEAREST)), default="no nodes")
    counts.add(DECISIONS, "filter", "refused", nearest)
