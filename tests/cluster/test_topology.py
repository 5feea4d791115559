# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs by their links, on a real cluster: NVLinks, NVSwitch, NUMA nodes, and who is told of them."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.kube.agent.allocating import gpu_of
from cotenant.kube.agent.podresources import list_devices
from cotenant.kube.codec.topology import TOPOLOGY
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.engine import Engine, gpus_of, running_engine
from tests.cluster.foreign import arena_topology_node
from tests.cluster.gpus import GpuModel, uuid
from tests.cluster.images import WORKLOADS, workloads_image
from tests.cluster.observing import PODRESOURCES
from tests.cluster.plugins import Plugins
from tests.cluster.pods import path_of, pod_of_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "topology"
TELLS = "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"
NAME, MEMORY = "Tesla V100-SXM2-16GB", 16384
FAR = {4: "7+7", 7: "4+4"}
"""of the first node, one pair has NVLinks; the others are two and two at a PCIe switch"""
LINKED = [GpuModel(NAME, MEMORY, nvlinks=FAR.get(index, "")) for index in range(8)]
SWITCHED = [GpuModel("NVIDIA A100-SXM4-40GB", 40960, index // 2, "s0+s0+s1+s1+s2+s2") for index in range(4)]
"""of the second node: all on NVSwitches, two on each NUMA node"""
SETTINGS = "nodes: {node2: {split: 1}}\n"
GPU = "aliyun.com/gpu"
FIRST, SECOND = ({"kubernetes.io/hostname": name} for name in ("node1", "node2"))


@pytest.fixture(scope="module")
def installed_linked(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("topology")
    with running_engine(folder, programs, gpus=LINKED, settings=SETTINGS) as engine:
        machine_type = {"node.kubernetes.io/instance-type": "ecs.sccgn6.24xlarge"}
        engine.cluster.patch("/api/v1/nodes/node1", {"metadata": {"labels": machine_type}})
        engine.add_node(SWITCHED, kubelet={"topologyManagerPolicy": "single-numa-node"}, numa=2)
        yield engine


@pytest.fixture
def linked(installed_linked: Engine) -> Iterator[Engine]:
    yield installed_linked
    installed_linked.tidy()


def indices(engine: Engine, pod: Json) -> set[int]:
    node = int(pod["spec"]["nodeName"].removeprefix("node"))
    every = [uuid(node, index) for index in range(8)]
    return {every.index(gpu) for gpu in gpus_of(pod)}


@pytest.mark.parametrize(
    ("policy", "pair"), [("topology-simple", {0, 1}), ("topology-static", {0, 2}), ("topology", {4, 7}), (None, {4, 7})]
)
def test_simple_static_and_best_effort_choose_different_gpus(
    linked: Engine, policy: str | None, pair: set[int]
) -> None:
    chosen = {} if policy is None else {"cotenant.io/policy": policy}
    linked.create("pair", {GPU: 2}, TELLS, annotations=chosen, nodeSelector=FIRST)
    pod = linked.ended("pair")
    assert indices(linked, pod) == pair
    assert linked.log("pair").strip() == ",".join(uuid(1, index) for index in sorted(pair))
    assert pod["metadata"]["annotations"]["ALIYUN_COM_GPU_GROUP"] == ",".join(map(str, sorted(pair)))


def test_links_are_published_drawn_and_given_to_arena(linked: Engine, tmp_path: Path) -> None:
    plugins = Plugins(linked, tmp_path)
    lines = plugins.kubectl("inspect", "gpu", "-d").splitlines()
    assert lines[0] == "gpu policy: binpack"
    assert "node type: ecs.sccgn6.24xlarge" in lines
    assert "GPU4   SYS  SYS  SYS  SYS    X  PIX  SYS  NV2" in lines
    assert lines[lines.index("node name: node2") :][:7] == [
        "node name: node2",
        "all gpu: 4",
        "used gpu: 0",
        f"node type: {SWITCHED[0].name}",
        "gpu topology:",
        "      GPU0 GPU1 GPU2 GPU3",
        "GPU0     X  NV6  NV6  NV6",
    ]

    said = json.loads(linked.node("node2")["metadata"]["annotations"]["GPU_TOPOLOGY"])
    assert said == {f"GPU_NV6_{a}_{b}": "Six NVLinks" for a in range(4) for b in range(a + 1, 4)}

    maps = plugins.kubectl("inspect", "gpu", "--arena", "-o", "json")
    linked.cluster.kubectl("apply", "--filename=-", feed=maps)
    linked.cluster.patch("/api/v1/nodes/node2", {"metadata": {"labels": {"ack.node.gpu.schedule": "topology"}}})
    linked.create("pair", {GPU: 2}, nodeSelector=SECOND)
    pod = linked.started("pair")
    shown = arena_topology_node(linked.cluster, "node2")
    assert shown is not None
    assert (shown["total"], shown["allocated"]) == (4, 2)
    assert shown["instances"] == {"pair": ",".join(map(str, sorted(indices(linked, pod))))}
    assert shown["devices"] == dict.fromkeys("0123", "Healthy")
    assert shown["links"] == [["N-A" if a == b else "NV6" for b in range(4)] for a in range(4)]


def given_by_kubelet(engine: Engine, name: str) -> set[str]:
    """The GPUs of the devices that kubelet of the second node lists for a pod."""
    socket = engine.machine("node2").inside(PODRESOURCES)
    listed = asyncio.run(list_devices(socket, [TOPOLOGY.slots or GPU]))
    return {gpu_of(device) for one in listed if one.pod == name for device in one.devices}


def test_kubelet_gives_devices_of_the_numa_node_that_has_the_gpus(linked: Engine) -> None:
    for name in ("low", "high"):
        linked.create(name, {GPU: 2}, annotations={"cotenant.io/one-numa": "true"}, nodeSelector=SECOND)
        pod = linked.started(name)
        assert given_by_kubelet(linked, name) == set(gpus_of(pod)), name
        assert indices(linked, pod) == ({0, 1} if name == "low" else {2, 3})


def test_what_no_numa_node_has_is_refused_by_kubelet_or_waits(linked: Engine) -> None:
    linked.create("three", {GPU: 3}, nodeSelector=SECOND)

    def ended() -> Json | None:
        status: Json = linked.cluster.get(path_of("three"))["status"]
        return status if status["phase"] not in ("", "Pending") else None

    assert wait_for("kubelet to refuse it", ended)["reason"] == "TopologyAffinityError"
    linked.create("one-node", {GPU: 3}, annotations={"cotenant.io/one-numa": "true"}, nodeSelector=SECOND)
    assert "GPUs not on one NUMA node" in linked.waits("one-node")


def test_the_example_trains_on_two_linked_gpus(linked: Engine, tmp_path: Path) -> None:
    """The files of the example, with the image of the benchmark tasks, which has JAX."""
    linked.cluster.add_image(workloads_image())
    image, _, tag = WORKLOADS.partition(":")
    overlay = {
        "resources": [os.path.relpath(EXAMPLE, tmp_path)],
        "images": [{"name": "nvcr.io/nvidia/jax", "newName": image, "newTag": tag}],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    linked.cluster.kubectl("apply", "-k", str(tmp_path))
    try:
        pod = pod_of_job(linked.cluster, "two-gpus")
        said = linked.said(pod["metadata"]["name"])
        assert said["gpus"] == gpus_of(pod)
        a, b = sorted(indices(linked, pod))
        links = json.loads(linked.node(pod["spec"]["nodeName"])["metadata"]["annotations"]["GPU_TOPOLOGY"])
        assert any(link.startswith("GPU_NV") and link.endswith(f"_{a}_{b}") for link in links), (a, b, links)
        assert said["rows"] == [32, 32]
        assert said["last_loss"] < said["first_loss"] / 2
    finally:
        linked.cluster.kubectl("delete", "-k", str(tmp_path), "--wait=false")
