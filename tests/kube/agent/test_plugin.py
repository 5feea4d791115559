# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kubelet learns of the GPUs and follows them, however often it is restarted."""

import asyncio
import stat
from dataclasses import replace

import pytest

from cotenant.core.model import Machine
from cotenant.kube.agent.plugin import count_resources
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.node.devices.vendors import Vendor
from tests.kube.agent.agents import COUNT, GPU, MACHINE, node, registered
from tests.kube.agent.kubelet import Kubelet, kubelet_in, until


def health(kubelet: Kubelet) -> dict[str, str]:
    return {one.ID: one.health for one in kubelet.devices[GPU]}


def test_kubelet_learns_of_all_slots_with_their_numa_nodes() -> None:
    async def scenario() -> None:
        async with registered() as (_, kubelet):
            seen = [(one.ID, one.health, [node.ID for node in one.topology.nodes]) for one in kubelet.devices[GPU]]
            assert seen == [
                ("GPU-a::0", "Healthy", [0]),
                ("GPU-a::1", "Healthy", [0]),
                ("GPU-a::2", "Healthy", [0]),
                ("GPU-b::0", "Healthy", [1]),
                ("GPU-b::1", "Healthy", [1]),
                ("GPU-c::0", "Healthy", []),
                ("GPU-c::1", "Healthy", []),
            ]
            assert kubelet.registered[GPU].version == "v1beta1"
            options = await kubelet.call(GPU, "GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)
            assert options == kubelet.registered[GPU].options
            assert options.get_preferred_allocation_available
            assert options.pre_start_required  # or kubelet starts a container without what Allocate gave it
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            await kubelet.pre_start(GPU, "GPU-a::0")

    asyncio.run(scenario())


@pytest.mark.defect("NVIDIA's device plugin: an error makes one slot of a GPU unhealthy, for ever")
def test_a_card_that_fails_is_unhealthy_in_all_its_slots_and_recovers() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet, here.plugins() as plugins:
            await until(lambda: GPU in kubelet.devices)
            failed = replace(MACHINE.gpus[1], healthy=False)
            here.machine = replace(MACHINE, gpus=(MACHINE.gpus[0], failed, MACHINE.gpus[2]))
            plugins.changed()
            await until(lambda: "Unhealthy" in health(kubelet).values())
            assert {one for one, state in health(kubelet).items() if state != "Healthy"} == {"GPU-b::0", "GPU-b::1"}
            here.machine = MACHINE
            plugins.changed()
            await until(lambda: "Unhealthy" not in health(kubelet).values())
            here.machine = replace(MACHINE, gpus=MACHINE.gpus[1:])  # one is hidden
            plugins.changed()
            await until(lambda: "GPU-a::0" not in health(kubelet))
            assert len(health(kubelet)) == 4

    asyncio.run(scenario())


def test_a_restarted_kubelet_is_told_again() -> None:
    async def scenario() -> None:
        async with node() as here, here.plugins([GPU, COUNT]):
            for _ in range(3):
                async with kubelet_in(here.kubelet) as kubelet:
                    await until(lambda: len(kubelet.devices) == 2)
                    assert {name: len(them) for name, them in kubelet.devices.items()} == {GPU: 7, COUNT: 7}
                    await kubelet.allocate(COUNT, "GPU-a::0")

    asyncio.run(scenario())


def test_a_socket_that_somebody_removed_is_made_again() -> None:
    async def scenario() -> None:
        async with registered() as (_, kubelet):
            first = kubelet.registered[GPU].endpoint
            (kubelet.plugins / first).unlink()
            await until(lambda: kubelet.registered[GPU].endpoint != first)
            await kubelet.allocate(GPU, "GPU-a::0")

    asyncio.run(scenario())


def test_a_kubelet_that_has_given_us_up_is_told_again() -> None:
    async def scenario() -> None:
        async with registered() as (_, kubelet):
            del kubelet.devices[GPU]
            await kubelet.close()
            await until(lambda: GPU in kubelet.devices)

    asyncio.run(scenario())


def test_a_kubelet_that_comes_late_or_refuses_is_waited_for() -> None:
    async def scenario() -> None:
        async with node() as here, here.plugins():
            await until(lambda: here.said)
            assert "waiting for it" in here.said[0]
            async with kubelet_in(here.kubelet) as kubelet:
                kubelet.refuse_next = 2
                await until(lambda: GPU in kubelet.devices)
            assert any("not now; trying again" in line for line in here.said)

    asyncio.run(scenario())


def test_the_sockets_are_roots_alone_and_are_gone_at_the_end() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet:
            (here.kubelet / "device-plugins" / "other.sock").touch()
            async with here.plugins([GPU, COUNT]):
                await until(lambda: len(kubelet.devices) == 2)
                for request in kubelet.registered.values():
                    assert stat.S_IMODE((kubelet.plugins / request.endpoint).stat().st_mode) == 0o600
            assert sorted(path.name for path in kubelet.plugins.iterdir()) == ["kubelet.sock", "other.sock"]

    asyncio.run(scenario())


def test_cards_of_a_thousand_slots_fit_into_what_kubelet_takes() -> None:
    gpus = tuple(replace(MACHINE.gpus[0], uuid=f"GPU-{i:036}", slots=1000) for i in range(64))

    async def scenario() -> None:
        async with registered(machine=Machine(name="n1", gpus=gpus)) as (_, kubelet):
            assert len(kubelet.devices[GPU]) == 64 * 512
            await kubelet.allocate(GPU, f"GPU-{63:036}::511")

    asyncio.run(scenario())


def test_a_node_has_the_resources_of_its_vendor() -> None:
    assert count_resources(DEFAULTS, Vendor.NVIDIA) == (
        GPU,
        *(f"cotenant.io/{name}-slots" for name in ("gpushare", "topology", "iadeep")),
    )
    assert count_resources(DEFAULTS, Vendor.CAMBRICON) == ("cambricon.com/mlunum", "cambricon.com/vmlu")
