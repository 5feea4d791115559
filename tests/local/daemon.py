# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A real daemon in a state folder of its own, that tests may kill."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from cotenant.client.client import Client
from cotenant.client.problems import NoDaemonError, RefusedByDaemonError
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView

T = TypeVar("T")
SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE_S = 120.0


class Daemon:
    """Starts, kills and asks one."""

    def __init__(self, state: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
        self.state, self._prefix = state, prefix
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def up(self, *devices: str) -> None:
        """Until it answers; with two small simulated GPUs unless told otherwise."""
        env = {**os.environ, "PYTHONPATH": SOURCE, "COTENANT_STATE": str(self.state)}
        chosen = devices or ("--simulate", "2", "--gpu-memory", "1GiB")
        command = [*self._prefix, sys.executable, "-m", "cotenant", "up", *chosen, *self._options]
        with (self.state / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        until(lambda: self._answers())

    @property
    def port(self) -> int:
        """Where it listens on TCP: with `--listen 0` on a port that no other process can have taken in between."""
        log = (self.state / "daemon.log").read_text()
        return int(re.findall(r"listens on TCP, too, at https?://[0-9.]+:(\d+)\n", log)[-1])

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.state / "daemon.log").read_text()
        try:
            return bool(self.client.get("/v1/status", dict[str, object])["pid"] == self._process.pid)
        except NoDaemonError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)

    @property
    def client(self) -> Client:
        os.environ["COTENANT_STATE"] = str(self.state)
        return Client()

    def submit(self, *command: str, **request: object) -> JobView:
        asked = msgspec.convert({"command": command, "cwd": "/", "env": {}, "memory": "100MiB", **request}, JobRequest)
        return self.client.post("/v1/jobs", JobView, msgspec.json.encode(asked))

    def job(self, job: str) -> JobView:
        return self.client.get(f"/v1/jobs/{job}", JobView)

    def ended(self, job: str) -> JobView:
        return until(lambda: view if (view := self.job(job)).ended is not None else None)

    def clear(self) -> None:
        """As it was at first, but for its memory: no job waits or runs, every GPU takes jobs."""
        for job in self._active():
            with suppress(RefusedByDaemonError):  # it has just ended
                self.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
        for job in self._active():
            self.ended(job.id)
        for gpu in self.client.get("/v1/gpus", list[GpuView]):
            self.client.post(f"/v1/gpus/{gpu.index}/uncordon", GpuView)

    def _active(self) -> list[JobView]:
        return self.client.get("/v1/jobs?state=queued,starting,running", list[JobView])


def until(answer: Callable[[], T | None]) -> T:
    """The first answer that is true; the machine may be busy."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := answer():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@contextmanager
def running_daemon(*options: str, prefix: tuple[str, ...] = ()) -> Iterator[Daemon]:
    """A daemon with these options besides its own, started by a command; afterwards nothing of it is left."""
    state = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    daemon = Daemon(state, *options, prefix=prefix)
    try:
        daemon.up()
        yield daemon
    finally:
        daemon.clear()
        daemon.stop()
        shutil.rmtree(state, ignore_errors=True)
