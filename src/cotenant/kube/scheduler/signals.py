# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Signals between the parts of the scheduler: a part announces what happened, and others subscribe to it.

`Scheduler` in process.py makes all subscriptions, so the wiring can be read in one place.
"""

from dataclasses import dataclass, field

from cotenant.kube.api.objects import Pod
from cotenant.signals import Signal


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything that parts of the scheduler tell each other."""

    freed: Signal[[str | None]] = field(default_factory=Signal)
    """capacity may have become free: on this node, or anywhere (None) if a quota changed"""
    pod_changed: Signal[[Pod | None, Pod | None]] = field(default_factory=Signal)
    """the watch showed a change of a pod, which the state of the cluster has taken in; old and new version"""
    refused: Signal[[Pod, frozenset[str]]] = field(default_factory=Signal)
    """`filter` refused a pod on all nodes that kube-scheduler offered"""
    lead_won: Signal[[]] = field(default_factory=Signal)
    """this process begins to lead, after the pods were listed anew"""
