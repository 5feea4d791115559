# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What our objects in a cluster are called, and the ports that scheduler and API server meet at."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

NAMESPACE = "cotenant-system"
SCHEDULER = "cotenant-scheduler"
"""account, roles, deployment and service"""
LEASE = SCHEDULER
"""who holds it places pods"""
AGENT = "cotenant-agent"
CONFIGURATION = "cotenant-configuration"
CERTIFICATE = "cotenant-certificate"
ASKERS = "cotenant-why"
"""the role of those who may ask `cotenant why pod/NAME`, and the Secret with what they show"""
KEY = "key"
"""in that Secret"""
KEY_HEADER = "x-cotenant-key"

EXTENDER_PORT = 8888
"""on loopback, for the kube-scheduler in the same pod"""
WEBHOOK_PORT = 8443
SERVICE_PORT = 443
HEALTH_PORT = 10259
"""kube-scheduler's own"""

OUR_LABELS = {"app.kubernetes.io/part-of": "cotenant"}


def object_of(kind: str, api: str, name: str, *, cluster_wide: bool = False, **rest: Any) -> Json:
    """An object of ours."""
    place = {} if cluster_wide else {"namespace": NAMESPACE}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **place, "labels": dict(OUR_LABELS)}, **rest}


def labels_of(name: str) -> Mapping[str, str]:
    """What tells the pods of one workload from others."""
    return {"app.kubernetes.io/name": name}
