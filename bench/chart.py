# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how soon the first pod that shares a GPU runs after the chart is installed on a real cluster, by helm and
without it, and how long the removal takes.

The cluster has one node without GPUs, and the chart its defaults, so two GPUs are simulated. The node has the images
already. The baseline is a pod without GPUs, from its creation until it runs: nothing of ours takes part in that.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.clusters import built_binaries, require_cluster
from bench.harness import Figure, at_most, benchmark
from cotenant.kube.api.names import NAMESPACE
from tests.cluster import pods
from tests.cluster.api import wait_for
from tests.cluster.cluster import running
from tests.cluster.engine import SLEEP, Engine, chart_values, run_install
from tests.cluster.images import kube_scheduler_image, our_images, pause_image

MOST_S = 60.0
VALUES = chart_values(devices={"simulate": "auto"}, web={"enabled": True})
OUR_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SHARED = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "64"}


@benchmark("chart-install")
def chart_install() -> Iterator[Figure]:
    """Measures the seconds from the command that installs until a shared pod runs."""
    require_cluster()
    programs = built_binaries()
    images = [
        pause_image(programs.pause / "pause"),
        our_images(),
        kube_scheduler_image(programs.kubernetes / "kube-scheduler"),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="chart") as folder,
        running(Path(folder) / "cluster", programs, images=images) as cluster,
    ):
        engine = Engine(cluster)
        bare = _seconds(lambda: _run_pod(engine, {}))
        for way, helm in (("by helm", True), ("without helm", False)):
            install = _seconds(partial(run_install, cluster, "install", VALUES, "--wait", helm=helm))
            first = _seconds(lambda: _run_pod(engine, SHARED))
            yield at_most(
                f"installation {way} to the first shared pod running",
                install + first,
                "s",
                limit=MOST_S,
                baseline=f"a pod without GPUs {bare:.1f}",
                note=f"`--wait` {install:.1f} s, the pod {first:.1f} s; one node that has the images, pages included",
            )
            engine.delete("first")
            removal = _seconds(lambda: run_install(cluster, "uninstall", {}))
            yield Figure(name=f"removal {way}, files on the node included", figure=removal, unit="s")
            wait_for("all pods to be gone", lambda: not cluster.get(OUR_PODS)["items"])


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _run_pod(engine: Engine, limits: dict[str, str]) -> None:
    engine.create("first", limits, SLEEP)
    pods.pod_in(engine.cluster, "first", "Running")
    if not limits:
        engine.delete("first")
