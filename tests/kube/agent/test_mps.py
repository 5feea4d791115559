# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent and the MPS supervisor of a node, over the stand-in of MPS."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from cotenant.core.isolation import Rung
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import at
from cotenant.kube.agent.mps import NodeMps, clients_of
from cotenant.kube.agent.mps_messages import Client, Look, Ready, State
from cotenant.kube.agent.mps_supervisor import SOCKET, Supervisor, accept_all, listen
from cotenant.kube.api.objects import Pod, PodClaim
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record, record_of
from cotenant.node.mps import Mps
from tests.kube.agent.supervisor_process import OWNER
from tests.kube.pods import pod as made_pod
from tests.native import kit
from tests.node.mps_kit import UUID, FileModes, command, processes_in, short_folder
from tests.node.mps_kit import until as until_true

pytestmark = pytest.mark.slow

DEFAULT, EXCLUSIVE = "0", "3"
MACHINE = Machine(name="n1", gpus=(Gpu(uuid=UUID, memory=MiB(16000)),))


def client(name: str, *, rung: Rung | None = Rung.MPS, phase: str = "Running") -> Pod:
    found = made_pod({"nvidia.com/gpumem": 1000})
    replace = msgspec.structs.replace
    share = Share(gpu=UUID, memory=1000, compute=250, rung=rung)
    record = Record(pod=f"uid-{name}", node="n1", containers=(Held(number=0, gpus=(share,)),))
    about = replace(found.metadata, name=name, uid=f"uid-{name}", annotations={RECORD: encode_record(record)})
    status = replace(found.status, phase=phase)
    return replace(found, metadata=about, spec=replace(found.spec, node_name="n1"), status=status)


@dataclass
class World:
    """A node: its supervisor runs in a thread, its agent is `mps`."""

    folder: Path
    pods: list[Pod] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    changes: int = 0
    mps: NodeMps = field(init=False)

    def __post_init__(self) -> None:
        self.mps = NodeMps(at(self.folder), lambda: self.pods, lambda: (), self._changed, self.said.append)
        self.mps.follow(MACHINE)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def mode(self) -> str:
        path = self.folder / "mode"
        return path.read_text() if path.exists() else DEFAULT

    @property
    def control(self) -> int:
        return int((self.folder / UUID / "pipe" / "nvidia-cuda-mps-control.pid").read_text())

    def supervisor(self) -> Supervisor:
        mps = Mps(self.folder, OWNER, FileModes(self.folder / "mode"), command(), answer_s=30, ask_every_s=0)
        return Supervisor(mps, installed=True)

    @contextmanager
    def supervised(self) -> Iterator[None]:
        with listen(self.folder / SOCKET) as listening:
            thread = threading.Thread(target=accept_all, args=(listening, self.supervisor()))
            thread.start()
            try:
                yield
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                thread.join()

    @contextmanager
    def killed_at(self, step: str) -> Iterator[subprocess.Popen[bytes]]:
        """Its supervisor is a process of its own, which is killed at that step of a control daemon."""
        words = [sys.executable, "-m", "tests.kube.agent.supervisor_process", str(self.folder), step]
        (self.folder / SOCKET).unlink(missing_ok=True)
        process = subprocess.Popen(words, cwd=kit.ROOT)
        try:
            until_true(self._listens)
            yield process
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            return line.connect_ex(str(self.folder / SOCKET)) == 0

    def run(self, *conditions: Callable[[], object]) -> None:
        """Lets the agent look until each of these was true, one after the other."""

        async def scenario() -> None:
            task = asyncio.ensure_future(self.mps.run())
            try:
                for condition in conditions:
                    async with asyncio.timeout(60):
                        while not condition():
                            assert not task.done(), task.exception()
                            await asyncio.sleep(0.02)
            finally:
                task.cancel()

        asyncio.run(scenario())

    def start(self, pod: Pod) -> dict[str, list[str]]:
        record = record_of(pod)
        assert record is not None
        return asyncio.run(self.mps.start(pod, record.held_by(0)))


@pytest.fixture
def world() -> Iterator[World]:
    with short_folder() as folder:
        yield World(folder)


def test_the_first_client_starts_a_control_daemon_and_the_last_ends_it(world: World) -> None:
    with world.supervised():
        world.run(lambda: world.mps.installed)
        assert (processes_in(world.folder), world.mode) == ([], DEFAULT)
        world.pods += [client("a", phase="Pending"), client("b", phase="Pending")]
        edits = world.start(world.pods[0])
        pipe = f"{world.folder}/{UUID}/pipe"
        assert edits["env"] == [
            f"CUDA_MPS_PIPE_DIRECTORY={pipe}",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M",
        ]
        mount, shm = edits["mounts"]
        assert (shm["hostPath"], shm["containerPath"]) == (f"{world.folder}/{UUID}/shm", "/dev/shm")  # type: ignore[index]
        assert (mount["hostPath"], mount["containerPath"]) == (pipe, pipe)  # type: ignore[index]
        assert "ro" in mount["options"]  # type: ignore[index]
        first = world.control
        assert world.mode == EXCLUSIVE
        world.start(world.pods[1])
        del world.pods[0]
        world.run(lambda: UUID in world.mps._state.up)
        assert world.control == first
        world.pods.clear()
        world.run(lambda: not world.mps._state.up)
        assert (processes_in(world.folder), world.mode) == ([], DEFAULT)


def test_a_crash_closes_the_gpu_until_it_is_clean_and_the_next_start_works(world: World) -> None:
    with world.supervised():
        world.pods.append(client("a"))
        world.start(world.pods[0])
        os.kill(world.control, signal.SIGKILL)
        seen: list[str] = []

        def has_seen() -> list[str]:
            seen.extend(one.why for one in world.mps.closed.values())
            return seen

        world.run(has_seen, lambda: not world.mps.closed and not world.mps._state.up)
        assert "has ended" in seen[0]
        assert any("takes no pods" in text for text in world.said)
        assert world.changes >= 2
        assert world.mode == DEFAULT
        world.start(world.pods[0])
        assert world.mode == EXCLUSIVE


def test_after_a_crash_a_client_with_a_claim_finds_a_control_daemon_though_kubelet_asks_nobody(world: World) -> None:
    replace = msgspec.structs.replace
    with world.supervised():
        plain = client("a")
        world.pods.append(replace(plain, spec=replace(plain.spec, resource_claims=(PodClaim(name="gpu"),))))
        world.start(world.pods[0])
        first = world.control
        os.kill(first, signal.SIGKILL)
        world.run(lambda: world.mps.closed, lambda: not world.mps.closed and UUID in world.mps._state.up)
        world.run(lambda: world.mode == EXCLUSIVE and world.control != first)
        world.pods.clear()
        world.run(lambda: not world.mps._state.up and not processes_in(world.folder))
        assert (processes_in(world.folder), world.mode) == ([], DEFAULT)


def test_a_supervisor_that_starts_again_finds_its_control_daemon(world: World) -> None:
    world.pods.append(client("a"))
    with world.supervised():
        world.start(world.pods[0])
        first = world.control
    with world.supervised():
        world.run(lambda: world.mps.installed)
        world.start(world.pods[0])
        assert world.control == first
        world.pods.clear()
        world.run(lambda: not world.mps._state.up and not processes_in(world.folder))
        assert world.mode == DEFAULT


@pytest.mark.parametrize("step", ["record", "mode", "daemon", "answer"])
def test_a_supervisor_that_is_killed_while_it_starts_a_control_daemon(world: World, step: str) -> None:
    world.pods.append(client("a", phase="Pending"))
    with world.killed_at(step), pytest.raises(CotenantError, match="the MPS supervisor of the node does not answer"):
        world.start(world.pods[0])
    with world.supervised():
        world.start(world.pods[0])  # kubelet tries again
        assert world.mode == EXCLUSIVE
        until_true(lambda: processes_in(world.folder) == [world.control])
        world.pods.clear()
        world.run(lambda: not world.mps._state.up)
    assert (processes_in(world.folder), world.mode) == ([], DEFAULT)


@pytest.mark.parametrize("step", ["quit", "kill", "restore", "forget"])
def test_a_supervisor_that_is_killed_while_it_ends_a_control_daemon(world: World, step: str) -> None:
    world.pods.append(client("a"))
    with world.supervised():
        world.start(world.pods[0])
    world.pods.clear()
    with world.killed_at(step) as process:
        world.run(lambda: process.poll() is not None)
    with world.supervised():
        world.run(lambda: world.mps.installed and not world.mps._state.up)
    assert (processes_in(world.folder), world.mode) == ([], DEFAULT)


def test_without_a_supervisor_no_client_starts_and_what_runs_goes_on(world: World) -> None:
    world.pods.append(client("a"))
    with world.supervised():
        world.run(lambda: world.mps.installed)
        world.start(world.pods[0])
        first = world.control
    world.run(lambda: not world.mps.installed)
    with pytest.raises(CotenantError, match="the MPS supervisor of the node does not answer"):
        world.start(world.pods[0])
    assert world.control == first
    until_true(lambda: any("does not answer" in text for text in world.said))


def test_a_container_without_mps_waits_until_mps_has_left_its_gpu(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotenant.kube.agent.mps.FREE_S", 0.2)
    with world.supervised():
        world.pods.append(client("a"))
        world.start(world.pods[0])
        plain = client("plain", rung=None)
        with pytest.raises(CotenantError, match=f"GPU {UUID} still belongs to MPS"):
            world.start(plain)
        world.pods.clear()
        world.run(lambda: not world.mps._state.up)
        assert world.start(plain) == {}


def test_a_control_daemon_that_is_not_ours_closes_the_gpu_and_is_left_alone(world: World) -> None:
    foreign = Mps(world.folder, "somebody", FileModes(world.folder / "other"), command(), answer_s=30)
    foreign.know(UUID, MiB(16000))
    foreign.ready(UUID)
    (world.folder / UUID / "state.json").unlink()
    with world.supervised():
        world.pods.append(client("a"))
        with pytest.raises(CotenantError, match="that cotenant did not start"):
            world.start(world.pods[0])
        first = world.control
        world.run(lambda: UUID in world.mps.closed)
        assert world.control == first


def test_a_container_has_its_own_share_and_not_that_of_another_container(world: World) -> None:
    with world.supervised():
        world.run(lambda: world.mps.installed)
        world.pods.append(client("a"))
        small = Share(gpu=UUID, memory=300, compute=100, rung=Rung.MPS)
        edits = asyncio.run(world.mps.start(world.pods[0], [small]))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=300M" in edits["env"]
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10" in edits["env"]


def test_ended_pods_are_no_clients() -> None:
    pods = [client("a"), client("b", phase="Succeeded"), client("c", rung=None)]
    assert list(clients_of(pods)[UUID]) == ["uid-a"]


def test_a_process_is_ended_only_if_it_is_of_the_pod_that_is_named(world: World) -> None:
    answer = world.supervisor().answer(Look(gpus={UUID: 16000}, clients={}, end={os.getpid(): "uid-a"}))
    assert answer == State(installed=True)


@pytest.mark.parametrize("uuid", ["GPU/../../elsewhere", "GPU/./x", "GPU//x"])
def test_a_gpu_whose_folder_would_be_elsewhere_is_refused(world: World, uuid: str) -> None:
    supervisor, client = world.supervisor(), Client(compute=100, memory=100)
    for request in (
        Ready(gpu=uuid, memory=1000, clients={"uid-a": client}),
        Look(gpus={uuid: 1000}, clients={uuid: {"uid-a": client}}),
    ):
        assert "not the UUID of a GPU" in supervisor.answer(request).error
    assert list(world.folder.iterdir()) == []


def test_nonsense_is_refused_and_the_next_request_is_answered(world: World) -> None:
    with world.supervised():
        for line in (b"nonsense\n", b'{"type":"other"}\n', b""):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(str(world.folder / SOCKET))
                one.sendall(line)
                one.shutdown(socket.SHUT_WR)
                assert one.recv(10) == b""
        world.run(lambda: world.mps.installed)
