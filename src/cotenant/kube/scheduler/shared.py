# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all parts of the scheduler share, as one value, and the signals by which they tell each other what happened.

`Scheduler` in process.py makes all subscriptions, so the wiring can be read in one place.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.scheduler.events import EventRecorder
from cotenant.kube.scheduler.gangs import Gangs
from cotenant.kube.scheduler.lease import Lead
from cotenant.kube.scheduler.offers import OfferedNodes
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.cluster import ClusterState
from cotenant.metrics.counts import Counts
from cotenant.metrics.table import EXPIRED, Part
from cotenant.signals import Signal


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything that parts of the scheduler tell each other."""

    freed: Signal[[str | None]] = field(default_factory=Signal)
    """capacity may have become free: on this node, or anywhere (None) if a quota changed"""
    pod_changed: Signal[[Pod | None, Pod | None]] = field(default_factory=Signal)
    """the watch showed a change of a pod, which the state of the cluster has taken in; old and new version"""
    node_changed: Signal[[Node | None, Node | None]] = field(default_factory=Signal)
    """the watch showed a change of a node, which the state of the cluster has taken in; old and new version"""
    refused: Signal[[Pod, frozenset[str]]] = field(default_factory=Signal)
    """`filter` refused a pod on all nodes that kube-scheduler offered"""
    learned: Signal[[]] = field(default_factory=Signal)
    """the predicted speeds of pods that share a GPU have changed"""
    lead_won: Signal[[]] = field(default_factory=Signal)
    """this process begins to lead, after the pods were listed anew"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Made once, by `Scheduler`."""

    client: Client
    settings: KubeSettings
    errors: ErrorLog
    signals: Signals
    state: ClusterState
    quotas: Quotas
    gangs: Gangs
    placer: Placer
    offers: OfferedNodes
    events: EventRecorder
    pods: Reflector[Pod]
    lead: Lead
    state_unready_reason: Callable[[], str | None]
    """why `state` cannot be relied on now; None if it can"""
    counts: Counts = field(default_factory=lambda: Counts(Part.SCHEDULER))
    """for the metrics"""
    log: Callable[[str], object] = to_stderr
    clock: Callable[[], float] = time.monotonic
    """steady, in seconds"""

    def expire_holds(self) -> None:
        """Release the holds whose time is over, and count them."""
        self.counts.add(EXPIRED, by=len(self.state.expire(self.clock())))

    def unready_reason(self) -> str | None:
        """Why nothing must be decided or written now; None if it may be."""
        return self.state_unready_reason() or self.lead.unready_reason()
