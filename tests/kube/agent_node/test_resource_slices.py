# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as ResourceSlices: what they say, with every version of Kubernetes, and that they stay so."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cotenant.core.isolation import Offer
from cotenant.core.links import link_matrix
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.agent.resource_slices import (
    FORMS,
    MOST_DEVICES,
    MOST_GENERATION,
    NodeDevices,
    OwnSlices,
    foreign_devices,
    name_of,
    slices_for,
)
from cotenant.kube.api.claims import ResourceSlice
from cotenant.kube.codec.claims import DRIVER, device_name
from cotenant.kube.codec.devices import attributes_of, counter_sets, device_of, semantic
from cotenant.node.devices.vendors import Vendor
from tests.kube.agent_node.waiting import PACE, client_of, in_loop, running, until
from tests.kube.api_server import ApiServer

V100 = Gpu(uuid="GPU-a", type="Tesla V100", memory=MiB(32768), slots=10, numa=1)
INSTANCES = tuple(
    Gpu(uuid=f"MIG-{i}", memory=MiB(10240), mig="2g.10gb", card="GPU-m", part=MilliGpu(286)) for i in range(3)
)
NAME = f"n1-{DRIVER}"


def devices(*gpus: Gpu, links: Any = None, node: str = "n1", uid: str = "node-uid") -> NodeDevices:
    machine = Machine(name=node, gpus=gpus, links=links)
    return NodeDevices(machine=machine, vendor=Vendor.NVIDIA, driver="535.104.05", uid=uid)


def test_a_device_states_what_selectors_and_counts_need() -> None:
    offer = Offer(capability=(7, 0), cuda=12_090, mps=True, preload=True)
    (made,) = slices_for(devices(replace(V100, offer=offer)), FORMS[0])
    (device,) = made["spec"]["devices"]
    assert device["name"] == "gpu-a"
    assert device["allowMultipleAllocations"]
    assert device["capacity"]["memory"] == {
        "value": "32768Mi",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1Mi"}},
    }
    assert device["capacity"]["compute"]["requestPolicy"]["default"] == "0"
    values = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
    assert values == {
        "index": 0,
        "type": "Tesla V100",
        "uuid": "GPU-a",
        "vendor": "nvidia",
        "healthy": True,
        "slots": 10,
        "mig": False,
        "numaNode": 1,
        "isolationDriver": False,
        "isolationMps": True,
        "isolationPreload": True,
        "computeCapability": "7.0.0",
        "cudaVersion": "12.9.0",
        "driverVersion": "535.104.5",
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == "node-uid"


@pytest.mark.parametrize(
    ("version", "expected"),
    [("570.1", "570.1.0"), ("550.54.014", "550.54.14"), ("6", None), ("1.2.3.4", None), ("5.x", None), (None, None)],
)
def test_versions_of_drivers_are_semantic(version: str | None, expected: str | None) -> None:
    assert semantic(version) == expected


def test_links_are_groups() -> None:
    rows = [
        ["X", "NV2", "SYS", "SYS", "SYS"],
        ["NV2", "X", "SYS", "SYS", "SYS"],
        ["SYS", "SYS", "X", "PIX", "SYS"],
        ["SYS", "SYS", "PIX", "X", "SYS"],
        ["SYS", "SYS", "SYS", "SYS", "X"],
    ]
    gpus = tuple(Gpu(uuid=f"GPU-{i}") for i in range(5))
    found = attributes_of(Machine(name="n1", gpus=gpus, links=link_matrix(rows)), Vendor.NVIDIA)
    assert [one.get("nvlinkGroup", {}).get("int") for one in found] == [0, 0, None, None, None]
    assert [one.get("pcieGroup", {}).get("int") for one in found] == [0, 0, 2, 2, None]


def test_faults_and_cordons_are_taints() -> None:
    ill = replace(V100, healthy=False, cordoned=True)
    taints = device_of(ill, {}, counted=True)["taints"]
    assert [(one["key"], one["effect"]) for one in taints] == [
        (f"{DRIVER}/unhealthy", "NoSchedule"),
        (f"{DRIVER}/cordoned", "NoSchedule"),
    ]
    assert "taints" not in device_of(V100, {}, counted=True)


def test_instances_of_a_card_share_its_counters() -> None:
    (card,) = counter_sets([*INSTANCES, V100])
    assert card["counters"] == {"memory-mib": {"value": "30720"}, "compute-permille": {"value": "858"}}
    of_devices, of_counters = slices_for(devices(*INSTANCES), FORMS[0])
    assert of_counters["spec"]["sharedCounters"] == [card]
    taken = [device["consumesCounters"] for device in of_devices["spec"]["devices"]]
    assert {one["counterSet"] for (one,) in taken} == {card["name"]} == {device_name("GPU-m")}
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in (of_devices, of_counters)} == {2}
    (plain,) = slices_for(devices(*INSTANCES), FORMS[1])
    assert "consumesCounters" not in plain["spec"]["devices"][0]


def test_a_removed_instance_is_not_stated_and_the_others_keep_their_indices() -> None:
    removed = INSTANCES[0].uuid
    of_devices, of_counters = slices_for(replace(devices(*INSTANCES), absent=frozenset({removed})), FORMS[0])
    attributes = [one["attributes"] for one in of_devices["spec"]["devices"]]
    assert [(one["uuid"]["string"], one["index"]["int"]) for one in attributes] == [("MIG-1", 1), ("MIG-2", 2)]
    (card,) = of_counters["spec"]["sharedCounters"]
    assert card["counters"]["memory-mib"] == {"value": "20480"}


def test_large_nodes_and_long_names_stay_within_the_limits_of_the_api() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{i}", healthy=i > 0) for i in range(130))
    made = slices_for(devices(*gpus), FORMS[0], 7)
    assert [len(one["spec"]["devices"]) for one in made] == [MOST_DEVICES, MOST_DEVICES, 2]
    assert len({one["metadata"]["name"] for one in made}) == 3
    assert {(one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"]) for one in made} == {(7, 3)}
    cards = [replace(INSTANCES[0], uuid=f"MIG-{i}", card=f"GPU-{i}") for i in range(9)]
    assert [len(one["spec"].get("sharedCounters", ())) for one in slices_for(devices(*cards), FORMS[0])] == [0, 8, 1]
    names = {name_of("n" * length, number) for length in (240, 253) for number in (0, 1, 12)}
    assert len(names) == 6
    assert max(map(len, names)) <= 253
    assert max(len(one["attributes"]) + len(one["capacity"]) for one in made[0]["spec"]["devices"]) <= 32


def test_another_driver_with_the_same_card_is_found_by_its_attributes() -> None:
    def published(driver: str, **attributes: Any) -> ResourceSlice:
        return ResourceSlice(spec={"driver": driver, "devices": [{"name": "x", "attributes": attributes}]})

    found = foreign_devices(
        [
            published("gpu.nvidia.com", uuid={"string": "gpu-A"}),
            published("other.example", uuid={"string": "GPU-b"}, index={"int": 1}),
            published(DRIVER, uuid={"string": "GPU-a"}),
            ResourceSlice(spec={"driver": "odd", "devices": [None, {"attributes": [1]}]}),
            ResourceSlice(),
        ],
        ["GPU-a"],
    )
    assert found == {"gpu.nvidia.com": {"GPU-a"}}


@dataclass
class World:
    """A node, and the slices that its agent publishes."""

    server: ApiServer = field(default_factory=ApiServer)
    now: NodeDevices = field(default_factory=lambda: devices(V100))
    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    shared: list[str | None] = field(default_factory=list)

    @asynccontextmanager
    async def published(
        self, keeps: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    ) -> AsyncIterator[None]:
        """While an agent runs."""
        if keeps is not None:
            self.server.slices.keeps = keeps
        async with client_of(self.server) as client:
            own = OwnSlices(
                client,
                "n1",
                lambda: self.now,
                report=self.wrong.append,
                say=self.said.append,
                shared=self.shared.append,
                pace=PACE,
                least_s=0.01,
                look_s=0.05,
            )
            async with running(own.run()):
                await until(lambda: self.specs())
                yield

    def specs(self) -> list[dict[str, Any]]:
        return [one["spec"] for _, one in sorted(self.server.slices.pods.items()) if one["spec"]["driver"] == DRIVER]

    def device(self) -> dict[str, Any]:
        found: dict[str, Any] = self.specs()[0]["devices"][0]
        return found

    def writes(self) -> int:
        return sum(one.method == "PATCH" and "dryRun" not in one.query for one in self.server.slices.asked)


def drops(*fields: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An API server whose feature gates are off."""

    def keeps(spec: dict[str, Any]) -> dict[str, Any]:
        for device in spec.get("devices", ()):
            for name in fields:
                device.pop(name, None)
        return {key: value for key, value in spec.items() if key not in fields}

    return keeps


@in_loop
async def test_a_change_raises_the_generation_and_nothing_else_writes() -> None:
    world = World()
    async with world.published():
        assert [one["pool"]["generation"] for one in world.specs()] == [1]
        world.now = devices(replace(V100, healthy=False))
        await until(lambda: "taints" in world.device())
        assert world.specs()[0]["pool"]["generation"] == 2
        world.now = devices(V100)
        await until(lambda: "taints" not in world.device())
        written = world.writes()
    async with world.published():  # an agent that restarts
        await until(lambda: any("dryRun" in one.query for one in world.server.slices.asked[-3:]))
        world.now = devices(replace(V100, numa=0))
        await until(lambda: world.device()["attributes"]["numaNode"] == {"int": 0})
    assert (world.writes(), world.specs()[0]["pool"]["generation"]) == (written + 1, 4)
    assert not world.wrong


@in_loop
async def test_a_slice_that_was_edited_deleted_or_added_is_repaired() -> None:
    world = World()
    async with world.published():
        slices = world.server.slices
        edited = {**world.specs()[0], "devices": [{"name": "gpu-a"}, {"name": "forged"}]}
        slices.merge(NAME, {"spec": edited})
        await until(lambda: len(world.specs()[0]["devices"]) == 1 and "attributes" in world.device())
        pool = {**world.specs()[0]["pool"], "generation": MOST_GENERATION, "resourceSliceCount": 9}
        slices.merge(NAME, {"spec": {**world.specs()[0], "pool": pool}})
        await until(lambda: world.specs()[0]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1})
        slices.remove(NAME, "")
        await until(lambda: ("", NAME) in slices.pods)
        slices.merge("stale", {"spec": {**world.specs()[0], "devices": []}})
        await until(lambda: ("", "stale") not in slices.pods)
        world.now = devices(V100, uid="another")  # the node was created again
        await until(lambda: slices.pods["", NAME]["metadata"]["ownerReferences"][0]["uid"] == "another")


@in_loop
async def test_an_api_server_without_counters_or_shares_gets_the_slices_that_it_keeps() -> None:
    old = World(now=devices(*INSTANCES))
    async with old.published(drops("allowMultipleAllocations", "consumesCounters", "sharedCounters", "taints")):
        await until(lambda: [one["pool"]["resourceSliceCount"] for one in old.specs()] == [1])
        assert "whole devices only" in old.said[0]
        old.server.slices.keeps = lambda spec: spec  # it was upgraded
        old.now = devices(*INSTANCES[:2])
        await until(lambda: len(old.specs()) == 2)
        assert old.specs()[1]["sharedCounters"]
        assert "counters of partitioned GPUs" in old.said[1]
    odd = World(now=devices(*INSTANCES))
    async with odd.published(lambda spec: None if "requestPolicy" in str(spec) or "Counters" in str(spec) else spec):
        assert "allowMultipleAllocations" not in odd.device()


@in_loop
async def test_another_driver_of_the_same_card_is_told_until_it_is_gone() -> None:
    world = World()
    async with world.published():
        theirs = {"driver": "gpu.nvidia.com", "nodeName": "n1"}
        about = [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}}}]
        world.server.slices.merge("theirs", {"spec": {**theirs, "devices": about}})
        await until(lambda: world.shared)
        assert "driver gpu.nvidia.com publishes GPU-a too" in str(world.shared[0])
        world.server.slices.remove("theirs", "")
        await until(lambda: world.shared[1:] == [None])
        assert world.server.slices.pods.keys() == {("", NAME)}
