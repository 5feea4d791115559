# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent lists the processes on its GPUs for each container, by what no container can change."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cotenant.core.units import MiB
from cotenant.kube.agent.allocating import HostPlaces, at, prepare, renew_slice, slice_name
from cotenant.kube.agent.jobs import PROCESSES_NAME, container_of
from cotenant.kube.agent.members import SliceMembers
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Pod
from cotenant.node.company import UNKNOWN_SPACE, SliceProcess
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from tests.kube.agent_node.processes import add_process, set_mount
from tests.node.process_lists import read_list

ONE, OTHER = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"
MAIN, SIDE, LONE = "aa" * 32, "bb" * 32, "cc" * 32
GPU = "nvidia.com/gpu"
DEVICES = {MAIN: "GPU-a::0", SIDE: "GPU-a::1", LONE: "GPU-a::2"}
"""the device that each container has"""


class World:
    """A node with two pods: one of two containers with GPUs, and one of a single container."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.said = folder / "proc", list[str]()
        self.host = HostPlaces(lasting=at(folder / "l"), passing=at(folder / "p"))
        self.pods = [Pod(metadata=Metadata(name=name, uid=uid)) for name, uid in (("one", ONE), ("other", OTHER))]
        prepare(self.host, None)
        for device in DEVICES.values():
            renew_slice(self.host, GPU, [device])
        self.members = SliceMembers(self.host, lambda: self.pods, ErrorLog(self.said.append), self.proc)

    def start(self, pid: int, inner: int, uid: str, container: str, below: str = "") -> None:
        add_process(self.proc, pid, f"0::/kubepods/pod{uid}/{container}{below}")
        (self.proc / str(pid) / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{inner}\n")
        set_mount(self.proc, pid, self.folder(container))

    def folder(self, container: str) -> Path:
        return self.host.slices.seen / slice_name(GPU, [DEVICES[container]]) / PROCESSES_NAME

    def path(self, container: str) -> Path:
        return self.folder(container) / "list"


def test_containers_that_share_a_claim_have_one_list(world: World) -> None:
    world.start(10, 1, ONE, MAIN)
    world.start(20, 1, OTHER, LONE)
    set_mount(world.proc, 20, world.folder(MAIN))
    world.members.update(used_by(10, 20))
    assert [one.host_pid for one in read_list(world.path(MAIN))] == [10, 20]


def used_by(*pids: int) -> list[GpuUsage]:
    processes = tuple(ProcessUsage(pid, MiB(100), None) for pid in pids)
    return [GpuUsage(uuid="GPU-a", used_mib=MiB(100), utilisation=None, processes=processes)]


@pytest.fixture
def world() -> Iterator[World]:
    with TemporaryDirectory(dir="/dev/shm") as folder:  # as /run, whose inodes are not used again
        yield World(Path(folder))


def process(pid: int, inner: int) -> SliceProcess:
    return SliceProcess(pid, inner, UNKNOWN_SPACE)


def test_the_processes_of_each_container_are_listed_and_the_list_follows_them(world: World) -> None:
    world.start(4001, 1, ONE, MAIN)
    world.start(4002, 7, ONE, MAIN, below=f"/made/pod{OTHER}/{LONE}")  # it may name groups within its own freely
    world.start(4003, 1, ONE, SIDE)
    world.start(4004, 1, OTHER, LONE)
    add_process(world.proc, 4005, "0::/user.slice")  # of no pod
    world.members.update(used_by(4001, 4002, 4003, 4004, 4005, 4006))
    assert read_list(world.path(MAIN)) == (process(4001, 1), process(4002, 7))
    assert read_list(world.path(SIDE)) == (process(4003, 1),)
    assert read_list(world.path(LONE)) == (process(4004, 1),)
    written = [world.path(container).stat().st_ino for container in (SIDE, LONE)]
    world.members.update(used_by(4001, 4003, 4004))
    assert read_list(world.path(MAIN)) == (process(4001, 1),)
    assert [world.path(container).stat().st_ino for container in (SIDE, LONE)] == written  # the same is not written
    world.members.update([])
    assert read_list(world.path(MAIN)) == ()
    assert world.said == []


def test_a_container_whose_slice_was_made_anew_does_not_write_to_that_of_the_next(world: World) -> None:
    world.start(4001, 1, ONE, MAIN)
    world.members.update(used_by(4001))
    renew_slice(world.host, GPU, [DEVICES[MAIN]])  # for another container with the same device
    set_mount(world.proc, 4001, world.folder(MAIN), end="//deleted")
    world.members.update(used_by(4001))
    assert not world.path(MAIN).exists()
    world.start(4004, 1, OTHER, LONE)
    set_mount(world.proc, 4004, world.folder(MAIN))
    for _ in range(2):
        world.members.update(used_by(4001, 4004))
        assert read_list(world.path(MAIN)) == (process(4004, 1),)


def test_a_process_that_mounts_what_it_likes_gets_into_no_list_of_another_container(world: World) -> None:
    world.start(4001, 1, ONE, MAIN)
    world.start(4004, 1, OTHER, LONE)
    elsewhere = os.stat("/proc").st_dev
    set_mount(world.proc, 4004, world.folder(MAIN), device=elsewhere)
    world.members.update(used_by(4001, 4004))
    assert read_list(world.path(MAIN)) == (process(4001, 1),)
    for folder in (world.folder(MAIN).parent, world.folder(MAIN).parent.parent, Path("/")):
        set_mount(world.proc, 4004, folder)
        world.members.update(used_by(4001, 4004))
        assert read_list(world.path(MAIN)) == (process(4001, 1),)
    world.start(4005, 2, OTHER, LONE)  # one process of a container that shows the slice is enough
    world.members.update(used_by(4001, 4004, 4005))
    assert read_list(world.path(LONE)) == (process(4004, 1), process(4005, 2))
    assert world.said == []


def test_a_process_whose_mounts_cannot_be_read_is_in_no_list(world: World) -> None:
    world.start(4001, 1, ONE, MAIN)
    for content in (b"", b"1 2 3\n\n", b"\xff" * 100, None):
        path = world.proc / "4001" / "mountinfo"
        path.unlink() if content is None else path.write_bytes(content)
        world.members.update(used_by(4001))
        assert not world.path(MAIN).exists()


def test_a_list_that_cannot_be_written_does_not_keep_the_others_from_theirs(world: World) -> None:
    world.path(MAIN).mkdir()  # nothing can be written there
    world.start(4001, 1, ONE, MAIN)
    world.start(4004, 1, OTHER, LONE)
    world.members.update(used_by(4001, 4004))
    assert read_list(world.path(LONE)) == (process(4004, 1),)
    assert len(world.said) == 1


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"0::/kubepods/burstable/pod{ONE}/{MAIN}", MAIN),
        (f"0::/kubepods-pod{ONE.replace('-', '_')}.slice/cri-containerd-{MAIN}.scope", MAIN),
        (f"0::/kubepods-pod{ONE.replace('-', '_')}.slice/crio-{MAIN}.scope/inner", MAIN),
        (f"12:cpu:/kubepods/pod{ONE}/{MAIN}\n0::/", MAIN),
        (f"0::/kubepods/pod{ONE}/{MAIN}/pod{ONE}/{SIDE}", MAIN),
        (f"0::/kubepods/pod{OTHER}/{SIDE}/kubepods/pod{ONE}/{MAIN}", MAIN),
        (f"0::/kubepods/pod{ONE}", None),
        (f"0::/kubepods/pod{OTHER}/{MAIN}", None),
        (f"0::/{MAIN}", None),
        (f"0::/kubepods/pod{ONE}/{MAIN}ff", None),
    ],
)
def test_a_process_belongs_to_the_outermost_container_of_a_known_pod(
    cgroup: str, container: str | None, tmp_path: Path
) -> None:
    add_process(tmp_path, 7, cgroup)
    assert container_of(7, {ONE}, tmp_path) == container
