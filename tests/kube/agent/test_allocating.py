# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every container gets what all tenants get and a region of its own, or kubelet gets an error."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import ContainerKind
from cotenant.kube.agent.allocating import (
    GRACE_S,
    HostPlaces,
    Unclaimed,
    at,
    gpu_of,
    prepare,
    tidy_slices,
)
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.agent.service import GivenDevices, likely_gpus, preferred_ids
from cotenant.node.region import SIZE, read_region
from tests.kube.agent.agents import COUNT, GPU, MACHINE, bound, held, node, region_of, registered
from tests.kube.agent.kubelet import kubelet_in, until


def run_module(path: Path, module: str) -> str:
    """What a module says that is found by PYTHONPATH alone."""
    command = [sys.executable, "-S", "-m", module]
    return subprocess.run(command, env={"PYTHONPATH": str(path)}, capture_output=True, text=True).stderr


def test_a_container_gets_the_library_the_socket_and_a_region_and_no_gpu() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            answer = await kubelet.allocate(GPU, "GPU-b::1", "GPU-a::2")
            told = {"NVIDIA_VISIBLE_DEVICES": "void", "COTENANT_AGENT": "/run/cotenant/agent.sock"}
            assert dict(answer.envs) == told
            assert not answer.cdi_devices
            mounts = {one.container_path: (Path(one.host_path), one.read_only) for one in answer.mounts}
            (staged,) = here.host.library.seen.glob("libcotenant-*")
            (job,) = here.host.library.seen.glob("job-*")
            region = region_of(here.host, GPU, ["GPU-a::2", "GPU-b::1"])
            assert mounts == {
                "/run/cotenant": (Path("/host/passing/agent"), True),
                "/usr/local/lib/cotenant": (staged, True),
                "/usr/local/share/cotenant": (job, True),
                "/etc/ld.so.preload": (here.host.library.seen / "ld.so.preload", True),
                "/run/cotenant-slice/usage": (Path("/host/passing/regions") / region.name, False),
                "/run/cotenant-processes": (Path("/host/passing/slices") / region.name / "processes", True),
            }
            preload = (here.host.library.seen / "ld.so.preload").read_text()
            assert preload == "/usr/local/lib/cotenant/$LIB/libcotenant.so\n"
            assert (staged / "libcotenant.so").exists()
            assert "usage: python3" in run_module(job, "cotenant.job.server")
            assert read_region(region).processes == ()
            assert stat.S_IMODE(region.stat().st_mode) == 0o666
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (region.parent, here.host.slices.seen)}
            assert set(modes.values()) == {0o700}
            for path in (here.host.slices.seen / region.name, here.host.slices.seen / region.name / "processes"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o755

    asyncio.run(scenario())


def test_a_slot_that_is_given_again_has_a_new_region() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            await kubelet.allocate(GPU, "GPU-a::0")
            region = region_of(here.host, GPU, ["GPU-a::0"])
            region.write_bytes(b"theirs")
            processes = here.host.slices.seen / region.name / "processes"
            (processes / "list").write_text("theirs")
            await kubelet.allocate(GPU, "GPU-a::0")
            assert read_region(region).processes == ()
            assert not list(processes.iterdir())
            assert here.host.agent.seen.exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("devices", [("GPU-x::0",), ("GPU-a::3",), ("GPU-a::0", "GPU-a::-1"), ("GPU-a",), ("",), ()])
def test_a_slot_that_is_not_there_is_an_error_to_kubelet(devices: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await kubelet.allocate(GPU, *devices)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert list(here.host.slices.seen.iterdir()) == []

    asyncio.run(scenario())


def test_a_region_that_cannot_be_made_is_an_error_to_kubelet() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            here.host.slices.seen.rmdir()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await kubelet.allocate(GPU, "GPU-a::0")
            assert refused.value.code() is grpc.StatusCode.INTERNAL
            assert "a slice cannot be made there: No such file or directory" in str(refused.value.details())
            assert any("Allocate for nvidia.com/gpu" in line for line in here.said)

    asyncio.run(scenario())


def test_a_burst_of_pods_all_get_a_region_of_their_own() -> None:
    machine = replace(MACHINE, gpus=tuple(replace(gpu, slots=40) for gpu in MACHINE.gpus))

    async def scenario() -> None:
        async with registered(machine=machine) as (here, kubelet):
            ids = [one.ID for one in kubelet.devices[GPU]][:110]
            answers = await asyncio.gather(*(kubelet.allocate(GPU, one) for one in ids))
            regions = [mount.host_path for answer in answers for mount in answer.mounts if not mount.read_only]
            assert len(set(regions)) == 110
            for one, region in zip(ids, regions, strict=True):
                assert Path(region).name == region_of(here.host, GPU, [one]).name
                assert read_region(region_of(here.host, GPU, [one])).uuids == ()

    asyncio.run(scenario())


def test_containers_to_which_kubelet_gives_one_slot_have_a_region_each_however_often_they_start() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            inodes = []
            for name in ("one", "two"):
                await kubelet.allocate(GPU, "GPU-a::0")
                kubelet.has(name, "app-0", GPU, "GPU-a::0")
            with ExitStack() as mounted:
                for _ in range(3):
                    await kubelet.pre_start(GPU, "GPU-a::0")
                    region = mounted.enter_context(region_of(here.host, GPU, ["GPU-a::0"]).open("r+b"))
                    inodes.append(os.fstat(region.fileno()).st_ino)
                    assert len(region.read()) == SIZE
                    region.truncate(0)  # whatever it does to its own
                assert len(set(inodes)) == 3

    asyncio.run(scenario())


def test_a_container_is_not_started_without_its_region() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            await kubelet.allocate(GPU, "GPU-a::0")
            shutil.rmtree(here.host.slices.seen)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await kubelet.pre_start(GPU, "GPU-a::0")
            assert "a slice cannot be made there" in str(refused.value.details())
            here.host.slices.seen.mkdir()
            kubelet.has("one", "app-0", GPU, "GPU-a::0")
            await kubelet.pre_start(GPU, "GPU-a::0")
            assert read_region(region_of(here.host, GPU, ["GPU-a::0"])).processes == ()

    asyncio.run(scenario())


def test_a_container_whose_pod_was_deleted_while_the_agent_hung_is_not_started() -> None:
    """Kubelet would start it with the GPUs of its record and without the library."""

    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet, here.plugins(known_s=0.2):
            await until(lambda: GPU in kubelet.registered)
            here.pods.append(bound("other", held(0, "GPU-a")))
            kubelet.has("other", "app-0", GPU, "GPU-a::0", "GPU-b::0")
            await kubelet.allocate(GPU, "GPU-a::0")
            with pytest.raises(grpc.aio.AioRpcError, match="no longer lists a container with GPU-a::0"):
                await kubelet.pre_start(GPU, "GPU-a::0")

    asyncio.run(scenario())


def test_an_init_container_which_kubelet_does_not_list_is_started() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet, here.plugins():
            await until(lambda: GPU in kubelet.registered)
            kubelet.has("one", "app-0", COUNT, "another")
            starting = asyncio.create_task(kubelet.pre_start(GPU, "GPU-a::0"))
            await until(lambda: kubelet.lists)
            here.pods.append(bound("one", held(0, "GPU-a", kind=ContainerKind.INIT), init=1))
            await starting  # kubelet knew the pod earlier than the agent
            with pytest.raises(grpc.aio.AioRpcError, match="no longer lists a container with GPU-a::0, GPU-b::0"):
                await kubelet.pre_start(GPU, "GPU-a::0", "GPU-b::0")
            kubelet.pods.clear()  # kubelet has ended the pod, and the agent does not know it yet
            with pytest.raises(grpc.aio.AioRpcError, match="no longer lists a container with GPU-a::0"):
                await kubelet.pre_start(GPU, "GPU-a::0")

    asyncio.run(scenario())


def test_a_folder_that_a_runtime_made_in_place_of_a_lost_region_is_replaced(tmp_path: Path) -> None:
    host = HostPlaces(lasting=at(tmp_path / "l"), passing=at(tmp_path / "p"))
    prepare(host, None)
    path = region_of(host, GPU, ["GPU-a::0"])
    path.mkdir()
    tidy_slices(host, [listed("GPU-a::0")])
    assert read_region(path).processes == ()


def test_without_a_library_there_is_nothing_to_preload(tmp_path: Path) -> None:
    mounts = prepare(HostPlaces(lasting=at(tmp_path / "l"), passing=at(tmp_path / "p")), None)
    assert [one.container_path for one in mounts] == ["/run/cotenant", "/usr/local/share/cotenant"]


# Slices that are lost, and those that are left


def listed(*devices: str, resource: str = GPU) -> Listed:
    return Listed(namespace="team", pod="p", container="c", resource=resource, devices=frozenset(devices))


def test_slices_that_nobody_has_are_removed_once_they_are_old(tmp_path: Path) -> None:
    host = HostPlaces(lasting=at(tmp_path / "l"), passing=at(tmp_path / "p"))
    prepare(host, None)
    both = [listed("GPU-a::1", "GPU-a::0"), listed("GPU-a::0", resource=COUNT)]
    left = listed("GPU-b::0")
    tidy_slices(host, [*both, left])
    regions = [region_of(host, one.resource, one.devices) for one in (*both, left)]
    assert all(path.exists() for path in regions)
    inodes = [path.stat().st_ino for path in regions]
    now = 0.0
    unclaimed = Unclaimed(lambda: now)
    tidy_slices(host, both, unclaimed)
    assert regions[2].exists()
    now += GRACE_S + 1
    tidy_slices(host, both)
    assert regions[2].exists()
    tidy_slices(host, both, unclaimed)
    assert not regions[2].exists()
    assert len(list(host.slices.seen.iterdir())) == len(regions) - 1
    assert [path.stat().st_ino for path in regions[:2]] == inodes[:2]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_slice_that_was_just_made_stays_whatever_is_done_to_the_clock(tmp_path: Path, hours: int) -> None:
    host = HostPlaces(lasting=at(tmp_path / "l"), passing=at(tmp_path / "p"))
    prepare(host, None)
    unclaimed, fresh = Unclaimed(), listed("GPU-b::0")
    tidy_slices(host, [fresh])
    path = region_of(host, fresh.resource, fresh.devices)
    for made in (path, host.slices.seen / path.name):
        os.utime(made, (0, time.time() - hours * 3600))  # as if the clock had been set since
    for _ in range(2):
        tidy_slices(host, [], unclaimed)
    assert path.exists()


def test_a_slice_that_is_made_anew_is_new(tmp_path: Path) -> None:
    host = HostPlaces(lasting=at(tmp_path / "l"), passing=at(tmp_path / "p"))
    prepare(host, None)
    now, one = 0.0, listed("GPU-b::0")
    path = region_of(host, one.resource, one.devices)
    unclaimed = Unclaimed(lambda: now)
    for _ in range(3):
        now += GRACE_S
        path.unlink(missing_ok=True)
        tidy_slices(host, [one])
        tidy_slices(host, [], unclaimed)
        assert path.exists()


def test_a_container_has_its_region_again_before_kubelet_knows_us_after_a_restart_of_the_machine() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet:
            kubelet.has("p", "app-0", GPU, "GPU-a::1", "GPU-b::0")
            async with here.plugins():
                await until(lambda: GPU in kubelet.registered)
                assert region_of(here.host, GPU, ["GPU-b::0", "GPU-a::1"]).exists()

    asyncio.run(scenario())


# What kubelet had better take

AVAILABLE = ["GPU-b::1", "GPU-a::10", "GPU-a::2", "GPU-b::0", "GPU-c::0"]


def test_the_slots_of_a_pod_that_waits_are_preferred() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            assert await kubelet.prefer(GPU, AVAILABLE, [], 1) == ["GPU-a::2"]
            here.pods.append(bound("late", held(0, "GPU-b"), creation_timestamp="2026-01-02T00:00:00Z"))
            here.pods.append(bound("early", held(0, "GPU-c"), creation_timestamp="2026-01-01T00:00:00Z"))
            here.pods.append(bound("two", held(0, "GPU-b", "GPU-c")))
            assert await kubelet.prefer(GPU, AVAILABLE, [], 1) == ["GPU-c::0"]
            assert await kubelet.prefer(GPU, AVAILABLE, [], 2) == ["GPU-b::0", "GPU-c::0"]
            assert await kubelet.prefer(GPU, AVAILABLE, ["GPU-b::1"], 2) == ["GPU-b::1", "GPU-c::0"]
            assert await kubelet.prefer(GPU, ["what?"], [], 3) == ["what?"]

    asyncio.run(scenario())


def test_a_device_that_kubelet_has_lost_is_not_given_to_a_second_container() -> None:
    async def scenario() -> None:
        async with registered() as (_, kubelet):
            offered = ["GPU-a::0", "GPU-a::1", "GPU-b::0"]
            assert await kubelet.prefer(GPU, offered, [], 1) == ["GPU-a::0"]
            await kubelet.allocate(GPU, "GPU-a::0")
            # Kubelet has forgotten, while it called us, that it was giving the device to a container.
            assert await kubelet.prefer(GPU, offered, [], 1) == ["GPU-a::1"]
            assert await kubelet.prefer(GPU, offered, [], 2) == ["GPU-a::1", "GPU-b::0"]
            assert await kubelet.prefer(GPU, ["GPU-a::0"], [], 1) == ["GPU-a::0"]  # there is no other

    asyncio.run(scenario())


def test_devices_that_kubelet_lists_are_known_to_an_agent_that_has_restarted() -> None:
    async def scenario() -> None:
        async with node() as here, kubelet_in(here.kubelet) as kubelet:
            kubelet.has("p", "app-0", GPU, "GPU-a::0")
            async with here.plugins():
                await until(lambda: GPU in kubelet.registered)
                assert await kubelet.prefer(GPU, ["GPU-a::0", "GPU-a::1"], [], 1) == ["GPU-a::1"]

    asyncio.run(scenario())


def test_a_device_is_given_until_kubelet_no_longer_lists_it_for_a_while() -> None:
    now = 0.0
    given = GivenDevices(lambda: now)
    given.add(GPU, ["GPU-a::0"])
    given.compare([listed("GPU-b::0")])
    assert given.of(GPU) == {"GPU-a::0", "GPU-b::0"}
    now += GRACE_S + 1
    given.compare([listed("GPU-b::0")])
    assert given.of(GPU) == {"GPU-b::0"}
    assert given.of(COUNT) == set()


def test_a_record_that_cannot_be_read_is_no_guess() -> None:
    broken = bound("broken", held(0, "GPU-a"))
    broken.metadata.annotations["cotenant.io/assignment"] = "{}"
    fine = bound("later", held(0, "GPU-c", kind=ContainerKind.INIT), init=1, creation_timestamp="2026-01-02T00:00:00Z")
    assert likely_gpus([broken, fine], 1) == ("GPU-c",)


@given(
    available=st.sets(st.builds("GPU-{}::{}".format, st.sampled_from("abcd"), st.integers(0, 5)), max_size=20),
    size=st.integers(0, 8),
    wanted=st.sets(st.sampled_from(["GPU-a", "GPU-c", "GPU-gone"])),
    data=st.data(),
)
def test_what_is_preferred_is_available_and_spread_over_gpus(
    available: set[str], size: int, wanted: set[str], data: st.DataObject
) -> None:
    must = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=size)) if available else set()
    chosen = preferred_ids(sorted(available), sorted(must), size, sorted(wanted))
    assert must <= set(chosen) <= available
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    if not must:
        gpus = {gpu_of(one) for one in chosen}
        assert len(gpus) == min(size, len({gpu_of(one) for one in available}))
        assert len(gpus & wanted) == min(size, len(wanted & {gpu_of(one) for one in available}))
