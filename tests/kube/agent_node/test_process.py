# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The whole agent, with a kubelet and an API server beside it: it says what there is, and loses nothing on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest

from cotenant.core.model import ContainerKind, Machine
from cotenant.core.units import Seconds
from cotenant.errors import DeviceError, InputError
from cotenant.kube.agent.agent import Agent
from cotenant.kube.agent.allocating import HostPlaces, at, slice_name
from cotenant.kube.agent.claim_driver import REGISTRATION
from cotenant.kube.agent.options import AgentOptions, Intervals, find_gpus_of
from cotenant.kube.agent.orphans import Timing
from cotenant.kube.agent.process import serve
from cotenant.kube.agent.proto import pluginregistration_pb2 as watcher
from cotenant.kube.agent.rpc import call
from cotenant.kube.api.objects import Node, decode_node
from cotenant.kube.codec.assignment import Held, Record, Share, encode_record
from cotenant.kube.codec.claims import DRIVER
from cotenant.kube.codec.inventory import AWAY, CLAIMS_AWAY, Orphans, machine_of, orphans_of
from cotenant.kube.settings import ClaimsPart, KubeSettings
from cotenant.node.company import UNKNOWN_SPACE, SliceProcess
from cotenant.node.devices.backend import Backend
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.devices.vendors import Vendor, vendor_of_type
from tests.kube.agent.kubelet import Kubelet, kubelet_in
from tests.kube.agent_node.processes import add_process, end_process, set_mount
from tests.kube.agent_node.waiting import PACE, access_to, add_pod, in_loop, running, until
from tests.kube.api_server import ApiServer
from tests.node.fake_nvml import FakeNvml, GpuModel
from tests.node.process_lists import read_list

ONE = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
GPU = "nvidia.com/gpu"
INTERVALS = Intervals(
    looks_s=0.05,
    hung_s=0.3,
    compare_s=0.1,
    retry_s=0.05,
    patches_s=0.05,
    started_s=0.05,
    pace=PACE,
    orphans=Timing(settle_s=0.2, looks_s=0.05),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, as sockets need it."""
    with TemporaryDirectory(prefix="agent") as path:
        yield Path(path)


def options(folder: Path, **others: Any) -> AgentOptions:
    host = HostPlaces(lasting=at(folder / "l"), passing=at(folder / "p"), kubelet=folder / "k", cdi=folder / "c")
    return AgentOptions(node="n1", host=others.pop("host", host), **others)


class Around:
    """A cluster of one node, and what its agent says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server, self.said = folder, ApiServer(), list[str]()
        self.server.nodes.merge("n1", {"status": {}})
        (folder / "proc").mkdir()

    def agent(
        self,
        find: Callable[[AgentOptions], Backend] | None = None,
        settings: KubeSettings = KubeSettings(),  # noqa: B008 -- frozen
        **others: Any,
    ) -> Agent:
        return Agent(
            options(self.folder, **others),
            settings,
            access_to(self.server),
            say=self.said.append,
            intervals=INTERVALS,
            find=find,
            proc=self.folder / "proc",
        )

    @property
    def node(self) -> Node:
        return decode_node(json.dumps(self.server.nodes.pods["", "n1"]).encode())

    @property
    def machine(self) -> Machine | None:
        found = machine_of(self.node)
        return found and found[0]

    @property
    def orphans(self) -> Orphans | None:
        return orphans_of(self.node)


def write_config(folder: Path, port: int) -> Path:
    contexts = [{"name": "x", "context": {"cluster": "c"}}]
    clusters = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}]
    path = folder / "config"
    path.write_text(json.dumps({"contexts": contexts, "clusters": clusters, "current-context": "x"}))
    return path


def health_in(kubelet: Kubelet) -> set[str]:
    return {device.health for device in kubelet.devices.get(GPU, [])}


@in_loop
async def test_cards_are_published_registered_and_totalled(folder: Path) -> None:
    around = Around(folder)
    async with around.server.serving(), kubelet_in(folder / "k") as kubelet:
        async with running(around.agent(simulate=2, gpu_memory="4GiB").run()):
            await until(lambda: around.machine is not None and len(kubelet.devices.get(GPU, [])) == 32)
            await until(lambda: any("2 GPUs, 8 GiB, published" in line for line in around.said))
            machine = around.machine
            assert machine is not None
            assert [gpu.memory for gpu in machine.gpus] == [4096, 4096]
            assert {device.ID.split("::")[0] for device in kubelet.devices[GPU]} == {gpu.uuid for gpu in machine.gpus}
            assert around.node.status.allocatable["nvidia.com/gpumem"] == "8192"
            assert around.node.status.capacity["aliyun.com/gpu-mem"] == "8"
            assert GPU not in around.node.status.capacity
        assert not list((folder / "k" / "device-plugins").glob("cotenant*"))
    assert around.machine == machine  # what was said of the node stays


@in_loop
async def test_a_node_says_when_kubelet_could_start_nothing_there(folder: Path) -> None:
    around = Around(folder)
    async with around.server.serving():
        agent = around.agent(simulate=1, gpu_memory="1GiB")
        async with running(agent.run()):
            await until(lambda: around.machine is not None)
            assert "have not found each other" in around.node.metadata.annotations[AWAY]
            async with kubelet_in(folder / "k"):
                await until(lambda: AWAY not in around.node.metadata.annotations)
            await until(lambda: AWAY in around.node.metadata.annotations)
            async with kubelet_in(folder / "k"):
                await until(lambda: AWAY not in around.node.metadata.annotations)
                await agent.leave()
                assert around.node.metadata.annotations[AWAY] == "the agent was told to end"
    assert AWAY in around.node.metadata.annotations


@pytest.mark.parametrize("only", [False, True], ids=["beside the device plugin", "claims only"])
@in_loop
async def test_a_node_says_when_kubelet_could_prepare_no_claims_there(folder: Path, only: bool) -> None:
    """With claims only, it takes no pods with GPUs at all."""
    around = Around(folder)

    def said() -> tuple[str, str]:
        found = around.node.metadata.annotations
        return found.get(CLAIMS_AWAY, ""), found.get(AWAY, "")

    async def register(registered: bool) -> None:
        (socket,) = (folder / "k" / "plugins_registry").iterdir()
        status = watcher.RegistrationStatus(plugin_registered=registered, error="" if registered else "too old")
        method = f"/{REGISTRATION}/NotifyRegistrationStatus"
        await call(socket, method, status, watcher.RegistrationStatusResponse, timeout_s=20)

    async with around.server.serving(), kubelet_in(folder / "k") as kubelet:
        (folder / "k" / "plugins_registry").mkdir()
        settings = KubeSettings(claims=ClaimsPart(enabled=True, only=only))
        async with running(around.agent(settings=settings, simulate=1, gpu_memory="1GiB").run()):
            away = f"kubelet has not registered driver {DRIVER}"
            await until(lambda: said() == (away, away if only else ""))
            assert bool(kubelet.devices) is not only
            await register(True)
            await until(lambda: said() == ("", ""))
            await register(False)
            await until(lambda: said() == (f"{away}: too old", f"{away}: too old" if only else ""))


@in_loop
async def test_a_card_that_fails_is_told_of_and_comes_back(folder: Path) -> None:
    around, cards = Around(folder), [GpuModel("GPU-a"), GpuModel("GPU-b", bus=1)]
    backend = NvmlBackend(FakeNvml(*cards), recovery=Seconds(0.2))
    async with (
        around.server.serving(),
        kubelet_in(folder / "k") as kubelet,
        running(around.agent(lambda _: backend).run()),
    ):
        await until(lambda: around.machine and health_in(kubelet) == {"Healthy"})
        cards[1].broken["*"] = 15
        await until(lambda: around.machine and [gpu.healthy for gpu in around.machine.gpus] == [True, False])
        await until(lambda: health_in(kubelet) == {"Healthy", "Unhealthy"})
        del cards[1].broken["*"]
        await until(lambda: around.machine and all(gpu.healthy for gpu in around.machine.gpus))
        await until(lambda: health_in(kubelet) == {"Healthy"})


class Hanging:
    """A backend whose driver does not answer for a while."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.answers = Event()
        self.answers.set()

    def machine(self) -> Machine:
        self.answers.wait(30)
        return self._backend.machine()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@in_loop
async def test_a_driver_that_hangs_has_no_healthy_cards_until_it_answers(folder: Path) -> None:
    around = Around(folder)
    backend = Hanging(find_gpus_of(options(folder, simulate=1, gpu_memory="1GiB")))
    async with around.server.serving(), running(around.agent(lambda _: backend).run()):
        try:
            await until(lambda: around.machine and around.machine.gpus[0].healthy)
            backend.answers.clear()
            await until(lambda: around.machine and not around.machine.gpus[0].healthy)
        finally:
            backend.answers.set()
        await until(lambda: around.machine and around.machine.gpus[0].healthy)
    assert any("has not answered" in line for line in around.said)


@in_loop
async def test_a_driver_that_comes_up_late_is_waited_for_in_one_line(folder: Path) -> None:
    around, tries = Around(folder), list[None]()

    def find(asked: AgentOptions) -> Backend:
        tries.append(None)
        if len(tries) < 4:
            raise DeviceError("no NVIDIA driver answers")
        return find_gpus_of(asked)

    async with around.server.serving(), running(around.agent(find, simulate=1, gpu_memory="1GiB").run()):
        await until(lambda: around.orphans is not None)  # what runs is told of all the same
        await until(lambda: around.machine is not None)
    assert [line for line in around.said if "driver" in line] == [
        "GPUs: no NVIDIA driver answers; trying again every 0 s"
    ]


@in_loop
async def test_what_runs_without_a_pod_is_told_before_the_cards_are(folder: Path) -> None:
    around = Around(folder)
    share = Share(gpu="GPU-a", memory=1000, compute=0)
    left = Record(pod=ONE, node="n1", containers=(Held(number=0, kind=ContainerKind.APP, gpus=(share,)),))
    (folder / "l" / "pods").mkdir(parents=True)
    (folder / "l" / "pods" / f"{ONE}.json").write_text(encode_record(left))
    add_process(folder / "proc", 7, "")
    slow = folder / "proc" / "7" / "cgroup"
    slow.unlink()
    os.mkfifo(slow)  # whoever reads it waits

    def report() -> None:
        with open(slow, "r+b", buffering=0) as reader:  # does not wait for one
            slow.unlink()
            slow.write_text(f"0::/kubepods/pod{ONE}/x\n")
            reader.write(slow.read_bytes())

    async with (
        around.server.serving(),
        kubelet_in(folder / "k") as kubelet,
        running(around.agent(simulate=1, gpu_memory="4GiB").run()),
    ):
        try:
            await until(lambda: GPU in kubelet.devices)
            await kubelet.is_listed()  # by another part of the agent, which serves the GPUs already
            assert (around.machine, around.orphans) == (None, None)
        finally:
            report()
        await until(lambda: around.machine)
        assert around.orphans is not None
        assert around.orphans.held == (left,)


@in_loop
async def test_an_agent_that_is_restarted_leaves_all_as_it_was_and_still_knows_its_orphans(folder: Path) -> None:
    around = Around(folder)
    async with around.server.serving(), kubelet_in(folder / "k") as kubelet:
        async with running(around.agent(simulate=1, gpu_memory="4GiB").run()):
            await until(lambda: around.machine and kubelet.devices.get(GPU))
            machine = around.machine
            assert machine is not None
            add_pod(around.server, "one", ONE, machine)
            add_process(folder / "proc", 7, f"0::/kubepods/pod{ONE}/c")
            await until(lambda: list((folder / "l" / "pods").iterdir()))
        around.server.remove("one", "team")
        deleted = around.server._version
        async with running(around.agent(simulate=1, gpu_memory="4GiB").run()):
            await until(lambda: around.orphans and int(around.orphans.seen) >= deleted)
            assert around.orphans is not None
            assert [record.pod for record in around.orphans.held] == [ONE]
            assert around.machine == machine
            end_process(folder / "proc", 7)
            await until(lambda: around.orphans and not around.orphans.held)


@in_loop
async def test_what_kubelet_gave_and_the_record_does_not_say_is_counted(folder: Path) -> None:
    around = Around(folder)
    async with around.server.serving(), kubelet_in(folder / "k") as kubelet:
        agent = around.agent(simulate=2, gpu_memory="4GiB")
        async with running(agent.run()):
            await until(lambda: around.machine and kubelet.devices.get(GPU))
            assert around.machine is not None
            add_pod(around.server, "right", ONE, around.machine)
            add_pod(around.server, "starting", ONE.replace("1", "2"), around.machine, phase="Pending")
            first, second, third, *_ = [device.ID for device in kubelet.devices[GPU]]
            kubelet.has("right", "app-0", GPU, first)
            await kubelet.is_listed(3)  # drift counts if it is seen twice
            assert not agent.error_log.counts["drift"]
            add_pod(around.server, "wrong", ONE.replace("1", "3"), around.machine)
            kubelet.has("wrong", "app-0", GPU, second, third)
            await until(lambda: agent.error_log.counts["drift"])
            figures = await agent.metrics.figures()
            assert figures.kubelet_drift_pods == 1
            assert figures.errors["drift"] >= 1
            assert sorted(one.name for one in figures.tenants) == ["right", "starting", "wrong"]
            assert sum(gpu.tenants for gpu in figures.gpus) == 3
    (line,) = [line for line in around.said if line.startswith("drift")]
    assert line == "drift: pod team/wrong: 2 devices from kubelet, 1 GPUs in its record"


def test_simulated_cards_may_be_of_any_make() -> None:
    assert vendor_of_type(None) is Vendor.NVIDIA
    assert vendor_of_type("Tesla T4") is Vendor.NVIDIA
    assert vendor_of_type("MLU370-X8") is Vendor.CAMBRICON


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"simulate": 1, "gpu_memory": "much"}, "'much' is not an amount of memory"),
        ({"gpu_memory": "4GiB"}, "describe simulated GPUs"),
        ({"settings": Path("/nowhere.yaml")}, "No such file"),
        ({"simulate": 1, "host": HostPlaces(lasting=at("/proc/nowhere"))}, "/proc/nowhere.*cannot be made"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_sentence(
    folder: Path, wrong: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [],
        "current-context": "x",
    }
    config["contexts"] = [{"name": "x", "context": {"cluster": "c"}}]
    (folder / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    with pytest.raises(InputError, match=sentence):
        serve(options(folder, **wrong))


PROGRAM = """
import sys
from pathlib import Path
from cotenant.kube.agent.allocating import HostPlaces, at
from cotenant.kube.agent.options import AgentOptions
from cotenant.kube.agent.process import serve
folder = Path(sys.argv[1])
host = HostPlaces(lasting=at(folder / "l"), passing=at(folder / "p"), kubelet=folder / "k", cdi=folder / "c")
remove = "remove" in sys.argv
config = folder / "config"
serve(AgentOptions(node="n1", kubeconfig=config, simulate=1, gpu_memory="1GiB", host=host, remove=remove))
"""


@pytest.mark.slow
@in_loop
async def test_the_program_ends_cleanly_when_told_and_takes_back_what_it_said(folder: Path) -> None:
    around = Around(folder)
    async with around.server.serving():
        write_config(folder, around.server.port)
        program = [sys.executable, "-c", PROGRAM, str(folder)]
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
            try:
                await until(lambda: around.machine is not None)
                process.send_signal(signal.SIGTERM)
                await until(lambda: process.poll() is not None)
            finally:
                process.kill()
            assert process.returncode == 0
            assert "ended as told" in process.communicate()[1]
        assert not os.listdir(folder / "p" / "agent")
        with subprocess.Popen([*program, "remove"]) as process:
            try:
                await until(lambda: process.poll() is not None)
            finally:
                process.kill()
        assert around.node.metadata.annotations == {}
        assert around.node.status.capacity == {}


@in_loop
async def test_processes_on_the_cards_are_listed_for_their_containers(folder: Path) -> None:
    around, card = Around(folder), GpuModel("GPU-a")
    backend = NvmlBackend(FakeNvml(card))
    async with (
        around.server.serving(),
        kubelet_in(folder / "k") as kubelet,
        running(around.agent(find=lambda options: backend).run()),
    ):
        await until(lambda: kubelet.devices.get(GPU) and around.machine is not None)
        machine = around.machine
        assert machine is not None
        device = kubelet.devices[GPU][0].ID
        await kubelet.allocate(GPU, device)
        add_pod(around.server, "one", ONE, machine)
        add_process(folder / "proc", 4001, f"0::/kubepods/pod{ONE}/{'ab' * 32}")
        (folder / "proc" / "4001" / "status").write_text("NSpid:\t4001\t7\n")
        path = folder / "p" / "slices" / slice_name(GPU, [device]) / "processes" / "list"
        set_mount(folder / "proc", 4001, path.parent)
        card.processes = [(4001, 1 << 20)]
        await until(path.exists)
        await until(lambda: read_list(path) == (SliceProcess(4001, 7, UNKNOWN_SPACE),))
        card.processes = []
        await until(lambda: read_list(path) == ())
