# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""MPS as the agent knows it: which pods are clients, what became of their servers, and which GPUs are closed.

The MPS supervisor of the node does the work. A GPU is closed if its MPS has crashed, hangs or cannot be started; then
the processes of its clients are ended, so that kubelet starts their containers again. When the last process is gone,
the supervisor cleans up and the GPU is open again.
"""

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from cotenant.core.isolation import BY_MPS
from cotenant.core.model import Machine
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import Folder
from cotenant.kube.agent.jobs import PROC, container_of, is_alive, pod_of
from cotenant.kube.agent.mps_messages import Client, Closed, Look, Ready, Request, State
from cotenant.kube.agent.mps_supervisor import SOCKET, read_line
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record, Share, valid_record
from cotenant.kube.codec.inventory import ClosedGpu
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.launch import percent_of
from cotenant.node.mps import LOOK_EVERY_S

PATIENCE_S = 25.0
"""For an answer; kubelet waits 30 s until a container may start."""
FREE_S = 15.0
"""For MPS to leave a GPU before a container without MPS starts there."""
AWAY = "the MPS supervisor of the node does not answer"


def clients_of(pods: Iterable[Pod]) -> dict[str, dict[str, Client]]:
    """The pods that are clients of MPS, by GPU and UID, with the largest share that one of their containers has."""
    found: dict[str, dict[str, Client]] = {}
    for pod in pods:
        record = None if has_ended(pod) else valid_record(pod)
        for share in () if record is None else mps_shares(record):
            one = found.setdefault(share.gpu, {}).get(pod.metadata.uid, Client(compute=0, memory=0))
            found[share.gpu][pod.metadata.uid] = Client(
                compute=max(one.compute, share.compute), memory=max(one.memory, share.memory)
            )
    return found


def mps_shares(record: Record) -> list[Share]:
    """What the containers have as clients of MPS."""
    return [share for held in record.containers for share in held.gpus if share.rung in BY_MPS]


class NodeMps:
    """Asks the supervisor once a second, in a thread; all else is for the event loop of the agent."""

    def __init__(
        self,
        folder: Folder,
        pods: Callable[[], Collection[Pod]],
        usage: Callable[[], Iterable[GpuUsage]],
        changed: Callable[[], object],
        report: Callable[[str], object],
        proc: Path = PROC,
    ) -> None:
        self._socket, self._folder, self._pods, self._usage = folder.seen / SOCKET, folder.host, pods, usage
        self._changed, self._report, self._proc = changed, report, proc
        self._machine = Machine(name="", gpus=())
        self._state = State()
        self._turn = asyncio.Lock()
        """Held from the making of a request to its answer: a look that knows less than a start must not follow it."""

    @property
    def installed(self) -> bool:
        """Whether the node can run MPS now."""
        return self._state.installed

    @property
    def closed(self) -> Mapping[str, Closed]:
        return self._state.closed

    def published(self) -> dict[str, ClosedGpu]:
        """Why GPUs are closed, for the scheduler."""
        return {uuid: ClosedGpu(why=one.why, mps=True, culprits=one.culprits) for uuid, one in self.closed.items()}

    def follow(self, machine: Machine) -> None:
        """The GPUs of the node."""
        self._machine = machine

    async def run(self) -> NoReturn:
        """Keeps the supervisor informed, until cancelled."""
        while True:
            before = self._state
            try:
                async with self._turn:
                    self._state = await asyncio.to_thread(self._ask, self._look())
                if self._state.error:
                    self._report(self._state.error)
            except OSError as error:
                # What runs goes on; no new client of MPS can start.
                self._state = msgspec.structs.replace(self._state, installed=False)
                if before.installed or clients_of(self._pods()):
                    self._report(f"{AWAY}: {error.strerror or error}")
            opened = before.closed.keys() - self._state.closed.keys()
            if (self._state.installed, self._state.closed) != (before.installed, before.closed):
                for uuid in self._state.closed.keys() - before.closed.keys():
                    self._report(f"GPU {uuid} takes no pods: {self._state.closed[uuid].why}")
                self._changed()
            await self._start_again(opened)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _start_again(self, opened: Collection[str]) -> None:
        """Makes GPUs ready that are open again and have clients by ResourceClaims: kubelet has a claim prepared once,
        and does not call the agent before it starts a container again."""
        clients = clients_of(pod for pod in self._pods() if pod.spec.resource_claims) if opened else {}
        for uuid in sorted(opened & clients.keys()):
            try:
                await self._ready(uuid, clients[uuid])
            except CotenantError as error:  # then it is closed again, and tried again when it is open
                self._report(str(error))

    async def start(self, pod: Pod, shares: Collection[Share]) -> dict[str, list[Any]]:
        """Makes the GPU of a container ready that is about to start; the CDI edits that it needs as a client of MPS.

        CotenantError if it cannot start now. A container without MPS waits until MPS has left its GPUs.
        """
        mine = [share for share in shares if share.rung in BY_MPS]
        if not mine:
            await self._free({share.gpu for share in shares})
            return {}
        # The largest, if an init container and another one cannot be told apart: the vGPU library knows its own limit.
        share = max(mine, key=_size)
        own = Client(compute=share.compute, memory=share.memory)
        await self._ready(share.gpu, {pod.metadata.uid: own})
        return edits_of(share, self._folder)

    async def _ready(self, uuid: str, clients: Mapping[str, Client]) -> None:
        """Starts the control daemon of a GPU for these clients and those that are known; CotenantError if it cannot."""
        sizes = {gpu.uuid: gpu.memory for gpu in self._machine.gpus}
        if uuid not in sizes:
            raise CotenantError(f"the node has no GPU {uuid}")
        async with self._turn:
            everybody = {**clients, **clients_of(self._pods()).get(uuid, {})}
            try:
                self._state = await asyncio.to_thread(self._ask, Ready(gpu=uuid, memory=sizes[uuid], clients=everybody))
            except OSError as error:
                raise CotenantError(f"{AWAY}: {error.strerror or error}") from None
            if self._state.error:
                raise CotenantError(self._state.error)

    async def _free(self, gpus: Collection[str]) -> None:
        """Waits until MPS has left these GPUs: before, no process outside of MPS can use them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + FREE_S
        while blocked := sorted(set(gpus).intersection(self._state.up)):
            if loop.time() >= until:
                raise CotenantError(f"GPU {blocked[0]} still belongs to MPS")
            await asyncio.sleep(LOOK_EVERY_S / 4)

    # The request of a look

    def _look(self) -> Look:
        pods, usage = self._pods(), list(self._usage())
        clients = clients_of(pods)
        uids = {uid for of_gpu in clients.values() for uid in of_gpu}
        owners, end = self._owners(usage, uids), dict[int, str]()
        for uuid, one in self.closed.items():
            if uuid in clients:
                victims = self._victims(uuid, clients[uuid], pods, usage) if one.crashed else {}
                end |= victims
                # The others wait to be started: they do not keep the GPU from being cleaned up.
                clients[uuid] = {uid: client for uid, client in clients[uuid].items() if uid in victims.values()}
        gpus = {gpu.uuid: int(gpu.memory) for gpu in self._machine.gpus}
        return Look(gpus=gpus, clients=clients, owners=owners, end=end)

    def _owners(self, usage: Iterable[GpuUsage], uids: Collection[str]) -> dict[int, str]:
        pids = {process.pid for gpu in usage for process in gpu.processes or ()} if uids else set()
        found = ((pid, pod_of(pid, uids, self._proc)) for pid in pids)
        return {pid: uid for pid, uid in found if uid is not None}

    def _victims(
        self, uuid: str, uids: Collection[str], pods: Iterable[Pod], usage: Iterable[GpuUsage]
    ) -> dict[int, str]:
        """The processes of the pods that are clients on a GPU: those of their containers, and those on the GPU."""
        containers = {
            status.container_id.rpartition("/")[2]: pod.metadata.uid
            for pod in pods
            if pod.metadata.uid in uids
            for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
            if status.state.terminated is None and status.container_id
        }
        here = [gpu for gpu in usage if gpu.uuid == uuid]
        found = self._owners(here, uids)
        for path in self._proc.glob("[0-9]*"):
            pid = int(path.name)
            container = container_of(pid, uids, self._proc)
            if container in containers and is_alive(path):
                found[pid] = containers[container]
        return found

    def _ask(self, request: Request) -> State:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(PATIENCE_S)
            line.connect(str(self._socket))
            line.sendall(msgspec.json.encode(request) + b"\n")
            try:
                return msgspec.json.decode(read_line(line), type=State)
            except msgspec.MsgspecError as error:
                raise OSError(f"its answer cannot be understood: {error}") from None


def _size(share: Share) -> tuple[int, int]:
    return share.memory, share.compute


def edits_of(share: Share, folder: Path) -> dict[str, list[Any]]:
    """The CDI edits of a container that is a client of MPS.

    The pipe folder of its GPU has the same path there as on the node. It is read-only: sockets can be used, and no file
    can be added or removed. Its /dev/shm is that of the control daemon, which only the clients of this GPU share.
    """
    pipe, shm = str(folder / share.gpu / "pipe"), str(folder / share.gpu / "shm")
    options = ["nosuid", "nodev", "noexec", "bind"]
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent_of(Client(compute=share.compute, memory=0).limit("").compute)),
    }
    if share.memory:
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={share.memory}M"
    return {
        "env": [f"{name}={value}" for name, value in env.items()],
        "mounts": [
            {"hostPath": pipe, "containerPath": pipe, "options": ["ro", *options]},
            {"hostPath": shm, "containerPath": "/dev/shm", "options": ["rw", *options]},
        ],
    }
