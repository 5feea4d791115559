# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent lists the processes on its GPUs for each container, by what no container can change."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from cotenant.core.units import MiB
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import PROCESSES_NAME, HostPlaces, at, prepare, slice_name, tidy_slices
from cotenant.kube.agent.jobs import container_of
from cotenant.kube.agent.members import SliceMembers
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import ContainerStatus, Metadata, Pod, PodStatus
from cotenant.node.company import UNKNOWN_SPACE, SliceProcess, read_list
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from tests.kube.agent_node.processes import add_process
from tests.kube.agent_node.waiting import in_loop

ONE, OTHER = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"
MAIN, SIDE, LONE = "aa" * 32, "bb" * 32, "cc" * 32
GPU = "nvidia.com/gpu"


class World:
    """A node with two pods: one of two containers with GPUs, and one of a single container."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.said, self.asked = folder / "proc", list[str](), 0
        self.host = HostPlaces(lasting=at(folder / "l"), passing=at(folder / "p"))
        self.pods = [
            pod("one", ONE, {"main": MAIN, "side": SIDE}),
            pod("other", OTHER, {"main": LONE}),
        ]
        self.listed = [
            device("one", "main", "GPU-a::0"),
            device("one", "side", "GPU-a::1"),
            device("other", "main", "GPU-a::2"),
        ]
        prepare(self.host, None)
        tidy_slices(self.host, self.listed)
        self.members = SliceMembers(self.host, lambda: self.pods, self.list, ErrorLog(self.said.append), self.proc)

    async def list(self) -> Iterable[Listed]:
        self.asked += 1
        return self.listed

    def start(self, pid: int, inner: int, uid: str, container: str, below: str = "") -> None:
        add_process(self.proc, pid, f"0::/kubepods/pod{uid}/{container}{below}")
        (self.proc / str(pid) / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{inner}\n")

    def path(self, one: int) -> Path:
        name = slice_name(self.listed[one].resource, self.listed[one].devices)
        return self.host.slices.seen / name / PROCESSES_NAME / "list"


def pod(name: str, uid: str, containers: dict[str, str]) -> Pod:
    statuses = (ContainerStatus(name=one, container_id=f"containerd://{known}") for one, known in containers.items())
    return Pod(
        metadata=Metadata(name=name, namespace="team", uid=uid),
        status=PodStatus(container_statuses=tuple(statuses)),
    )


def device(pod: str, container: str, name: str) -> Listed:
    return Listed(namespace="team", pod=pod, container=container, resource=GPU, devices=frozenset([name]))


def used_by(*pids: int) -> list[GpuUsage]:
    processes = tuple(ProcessUsage(pid, MiB(100), None) for pid in pids)
    return [GpuUsage(uuid="GPU-a", used_mib=MiB(100), utilisation=None, processes=processes)]


@in_loop
async def lists_follow(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(4001, 1, ONE, MAIN)
    world.start(4002, 7, ONE, MAIN, below=f"/made/pod{OTHER}/{LONE}")  # it may name groups within its own freely
    world.start(4003, 1, ONE, SIDE)
    world.start(4004, 1, OTHER, LONE)
    add_process(world.proc, 4005, "0::/user.slice")  # of no pod
    await world.members.update(used_by(4001, 4002, 4003, 4004, 4005, 4006))
    assert read_list(world.path(0)) == (SliceProcess(4001, 1, UNKNOWN_SPACE), SliceProcess(4002, 7, UNKNOWN_SPACE))
    assert read_list(world.path(1)) == (SliceProcess(4003, 1, UNKNOWN_SPACE),)
    assert read_list(world.path(2)) == (SliceProcess(4004, 1, UNKNOWN_SPACE),)
    written = [world.path(number).stat().st_ino for number in range(3)]
    await world.members.update(used_by(4001, 4003, 4004))
    assert read_list(world.path(0)) == (SliceProcess(4001, 1, UNKNOWN_SPACE),)
    assert [world.path(number).stat().st_ino for number in (1, 2)] == written[1:]  # what is the same is not written
    assert world.asked == 1  # nor is kubelet asked about containers that are known
    await world.members.update([])
    assert read_list(world.path(0)) == ()
    assert world.said == []


def test_the_processes_of_each_container_are_listed_and_the_list_follows_them(tmp_path: Path) -> None:
    lists_follow(tmp_path)


@in_loop
async def kubelet_fails(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def fail() -> Iterable[Listed]:
        raise CotenantError("kubelet does not list devices")

    silent = SliceMembers(world.host, lambda: world.pods, fail, ErrorLog(world.said.append), world.proc)
    world.start(4001, 1, ONE, MAIN)
    await silent.update(used_by(4001))
    assert not world.path(0).exists()
    assert len(world.said) == 1


def test_a_container_that_kubelet_does_not_list_gets_no_list(tmp_path: Path) -> None:
    kubelet_fails(tmp_path)


@in_loop
async def one_folder_is_broken(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.path(0).mkdir()  # nothing can be written there
    world.start(4001, 1, ONE, MAIN)
    world.start(4004, 1, OTHER, LONE)
    await world.members.update(used_by(4001, 4004))
    assert read_list(world.path(2)) == (SliceProcess(4004, 1, UNKNOWN_SPACE),)
    assert len(world.said) == 1


def test_a_list_that_cannot_be_written_does_not_keep_the_others_from_theirs(tmp_path: Path) -> None:
    one_folder_is_broken(tmp_path)


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
