# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kubelet has the agent prepare ResourceClaims: each gets what the record of its pod says, and nothing without one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from google.protobuf.message import Message

from cotenant.kube.agent import allocating
from cotenant.kube.agent.claim_driver import REGISTRATION, SERVICE
from cotenant.kube.agent.claim_files import slice_of_claim
from cotenant.kube.agent.plugin import Plugins
from cotenant.kube.agent.proto import dra_pb2 as pb
from cotenant.kube.agent.proto import pluginregistration_pb2 as watcher
from cotenant.kube.agent.resource_slices import slice_for
from cotenant.kube.agent.rpc import call
from cotenant.kube.agent.strict import spec_path
from cotenant.kube.api.objects import ClaimUse, Pod, PodClaim
from cotenant.kube.codec.claims import DRIVER
from cotenant.kube.codec.keys import container_key
from cotenant.kube.codec.paths import LIMITS, LIMITS_FOLDER, PROCESSES_FOLDER, REGION
from tests.kube.agent.agents import MACHINE, Node, bound, held, node
from tests.kube.agent.kubelet import kubelet_in, until

UID = "6f1c0f0e-0000-4000-8000-000000000001"
CLAIM = pb.Claim(namespace="team", name="mine", uid=UID)
replaced = msgspec.structs.replace
A = TypeVar("A", bound=Message)


def user(name: str, *gpus: str, limits: str = "gpu any", copied: bool = False) -> Pod:
    """A pod that was bound here, and whose container uses the claim; without GPUs, it has no record."""
    pod = bound(name, *([held(0, *gpus)] if gpus else []))
    containers = pod.spec.containers or bound(name, held(0, "GPU-a")).spec.containers
    resources = replaced(containers[0].resources, claims=(ClaimUse(name="gpu"),), limits={})
    spec = replaced(
        pod.spec,
        containers=(replaced(containers[0], resources=resources),),
        resource_claims=(PodClaim(name="gpu", resource_claim_name="mine"),),
    )
    annotations = {container_key(0, LIMITS): limits, container_key(0, "COTENANT_JOB"): "job"}
    about = replaced(pod.metadata, annotations=pod.metadata.annotations | annotations)
    about = replaced(about, uid="another") if copied else about
    return replaced(pod, spec=spec, metadata=about)


@asynccontextmanager
async def driver(*, known_s: float = 20.0) -> AsyncIterator[tuple[Node, Plugins, Path]]:
    """A node whose agent serves claims, and the socket that it told kubelet."""
    async with node() as here, kubelet_in(here.kubelet):
        (here.kubelet / "plugins_registry").mkdir()
        async with here.plugins(claims=True, known_s=known_s) as plugins:
            yield here, plugins, await endpoint(here)


async def endpoint(here: Node) -> Path:
    await until(lambda: list((here.kubelet / "plugins_registry").iterdir()))
    (socket,) = (here.kubelet / "plugins_registry").iterdir()
    info = await call(socket, f"/{REGISTRATION}/GetInfo", watcher.InfoRequest(), watcher.PluginInfo, timeout_s=20)
    assert (info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", DRIVER, ["v1.DRAPlugin"])
    return Path(info.endpoint)


async def prepare(socket: Path) -> pb.NodePrepareResourceResponse:
    request = pb.NodePrepareResourcesRequest(claims=[CLAIM])
    method = f"/{SERVICE}/NodePrepareResources"
    answer = await call(socket, method, request, pb.NodePrepareResourcesResponse, timeout_s=20)
    return answer.claims[UID]


async def unprepare(socket: Path) -> str:
    request = pb.NodeUnprepareResourcesRequest(claims=[CLAIM])
    method = f"/{SERVICE}/NodeUnprepareResources"
    answer = await call(socket, method, request, pb.NodeUnprepareResourcesResponse, timeout_s=20)
    return answer.claims[UID].error


def edits(here: Node) -> dict[str, Any]:
    """What the CDI device of the claim changes in a container."""
    (device,) = json.loads(spec_path(here.host.cdi, slice_of_claim(UID)).read_text())["devices"]
    found: dict[str, Any] = device["containerEdits"]
    return found


def limits_file(here: Node) -> Path:
    return here.host.slices.seen / slice_of_claim(UID) / "limits" / LIMITS


def test_a_claim_brings_the_gpus_the_limits_and_a_region_of_its_own() -> None:
    async def scenario() -> None:
        async with driver() as (here, plugins, socket):
            here.pods.append(user("one", "GPU-b", "GPU-c", limits="first"))
            answer = await prepare(socket)
            assert answer.error == ""
            assert [(one.pool_name, one.device_name) for one in answer.devices] == [("n1", "gpu-b"), ("n1", "gpu-c")]
            name = slice_of_claim(UID)
            assert [list(one.cdi_device_ids) for one in answer.devices] == [[f"cotenant.io/gpu={name}"], []]
            made = edits(here)
            assert "NVIDIA_VISIBLE_DEVICES=GPU-b,GPU-c" in made["env"]
            assert "COTENANT_JOB=job" in made["env"]
            mounts = {one["containerPath"]: one for one in made["mounts"]}
            assert mounts[str(REGION)]["hostPath"] == f"/host/passing/regions/{name}"
            assert {path for path, one in mounts.items() if "rw" in one["options"]} == {str(REGION)}
            assert {str(LIMITS_FOLDER), str(PROCESSES_FOLDER)} <= mounts.keys()
            assert limits_file(here).read_text() == "first"
            # a resized pod, and a second call while its containers run
            region = here.host.regions.seen / name
            inode = region.stat().st_ino
            here.pods[0] = user("one", "GPU-b", "GPU-c", limits="second")
            plugins.pods_changed()
            assert limits_file(here).read_text() == "second"
            assert (await prepare(socket)).error == ""
            await plugins.tidy()
            assert region.stat().st_ino == inode
            assert await unprepare(socket) == ""
            assert await unprepare(socket) == ""
            assert not region.exists()
            assert not limits_file(here).exists()
            assert not spec_path(here.host.cdi, name).exists()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("pods", "sentence"),
    [
        ([user("one")], "has no GPUs by cotenant's scheduler"),
        ([user("one", "GPU-z")], "this node has no GPU GPU-z"),
        ([user("one", "GPU-a", copied=True)], "copied from another pod"),
        ([user("one", "GPU-a"), user("two", "GPU-a")], "serves one pod at a time"),
        ([], "no pod of this node"),
    ],
)
def test_a_claim_without_a_valid_record_is_not_prepared(pods: list[Pod], sentence: str) -> None:
    async def scenario() -> None:
        async with driver(known_s=0.1) as (here, _, socket):
            here.pods += pods
            answer = await prepare(socket)
            assert sentence in answer.error
            assert not answer.devices
            assert not list(here.host.regions.seen.iterdir())
            assert any(sentence in line for line in here.said)

    asyncio.run(scenario())


def test_an_agent_that_restarts_keeps_what_is_prepared() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet):
            (here.kubelet / "plugins_registry").mkdir()
            here.pods.append(user("one", "GPU-a", limits="first"))
            async with here.plugins(claims=True):
                assert (await prepare(await endpoint(here))).error == ""
            assert not list((here.kubelet / "plugins_registry").iterdir())
            (here.kubelet / "plugins_registry" / f"{DRIVER}-old.sock").touch()  # of an agent that was killed
            here.pods[0] = user("one", "GPU-a", limits="second")
            async with here.plugins(claims=True) as plugins:
                plugins.pods_changed()
                assert limits_file(here).read_text() == "second"
                await until(lambda: not (here.kubelet / "plugins_registry" / f"{DRIVER}-old.sock").exists())
                assert await unprepare(await endpoint(here)) == ""
            assert not list((here.host.lasting.seen / "claims").iterdir())

    asyncio.run(scenario())


def test_running_containers_keep_their_limits_if_claims_are_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet):
            (here.kubelet / "plugins_registry").mkdir()
            here.pods.append(user("one", "GPU-a", limits="first"))
            async with here.plugins(claims=True):
                assert (await prepare(await endpoint(here))).error == ""
            async with here.plugins() as plugins:
                other = here.host.regions.seen / "other"
                other.touch()
                await plugins.tidy()
                await plugins.tidy()
            assert limits_file(here).read_text() == "first"
            assert (here.host.regions.seen / slice_of_claim(UID)).exists()
            assert not other.exists()

    monkeypatch.setattr(allocating, "GRACE_S", -1.0)
    asyncio.run(scenario())


def test_the_gpus_of_a_node_are_a_resource_slice() -> None:
    made = slice_for(MACHINE, "uid")
    assert made["spec"]["nodeName"] == made["spec"]["pool"]["name"] == "n1"
    assert made["spec"]["devices"][0] == {
        "name": "gpu-a",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-a"},
            "healthy": {"bool": True},
            "numaNode": {"int": 0},
        },
        "capacity": {"memory": {"value": "1000Mi"}, "compute": {"value": "100"}},
    }
