# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster of two vendors: a node whose GPUs are oversubscribed, one with MLUs, and nodes that only say so.

The agent of the MLUs reads them through CNDEV. Things go wrong here: a GPU of each vendor fails, processes outlive
their pods, a node is lost.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.names import NAMESPACE, SCHEDULER
from cotenant.kube.codec.inventory import INVENTORY, USED, inventory_for
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import Json, wait_for
from tests.cluster.engine import Engine, gpus_of, record_of
from tests.cluster.gpus import uuid
from tests.cluster.mixed.world import (
    LARGE_MIB,
    MLU,
    MLU_AGENT,
    MLU_MIB,
    SMALL_MIB,
    allocatable,
    beside_the_driver,
    break_card,
    cards_of,
)
from tests.cluster.pods import container, create_pod, is_gone, path_of
from tests.cluster.test_waiting import why

LOST = 15
"""NVML_ERROR_GPU_IS_LOST"""
IN_PROBLEM = 18
"""the GPU answers, and CNDEV says that it is not healthy"""
HOLDS = """
import ctypes, time
cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 1) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(3000 << 20)) == 0
time.sleep(599)
"""
"""keeps 3000 MiB of the second GPU"""
MLUS = {"cambricon.com/mlunum": 2}
TELLS = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('CAMBRICON_')}))"
WAITS = "import time; time.sleep(599)"
ANYWHERE = [{"operator": "Exists"}]
MLU_ASKED: dict[str, tuple[dict[str, int], int, int, int]] = {
    "memory": ({"cambricon.com/mlumem": 3000}, 1, 3000, 0),
    "count": ({"cambricon.com/mlunum": 1}, 1, MLU_MIB, 1000),
    "two": ({"cambricon.com/mlunum": 2, "cambricon.com/mlumem": 2500}, 2, 2500, 0),
    "smlu-memory": ({"cambricon.com/mlu.smlu.vmemory": 8}, 1, 8 * 256, 0),
    "smlu-cores": ({"cambricon.com/mlu.smlu.vcore": 30}, 1, MLU_MIB, 300),
    "smlu-count": ({"cambricon.com/vmlu": 1}, 1, MLU_MIB, 1000),
    "smlu-slice": (
        {"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vcore": 50, "cambricon.com/mlu.smlu.vmemory": 4},
        1,
        4 * 256,
        500,
    ),
}
"""what is asked for; how many cards, and MiB and compute on each"""


@pytest.fixture(scope="module")
def failed(both: Engine) -> None:
    """A card has failed, was taken out, and answers again; it takes a minute until it is trusted, so it is early."""
    both.create("on-it", {"nvidia.com/gpumem": 10}, annotations={"cotenant.io/use-uuids": uuid(1, 0)})
    both.started("on-it")
    break_card(both, 0, LOST)
    wait_for("the GPU to be taken out", lambda: is_out(both, "node1", uuid(1, 0), "nvidia.com/gpu", 6))
    both.create("wants-it", {"nvidia.com/gpumem": 10}, annotations={"cotenant.io/use-uuids": uuid(1, 0)})
    assert "GPUs unhealthy or cordoned" in both.waits("wants-it")
    both.create("another", {"nvidia.com/gpumem": 10})
    assert gpus_of(both.started("another")) == [uuid(1, 1)]
    assert both.cluster.get(path_of("on-it"))["status"]["phase"] == "Running"
    break_card(both, 0, 0)
    both.tidy()


def is_out(engine: Engine, node: str, card: str, resource: str, left: int) -> bool:
    """Whether the kubelet and the scheduler both know that a card failed; the agent tells them one after the other."""
    return allocatable(engine, node, resource) == left and not cards_of(engine, node)[card].get("healthy", True)


@pytest.mark.usefixtures("failed")
def test_every_way_to_ask_for_mlus_is_admitted_placed_started_and_freed(mixed: Engine) -> None:
    for name, (limits, *_) in MLU_ASKED.items():
        mixed.create(name, limits, TELLS)
    cards = list(cards_of(mixed, "node2"))
    for name, (_, count, memory, compute) in MLU_ASKED.items():
        pod = mixed.ended(name)
        assert pod["spec"]["nodeName"] == "node2"
        shares = record_of(pod).held_by(0)
        assert [(one.memory, one.compute) for one in shares] == [(memory, compute)] * count, name
        numbers = [cards.index(one.gpu) for one in shares]
        if name.startswith("smlu"):  # the vendor's plugin reads it from the pod
            profile = pod["metadata"]["annotations"]["CAMBRICON_DSMLU_PROFILE"]
            assert profile == f"{numbers[0]}_{compute // 10}_{memory // 256}"
        else:
            assert mixed.said(name) == {
                "CAMBRICON_VISIBLE_DEVICES": "",
                "CAMBRICON_SPLIT_ENABLE": "1",
                "CAMBRICON_SPLIT_VISIBLE_DEVICES": ",".join(map(str, numbers)),
                "CAMBRICON_SPLIT_MEMS": ",".join([str(memory // 1024)] * count),
            }
    mixed.fits(MLUS)


def test_mlus_are_published_as_cndev_lists_them(mixed: Engine) -> None:
    said = json.loads(mixed.node("node2")["metadata"]["annotations"][INVENTORY])
    assert said["vendor"] == "cambricon"
    assert [(card["uuid"], card["type"], card["memory"]) for card in said["cards"]] == [
        (uuid(2, index).replace("GPU-", "MLU-"), MLU, MLU_MIB) for index in range(2)
    ]
    (agent,) = mixed.our_pods(MLU_AGENT)
    assert "Cambricon GPUs: 2 x MLU370" in mixed.log(agent["metadata"]["name"], "agent", NAMESPACE)


def test_what_is_used_of_mlus_is_published(mixed: Engine) -> None:
    machine = mixed.machine("node2")
    second = uuid(2, 1).replace("GPU-", "MLU-")

    def used() -> int:
        return int(
            json.loads(mixed.node("node2")["metadata"]["annotations"].get(USED, "{}")).get("mib", {}).get(second, 0)
        )

    with subprocess.Popen(machine.enter(beside_the_driver(HOLDS))) as holder:
        try:
            wait_for("its use to be published", lambda: used() == 3000)
        finally:
            holder.kill()
    wait_for("the end of it to be published", lambda: used() == 0)


def test_limits_that_nothing_enforces_are_said(mixed: Engine) -> None:
    mixed.create("part", {"cambricon.com/mlumem": 100})
    mixed.started("part")
    assert "note: the memory and the compute limits cannot be enforced on Cambricon" in why(mixed, "part")


def test_a_pod_waits_for_cards_of_its_vendor_and_type(mixed: Engine) -> None:
    mixed.create("other-mlu", {"cambricon.com/mlumem": 1}, annotations={"cambricon.com/use-mlutype": "MLU590"})
    mixed.create("this-mlu", {"cambricon.com/mlumem": 1}, annotations={"cambricon.com/use-mlutype": "mlu370"})
    assert "no GPU of that type" in mixed.waits("other-mlu")
    assert "needs 1 GPU of type *MLU590*; the node has 0" in why(mixed, "other-mlu")
    assert mixed.started("this-mlu")["spec"]["nodeName"] == "node2"


def test_what_outlives_its_pod_is_counted_by_the_next_scheduler_too(mixed: Engine) -> None:
    mixed.create("outlived", MLUS, WAITS)
    mixed.started("outlived")
    machine = mixed.machine("node2")
    with machine.hanging("kubelet"):  # or it would end the process at once
        mixed.delete("outlived", force=True)
        kill_scheduler(mixed)
        mixed.create("after", {"cambricon.com/mlumem": 100}, "")
        assert "not enough GPU memory" in mixed.waits("after")
        assert machine.processes("time.sleep(599)")
    mixed.ended("after")
    assert not machine.processes("time.sleep(599)")


def kill_scheduler(engine: Engine) -> None:
    """Another process of ours, which knows what the API server knows; its pod stays."""

    def status() -> Json:
        (pod,) = engine.our_pods(SCHEDULER)
        return next(one for one in pod["status"]["containerStatuses"] if one["name"] == "scheduler")

    before = status()["restartCount"]
    engine.kill("kube scheduler")
    wait_for("another scheduler", lambda: status()["restartCount"] > before and status()["ready"])


def test_a_lost_node_keeps_what_runs_there_and_comes_back(mixed: Engine) -> None:
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    mixed.create("lost", MLUS, WAITS, tolerations=[{**unreachable, "tolerationSeconds": 0}])
    mixed.started("lost")
    machine, cluster = mixed.machine("node2"), mixed.cluster
    with machine.without("kubelet"):
        # What the node controller writes when the grace period is over; it does the rest.
        silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        cluster.patch("/api/v1/nodes/node2/status", {"status": {"conditions": [silent]}})
        wait_for("its deletion", lambda: cluster.get(path_of("lost"))["metadata"].get("deletionTimestamp"))
        mixed.create("after", {"cambricon.com/mlumem": 100}, "", tolerations=ANYWHERE)
        mixed.waits("after")
        assert "pod default/lost is placed" in why(mixed, "lost")
        cluster.delete("/api/v1/nodes/node2")
        wait_for("it to be forgotten", lambda: set(refusals(mixed, "after")) == {"node1"})
        assert machine.processes("time.sleep(599)")
    assert mixed.ended("after")["spec"]["nodeName"] == "node2"
    assert is_gone(cluster, "lost")
    assert not machine.processes("time.sleep(599)")


def refusals(engine: Engine, name: str) -> dict[str, tuple[str, int, int]]:
    """Why each node will not do for a pod, what it needs, and what there is."""
    answer = json.loads(why(engine, name, "--output", "json"))
    return {one["node"]: (one["check"], one["needed"], one["available"]) for one in answer["refusals"]}


def fake_node(engine: Engine, machine: Machine, vendor: Vendor = Vendor.NVIDIA, said: str | None = None) -> None:
    """A node that is ready and says which cards it has, or something else; pods are bound there and never start."""
    has = {"cpu": "64", "memory": "256Gi", "pods": "200", "nvidia.com/gpu": "64"}
    told = {INVENTORY: inventory_for(machine, vendor) if said is None else said}
    engine.cluster.post(
        "/api/v1/nodes",
        {
            "metadata": {"name": machine.name, "labels": {"fake": "true"}, "annotations": told},
            "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
        },
    )
    # The API server taints new nodes as not ready; pods would go to another one until a controller has seen it.
    node = f"/api/v1/nodes/{machine.name}"
    wait_for(f"{machine.name} to take pods", lambda: not engine.cluster.get(node)["spec"].get("taints"))


def cards(name: str, memory: int, count: int = 2, **each: Any) -> Machine:
    gpus = (Gpu(uuid=f"GPU-{name}-{i}", memory=MiB(memory), slots=16, **each) for i in range(count))
    return Machine(name=name, gpus=tuple(gpus))


@pytest.fixture
def fakes(mixed: Engine) -> Iterator[Engine]:
    """For tests with nodes that are not there: what they leave of them is gone."""
    yield mixed
    for pod in mixed.cluster.get("/api/v1/namespaces/default/pods")["items"]:
        mixed.delete(pod["metadata"]["name"], force=True)
    mixed.cluster.delete("/api/v1/nodes?labelSelector=fake%3Dtrue")


@pytest.mark.parametrize(
    "policy",
    [
        {"cotenant.io/policy": "spread/binpack"},
        {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"},
    ],
)
def test_a_pod_may_choose_the_order_of_nodes_and_of_cards_apart(fakes: Engine, policy: Mapping[str, str]) -> None:
    for name in ("one", "two"):
        fake_node(fakes, cards(name, 1000))
    placed = [put(fakes, f"apart-{number}", policy) for number in range(4)]
    assert [len({gpu for gpu in placed if gpu.startswith(f"GPU-{name}-")}) for name in ("one", "two")] == [1, 1]
    dense = [put(fakes, f"dense-{number}", {"cotenant.io/policy": "binpack/spread"}) for number in range(2)]
    assert not set(dense) & set(placed)
    assert len({gpu[:-1] for gpu in dense}) == 1


def put(engine: Engine, name: str, policy: Mapping[str, str]) -> str:
    """Where a pod is placed among nodes that are not there."""
    engine.create(name, {"nvidia.com/gpumem": 100}, annotations=policy, nodeSelector={"fake": "true"})
    (gpu,) = gpus_of(bound(engine, name))
    return gpu


def bound(engine: Engine, name: str) -> Json:
    def look() -> Json | None:
        pod = engine.cluster.get(path_of(name))
        return pod if "nodeName" in pod["spec"] else None

    return wait_for(f"pod {name} to be bound", look)


CLASSES = (
    "0/303 nodes",
    "60 not enough GPU memory",
    "60 too few GPUs",
    "60 GPUs unhealthy",
    "60 no GPU of that type",
    "60 GPUs of another vendor",
    "1 GPU state unclear",
)


def says(engine: Engine, name: str, words: str) -> bool:
    return words in engine.waits(name)


def test_300_nodes_are_told_of_in_less_than_1_kb_and_one_that_changes_is_tried_at_once(fakes: Engine) -> None:
    for number in range(60):
        fake_node(fakes, cards(f"little-{number}", 1000 + number, type="V100"))
        fake_node(fakes, cards(f"single-{number}", 9000 + number, 1, type="V100"))
        fake_node(fakes, cards(f"sick-{number}", 9000 + number, type="V100", healthy=False))
        fake_node(fakes, cards(f"other-{number}", 9000 + number, type=f"K{number}"))
        fake_node(fakes, cards(f"foreign-{number}", 9000 + number, type="MLU370"), Vendor.CAMBRICON)
    fake_node(fakes, cards("garbled", 9000), said="{")
    asked = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 5000}
    on_large = {"nvidia.com/use-gputype": "V100"}
    fakes.create("waits", asked, annotations=on_large, nodeSelector={"fake": "true"})
    for words in CLASSES:
        wait_for(f"it to say {words!r}", partial(says, fakes, "waits", words))
    assert len(fakes.waits("waits")) < 1024
    numbers = refusals(fakes, "waits")
    assert len(numbers) == 303
    assert (numbers["little-7"], numbers["single-3"]) == (("memory", 2, 0), ("count", 2, 1))
    better = {INVENTORY: inventory_for(cards("other-5", 9000, type="V100"), Vendor.NVIDIA)}
    fakes.cluster.patch("/api/v1/nodes/other-5", {"metadata": {"annotations": better}})
    assert bound(fakes, "waits")["spec"]["nodeName"] == "other-5"


def test_a_card_that_answers_again_takes_pods_again(failed: None, mixed: Engine) -> None:
    mixed.create("returns", {"nvidia.com/gpumem": 10}, annotations={"cotenant.io/use-uuids": uuid(1, 0)})
    assert gpus_of(mixed.started("returns")) == [uuid(1, 0)]
    wait_for("all slots", lambda: allocatable(mixed, "node1", "nvidia.com/gpu") == 12)


@pytest.mark.defect("gpushare: kubelet refuses what the scheduler has placed")
def test_a_node_is_filled_to_the_last_slot_mib_and_percent_and_kubelet_refuses_nobody(mixed: Engine) -> None:
    percents = [17, 17, 17, 17, 17, 21]  # 106 in all, rounded down to MiB: what the core can place at most
    asked: list[dict[str, int]] = [{"nvidia.com/gpumem-percentage": one} for one in percents]
    asked += [{"nvidia.com/gpumem": LARGE_MIB // 6}] * 6
    fill(mixed, "full", [{**one, "nvidia.com/gpucores": 20} for one in asked], [uuid(1, 0)] * 6 + [uuid(1, 1)] * 6)
    taken = [share for number in range(12) for share in mixed.record(f"full-{number}").held_by(0)]
    for card, memory in ((uuid(1, 0), SMALL_MIB), (uuid(1, 1), LARGE_MIB)):
        of_it = [share for share in taken if share.gpu == card]
        assert (sum(one.memory for one in of_it), sum(one.compute for one in of_it)) == (memory, 1200)
    mixed.create("more", {"nvidia.com/gpumem": 1})
    assert "Insufficient nvidia.com/gpu" in mixed.waits("more")
    mixed.tidy()
    gib = [{"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-core.percentage": 60}, {"gpushare/gpu-mem": 1}]
    fill(mixed, "gib", gib, [uuid(1, 1)] * 2)
    mixed.create("more", {"aliyun.com/gpu-mem": 1})
    assert "not enough GPU memory" in mixed.waits("more")


def fill(engine: Engine, name: str, asked: Sequence[Mapping[str, int]], cards: Sequence[str]) -> None:
    """Pods that all run at the same time, each on the card that is meant for it."""
    names = [f"{name}-{number}" for number in range(len(asked))]
    for one, limits, card in zip(names, asked, cards, strict=True):
        sleeps = container("main", "", limits, command=["sleep", "600"])
        create_pod(engine.cluster, one, sleeps, annotations={"cotenant.io/use-uuids": card})
    for one in names:
        engine.started(one)
    phases = {engine.cluster.get(path_of(one))["status"]["phase"] for one in names}
    assert phases == {"Running"}


def test_pods_that_come_and_go_are_never_refused_by_kubelet(mixed: Engine) -> None:
    ways: list[dict[str, int]] = [
        {"nvidia.com/gpumem-percentage": 51, "nvidia.com/gpucores": 40},
        {"nvidia.com/gpumem": 1600},
        {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 25},
        {"aliyun.com/gpu-mem": 2},
        {"gpushare/gpu-mem": 1},
        {"aliyun.com/gpu": 1},
    ]
    names = [f"short-{number}" for number in range(2 * len(ways))]
    for number, name in enumerate(names):
        create_pod(mixed.cluster, name, container("main", "", ways[number % len(ways)], command=["sh", "-c", ":"]))
    assert {mixed.ended(name)["spec"]["nodeName"] for name in names} == {"node1"}


def test_an_mlu_that_cndev_calls_unhealthy_takes_no_new_pods(mixed: Engine) -> None:
    """The last of all, since it takes a minute until an MLU that answers again is trusted."""
    mixed.create("on-it", {"cambricon.com/mlunum": 2, "cambricon.com/mlumem": 10})
    mixed.started("on-it")
    break_card(mixed, 1, IN_PROBLEM, "node2")
    (_, broken) = cards_of(mixed, "node2")
    wait_for("the MLU to be out", lambda: is_out(mixed, "node2", broken, "cambricon.com/mlunum", 16))
    mixed.create("wants-both", {"cambricon.com/mlunum": 2, "cambricon.com/mlumem": 10})
    assert "GPUs unhealthy or cordoned" in mixed.waits("wants-both")
    assert mixed.cluster.get(path_of("on-it"))["status"]["phase"] == "Running"
    break_card(mixed, 1, 0, "node2")
