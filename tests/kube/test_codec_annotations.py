# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a binding carries: limits that the vGPU library reads, and no more than a pod may have."""

from pathlib import Path

import msgspec
import pytest

from cotenant.core.model import Slot
from cotenant.core.units import MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.annotations import binding_annotations, variable_names
from cotenant.kube.codec.assignment import RECORD, Share, decode_record, record_for
from cotenant.kube.codec.keys import checked_annotations, container_key, is_key
from cotenant.kube.codec.paths import LIMITS
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.settings import parse_settings
from cotenant.node.limits import GpuLimit, Limits, Priority, parse_limits
from tests.kube.pods import NODE, pod

MIB = 1024 * 1024


def bound(wanting: Pod, *gpus: int, region: Path | None = None) -> dict[str, str]:
    request = request_of(wanting)
    record = record_for(wanting, request, Slot(NODE.name, gpus), NODE)
    return binding_annotations(wanting, request, record, NODE, moment=0, region=region)


def limits(annotations: dict[str, str], number: int = 0) -> Limits:
    return parse_limits(annotations[container_key(number, LIMITS)])


def test_each_container_has_limits_of_its_own() -> None:
    told = bound(pod({"nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 30}, {"nvidia.com/gpumem": 2000}), 2, 2)
    nothing_else = GpuLimit("", 0)
    assert limits(told, 0).gpus == (GpuLimit("GPU-c", 1000 * MIB, MilliGpu(300)),)
    assert limits(told, 1).gpus == (GpuLimit("GPU-c", 2000 * MIB),)
    assert limits(told, 0).others == limits(told, 1).others == nothing_else


def test_a_percentage_is_told_as_bytes_of_each_card() -> None:
    told = bound(pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 25}), 0, 2)
    assert limits(told).gpus == (GpuLimit("GPU-a", 8192 * MIB), GpuLimit("GPU-c", 3840 * MIB))


@pytest.mark.parametrize(
    ("asked", "priority", "told"),
    [(0, 0, Priority.HIGH), (1, 0, Priority.LOW), (0, -1, Priority.LOW), (0, 1000, Priority.HIGH)],
)
def test_the_lower_class_is_told_to_the_library(asked: int, priority: int, told: Priority) -> None:
    wanting = pod({"nvidia.com/gpumem": 1000, "nvidia.com/priority": asked}, priority=priority)
    assert limits(bound(wanting, 0)).priority is told


def test_where_use_is_written_down_is_told_to_the_library() -> None:
    region = Path("/run/cotenant/usage")
    assert limits(bound(pod({"nvidia.com/gpumem": 1000}), 0, region=region)).region == region


@pytest.mark.parametrize("count", [True, False])
def test_the_memory_of_contexts_counts_as_the_settings_say(count: bool) -> None:
    settings = parse_settings(f"defaults: {{count-overhead: {count}}}".lower().encode()).codec()
    wanting = pod({"nvidia.com/gpumem": 1000})
    record = record_for(wanting, request_of(wanting), Slot(NODE.name, (0,)), NODE)
    told = binding_annotations(wanting, request_of(wanting), record, NODE, moment=0, settings=settings)
    assert limits(told).overhead is count


def test_a_pod_without_gpus_carries_a_record_and_nothing_else() -> None:
    told = bound(pod({"cpu": 1}))
    assert set(told) == {RECORD}
    assert decode_record(told[RECORD]).containers == ()


def test_a_resized_record_changes_what_is_told() -> None:
    wanting = pod({"nvidia.com/gpumem": 1000})
    request = request_of(wanting)
    record = record_for(wanting, request, Slot(NODE.name, (0,)), NODE)
    held = msgspec.structs.replace(record.containers[0], gpus=(Share(gpu="GPU-a", memory=7000, compute=500),))
    larger = msgspec.structs.replace(record, containers=(held,))
    told = binding_annotations(wanting, request, larger, NODE, moment=0)
    assert told["cotenant.io/0.CUDA_DEVICE_MEMORY_LIMIT_0"] == "7000m"
    assert told["cotenant.io/0.CUDA_DEVICE_SM_LIMIT"] == "50"
    assert limits(told).gpus[0].memory_bytes == 7000 * MIB


def test_a_gpu_that_the_node_does_not_have_is_refused() -> None:
    wanting = pod({"nvidia.com/gpumem": 1000})
    record = record_for(wanting, request_of(wanting), Slot(NODE.name, (0,)), NODE)
    held = msgspec.structs.replace(record.containers[0], gpus=(Share(gpu="GPU-z", memory=1, compute=0),))
    elsewhere = msgspec.structs.replace(record, containers=(held,))
    with pytest.raises(InputError, match="node n1 has no GPU GPU-z"):
        binding_annotations(wanting, request_of(wanting), elsewhere, NODE, moment=0)


def test_variables_are_known_before_a_card_is_chosen() -> None:
    assert variable_names(VGPU, 2) == (
        "COTENANT_JOB",
        "COTENANT_ISOLATION",
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "CUDA_DEVICE_MEMORY_LIMIT_1",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_TASK_PRIORITY",
    )


def test_a_container_of_the_most_gpus_and_a_pod_of_the_most_containers_can_be_bound() -> None:
    assert len(bound(pod(*[{"nvidia.com/gpumem": 1}] * 100), *[0] * 100)) == 1 + 100 * 7
    assert len(variable_names(VGPU, 1024)) == 1024 + 5


# what a pod may carry


def test_annotations_that_no_pod_may_carry_are_refused() -> None:
    wanting = pod({"nvidia.com/gpumem": 1000}, annotations={"mine": "x" * 262_000})
    with pytest.raises(InputError, match=r"would have 26\d+ bytes, Kubernetes takes 262144; remove some"):
        bound(wanting, 0)
    assert checked_annotations({"a": "x" * 262_143}, {"a": "y" * 262_143}) == {"a": "x" * 262_143}
    with pytest.raises(InputError, match="would have 262145 bytes"):
        checked_annotations({"a": "x" * 262_142 + "é"}, {})


@pytest.mark.parametrize(
    "key",
    ["a", "a.b_c-D", "example.com/a", "gpushare/gpu-mem", "ALIYUN_COM_GPU_MEM_IDX", "x" * 63, f"{'x' * 63}.com/a"],
)
def test_keys_that_kubernetes_takes(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        "-a",
        "a-",
        "a b",
        "a\n",
        "é",
        "x" * 64,
        "-x.com/a",
        "x..com/a",
        f"{'x' * 64}/a",
        f"{'x.' * 130}c/a",
    ],
)
def test_keys_that_kubernetes_does_not_take(key: str) -> None:
    assert not is_key(key)
    with pytest.raises(InputError, match="not a key that Kubernetes accepts"):
        checked_annotations({key: ""}, {})
