# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration of the stock kube-scheduler that runs beside our extender."""

from dataclasses import dataclass
from typing import Any

from cotenant.kube.api.names import EXTENDER_PORT, LEASE, NAMESPACE, Json
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import KubeSettings

KUBE_SCHEDULER = "kube-scheduler.yaml"
"""Key of the configuration in the ConfigMap."""
WEIGHT = 1000
"""Weight of our scores: one rank is worth 10,000 points, all stock plugins together 1,200 at most."""
CLIENT_LIMITS = {"qps": 500, "burst": 1000}
"""kube-scheduler's own requests per second, for example conditions and events of pending pods. The default of 50 is too
low for many pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTerms:
    """What the settings say: the values of one cluster, or expressions of the chart's templates that yield them."""

    name: str
    duration: str
    renew: str
    retry: str
    resources: Any
    """the resources that our extender handles, as `managedResources` lists them"""


def scheduler_terms_of(settings: KubeSettings) -> SchedulerTerms:
    """Return the terms of a cluster with these settings."""
    lease = settings.lease
    return SchedulerTerms(
        name=settings.scheduler.name,
        duration=f"{lease.duration_s}s",
        renew=f"{lease.renew_s}s",
        retry=f"{lease.retry_s}s",
        resources=managed_resources(settings.codec()),
    )


def kube_scheduler(terms: SchedulerTerms) -> Json:
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
            "leaseDuration": terms.duration,
            "renewDeadline": terms.renew,
            "retryPeriod": terms.retry,
        },
        "percentageOfNodesToScore": 100,  # a sample of the nodes could miss the best one
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 5,
        "profiles": [{"schedulerName": terms.name}],
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
                "managedResources": terms.resources,
            }
        ],
    }


def managed_resources(codec: Settings) -> list[Json]:
    """Return all resources that our extender handles; kubelet and kube-scheduler itself count only whole GPUs."""
    devices = {dialect.handed_out for dialect in codec.dialects}
    return [{"name": name, "ignoredByScheduler": name not in devices} for name in sorted(codec.by_resource)]
