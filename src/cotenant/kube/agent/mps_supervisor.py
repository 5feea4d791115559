# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The MPS supervisor of a node: a process of its own that starts and ends control daemons for the agent.

It is not part of the agent for two reasons. Setting the compute mode of a GPU, and ending clients of other users, needs
rights that the agent must not have. And a container runtime ends all processes of a container with it: an update of the
agent must not end the clients of MPS. The supervisor does nothing by itself, so it needs no update.
"""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from cotenant.core.units import MiB
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.jobs import PROC, pod_of
from cotenant.kube.agent.mps_messages import MOST_BYTES, Closed, Look, Ready, Request, State
from cotenant.node.devices.nvml import open_backend
from cotenant.node.mps import Mps
from cotenant.node.mps_daemon import CONTROL, Modes
from cotenant.node.sockets import credentials_of
from cotenant.wire.text import printable

SOCKET = "supervisor.sock"
"""In the folder of MPS, which only root can enter."""
PATIENCE_S = 10.0
"""In which the agent must have sent its request."""
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL of a client that has lost its server."""


class Supervisor:
    """Carries out requests; those that wait for processes wait in threads of their own."""

    def __init__(
        self, mps: Mps, *, installed: bool, proc: Path = PROC, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mps, self._installed, self._proc, self._clock = mps, installed, proc, clock
        self._ending: dict[int, float] = {}
        """Processes that have been sent a signal, and since when."""
        self._looks = threading.Lock()

    def answer(self, request: Request) -> State:
        """What became of a request."""
        try:
            _check_names((request.gpu,) if isinstance(request, Ready) else (*request.gpus, *request.clients))
            match request:
                case Look():
                    with self._looks:
                        self._look(request)
                case Ready():
                    self._ready(request)
        except (CotenantError, OSError) as error:
            return msgspec.structs.replace(self._state(), error=str(error))
        return self._state()

    def _look(self, request: Look) -> None:
        for uuid, memory in request.gpus.items():
            self._mps.know(uuid, MiB(memory))
        known = request.gpus.keys()
        self._mps.keep(
            {
                uuid: {pod: client.limit(uuid) for pod, client in clients.items()}
                for uuid, clients in request.clients.items()
                if uuid in known
            }
        )
        self._mps.own(request.owners)
        self._end(request.end)
        self._mps.step()

    def _ready(self, request: Ready) -> None:
        self._mps.know(request.gpu, MiB(request.memory))
        for pod, client in request.clients.items():
            self._mps.add(pod, client.limit(request.gpu))
        self._mps.ready(request.gpu)

    def _end(self, processes: dict[int, str]) -> None:
        """Ends processes, if they are still of the pods that the agent says."""
        now = self._clock()
        self._ending = {pid: self._ending.get(pid, now) for pid in processes}
        for pid, pod in processes.items():
            if pid > 1 and pod_of(pid, {pod}, self._proc) == pod:
                number = signal.SIGKILL if now - self._ending[pid] >= GRACE_S else signal.SIGTERM
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue

    def _state(self) -> State:
        mps = self._mps
        return State(
            installed=self._installed,
            up=tuple(sorted(mps.up())),
            closed={
                uuid: Closed(
                    why=why,
                    culprits=() if (crash := mps.crashes.get(uuid)) is None else crash.culprits,
                    crashed=crash is not None,
                )
                for uuid, why in dict(mps.closed).items()
            },
            notes=dict(mps.notes),
        )


def _check_names(gpus: Iterable[str]) -> None:
    """A GPU is a folder here, so an agent that was taken over must not name one outside of the folder of MPS."""
    for uuid in gpus:
        if any(part in ("", ".", "..") for part in uuid.split("/")):
            raise InputError(f"{printable(uuid)}: not the UUID of a GPU")


def serve(folder: Path, owner: str, modes: Modes | None = None) -> None:
    """Runs the supervisor until it is ended; InputError if its folder cannot be used.

    Control daemons go on if it ends: the next one finds them by their files.
    """
    found = shutil.which(CONTROL)
    chosen = open_backend().modes if modes is None else modes
    mps = Mps(folder, owner, chosen, Path(found or CONTROL), has_shm=True)
    supervisor = Supervisor(mps, installed=found is not None)
    with listen(folder / SOCKET) as listening:
        print(f"mps: {'ready' if found else f'{CONTROL} is not installed'}; socket {folder / SOCKET}", file=sys.stderr)
        accept_all(listening, supervisor)


def accept_all(listening: socket.socket, supervisor: Supervisor) -> None:
    """Answers requests until the socket is shut down."""
    while True:
        try:
            connection, _ = listening.accept()
        except ConnectionAbortedError:  # it was given up while it waited
            continue
        except OSError:
            return
        threading.Thread(target=_serve_one, args=(connection, supervisor), daemon=True).start()


def listen(path: Path) -> socket.socket:
    """A socket that only root can reach; InputError if it cannot be made."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(16)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from None
    return listening


def _serve_one(connection: socket.socket, supervisor: Supervisor) -> None:
    with connection:
        connection.settimeout(PATIENCE_S)
        try:
            if credentials_of(connection).uid != os.geteuid():
                return
            answer = supervisor.answer(msgspec.json.decode(read_line(connection), type=Request))
            connection.settimeout(None)
            connection.sendall(msgspec.json.encode(answer) + b"\n")
        except (OSError, msgspec.MsgspecError) as error:
            print(f"mps: {error}", file=sys.stderr)


def read_line(connection: socket.socket) -> bytes:
    """One line, without its end; OSError if it is too long or does not end."""
    found = bytearray()
    while not found.endswith(b"\n"):
        part = connection.recv(65_536)
        if not part or len(found) > MOST_BYTES:
            raise OSError("the line does not end, or is too long")
        found += part
    return bytes(found[:-1])
