# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""In strict mode a container gets its GPUs as a CDI device that is written when its pod is known for sure."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.core.model import ContainerKind
from cotenant.kube.agent.allocating import GRACE_S, Unclaimed
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.agent.strict import (
    NOTHING,
    Owned,
    VendorEdits,
    device_name,
    edits_for,
    owned_by,
    pod_with,
    spec_path,
    tidy_specs,
    write_spec,
)
from cotenant.node.devices.vendors import Vendor
from tests.kube.agent.agents import GPU, Node, bound, held, node, registered
from tests.kube.agent.kubelet import kubelet_in, until


def spec(here: Node, *devices: str, version: str = "0.5.0") -> dict[str, Any]:
    name = device_name(GPU, devices)
    found = json.loads(spec_path(here.host.cdi, name).read_text())
    assert (found["cdiVersion"], found["kind"]) == (version, "cotenant.io/gpu")
    (device,) = found["devices"]
    assert device["name"] == name
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_each_of_two_pods_gets_the_gpus_of_its_record_whatever_its_slots_are() -> None:
    async def scenario() -> None:
        async with registered(strict=True) as (here, kubelet):
            assert kubelet.registered[GPU].options.pre_start_required
            here.pods += [bound("one", held(0, "GPU-b")), bound("two", held(0, "GPU-a"))]
            for pod, device in (("one", "GPU-a::0"), ("two", "GPU-b::0")):
                answer = await kubelet.allocate(GPU, device)
                assert [one.name for one in answer.cdi_devices] == [f"cotenant.io/gpu={device_name(GPU, [device])}"]
                assert not spec_path(here.host.cdi, device_name(GPU, [device])).exists()
                kubelet.has(pod, "app-0", GPU, device)
            for device in ("GPU-a::0", "GPU-b::0"):
                await kubelet.pre_start(GPU, device)
            assert spec(here, "GPU-a::0")["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-b"]
            assert spec(here, "GPU-b::0")["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-a"]

    asyncio.run(scenario())


def test_the_slots_of_a_pod_that_has_gone_mean_nothing_to_the_next() -> None:
    async def scenario() -> None:
        async with registered(strict=True) as (here, kubelet):
            here.pods.append(bound("one", held(0, "GPU-b")))
            await kubelet.allocate(GPU, "GPU-a::0")
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            await kubelet.pre_start(GPU, "GPU-a::0")
            await kubelet.allocate(GPU, "GPU-a::0")
            assert not list(here.host.cdi.iterdir())

    asyncio.run(scenario())


def test_a_pod_without_a_record_gets_nothing() -> None:
    async def scenario() -> None:
        async with registered(strict=True) as (here, kubelet):
            here.pods.append(bound("stranger"))
            kubelet.has("stranger", "app-0", GPU, "GPU-a::0")
            await kubelet.pre_start(GPU, "GPU-a::0")
            assert spec(here, "GPU-a::0") == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}

    asyncio.run(scenario())


def test_a_pod_that_kubelet_knows_earlier_than_we_do_is_waited_for() -> None:
    async def scenario() -> None:
        async with registered(strict=True) as (here, kubelet):
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            starting = asyncio.create_task(kubelet.pre_start(GPU, "GPU-a::0"))
            await until(lambda: kubelet.lists)
            here.pods.append(bound("one", held(0, "GPU-c")))
            await starting
            assert spec(here, "GPU-a::0")["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-c"]

    asyncio.run(scenario())


def test_with_mps_too_the_device_names_the_gpus_of_the_container_and_the_vendors_runtime_brings_them_in() -> None:
    async def scenario() -> None:
        async with registered(by_cdi=True) as (here, kubelet):
            here.pods.append(bound("one", held(0, "GPU-c")))
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            await kubelet.pre_start(GPU, "GPU-a::0")
            assert spec(here, "GPU-a::0") == {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-c"]}

    asyncio.run(scenario())


def test_with_mps_a_listed_container_is_not_taken_for_the_init_container_of_another_pod() -> None:
    async def scenario() -> None:
        async with registered(by_cdi=True) as (here, kubelet):
            here.pods.append(bound("other", held(0, "GPU-b", kind=ContainerKind.INIT), init=1))
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            starting = asyncio.create_task(kubelet.pre_start(GPU, "GPU-a::0"))
            await until(lambda: kubelet.lists)
            here.pods.append(bound("one", held(0, "GPU-c")))
            await starting
            assert spec(here, "GPU-a::0") == {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-c"]}

    asyncio.run(scenario())


def test_a_copied_record_is_an_error_to_kubelet() -> None:
    async def scenario() -> None:
        async with registered(strict=True) as (here, kubelet):
            here.pods.append(bound("one", held(0, "GPU-c"), uid="another"))
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            with pytest.raises(grpc.aio.AioRpcError, match="copied from another pod"):
                await kubelet.pre_start(GPU, "GPU-a::0")
            assert not here.host.cdi.exists()

    asyncio.run(scenario())


def test_a_container_whose_pod_never_becomes_known_does_not_start() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet, here.plugins(strict=True, known_s=0.2):
            await until(lambda: GPU in kubelet.registered)
            with pytest.raises(grpc.aio.AioRpcError, match="no pod that we know with GPU-a::0"):
                await kubelet.pre_start(GPU, "GPU-a::0")

    asyncio.run(scenario())


def test_of_two_pods_with_the_same_slot_neither_sees_the_others_gpu_and_both_are_named() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet, here.plugins(strict=True, known_s=0.2):
            await until(lambda: GPU in kubelet.registered)
            for name, card in (("one", "GPU-b"), ("two", "GPU-c")):
                here.pods.append(bound(name, held(0, card)))
                kubelet.has(name, "app-0", GPU, "GPU-a::0")
            with pytest.raises(grpc.aio.AioRpcError, match="delete all but one of team/one, team/two"):
                await kubelet.pre_start(GPU, "GPU-a::0")
            assert not here.host.cdi.exists()
            kubelet.pods.pop()
            await kubelet.pre_start(GPU, "GPU-a::0")
            assert spec(here, "GPU-a::0")["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-b"]

    asyncio.run(scenario())


def listed(pod: str, container: str, *devices: str) -> Listed:
    return Listed(namespace="team", pod=pod, container=container, resource=GPU, devices=frozenset(devices))


def test_containers_of_one_pod_are_told_apart() -> None:
    pod = bound("p", held(0, "GPU-a", "GPU-b"), held(1, "GPU-c"))
    there = [listed("p", "app-0", "x::0", "x::1"), listed("p", "app-1", "x::2")]
    both, one = (owned_by(pod, GPU, frozenset(ids), there) for ids in ({"x::1", "x::0"}, {"x::2"}))
    assert both == Owned(("GPU-a", "GPU-b"), sure=True, shares=held(0, "GPU-a", "GPU-b").gpus)
    assert one == Owned(("GPU-c",), sure=True, shares=held(1, "GPU-c").gpus)


def test_where_an_init_container_may_be_meant_only_the_container_s_own_variable_decides(tmp_path: Path) -> None:
    pod = bound("p", held(0, "GPU-b", kind=ContainerKind.INIT), held(1, "GPU-c"), held(2, "GPU-a", "GPU-b"), init=1)
    there = [listed("p", "app-0", "x::0"), listed("p", "app-1", "x::1", "x::2")]
    either = owned_by(pod, GPU, frozenset({"x::0"}), there)
    assert either[:2] == (("GPU-b", "GPU-c"), False)
    assert owned_by(pod, GPU, frozenset({"x::1", "x::2"}), there)[:2] == (("GPU-a", "GPU-b"), True)
    write_spec(tmp_path, "d", Vendor.NVIDIA, either, VendorEdits({"env": ["NVIDIA_VISIBLE_DEVICES=void"]}))
    edits = json.loads(spec_path(tmp_path, "d").read_text())["devices"][0]["containerEdits"]
    assert edits == {"env": ["COTENANT_CDI=d"]}  # the container's own variable stays


@pytest.mark.defect("GPU Manager: a pod of the same name that is being deleted is taken")
def test_a_pod_that_is_going_is_not_the_new_one_of_its_name() -> None:
    there, ids = [listed("p", "app-0", "x::0")], frozenset({"x::0"})
    going = bound("p", held(0, "GPU-a"), deletion_timestamp="2026-01-01T00:00:00Z")
    assert pod_with(GPU, ids, there, [going]) is None
    fresh = bound("p", held(0, "GPU-b"))
    assert pod_with(GPU, ids, there, [going, fresh]) is fresh
    assert pod_with("example.com/other", ids, there, [fresh]) is None


def test_devices_that_nobody_has_are_removed_once_they_are_old(tmp_path: Path) -> None:
    kept, left = listed("p", "c", "x::0"), listed("q", "c", "x::1")
    for one in (kept, left):
        write_spec(tmp_path, device_name(GPU, one.devices), Vendor.NVIDIA, NOTHING, VendorEdits())
    (tmp_path / "other.json").write_text("{}")
    now = 0.0
    unclaimed = Unclaimed(lambda: now)
    tidy_specs(tmp_path, [kept], unclaimed)
    assert len(list(tmp_path.iterdir())) == 3
    now += GRACE_S + 1
    tidy_specs(tmp_path, [kept], unclaimed)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"other.json", spec_path(tmp_path, device_name(GPU, kept.devices)).name}


# What the vendor's tool has written down

VENDOR = """
cdiVersion: "0.6.0"
kind: nvidia.com/gpu
devices:
- name: GPU-a
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}, {path: /dev/dri/card1}]
- name: GPU-b
  containerEdits:
    deviceNodes: [{path: /dev/nvidia1}, {path: /dev/dri/card1}]
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void, OTHER=1]
  deviceNodes: [{path: /dev/nvidiactl}]
  mounts: [{hostPath: /lib/libcuda.so.1, containerPath: /lib/libcuda.so.1, options: [ro, bind]}]
"""


def test_what_the_vendor_says_of_a_container_s_gpus_comes_with_them() -> None:
    async def scenario() -> None:
        async with registered(strict=True) as (here, kubelet):
            here.host.lasting_cdi.mkdir()
            (here.host.lasting_cdi / "broken.yaml").write_text("kind: nvidia.com/gpu\ndevices: 3")
            (here.host.lasting_cdi / "nvidia.yaml").write_text(VENDOR)
            here.pods.append(bound("one", held(0, "GPU-b", "GPU-a")))
            kubelet.has("one", "app-0", GPU, "GPU-a::0", "GPU-a::1")
            await kubelet.pre_start(GPU, "GPU-a::0", "GPU-a::1")
            edits = {**spec(here, "GPU-a::0", "GPU-a::1", version="0.6.0")}
            assert [node["path"] for node in edits.pop("deviceNodes")] == [
                "/dev/nvidiactl",
                "/dev/nvidia1",
                "/dev/dri/card1",
                "/dev/nvidia0",
            ]
            assert [mount["hostPath"] for mount in edits.pop("mounts")] == ["/lib/libcuda.so.1"]
            assert edits == {"env": ["OTHER=1", "NVIDIA_VISIBLE_DEVICES=GPU-b,GPU-a"]}

    asyncio.run(scenario())


def test_without_the_vendor_the_driver_tells_the_device_nodes(tmp_path: Path) -> None:
    for minor, uuid in enumerate(("GPU-a", "GPU-b")):
        (tmp_path / f"0000:0{minor}:00.0").mkdir()
        text = f"Model: \t\t Tesla: T4\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (tmp_path / f"0000:0{minor}:00.0" / "information").write_text(text)
    (tmp_path / "nvidiactl").touch()
    found = edits_for(Vendor.NVIDIA, ["GPU-b"], [], tmp_path, tmp_path)
    assert found.edits == {"deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/nvidiactl"}]}
    assert edits_for(Vendor.NVIDIA, ["GPU-x"], [tmp_path], tmp_path, tmp_path).edits == {"deviceNodes": []}
    assert edits_for(Vendor.NVIDIA, [], [], tmp_path, tmp_path) == VendorEdits()
