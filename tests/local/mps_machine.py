# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon on two GPUs, the first of which has MPS, over the stand-ins of the driver and of MPS."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from tests.local.daemon import Daemon, until
from tests.local.standin_machine import standin_machine
from tests.native import kit
from tests.native.standins import client as over_standin
from tests.node.mps_kit import processes_in

DEFAULT, EXCLUSIVE = 0, 3
GPU = kit.gpu()
OPTIONS = ("--policy", "binpack", "--vendor", "nvidia")
MODES = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
ok(nvml.nvmlInit_v2())
for index in (0, 1):
    device, mode = ctypes.c_void_p(), ctypes.c_int()
    ok(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
    ok(nvml.nvmlDeviceGetComputeMode(device, ctypes.byref(mode)))
    tell(**{f"gpu{index}": mode.value})
"""


@contextmanager
def mps_machine(**more: str) -> Iterator[Daemon]:
    """Its second GPU is too old for MPS. Afterwards nothing of it is left."""
    path = f"{kit.mps()}:{os.environ['PATH']}"
    settings = {"PATH": path, "STANDIN_DEVICES": "2", "STANDIN_CAPABILITY": "8.0,3.0", **more}
    with standin_machine(settings, "--isolation-fallback", "refuse", options=OPTIONS, end=_kill_processes) as one:
        yield one


def _kill_processes(folder: Path) -> None:
    for pid in processes_in(folder):
        os.kill(pid, signal.SIGKILL)


def modes(daemon: Daemon) -> list[int]:
    found = over_standin(daemon.state, MODES, STANDIN_STATE=str(daemon.state / "gpus"))
    return [found["gpu0"], found["gpu1"]]


def gpus(daemon: Daemon) -> list[GpuView]:
    return daemon.client.get("/v1/gpus", list[GpuView])


def await_event(daemon: Daemon, *parts: str) -> None:
    """Until an event has these texts; the stream never ends by itself."""
    stream = iter(daemon.client.lines("/v1/events?after=0"))
    told = next(stream)
    while not any(all(part.encode() in line for part in parts) for line in told.splitlines()):
        told += next(stream)


def control_pid(daemon: Daemon) -> int:
    return int((daemon.state / "run" / "mps" / GPU / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def holding(daemon: Daemon, job: str) -> bool:
    """Whether the driver counts memory for a job."""
    return bool(daemon.job(job).memory_used_mib)


def survive(daemon: Daemon, jobs: Sequence[JobView], kills: int) -> list[float]:
    """Kills the control daemon so many times under these jobs; the seconds until all of them use the GPU again."""
    took = []
    for _ in range(kills):
        until(lambda: all(holding(daemon, job.id) for job in jobs))
        before = {job.id: daemon.job(job.id).attempts for job in jobs}
        os.kill(control_pid(daemon), signal.SIGKILL)
        began = time.monotonic()
        until(lambda: all(daemon.job(job).attempts > number for job, number in before.items()))  # noqa: B023 (at once)
        until(lambda: all(holding(daemon, job.id) for job in jobs))
        took.append(time.monotonic() - began)
    return took
