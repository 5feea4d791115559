# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The race that swaps GPUs in systems whose device plugin must guess: pods of one size, made in one order, bound in the
other, and given to kubelet together."""

from collections.abc import Sequence

import pytest

from cotenant.kube.codec.paths import LIMITS, LIMITS_FOLDER
from tests.cluster.api import Json, wait_for
from tests.cluster.engine import Engine, gpus_of
from tests.cluster.images import PYTHON
from tests.cluster.pods import create_pod, path_of

TOGETHER = 10
"""pairs in kubelet's hands at once"""
APART = {"cotenant.io/policy": "spread/spread"}
TELL = "echo $NVIDIA_VISIBLE_DEVICES; while read word gpu rest; do [ $word != gpu ] || echo $gpu; done < {limits}"


def telling(name: str) -> Json:
    """A container that says which GPU it sees by its variable, and which by its limits."""
    limits = {"nvidia.com/gpumem": 100}
    said = {
        "name": name,
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", TELL.format(limits=LIMITS_FOLDER / LIMITS)],
    }
    return {**said, "resources": {"limits": limits}}


@pytest.mark.defect("gpushare and others: two pods of one size swap GPUs")
@pytest.mark.final
def test_each_container_sees_its_own_gpu_50_times_of_50(engine: Engine) -> None:
    rounds = [swapped(engine, number) for number in range(50 // TOGETHER)]
    assert sum(len(pods) for pods in rounds) == 100
    assert len({gpu for pods in rounds for pod in pods for gpu in gpus_of(pod)}) == 3


def swapped(engine: Engine, number: int) -> list[Json]:
    """The pods of one round, after each of them has ended and said the right thing; in every second pair, pods have two
    containers."""
    cluster = engine.cluster
    first, second = ([f"{letter}{number}-{pair}" for pair in range(TOGETHER)] for letter in "ab")
    with engine.machine("node1").hanging("kubelet"):
        for pair, (earlier, later) in enumerate(zip(first, second, strict=True)):
            made = [telling(f"c{index}") for index in range(1 + pair % 2)]
            create_pod(cluster, earlier, *made, annotations=APART, schedulingGates=[{"name": "example.com/later"}])
            create_pod(cluster, later, *made, annotations=APART)
        wait_until_bound(engine, second)
        for name in first:
            cluster.patch(path_of(name), {"spec": {"schedulingGates": None}})
        wait_until_bound(engine, first)
    pods = [engine.ended(name) for name in (*first, *second)]
    for pod in pods:
        for index, its in enumerate(pod["spec"]["containers"]):
            assert engine.log(pod["metadata"]["name"], its["name"]).split() == 2 * gpus_of(pod, index)
    engine.tidy()
    return pods


def wait_until_bound(engine: Engine, names: Sequence[str]) -> None:
    def look() -> bool:
        pods = engine.cluster.get("/api/v1/namespaces/default/pods")["items"]
        return {pod["metadata"]["name"] for pod in pods if "nodeName" in pod["spec"]} >= set(names)

    wait_for("all of them to be bound", look)
