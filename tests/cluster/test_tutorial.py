# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tutorial of a cluster, followed word for word by a script, on a cluster without GPUs and with nothing of ours."""

import yaml

from tests.cluster import images
from tests.cluster.cluster import Cluster
from tests.docs.tutorials import ROOT, follow, home

CHART = ROOT / "deploy/helm/cotenant"


def test_the_tutorial_ends_with_pods_that_share_a_gpu(cluster: Cluster) -> None:
    give_images_of_the_chart(cluster)
    with home() as env:
        path = f"{cluster.binaries.path}:{env['PATH']}"
        inside = cluster.machines[0].enter(["env", f"--chdir={ROOT}", f"PATH={path}"])
        credentials = {"KUBECONFIG": str(cluster.credentials / "admin.kubeconfig")}
        follow(ROOT / "docs/tutorial/cluster.md", {**env, **credentials}, prefix=tuple(inside))


def give_images_of_the_chart(cluster: Cluster) -> None:
    """Lets the nodes have the images under the names that the chart has for them without any value."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    ours, stock = values["image"]["registry"], values["kubeScheduler"]["image"]
    cluster.add_image(images.kube_scheduler_image(cluster.binaries.kubernetes / "kube-scheduler"))
    names = {
        images.SCHEDULER: f"{ours}/cotenant-scheduler:{version}",
        images.AGENT: f"{ours}/cotenant-agent:{version}",
        images.KUBE_SCHEDULER: f"{stock}:{cluster.get('/version')['gitVersion']}",
    }
    for machine in cluster.machines:
        for name, other in names.items():
            machine.run("ctr", "--namespace=k8s.io", "images", "tag", name, other)
