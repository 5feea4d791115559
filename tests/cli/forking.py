# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Commands as forks of a process that has imported them: imports take most of the time of a short command.

Each command is still a process of its own, with its own streams, folder, environment and exit code. What differs:
all forks of one test process have one hash seed, a variable that is read before the first import has no effect, and
what one command imports when it needs it, later ones find imported.
"""

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

ROOT = Path(__file__).parents[2]
SERVER = "from tests.cli.forking import serve; serve()"
NUMBER = 4
"""bytes of a number that the server sends"""
LEARNED = tuple(f"cotenant.{name}." for name in ("core", "wire", "node", "history", "local", "sim"))
"""what the server imports once a command has; not `kube`, which reads a variable when it is imported"""


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class ForkServer:
    """A process that forks once for each command, one after the other."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.is_free = threading.Lock()
        self._door, theirs = socket.socketpair()
        paths = os.pathsep.join((env["PYTHONPATH"], str(ROOT)))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(theirs.fileno())],
                env={**env, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.stop)

    def run(self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str], timeout: float) -> Ended:
        """Runs a command to its end; TimeoutExpired if that takes too long. The caller holds the lock `is_free`."""
        request = json.dumps({"words": words, "cwd": str(cwd or Path.cwd()), "env": dict(env)})
        with _file() as asked, _file() as out, _file() as err:
            asked.write(request)
            asked.seek(0)
            socket.send_fds(self._door, [b"!"], [asked.fileno(), out.fileno(), err.fileno()])
            pid = self._number(None)
            try:
                code = self._number(timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)  # the server has not waited for it yet
                self._number(None)
                raise subprocess.TimeoutExpired(list(words), timeout) from None
            out.seek(0)
            err.seek(0)
            return Ended(code, out.read(), err.read())

    def stop(self) -> None:
        self._door.close()
        self._process.wait()

    def _number(self, timeout: float | None) -> int:
        self._door.settimeout(timeout)
        content = self._door.recv(NUMBER)
        assert len(content) == NUMBER, "the server of commands has ended"
        return int.from_bytes(content, sys.byteorder, signed=True)


def _file() -> IO[str]:
    return tempfile.TemporaryFile("w+")


def serve() -> NoReturn:
    """The server: forks for each request. In a fork, runs the command."""
    door = socket.socket(fileno=int(sys.argv[1]))
    sys.path.remove(str(ROOT))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    from cotenant.cli.main import SECTIONS, main

    for module, _ in (command for section in SECTIONS.values() for command in section.values()):
        with suppress(ImportError):  # an optional package is not installed: the command says so
            import_module(f"cotenant.cli.{module}")
    _keep_apart()
    with door:
        while fds := socket.recv_fds(door, 1, 3)[1]:
            imported = os.memfd_create("imported")
            pid = os.fork()
            if pid == 0:
                door.close()
                atexit.register(_tell, imported, frozenset(sys.modules))
                _become(*fds)
                main()
            for fd in fds:
                os.close(fd)
            door.send(pid.to_bytes(NUMBER, sys.byteorder))
            door.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]).to_bytes(NUMBER, sys.byteorder, signed=True))
            _learn(imported)
    sys.exit()


def _keep_apart() -> None:
    """Tells the garbage collector to leave alone all objects so far: otherwise each fork copies them when it ends."""
    gc.collect()
    gc.freeze()


def _tell(imported: int, before: frozenset[str]) -> None:
    """At the end of a command: what it has imported."""
    names = (name for name in list(sys.modules) if name.startswith(LEARNED) and name not in before)
    os.pwrite(imported, "\n".join(names).encode(), 0)


def _learn(imported: int) -> None:
    """Imports it as well, for the next commands."""
    with open(imported) as file:
        names = file.read().split()
    for name in names:
        with suppress(ImportError):
            import_module(name)
    if names:
        _keep_apart()


def _become(asked: int, out: int, err: int) -> None:
    """Makes this process the one that was asked for."""
    with open(asked, "rb") as file:
        request = json.loads(file.read())
    for fd, number in ((out, 1), (err, 2)):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[1:] = request["words"]
