# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs clients in slices: one alone, or several that start at the same moment."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from cotenant.conformance.client import READY
from cotenant.conformance.report import Way
from cotenant.core.units import MIB_BYTES
from cotenant.errors import DeviceError
from cotenant.node.containment import Containment
from cotenant.node.mps_daemon import PIPE
from cotenant.node.partitions import Partitions

MOST_WORDS = 300
"""characters of what a client wrote to standard error"""
MOST_TASKS = 4096
"""processes and threads of a client in a cgroup"""


class ClientError(Exception):
    """A client could not do its work; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a client may use; amounts that are None are not limited."""

    way: Way
    memory_mib: int | None = None
    compute_percent: int | None = None

    def command(self, gpu: str, mps: Path | None = None) -> list[str]:
        """The beginning of a command that runs in this slice; `mps` is the folder of the MPS control daemon."""
        if self.way is Way.NONE:
            return []
        if self.way in (Way.MPS, Way.DRIVER):
            return ["env", *(f"{name}={value}" for name, value in self._mps_variables(mps).items())]
        words = [sys.executable, "-P", "-m", "cotenant", "run", "--gpu", gpu, "--policy", "always"]
        # The memory of the driver's contexts depends on the GPU: it would blur what a limit holds.
        words += ["--overhead", "ignored"]
        words += [] if self.memory_mib is None else ["--memory", f"{self.memory_mib}MiB"]
        words += [] if self.compute_percent is None else ["--compute", f"{self.compute_percent}%"]
        return [*words, *(["--strict"] if self.way is Way.STRICT else []), "--"]

    def _mps_variables(self, mps: Path | None) -> dict[str, str]:
        env = {PIPE: str(mps)}
        if self.compute_percent is not None:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.compute_percent)
        if self.memory_mib is not None and self.way is Way.MPS:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={self.memory_mib}M"
        return env


class Client:
    """A running client. Leaving its context ends it, with all that it has started."""

    def __init__(self, command: Sequence[str], gpu: str, timeout_s: float, group: "Group | None" = None) -> None:
        pipe, self._timeout_s = subprocess.PIPE, timeout_s
        self.group = group
        """its cgroup, on which the driver has a limit"""
        env = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
        self._child = subprocess.Popen(
            command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", process_group=0
        )
        self._said = ""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._child.communicate()
        if self.group is not None:
            self.group.remove()

    def kill(self) -> None:
        if self._child.poll() is None:  # else its process ID may be that of another program
            os.killpg(self._child.pid, signal.SIGKILL)

    def wait_until_ready(self) -> Path:
        """Returns the limits file of the client when it is ready."""
        stream = self._child.stderr
        watchdog = Timer(self._timeout_s, self.kill)
        watchdog.start()
        try:
            while stream is not None and (line := stream.readline()):
                word, _, path = line.strip().partition(" ")
                if word == READY:
                    return Path(path)
                self._said += line
        finally:
            watchdog.cancel()
        self.result()  # says what is wrong if the client has said it
        raise self._error()

    def start(self) -> None:
        """Lets a client that is ready begin, or end if it works already."""
        stream = self._child.stdin
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.write("\n")
                stream.flush()

    def result(self) -> dict[str, Any]:
        """What the client prints at its end; ClientError if it fails or takes too long."""
        try:
            output, said = self._child.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise ClientError(f"did not end within {self._timeout_s:g} s") from None
        self._said += said
        try:
            found = json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            raise self._error() from None
        if not isinstance(found, dict):
            raise self._error()
        if isinstance(found.get("error"), str):
            raise ClientError(found["error"])
        return found

    def _error(self) -> ClientError:
        said = " ".join(self._said.split())[-MOST_WORDS:]
        return ClientError(f"exit code {self._child.wait()}: {said or 'no output'}")


@dataclass(frozen=True, slots=True)
class Group:
    """The cgroup of a client whose memory the driver limits."""

    name: str
    path: Path
    groups: Containment

    def command(self) -> list[str]:
        """The beginning of a command that runs in this cgroup."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs")]

    def remove(self) -> None:
        self.groups.remove(self.name)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs clients on one GPU."""

    gpu: str
    """UUID"""
    timeout_s: float = 120.0
    mps: Path | None = None
    """folder of its MPS control daemon; None: there is none"""
    partitions: Partitions | None = None
    """limits of the driver on memory; None: it has none"""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def client(self, place: Slice, program: str, *numbers: int) -> Client:
        words = [sys.executable, "-P", "-m", "cotenant.conformance.client", program, *map(str, numbers)]
        group = self._group(place)
        joined = [] if group is None else group.command()
        return Client([*joined, *place.command(self.gpu, self.mps), *words], self.gpu, self.timeout_s, group)

    def limit(self, client: Client, memory_mib: int) -> None:
        """Changes the limit of the driver on a client that runs; ClientError if it cannot."""
        if self.partitions is None or client.group is None:
            raise ClientError("the driver does not limit this client")
        try:
            self.partitions.limits.set(self.gpu, client.group.path, memory_mib * MIB_BYTES)
        except DeviceError as error:
            raise ClientError(str(error)) from None

    def _group(self, place: Slice) -> Group | None:
        if place.way is not Way.DRIVER or self.partitions is None:
            return None
        name, limit = f"client-{next(self._numbers)}", place.memory_mib
        try:
            path = self.partitions.create(name, MOST_TASKS, self.gpu, None if limit is None else limit * MIB_BYTES)
        except DeviceError as error:
            raise ClientError(str(error)) from None
        return Group(name, path, self.partitions.groups)

    def run(self, place: Slice, program: str, *numbers: int) -> dict[str, Any]:
        """The result of a client that runs alone; ClientError if it has none."""
        with self.client(place, program, *numbers) as client:
            client.start()
            return client.result()

    @contextlib.contextmanager
    def together(self, places: Sequence[Slice], program: str, *numbers: int) -> Iterator[list[Client]]:
        """Clients that are ready, one in each slice, and start at the same moment."""
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self.client(place, program, *numbers)) for place in places]
            for client in clients:
                client.wait_until_ready()
            for client in clients:
                client.start()
            yield clients
