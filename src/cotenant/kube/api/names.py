# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Names, accounts and ports of the objects that an installation creates. All parts of the engine agree on them here."""

import os
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

DEFAULT_NAMESPACE = "cotenant-system"
NAMESPACE = os.environ.get("COTENANT_NAMESPACE") or DEFAULT_NAMESPACE
"""Namespace of the installation. The chart sets the variable in our pods; users set it if theirs is another one."""
SCHEDULER = "cotenant-scheduler"
"""Name of the scheduler's service account, roles, deployment, service and certificate."""
LEASE = SCHEDULER
"""Name of the lease; the scheduler that holds it is the leader."""
WEBHOOK = "cotenant-webhook"
"""Name of the webhook's service account, deployment, service and certificate. The account has no rights."""
AGENT = "cotenant-agent"
WEB = "cotenant-web"
"""Name of the pages' service account, role, deployment, service and certificate."""
MPS = "cotenant-mps"
"""Name of the daemon set of the MPS supervisors."""
REMOVAL = "cotenant-removal"
"""Name of the template of the pods that remove the files of agents from their nodes."""
CLEANUP = "cotenant-cleanup"
"""Name of the job that runs before the chart is removed, of its account and its roles."""
CONFIGURATION = "cotenant-configuration"
"""Name of the ConfigMap with the settings."""
SETTINGS_FILE = "settings.yaml"
"""Key of the settings in that ConfigMap."""
WHY = "cotenant-why"
"""Name of the role that allows `cotenant why pod/NAME`, and of the Secret with the key that such a request carries."""
DECISIONS = "cotenant-decisions"
"""Name of the role that allows `cotenant decisions --on kubernetes`, and of the Secret with the key for it. The
recording is about the pods of all namespaces, so the key of `why` is not enough."""
WHY_KEY = "key"
"""Key of the entry in those Secrets."""
WHY_HEADER = "x-cotenant-key"
"""HTTP header that carries the content of that entry."""

SCHEDULER_USER = f"system:serviceaccount:{NAMESPACE}:{SCHEDULER}"
AGENT_USER = f"system:serviceaccount:{NAMESPACE}:{AGENT}"

EXTENDER_PORT = 8888
"""Bound on loopback, for the kube-scheduler in the same pod."""
HTTPS_PORT = 8443
"""Of the pods of the webhook and of the pages, and of the scheduler's, which answer `why` and probes there."""
SERVICE_PORT = 443
MUTATE = "mutate"
"""Path at which the API server calls the webhook."""

OUR_LABELS = {"app.kubernetes.io/part-of": "cotenant"}


def object_of(kind: str, api: str, name: str, *, cluster_wide: bool = False, **rest: Any) -> Json:
    """Return an object of this installation, in our namespace unless it is cluster-wide."""
    namespace = {} if cluster_wide else {"namespace": NAMESPACE}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, **namespace, "labels": dict(OUR_LABELS)},
        **rest,
    }


def labels_of(name: str) -> Mapping[str, str]:
    """Return the labels that select the pods of one workload."""
    return {"app.kubernetes.io/name": name}


def selector_of(name: str) -> str:
    """Return the label selector of the pods of one workload."""
    return ",".join(f"{key}={value}" for key, value in labels_of(name).items())
