# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The life of a pod, on a real cluster: asked for, placed, started with its own slice, ended, freed."""

import json

import pytest

from cotenant.kube.codec.annotations import RUNTIME_VARIABLES
from cotenant.kube.codec.inventory import ORPHANS
from cotenant.kube.codec.paths import AGENT_SOCKET
from tests.cluster.api import Json, wait_for
from tests.cluster.engine import T4, V100, Engine, gpus_of
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod, path_of
from tests.cluster.tenant import SEES, STAYS

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY"""
ALL_CARDS = {"nvidia.com/gpu": 3}
GIB = 1024
LARGE, SMALL = V100.memory_mib, T4.memory_mib
ASKED: dict[str, tuple[dict[str, int], set[int]]] = {
    "vgpu-memory": ({"nvidia.com/gpumem": 1000}, {1000}),
    "vgpu-percent": ({"nvidia.com/gpumem-percentage": 25}, {LARGE // 4, SMALL // 4}),
    "vgpu-cores": ({"nvidia.com/gpucores": 30}, {LARGE, SMALL}),
    "vgpu-count": ({"nvidia.com/gpu": 1}, {LARGE, SMALL}),
    "vgpu-two": ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 500}, {500}),
    "gpushare-memory": ({"aliyun.com/gpu-mem": 2}, {2 * GIB}),
    "gpushare-count": ({"aliyun.com/gpu-count": 1, "aliyun.com/gpu-mem": 3}, {3 * GIB}),
    "gpushare-cores": ({"aliyun.com/gpu-core.percentage": 20}, {LARGE, SMALL}),
    "topology": ({"aliyun.com/gpu": 2}, {LARGE, SMALL}),
    "iadeep": ({"gpushare/gpu-mem": 4}, {4 * GIB}),
}
"""what is asked for, and the MiB that each card may show then"""

HIDDEN = dict(RUNTIME_VARIABLES)
"""variables of a container that sees no GPU of any vendor"""


def test_a_pod_gets_the_slice_that_it_asked_for_and_leaves_it_free(engine: Engine) -> None:
    engine.create("slice", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 30}, SEES)
    pod = engine.ended("slice")
    (share,) = engine.record("slice").held_by(0)
    assert (share.memory, share.compute) == (1000, 300)
    assert share.gpu in {uuid(1, index) for index in range(3)}
    seen = engine.said("slice")
    assert seen["gpus"] == [share.gpu]
    assert seen["totals"] == [1000]
    assert seen["preloaded"]
    assert (seen["room"], seen["beyond"]) == (1000, OUT_OF_MEMORY)
    assert seen["variables"] == {
        **HIDDEN,
        "NVIDIA_VISIBLE_DEVICES": share.gpu,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_TASK_PRIORITY": "0",
        "COTENANT_JOB": pod["metadata"]["uid"],
        "COTENANT_ISOLATION": "preload",
        "COTENANT_AGENT": str(AGENT_SOCKET),
    }
    assert f"gpu {share.gpu} memory={1000 << 20} host=0 compute=300 paused=0" in seen["limits"].splitlines()
    engine.fits(ALL_CARDS)


def test_every_way_to_ask_is_admitted_placed_started_and_freed(engine: Engine) -> None:
    for name, (limits, _) in ASKED.items():
        engine.create(name, limits, SEES)
    for name, (_, totals) in ASKED.items():
        pod, seen = engine.ended(name), engine.said(name)
        assert seen["gpus"] == gpus_of(pod), name
        assert set(seen["totals"]) <= totals, name
        assert (seen["room"], seen["beyond"], seen["preloaded"]) == (seen["totals"][0], OUT_OF_MEMORY, True), name
    engine.fits(ALL_CARDS)


@pytest.mark.defect("gpushare: a pod with two GPU containers fails")
def test_init_containers_sidecars_and_apps_see_what_is_theirs(engine: Engine) -> None:
    asked = {"first": 5000, "beside": 300, "one": 100, "two": 200}
    made = {name: container(name, SEES, {"nvidia.com/gpumem": memory}) for name, memory in asked.items()}
    beside = {**container("beside", STAYS, {"nvidia.com/gpumem": 300}), "restartPolicy": "Always"}
    create_pod(
        engine.cluster,
        "many",
        made["one"],
        made["two"],
        container("plain", SEES, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        initContainers=[made["first"], beside],
    )
    engine.ended("many")
    assert {name: engine.said("many", name)["totals"] for name in asked} == {name: [mib] for name, mib in asked.items()}
    seen = engine.said("many", "plain")
    assert (seen["gpus"], seen["driver"], seen["variables"]) == ([], False, HIDDEN)


@pytest.mark.defect("gpushare: memory of a pod that is gone is given away while its process still runs")
def test_a_process_that_outlives_its_pod_keeps_its_memory_taken(engine: Engine) -> None:
    engine.create("ghost", ALL_CARDS, STAYS)
    engine.said("ghost")
    machine = engine.machine("node1")
    with machine.hanging("kubelet"):  # or it would end the process at once
        engine.delete("ghost", force=True)
        wait_for("the agent to tell", lambda: held(engine))
        engine.create("after", {"nvidia.com/gpumem": 100}, SEES)
        engine.waits("after")
        assert machine.processes("time.sleep(600)")
        assert "nodeName" not in engine.cluster.get(path_of("after"))["spec"]
    engine.ended("after")
    assert not machine.processes("time.sleep(600)")
    assert not held(engine)


def held(engine: Engine) -> list[Json]:
    """What the agent of the first node says is still there of pods that are gone."""
    said = engine.node("node1")["metadata"]["annotations"].get(ORPHANS)
    return [] if said is None else list(json.loads(said)["held"])
