# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent says of its node is there, says the truth, and comes back when somebody removes it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.agent.publishing import OwnNode
from cotenant.kube.agent.reporting import annotations_for, host_memory_note, scaling_note, shared_machine, topology_text
from cotenant.kube.api.client import Client
from cotenant.kube.api.objects import decode_node
from cotenant.kube.codec.inventory import GPU_TOPOLOGY, INVENTORY, OWN_TOTALS, machine_of
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.codec.withdrawing import take_back
from cotenant.kube.settings import parse_settings
from cotenant.node.devices.vendors import Vendor
from tests.kube.agent_node.waiting import PACE, client_of, in_loop, running, until
from tests.kube.api_server import ApiServer, Refusal

LINKS = ((0, 250, 30), (250, 0, 10), (30, 10, 0))
FOUND = Machine(
    name="local",
    gpus=tuple(Gpu(uuid=f"GPU-{i}", type="T4", memory=MiB(16384), numa=i % 2) for i in range(3)),
    links=LINKS,
)
SETTINGS = parse_settings(
    b"gpus: {split: 4}\n"
    b"nodes: {n1: {hide: ['1'], memory-scaling: 150, gpus: {GPU-2: {split: 9, compute-scaling: 200}}}}"
)
TOTALS = {"nvidia.com/gpumem": 16000, "nvidia.com/gpucores": 100}


# What there is to say


def test_each_card_is_shared_as_the_settings_say_and_hidden_ones_are_left_out() -> None:
    shared = shared_machine(FOUND, "n1", SETTINGS, Vendor.NVIDIA)
    assert shared.name == "n1"
    assert [(gpu.uuid, gpu.slots, gpu.memory_capacity, gpu.compute_capacity) for gpu in shared.gpus] == [
        ("GPU-0", 4, 24576, 1000),
        ("GPU-2", 9, 24576, 2000),
    ]
    assert shared.links == ((0, 30), (30, 0))
    assert [gpu.uuid for gpu in shared_machine(FOUND, "another", SETTINGS, Vendor.NVIDIA).gpus] == [
        "GPU-0",
        "GPU-1",
        "GPU-2",
    ]


INSTANCES = Machine(
    name="local",
    gpus=(
        Gpu(uuid="GPU-a", memory=MiB(40960)),
        Gpu(uuid="MIG-b", memory=MiB(5120), mig="1g.5gb", card="GPU-b", part=MilliGpu(142)),
        Gpu(uuid="MIG-c", memory=MiB(5120), mig="1g.5gb", card="GPU-b", part=MilliGpu(142), healthy=False),
    ),
)


def test_instances_are_handed_out_as_the_strategy_of_the_node_says() -> None:
    settings = parse_settings(
        b"{gpus: {mig-strategy: single}, nodes: {n1: {mig-strategy: mixed}, n2: {mig-strategy: none}}}"
    )
    found = {
        node: [(gpu.uuid, gpu.mig, gpu.compute_capacity, gpu.card) for gpu in shared.gpus]
        for node in ("n1", "n2", "n3")
        for shared in [shared_machine(INSTANCES, node, settings, Vendor.NVIDIA)]
    }
    whole = ("GPU-a", None, 1000, None)
    assert found == {
        "n1": [whole, ("MIG-b", "1g.5gb", 142, "GPU-b"), ("MIG-c", "1g.5gb", 142, "GPU-b")],
        "n2": [whole],
        "n3": [whole, ("MIG-b", None, 1000, "GPU-b"), ("MIG-c", None, 1000, "GPU-b")],
    }


def test_instances_that_were_removed_leave_room_for_others() -> None:
    gone = tuple(replace(INSTANCES.gpus[2], uuid=f"MIG-{i}") for i in range(70))
    shared = shared_machine(replace(INSTANCES, gpus=(*INSTANCES.gpus, *gone)), "n9", SETTINGS, Vendor.NVIDIA)
    assert [gpu.uuid for gpu in shared.gpus] == ["GPU-a", "MIG-b"]


def test_the_scheduler_reads_instances_as_they_are() -> None:
    shared = shared_machine(INSTANCES, "n1", parse_settings(b""), Vendor.NVIDIA)
    annotations = {key: value for key, value in annotations_for(shared, Vendor.NVIDIA, DEFAULTS).items() if value}
    node = decode_node(json.dumps({"metadata": {"name": "n1", "annotations": annotations}}).encode())
    assert machine_of(node) == (shared, Vendor.NVIDIA)


def test_simulated_cards_of_two_nodes_have_different_names_that_stay() -> None:
    one, other = (shared_machine(FOUND, node, SETTINGS, Vendor.NVIDIA, simulated=True) for node in ("n2", "n3"))
    assert not {gpu.uuid for gpu in one.gpus} & {gpu.uuid for gpu in other.gpus}
    assert one == shared_machine(FOUND, "n2", SETTINGS, Vendor.NVIDIA, simulated=True)


def test_more_cards_than_an_inventory_can_hold_are_refused_in_a_sentence() -> None:
    many = Machine(name="local", gpus=tuple(Gpu(uuid=f"GPU-{i}") for i in range(65)))
    with pytest.raises(InputError, match="65 GPUs, expected at most 64"):
        shared_machine(many, "n", SETTINGS, Vendor.NVIDIA)


def test_the_scheduler_reads_the_machine_that_was_published() -> None:
    shared = shared_machine(
        replace(FOUND, gpus=(replace(FOUND.gpus[0], healthy=False), *FOUND.gpus[1:])), "n1", SETTINGS, Vendor.NVIDIA
    )
    annotations = {key: value for key, value in annotations_for(shared, Vendor.NVIDIA, DEFAULTS).items() if value}
    node = decode_node(json.dumps({"metadata": {"name": "n1", "annotations": annotations}}).encode())
    assert machine_of(node) == (shared, Vendor.NVIDIA)


def test_topology_is_told_in_the_words_of_its_dialect() -> None:
    assert json.loads(topology_text(FOUND)) == {
        "GPU_NV2_0_1": "Two NVLinks",
        "GPU_PHB_0_2": "Host PCI bridge",
        "GPU_SYS_1_2": "Cross CPU socket",
    }


@pytest.mark.parametrize(
    ("score", "short", "words"),
    [
        (0, "N-A", "N/A"),
        (20, "NODE", "Same CPU socket"),
        (40, "PXB", "Multiple PCI switches"),
        (50, "PIX", "Single PCI switch"),
        (60, "PSB", "Same board"),
        (100, "NV1", "Single NVLink"),
        (1800, "NV6", "Six NVLinks"),
    ],
)
def test_words_of_links(score: int, short: str, words: str) -> None:
    pair = replace(FOUND, gpus=FOUND.gpus[:2], links=((0, score), (score, 0)))
    assert json.loads(topology_text(pair)) == {f"GPU_{short}_0_1": words}


def test_topology_is_told_only_where_its_dialect_is_spoken_and_links_are_known() -> None:
    assert annotations_for(FOUND, Vendor.NVIDIA, DEFAULTS)[GPU_TOPOLOGY] is not None
    assert annotations_for(FOUND, Vendor.CAMBRICON, DEFAULTS)[GPU_TOPOLOGY] is None
    assert annotations_for(replace(FOUND, links=None), Vendor.NVIDIA, DEFAULTS)[GPU_TOPOLOGY] is None
    assert annotations_for(FOUND, Vendor.NVIDIA, Settings(dialects=(VGPU,)))[GPU_TOPOLOGY] is None


# Saying it


def node_of(server: ApiServer) -> dict[str, Any]:
    return server.nodes.pods["", "n1"]


def annotations_in(server: ApiServer) -> dict[str, str]:
    return dict(node_of(server)["metadata"].get("annotations", {}))


def memory_in(server: ApiServer) -> list[str | None]:
    status = node_of(server)["status"]
    return [status.get(part, {}).get("nvidia.com/gpumem") for part in ("capacity", "allocatable")]


def patches(server: ApiServer) -> list[tuple[str, Any]]:
    return [(one.path, json.loads(one.body)) for one in server.asked if one.method == "PATCH"]


def a_cluster() -> ApiServer:
    server = ApiServer()
    server.nodes.merge("n1", {"metadata": {"annotations": {"other": "kept"}}, "status": {"capacity": {"cpu": "4"}}})
    return server


@asynccontextmanager
async def own_node(server: ApiServer, told: list[str] | None = None) -> AsyncIterator[OwnNode]:
    """The node as its agent keeps it."""
    async with client_of(server) as client:
        own = OwnNode(client, "n1", pace=PACE, report=(told if told is not None else []).append, patches_s=0.01)
        async with running(own.run()):
            yield own


@in_loop
async def test_annotations_and_totals_are_each_written_once_and_then_no_more() -> None:
    server = a_cluster()
    async with own_node(server) as own:
        own.want({INVENTORY: "cards", GPU_TOPOLOGY: "links"}, TOTALS)
        await own.is_as_wanted()
        await until(lambda: annotations_in(server).get(OWN_TOTALS))
        own.want({INVENTORY: "cards"}, TOTALS)
        await own.is_as_wanted()
        compared = own.passes
        server.nodes.merge("n1", {"status": {"conditions": []}})  # kubelet says it is alive
        await until(lambda: own.passes > compared)
    written = {"nvidia.com/gpumem": "16000", "nvidia.com/gpucores": "100"}
    names = "nvidia.com/gpucores,nvidia.com/gpumem"
    assert patches(server) == [
        ("/api/v1/nodes/n1/status", {"status": {"capacity": written, "allocatable": written}}),
        (
            "/api/v1/nodes/n1",
            {"metadata": {"annotations": {INVENTORY: "cards", GPU_TOPOLOGY: "links", OWN_TOTALS: names}}},
        ),
    ]
    assert annotations_in(server)["other"] == "kept"
    assert node_of(server)["status"]["capacity"]["cpu"] == "4"
    assert {one.query.get("fieldSelector") for one in server.asked if one.method == "GET"} == {"metadata.name=n1"}


@in_loop
async def test_what_somebody_removes_or_overwrites_comes_back() -> None:
    server = a_cluster()
    async with own_node(server) as own:
        own.want({INVENTORY: "cards"}, TOTALS)
        await own.is_as_wanted()
        for harm in (
            {"metadata": {"annotations": {INVENTORY: None}}},
            {"metadata": {"annotations": {INVENTORY: "forged"}}},
            {"metadata": {"annotations": None}, "status": {"capacity": None}},
            {"status": {"capacity": {"nvidia.com/gpumem": "0"}, "allocatable": {"nvidia.com/gpumem": "0"}}},
            {"status": {"allocatable": {"nvidia.com/gpumem": "20k"}}},
        ):
            server.nodes.merge("n1", harm)
            await until(lambda: annotations_in(server).get(INVENTORY) == "cards")
            await until(lambda: memory_in(server) == ["16000", "16000"])


@dataclass(frozen=True)
class Late:
    """A client whose patches are answered late, and something happens meanwhile."""

    client: Client
    meanwhile: Callable[[], object]

    async def patch(self, *words: Any, **options: Any) -> Any:
        answer = await self.client.patch(*words, **options)
        self.meanwhile()
        await asyncio.sleep(0.3)  # the watch tells of it in that time
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@in_loop
async def test_what_happens_before_an_answer_comes_is_not_forgotten_for_it() -> None:
    server = a_cluster()
    harms: list[dict[str, Any]] = [{INVENTORY: "forged"}]

    def harm() -> None:
        if harms and annotations_in(server).get(INVENTORY) == "cards":
            server.nodes.merge("n1", {"metadata": {"annotations": harms.pop()}})

    async with client_of(server) as client:
        own = OwnNode(cast(Client, Late(client, harm)), "n1", pace=PACE, report=print, patches_s=0.01)
        async with running(own.run()):
            own.want({INVENTORY: "cards"})
            await until(lambda: not harms)
            await until(lambda: annotations_in(server)[INVENTORY] == "cards")


@in_loop
async def test_an_amount_that_is_written_otherwise_is_the_same_amount() -> None:
    server = a_cluster()
    same = {"nvidia.com/gpumem": "16k", "nvidia.com/gpucores": "100"}
    server.nodes.merge("n1", {"status": {"capacity": same, "allocatable": same}})
    async with own_node(server) as own:
        own.want(totals=TOTALS)
        await own.is_as_wanted()
    assert [path for path, _ in patches(server)] == ["/api/v1/nodes/n1"]  # their names alone


@in_loop
async def test_totals_go_up_before_more_may_be_placed_and_down_after() -> None:
    server = a_cluster()
    async with own_node(server) as own:
        for inventory, memory in (("large", 900), ("small", 300), ("large", 900)):
            own.want({INVENTORY: inventory}, {"nvidia.com/gpumem": memory})
            await own.is_as_wanted()
    order = [
        "status" if path.endswith("status") else body["metadata"]["annotations"][INVENTORY]
        for path, body in patches(server)
    ]
    assert order == ["status", "large", "small", "status", "status", "large"]


@in_loop
async def test_a_total_whose_name_is_not_used_any_more_goes() -> None:
    server = a_cluster()
    for totals in (TOTALS, {"example.com/memory": 16000}):
        async with own_node(server) as own:  # started again with other settings
            own.want({INVENTORY: "cards"}, totals)
            await own.is_as_wanted()
    assert node_of(server)["status"]["capacity"] == {"cpu": "4", "example.com/memory": "16000"}
    assert annotations_in(server)[OWN_TOTALS] == "example.com/memory"


@in_loop
async def test_a_server_that_refuses_for_a_while_is_asked_again() -> None:
    server, told = a_cluster(), list[str]()
    async with own_node(server, told) as own:
        server.nodes.refusals += [Refusal(status, only="PATCH") for status in (500, 500, 403)]
        own.want({INVENTORY: "cards"}, TOTALS)
        await own.is_as_wanted()
    assert annotations_in(server)[INVENTORY] == "cards"
    assert any("403" in line or "InternalError" in line for line in told)


@in_loop
async def test_a_node_that_is_made_anew_is_told_of_again_and_one_that_is_missing_is_said() -> None:
    server, told = ApiServer(), list[str]()
    async with own_node(server, told) as own:
        own.want({INVENTORY: "cards"}, TOTALS)

        def is_said() -> bool:
            own.want()  # it is not known from the start that there is none
            return bool(told)

        await until(is_said)
        assert set(told) == {"the cluster has no node n1"}
        for _ in range(2):
            server.nodes.merge("n1", {"metadata": {"labels": {}}, "status": {}})
            await until(lambda: annotations_in(server).get(INVENTORY) == "cards")
            server.nodes.remove("n1", "")


@in_loop
async def test_taking_back_leaves_nothing_of_ours() -> None:
    server = a_cluster()
    async with own_node(server) as own:
        own.want({INVENTORY: "cards", GPU_TOPOLOGY: "links"}, TOTALS)
        await own.is_as_wanted()
    async with client_of(server) as client:
        await take_back(client, "n1")
    assert annotations_in(server) == {"other": "kept"}
    assert node_of(server)["status"]["capacity"] == {"cpu": "4"}


def test_more_host_memory_than_there_is_is_said() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{i}", memory=MiB(16384), memory_scaling=Percent(150)) for i in range(2))
    twice = Machine(name="n1", gpus=gpus)
    assert host_memory_note(twice, MiB(16384)) is None
    assert host_memory_note(twice, MiB(8192)) == (
        "memory-scaling assigns up to 16 GiB of the host's memory to pods, and the host has 8 GiB: lower "
        "memory-scaling of node n1, or pods can exhaust its memory"
    )


def test_no_more_memory_than_there_is_is_handed_out_of_gpus_that_have_no_virtual_memory() -> None:
    shared = shared_machine(FOUND, "n1", SETTINGS, Vendor.CAMBRICON)
    assert [(gpu.memory_capacity, gpu.compute_capacity) for gpu in shared.gpus] == [(16384, 1000), (16384, 2000)]
    said = scaling_note(FOUND, "n1", SETTINGS, Vendor.CAMBRICON)
    assert said == ("memory-scaling above 100 has no effect on Cambricon GPUs; only NVIDIA GPUs have virtual memory")
    assert scaling_note(FOUND, "n1", SETTINGS, Vendor.NVIDIA) is None
    assert scaling_note(FOUND, "another", SETTINGS, Vendor.CAMBRICON) is None
    less = parse_settings(b"gpus: {memory-scaling: 50}")
    assert shared_machine(FOUND, "n1", less, Vendor.AMD).gpus[0].memory_capacity == 8192
