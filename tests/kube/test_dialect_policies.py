# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that name no policy are placed as the documents of their own system promise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.core.model import Link, Slot
from cotenant.errors import InputError
from cotenant.kube.agent.reporting import annotations_for
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import record_for
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.kube.settings import GpuSharing, KubeSettings, parse_settings
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.kube.pods import NODE, pod
from tests.kube.worlds import GPU, MEMORY, chosen, machine, node, place, placer_of, state_of, waiting

EXAMPLES = Path(__file__).parents[2] / "examples"
HAMI = parse_settings(b"compat: hami")


def pairs(*linked: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """Links of 4 GPUs: these pairs by one PCIe switch, all others across sockets."""
    near = {*linked, *((b, a) for a, b in linked)}
    return tuple(tuple(Link.PIX if (a, b) in near else Link.SYS for b in range(4)) for a in range(4))


def test_whole_gpus_of_the_topology_dialect_are_well_linked() -> None:
    state = state_of(node(replace(machine("n1", cards=4), links=pairs((0, 1), (2, 3)))))
    place(state, placer_of(state), waiting("a", {"aliyun.com/gpu": 1}), "n1")
    allocation = chosen(placer_of(state), waiting("b", {"aliyun.com/gpu": 2}), "n1").allocation
    assert allocation is not None
    assert [share.gpu for share in allocation.record.held_by(0)] == ["GPU-n1-2", "GPU-n1-3"]


@pytest.mark.parametrize(
    ("limits", "annotations", "policy"),
    [
        ({"aliyun.com/gpu": 2}, {}, "topology+binpack"),
        ({"aliyun.com/gpu": 2}, {"cotenant.io/policy": "spread"}, "spread"),
        ({"aliyun.com/gpu": 2}, {"hami.io/node-scheduler-policy": "spread"}, "hami-spread/topology+binpack"),
        ({"aliyun.com/gpu-mem": 2}, {}, "fgd"),
        ({"aliyun.com/gpu-mem": 2}, {"cotenant.io/workload": "bert"}, "coscheml"),
        ({"gpushare/gpu-mem": 2}, {}, "fgd"),
        ({"gpushare/gpu-mem": 2}, {"cotenant.io/workload": "bert"}, "iadeep"),
        ({GPU: 1, MEMORY: 2000}, {"cotenant.io/workload": "bert"}, "fgd"),
    ],
)
def test_a_dialect_has_a_policy_unless_the_pod_names_one(limits: Any, annotations: Any, policy: str) -> None:
    placer = placer_of(state_of(node(machine("n1"))), policy="fgd")
    assert placer.reasons.why(waiting("a", limits, annotations=annotations)).policy == policy


def test_the_policy_of_iadeep_takes_an_idle_gpu_first() -> None:
    state = state_of(node(machine("n1", cards=2)))
    here = {"cotenant.io/workload": "bert"}
    both = [
        place(state, placer_of(state), waiting(name, {"gpushare/gpu-mem": 2}, annotations=here), "n1") for name in "ab"
    ]
    assert sorted(pod.metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"] for pod in both) == ["0", "1"]


def test_the_policy_of_a_dialect_is_a_setting() -> None:
    text = b"dialects: {topology: {policy: spread}, iadeep: {policy: fgd}, vgpu: {policy: spread/binpack}}"
    placer = placer_of(state_of(node(machine("n1"))), settings=parse_settings(text).codec())
    assert placer.reasons.why(waiting("a", {GPU: 1})).policy == "spread/binpack"
    assert placer.reasons.why(waiting("a", {"aliyun.com/gpu": 1})).policy == "spread"
    named = {"cotenant.io/workload": "bert"}
    assert placer.reasons.why(waiting("a", {"gpushare/gpu-mem": 1}, annotations=named)).policy == "fgd"
    with pytest.raises(InputError, match=r"settings: dialects.vgpu: policy: .*best"):
        parse_settings(b"dialects: {vgpu: {policy: best}}")


def test_pods_of_hami_find_its_defaults() -> None:
    assert HAMI.sharing_of("n1", "GPU-a", 0) == KubeSettings(gpus=HAMI.gpus).sharing_of("n1", "GPU-a", 0)
    assert HAMI.gpus.split == 10
    state = state_of(node(machine("n1")))
    placer = placer_of(state, settings=HAMI.codec())
    assert placer.reasons.why(waiting("a", {GPU: 1, MEMORY: 100})).policy == "hami-binpack/spread"
    place(state, placer, waiting("a", {GPU: 1, MEMORY: 100}), "n1")
    allocation = chosen(placer, waiting("b", {GPU: 1, MEMORY: 100}), "n1").allocation
    assert allocation is not None
    assert [share.gpu for share in allocation.record.held_by(0)] == ["GPU-n1-1"], "the other GPU"


@pytest.mark.parametrize(
    ("priority", "low"), [({}, True), ({"nvidia.com/priority": 0}, False), ({"nvidia.com/priority": 1}, True)]
)
def test_without_a_priority_a_pod_of_hami_is_of_the_lower_class(priority: dict[str, int], low: bool) -> None:
    (one,) = request_of(pod({GPU: 1, MEMORY: 100, **priority}), HAMI.codec()).containers
    assert one.amounts.low is low


def test_what_the_file_says_is_stronger_than_the_defaults_of_another_system() -> None:
    settings = parse_settings(
        b"compat: hami\ngpus: {split: 4, memory-scaling: 150}\ndialects: {vgpu: {low: false}, iadeep: null}"
    )
    assert (settings.gpus.split, settings.gpus.memory_scaling) == (4, 150)
    vgpu = {one.name: one for one in settings.codec().dialects}["vgpu"]
    assert (vgpu.policy, vgpu.low) == ("hami-binpack/spread", False)
    assert "iadeep" not in {one.name for one in settings.codec().dialects}
    assert (settings.metrics.hami, settings.metrics.port) == (True, 31992)
    assert not parse_settings(b"compat: hami\nmetrics: {hami: false}").metrics.hami


def test_the_records_of_hami_replace_those_of_no_other_dialect() -> None:
    with pytest.raises(InputError, match=r"dialects.gpushare.record: only for vgpu; remove it"):
        parse_settings(b"dialects: {gpushare: {record: hami}}")


def test_a_placed_pod_carries_what_programs_for_hami_read() -> None:
    made = pod({}, {GPU: 2, MEMORY: 3000, "nvidia.com/gpucores": 30}, init=[{GPU: 1, MEMORY: 500}])
    request = request_of(made, HAMI.codec())
    record = record_for(made, request, Slot(NODE.name, (2, 0, 3)), NODE)
    placed = binding_annotations(made, request, record, NODE, moment=1_700_000_000_500_000_000)
    assert {key: value for key, value in placed.items() if key.startswith("hami.io/")} == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-time": "1700000000",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-devices-allocated": "GPU-c,NVIDIA,500,0:;;GPU-a,NVIDIA,3000,30:GPU-d,NVIDIA,3000,30:;",
    }


def test_a_node_carries_what_programs_for_hami_read_only_if_the_settings_say_so() -> None:
    said = annotations_for(NODE, Vendor.NVIDIA, HAMI.codec())
    first = json.loads(said["hami.io/node-nvidia-register"] or "")[0]
    assert first == {
        "id": "GPU-a",
        "index": 0,
        "count": NODE.gpus[0].slots,
        "devmem": 32768,
        "devcore": 100,
        "type": "NVIDIA-Tesla V100-PCIE-32GB",
        "numa": 0,
        "mode": "hami-core",
        "health": True,
    }
    assert "hami.io/node-nvidia-register" not in annotations_for(NODE, Vendor.NVIDIA, DEFAULTS)


def test_pods_of_the_env_share_example_share_one_mlu() -> None:
    deployment = yaml.safe_load((EXAMPLES / "cambricon" / "env-share.yaml").read_text())
    settings = parse_settings(b"dialects: {cambricon: {env-share: true}}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    machine_of_mlus = machine("n1", cards=2, type="MLU370")
    state = ClusterState(settings.codec())
    state.node_changed(None, node(machine_of_mlus, vendor=Vendor.CAMBRICON))
    placer = placer_of(state, settings=settings.codec())
    gpus = []
    for replica in range(deployment["spec"]["replicas"]):
        new = waiting(f"replica-{replica}", container["resources"]["limits"])
        state.pod_changed(None, new)
        allocation = chosen(placer, new, "n1").allocation
        assert allocation is not None
        gpus += [(share.gpu, share.memory) for share in allocation.record.held_by(0)]
    assert gpus == [("GPU-n1-0", 0)] * 2


def test_the_settings_of_the_example_are_those_that_its_comments_name() -> None:
    settings = parse_settings((EXAMPLES / "hami" / "settings.yaml").read_bytes())
    assert settings.compat == "hami"
    assert settings.sharing_of("worker-3", "GPU-a", 0) == GpuSharing(split=6, memory_scaling=150, compute_scaling=120)
    assert settings.sharing_of("worker-3", "GPU-c", 2) is None
    assert settings.sharing_of("worker-4", "GPU-a", 0) == GpuSharing(split=10)
