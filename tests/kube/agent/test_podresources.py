# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What kubelet lists is compared with the records by pod and number."""

import asyncio
from pathlib import Path

import pytest

from cotenant.core.model import ContainerKind
from cotenant.errors import CotenantError
from cotenant.kube.agent.podresources import Drift, Listed, drift, list_devices
from tests.kube.agent.agents import COUNT, GPU, held, node, record
from tests.kube.agent.kubelet import kubelet_in


def listed(pod: str, container: str, *devices: str) -> Listed:
    return Listed(namespace="team", pod=pod, container=container, resource=GPU, devices=frozenset(devices))


def test_only_our_resources_are_listed_and_numa_nodes_are_put_together() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet:
            kubelet.has("one", "c", GPU, "GPU-a::0")
            kubelet.pods[0].containers[0].devices.add(resource_name=GPU, device_ids=["GPU-b::0"])
            kubelet.has("two", "c", "example.com/other", "x")
            kubelet.has("three", "c", COUNT, "GPU-a::0")
            assert await list_devices(here.host.pod_resources, [GPU]) == (listed("one", "c", "GPU-a::0", "GPU-b::0"),)
            both = await list_devices(here.host.pod_resources, [GPU, COUNT])
            assert [one.key for one in both] == [("team", "one"), ("team", "three")]

    asyncio.run(scenario())


def test_a_kubelet_that_does_not_answer_is_said(tmp_path: Path) -> None:
    with pytest.raises(CotenantError, match="kubelet does not list devices"):
        asyncio.run(list_devices(tmp_path / "none.sock", [GPU]))


def test_which_slots_kubelet_took_does_not_matter() -> None:
    records = {("team", "p"): record(held(0, "GPU-c", kind=ContainerKind.INIT), held(1, "GPU-a"), held(2, "GPU-b"))}
    assert drift(records, [listed("p", "x", "GPU-a::7"), listed("p", "y", "GPU-a::6")]) == ()


def test_a_pod_with_more_or_fewer_devices_than_its_record_says_has_drifted() -> None:
    records = {("team", "more"): record(held(0, "GPU-a")), ("team", "none"): record(held(0, "GPU-a", "GPU-b"))}
    there = [listed("more", "x", "GPU-a::0", "GPU-b::0"), listed("stranger", "x", "GPU-c::0")]
    assert drift(records, there) == (
        Drift(pod=("team", "more"), recorded=1, listed=2),
        Drift(pod=("team", "none"), recorded=2, listed=0),
        Drift(pod=("team", "stranger"), recorded=0, listed=1),
    )
