# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kubelet has the agent prepare ResourceClaims: each gets what the record of its pod says, and nothing without one."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import msgspec
import pytest
from google.protobuf.message import Message

from cotenant.errors import CotenantError
from cotenant.kube.agent import allocating, claim_driver, claim_files
from cotenant.kube.agent.claim_driver import REGISTRATION, SERVICE, ClaimDriver, ReadClaim
from cotenant.kube.agent.claim_files import PreparedClaim, slice_of_claim
from cotenant.kube.agent.claim_health import SERVICE as HEALTH
from cotenant.kube.agent.mps import NodeMps
from cotenant.kube.agent.plugin import Plugins
from cotenant.kube.agent.proto import dra_pb2 as pb
from cotenant.kube.agent.proto import drahealth_pb2
from cotenant.kube.agent.proto import pluginregistration_pb2 as watcher
from cotenant.kube.agent.rpc import call
from cotenant.kube.agent.strict import spec_path
from cotenant.kube.api.claims import ResourceClaim
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import ClaimUse, Pod, PodClaim, PodStatus
from cotenant.kube.codec.assignment import RECORD, Record, Share, encode_record
from cotenant.kube.codec.claim_requests import ADMIN
from cotenant.kube.codec.claims import DRIVER, device_name
from cotenant.kube.codec.keys import container_key
from cotenant.kube.codec.paths import LIMITS, LIMITS_FOLDER, PROCESSES_FOLDER, REGION
from cotenant.node.devices.vendors import Vendor
from tests.kube.agent.agents import MACHINE, Node, bound, held, node
from tests.kube.agent.kubelet import kubelet_in, until

UID = "6f1c0f0e-0000-4000-8000-000000000001"
OTHER = "6f1c0f0e-0000-4000-8000-000000000002"
CLAIM = pb.Claim(namespace="team", name="mine", uid=UID)
SECOND = pb.Claim(namespace="team", name="other", uid=OTHER)
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


def made_for_resources(name: str) -> Pod:
    """A pod without claims, for whose resources kube-scheduler made the claim."""
    status = PodStatus(extended_resource_claim_status=PodClaim(resource_claim_name="mine"))
    return replaced(bound(name), status=status)


@asynccontextmanager
async def driver(
    *, known_s: float = 20.0, read_claim: ReadClaim | None = None, devices: bool = True
) -> AsyncIterator[tuple[Node, Plugins, Path]]:
    """A node whose agent serves claims, and the socket that it told kubelet."""
    async with node() as here, kubelet_in(here.kubelet):
        (here.kubelet / "plugins_registry").mkdir()
        async with here.plugins(claims=True, devices=devices, known_s=known_s, read_claim=read_claim) as plugins:
            yield here, plugins, await endpoint(here)


async def endpoint(here: Node) -> Path:
    await until(lambda: list((here.kubelet / "plugins_registry").iterdir()))
    (socket,) = (here.kubelet / "plugins_registry").iterdir()
    info = await call(socket, f"/{REGISTRATION}/GetInfo", watcher.InfoRequest(), watcher.PluginInfo, timeout_s=20)
    assert (info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", DRIVER, ["v1.DRAPlugin", HEALTH])
    return Path(info.endpoint)


def by_claims(name: str, uid: str, *given: tuple[str, str], limits: str = "all") -> Pod:
    """A pod whose container has GPUs by claims (pairs of the UID of a claim and a GPU), which its record names."""
    pod = user(name, given[0][1], limits=limits)
    names = {UID: "mine", OTHER: "other"}
    containers = tuple(replaced(held(0, gpu), claim=claim, request="gpu") for claim, gpu in given)
    record = Record(pod=uid, node="n1", containers=containers)
    uses = tuple(ClaimUse(name=claim) for claim, _ in given)
    main = replaced(pod.spec.containers[0], resources=replaced(pod.spec.containers[0].resources, claims=uses))
    claims = tuple(PodClaim(name=claim, resource_claim_name=names[claim]) for claim, _ in given)
    about = replaced(pod.metadata, uid=uid, annotations=pod.metadata.annotations | {RECORD: encode_record(record)})
    return replaced(pod, metadata=about, spec=replaced(pod.spec, containers=(main,), resource_claims=claims))


async def prepare(socket: Path, claim: pb.Claim = CLAIM) -> pb.NodePrepareResourceResponse:
    request = pb.NodePrepareResourcesRequest(claims=[claim])
    method = f"/{SERVICE}/NodePrepareResources"
    answer = await call(socket, method, request, pb.NodePrepareResourcesResponse, timeout_s=20)
    return answer.claims[claim.uid]


async def unprepare(socket: Path, claim: pb.Claim = CLAIM) -> str:
    request = pb.NodeUnprepareResourcesRequest(claims=[claim])
    method = f"/{SERVICE}/NodeUnprepareResources"
    answer = await call(socket, method, request, pb.NodeUnprepareResourcesResponse, timeout_s=20)
    return answer.claims[claim.uid].error


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


def test_without_the_device_plugin_kubelet_gets_the_driver_alone() -> None:
    async def scenario() -> None:
        async with driver(devices=False) as (here, plugins, socket):
            here.pods.append(user("one", "GPU-b"))
            assert (await prepare(socket)).error == ""
            assert not plugins.hands_out_devices
            assert plugins.is_watched(), "the node takes pods"
            assert [one.name for one in here.host.plugins.glob("*.sock")] == ["kubelet.sock"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("pods", "sentence"),
    [
        ([user("one")], "has no GPUs by cotenant's scheduler"),
        ([made_for_resources("one")], "pod one has no GPUs by cotenant's scheduler"),
        ([user("one", "GPU-z")], "this node has no GPU GPU-z"),
        ([user("one", "GPU-a", copied=True)], "copied from another pod"),
        ([user("one", "GPU-a"), user("two", "GPU-b")], "have different GPUs by it"),
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


def shown(*gpus: str, asked: bool = True, given: bool = True, uid: str = UID, pool: str = "n1") -> ReadClaim:
    """A claim by which kube-scheduler gave an administrator GPUs."""
    results = [
        {"request": "all", "driver": DRIVER, "pool": pool, "device": device_name(gpu), "adminAccess": given}
        for gpu in gpus
    ]
    results.append({"request": "nic", "driver": "nic.example.com", "pool": "n1", "device": "eth0"})
    requests = [{"name": "all", "exactly": {"deviceClassName": ADMIN, "adminAccess": asked}}]
    claim = {
        "metadata": {"name": "mine", "namespace": "team", "uid": uid},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}}},
    }

    async def read(namespace: str, name: str) -> ResourceClaim:
        assert (namespace, name) == ("team", "mine")
        return msgspec.convert(claim, ResourceClaim)

    return read


def test_an_administrator_sees_gpus_without_limits() -> None:
    async def scenario() -> None:
        async with driver(read_claim=shown("GPU-a", "GPU-b")) as (here, plugins, socket):
            here.pods.append(user("monitor"))
            answer = await prepare(socket)
            assert answer.error == ""
            assert [device.device_name for device in answer.devices] == ["gpu-a", "gpu-b"]
            assert edits(here) == {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"]}
            plugins.pods_changed()
            spec_path(here.host.cdi, slice_of_claim(UID)).unlink()
            await plugins.tidy()
            assert edits(here) == {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"]}
            assert await unprepare(socket) == ""
            assert not spec_path(here.host.cdi, slice_of_claim(UID)).exists()
            assert not list((here.host.lasting.seen / "claims").iterdir())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (shown("GPU-a", asked=False), "has no GPUs by cotenant's scheduler"),  # its status was forged
        (shown("GPU-a", given=False), "has no GPUs by cotenant's scheduler"),
        (shown("GPU-a", uid=OTHER), "has no GPUs by cotenant's scheduler"),
        (shown("GPU-a", pool="n2"), "has no GPUs by cotenant's scheduler"),
        (shown("GPU-z"), "this node has no GPU gpu-z"),
        (shown(), "has no GPUs by cotenant's scheduler"),
    ],
)
def test_only_a_claim_that_was_made_and_allocated_for_administrators_shows_gpus(
    claim: ReadClaim, sentence: str
) -> None:
    async def scenario() -> None:
        async with driver(read_claim=claim) as (here, _, socket):
            here.pods.append(user("monitor"))
            assert sentence in (await prepare(socket)).error
            assert not list(here.host.cdi.glob("*"))

    asyncio.run(scenario())


def test_pods_that_share_a_claim_have_one_device_and_one_set_of_limits() -> None:
    async def scenario() -> None:
        async with driver() as (here, plugins, socket):
            here.pods += [by_claims("one", "uid-1", (UID, "GPU-b")), by_claims("two", "uid-2", (UID, "GPU-b"))]
            first, again = await prepare(socket), await prepare(socket)
            assert first.error == again.error == ""
            assert first == again
            assert "NVIDIA_VISIBLE_DEVICES=GPU-b" in edits(here)["env"]
            here.pods[:] = [by_claims("two", "uid-2", (UID, "GPU-b"), limits="resized")]  # the first has ended
            plugins.pods_changed()
            assert limits_file(here).read_text() == "resized"
            assert await unprepare(socket) == ""
            assert not list((here.host.lasting.seen / "claims").iterdir())

    asyncio.run(scenario())


def test_of_several_claims_of_a_container_the_first_brings_everything() -> None:
    async def scenario() -> None:
        async with driver(known_s=0.1) as (here, plugins, socket):
            both = by_claims("one", "uid-1", (UID, "GPU-a"), (OTHER, "GPU-c"))
            here.pods.append(both)
            second, first = await prepare(socket, SECOND), await prepare(socket)
            assert [one.device_name for one in second.devices] == ["gpu-c"]
            assert [list(one.cdi_device_ids) for one in second.devices] == [[]]
            assert [one.device_name for one in first.devices] == ["gpu-a"]
            assert first.devices[0].cdi_device_ids == [f"cotenant.io/gpu={slice_of_claim(UID)}"]
            assert "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-c" in edits(here)["env"]
            plugins.pods_changed()
            await plugins.tidy()
            assert not (here.host.regions.seen / slice_of_claim(OTHER)).exists()
            here.pods.append(by_claims("two", "uid-2", (OTHER, "GPU-c")))
            assert "must be the only claim" in (await prepare(socket)).error
            here.pods.pop()
            assert [await unprepare(socket, SECOND), await unprepare(socket)] == ["", ""]
            assert not list((here.host.lasting.seen / "claims").iterdir())

    asyncio.run(scenario())


def test_files_that_somebody_removed_are_made_again_while_the_pod_runs() -> None:
    async def scenario() -> None:
        async with driver() as (here, plugins, socket):
            here.pods.append(by_claims("one", "uid-1", (UID, "GPU-b")))
            assert (await prepare(socket)).error == ""
            spec_path(here.host.cdi, slice_of_claim(UID)).unlink()
            shutil.rmtree(here.host.slices.seen / slice_of_claim(UID))
            (here.host.regions.seen / slice_of_claim(UID)).unlink()
            await plugins.tidy()
            assert "NVIDIA_VISIBLE_DEVICES=GPU-b" in edits(here)["env"]
            assert limits_file(here).read_text() == "all"
            shutil.rmtree(limits_file(here).parent)
            plugins.pods_changed()  # cannot write them
            await plugins.tidy()
            assert limits_file(here).read_text() == "all"

    asyncio.run(scenario())


@pytest.mark.parametrize("record", ["", '{"version": 2, "uid": "x"}', "[" * 5000])
def test_a_claim_whose_record_cannot_be_read_keeps_its_files_and_disturbs_no_other(record: str) -> None:
    """Such as after a power cut, or that of a newer agent."""

    async def scenario() -> None:
        async with driver() as (here, plugins, socket):
            here.pods += [by_claims("one", "uid-1", (UID, "GPU-b")), by_claims("two", "uid-2", (OTHER, "GPU-c"))]
            assert [(await prepare(socket, claim)).error for claim in (CLAIM, SECOND)] == ["", ""]
            written = here.host.lasting.seen / "claims" / f"{OTHER}.json"
            written.chmod(0o600)
            written.write_text(record)
            spec_path(here.host.cdi, slice_of_claim(UID)).unlink()
            await plugins.tidy()
            assert "NVIDIA_VISIBLE_DEVICES=GPU-b" in edits(here)["env"]
            assert (here.host.regions.seen / slice_of_claim(OTHER)).is_file()
            here.pods[0] = by_claims("one", "uid-1", (UID, "GPU-b"), limits="less")
            plugins.pods_changed()
            assert limits_file(here).read_text() == "less"
            assert (await prepare(socket, SECOND)).error == ""
            assert json.loads(written.read_text())["uid"] == OTHER
            written.unlink()
            written.write_text(record)
            assert await unprepare(socket, SECOND) == ""
            assert not written.exists()

    asyncio.run(scenario())


class Killed(BaseException):
    """The agent was killed."""


STEPS = ("write_read_only", "ensure_slice", "write_spec", "forget_spec", "remove_slice", "edits_for")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(7))
def test_an_agent_killed_at_any_step_leaves_nothing_that_the_next_does_not_finish_or_remove(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int, after: bool
) -> None:
    """Before or after each step that changes a file, of a preparation and the end of it."""
    here = Node(tmp_path)
    common = allocating.prepare(here.host, None)
    files = claim_files.ClaimFiles(here.host, Vendor.NVIDIA, common, strict=True)
    pod, claim = by_claims("one", "uid-1", (UID, "GPU-b")), PreparedClaim(uid=UID, pod="uid-1", number=0)
    shares = (Share(gpu="GPU-b", memory=1, compute=0),)
    calls, unread = count(), list[str]()

    def dying(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            now = next(calls)
            if now == step and not after:
                raise Killed
            answer = real(*args, **kwargs)
            if now == step:
                raise Killed
            return answer

        return call

    def both() -> None:
        files.prepare(claim, pod, shares)
        files.unprepare(UID)

    with monkeypatch.context() as patched:
        for name in STEPS:
            patched.setattr(claim_files, name, dying(getattr(claim_files, name)))
        with suppress(Killed):
            both()
    assert [one.uid for one in files.prepared(unread.append)] in ([], [UID])  # never half a file
    device = files.prepare(claim, pod, shares)
    assert device == f"cotenant.io/gpu={slice_of_claim(UID)}"
    assert limits_file(here).read_text() == "all"
    assert files.is_whole(claim)
    files.unprepare(UID)
    left = [*here.host.regions.seen.iterdir(), *here.host.slices.seen.iterdir(), *here.host.cdi.iterdir()]
    assert not [*left, *files.prepared(unread.append), *unread]


def test_a_client_of_mps_gets_its_edits_and_others_wait_for_its_end() -> None:
    class Mps:
        async def start(self, pod: Pod, shares: Any) -> dict[str, list[Any]]:
            if pod.metadata.name == "other":
                raise CotenantError("GPU GPU-b still belongs to MPS")
            return {"env": ["CUDA_MPS_PIPE_DIRECTORY=/pipe"]}

    async def scenario() -> None:
        async with node() as here:
            files = claim_files.ClaimFiles(here.host, Vendor.NVIDIA, allocating.prepare(here.host, None), strict=False)
            own = ClaimDriver(
                files,
                lambda: MACHINE,
                lambda: here.pods,
                ErrorLog(here.said.append),
                kubelet=here.kubelet,
                known_s=0.1,
                mps=cast(NodeMps, Mps()),
            )
            here.pods.append(by_claims("one", "uid-1", (UID, "GPU-b")))
            request = pb.NodePrepareResourcesRequest(claims=[CLAIM])
            answer = await own.prepare(request, cast(Any, None))
            assert answer.claims[UID].error == ""
            assert "CUDA_MPS_PIPE_DIRECTORY=/pipe" in edits(here)["env"]
            here.pods[:] = [by_claims("other", "uid-2", (UID, "GPU-b"))]
            answer = await own.prepare(request, cast(Any, None))
            assert "still belongs to MPS" in answer.claims[UID].error

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


def test_kubelet_follows_the_health_of_the_gpus() -> None:
    async def scenario() -> None:
        async with driver() as (here, _, socket):
            async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
                method = f"/{HEALTH}/NodeWatchResources"
                decode = drahealth_pb2.NodeWatchResourcesResponse.FromString
                encode = drahealth_pb2.NodeWatchResourcesRequest.SerializeToString
                watch = channel.unary_stream(method, request_serializer=encode, response_deserializer=decode)
                told = watch(drahealth_pb2.NodeWatchResourcesRequest(), timeout=20)
                first: Any = await told.read()
                here.machine = replace(MACHINE, gpus=(replace(MACHINE.gpus[0], healthy=False), *MACHINE.gpus[1:]))
                second: Any = await told.read()
                told.cancel()
            assert [one.device.device_name for one in first.devices] == ["gpu-a", "gpu-b", "gpu-c"]
            assert {one.health for one in first.devices} == {drahealth_pb2.HEALTHY}
            assert [one.health for one in second.devices] == [drahealth_pb2.UNHEALTHY, *[drahealth_pb2.HEALTHY] * 2]

    asyncio.run(scenario())


def test_a_kubelet_that_does_not_register_the_driver_is_a_problem_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with driver() as (here, plugins, _):
            assert "kubelet has not registered" in (plugins.claims_problem() or "")
            (socket,) = (here.kubelet / "plugins_registry").iterdir()
            method = f"/{REGISTRATION}/NotifyRegistrationStatus"
            for registered, problem in ((False, "too old"), (True, None)):
                status = watcher.RegistrationStatus(plugin_registered=registered, error="" if registered else "too old")
                await call(socket, method, status, watcher.RegistrationStatusResponse, timeout_s=20)
                assert (problem or "None") in str(plugins.claims_problem())

    monkeypatch.setattr(claim_driver, "UNKNOWN_S", 0.0)
    asyncio.run(scenario())
