# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration that is mounted into our pods: our settings, and those of the stock kube-scheduler."""

import yaml

from cotenant.kube.api.names import CONFIGURATION, EXTENDER_PORT, LEASE, NAMESPACE, SETTINGS_FILE, Json, object_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import KubeSettings

FOLDER = "/etc/cotenant-configuration"
KUBE_SCHEDULER = "kube-scheduler.yaml"
WEIGHT = 1000
"""of our scores: one rank is worth 10,000 points, all that the stock plug-ins say together 1,200 at most"""
QUICK = {"qps": 500, "burst": 1000}
"""its own writes a second: conditions of pods that wait, events. The usual 50 would hold up who has many pods"""


def configuration(settings: KubeSettings, text: str) -> Json:
    """The ConfigMap; `text` is the settings file as it was given."""
    files = {SETTINGS_FILE: text, KUBE_SCHEDULER: yaml.safe_dump(kube_scheduler(settings), sort_keys=False)}
    return object_of("ConfigMap", "v1", CONFIGURATION, data=files)


def kube_scheduler(settings: KubeSettings) -> Json:
    """How the stock kube-scheduler asks us."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": QUICK,
        "leaderElection": {
            "leaderElect": True,  # also where there is one: at an update, the next begins before it ends
            "resourceLock": "leases",
            "resourceNamespace": NAMESPACE,
            "resourceName": LEASE,
            "leaseDuration": f"{settings.lease.duration_s}s",
            "renewDeadline": f"{settings.lease.renew_s}s",
            "retryPeriod": f"{settings.lease.retry_s}s",
        },
        "percentageOfNodesToScore": 100,  # a sample of the nodes would hide the best from us
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 5,
        "profiles": [{"schedulerName": settings.scheduler.name}],
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{EXTENDER_PORT}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                "weight": WEIGHT,
                "enableHTTPS": False,
                "httpTimeout": "10s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": managed_resources(settings.codec()),
            }
        ],
    }


def managed_resources(codec: Settings) -> list[Json]:
    """All resources that we decide about; kubelet and the stock scheduler count cards only."""
    counts = {dialect.count for dialect in codec.dialects}
    return [{"name": name, "ignoredByScheduler": name not in counts} for name in codec.by_resource]
