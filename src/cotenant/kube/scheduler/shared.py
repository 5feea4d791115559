# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all parts of the scheduler share, as one value."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.scheduler.events import EventRecorder
from cotenant.kube.scheduler.gangs import Gangs
from cotenant.kube.scheduler.lease import Lead
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.signals import Signals
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.cluster import ClusterState


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
    events: EventRecorder
    pods: Reflector[Pod]
    lead: Lead
    state_unready_reason: Callable[[], str | None]
    """why `state` cannot be relied on now; None if it can"""
    log: Callable[[str], object] = to_stderr
    clock: Callable[[], float] = time.monotonic
    """steady, in seconds"""

    def unready_reason(self) -> str | None:
        """Why nothing must be decided or written now; None if it may be."""
        return self.state_unready_reason() or self.lead.unready_reason()
