# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""KubeRay on a real cluster: workers of a RayCluster share a GPU."""

from collections.abc import Callable

from tests.cluster.api import Json, wait_for
from tests.cluster.engine import Engine, gpus_of, record_of
from tests.cluster.examples import apply
from tests.cluster.neighbours.conftest import built
from tests.cluster.neighbours.controllers import KUBERAY, install
from tests.cluster.pods import path_of


def test_workers_of_a_raycluster_share_a_gpu(beside: Engine, say: Callable[[str], None]) -> None:
    install(beside.cluster, KUBERAY, built(say, KUBERAY.built_with))
    apply(beside, "neighbours/ray.yaml")

    def workers() -> list[Json] | None:
        found = beside.cluster.get(f"{path_of('')[:-1]}?labelSelector=ray.io%2Fgroup%3Dsharing")["items"]
        alive = [pod for pod in found if pod["status"]["phase"] == "Running"]
        return alive if len(alive) == 2 else None

    first, second = wait_for("its workers", workers)
    assert gpus_of(first) == gpus_of(second)
    for pod in (first, second):
        assert [(share.memory, share.compute) for share in record_of(pod).held_by(0)] == [(6000, 400)]
    beside.cluster.kubectl("delete", "raycluster/ray", "--timeout=60s")
