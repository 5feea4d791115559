# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ConfigMap that is mounted into our pods: our settings, and the configuration of the stock kube-scheduler."""

import yaml

from cotenant.kube.api.names import CONFIGURATION, EXTENDER_PORT, LEASE, NAMESPACE, SETTINGS_FILE, Json, object_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import KubeSettings

FOLDER = "/etc/cotenant-configuration"
KUBE_SCHEDULER = "kube-scheduler.yaml"
WEIGHT = 1000
"""Weight of our scores: one rank is worth 10,000 points, all stock plugins together 1,200 at most."""
CLIENT_LIMITS = {"qps": 500, "burst": 1000}
"""kube-scheduler's own requests per second, for example conditions and events of pending pods. The default of 50 is too
low for many pods."""


def configuration(settings: KubeSettings, text: str) -> Json:
    """Return the ConfigMap; `text` is the settings file, comments included."""
    files = {SETTINGS_FILE: text, KUBE_SCHEDULER: yaml.safe_dump(kube_scheduler(settings), sort_keys=False)}
    return object_of("ConfigMap", "v1", CONFIGURATION, data=files)


def kube_scheduler(settings: KubeSettings) -> Json:
    """Return the configuration of the stock kube-scheduler, with our extender."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": CLIENT_LIMITS,
        "leaderElection": {
            "leaderElect": True,  # also with one replica: an update starts the new pod before it ends the old one
            "resourceLock": "leases",
            "resourceNamespace": NAMESPACE,
            "resourceName": LEASE,
            "leaseDuration": f"{settings.lease.duration_s}s",
            "renewDeadline": f"{settings.lease.renew_s}s",
            "retryPeriod": f"{settings.lease.retry_s}s",
        },
        "percentageOfNodesToScore": 100,  # a sample of the nodes could miss the best one
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
    """Return all resources that our extender handles; kubelet and kube-scheduler itself count only whole GPUs."""
    devices = {dialect.handed_out for dialect in codec.dialects}
    return [{"name": name, "ignoredByScheduler": name not in devices} for name in codec.by_resource]
