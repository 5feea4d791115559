# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the daemon that use their GPU through MPS, beside jobs that do not, over stand-ins of the driver and MPS."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.core.cluster import Node
from cotenant.core.isolation import Fallback, Granted, Refused, Rung
from cotenant.core.model import Demand, Gpu, Machine
from cotenant.core.placement.checks import isolation as isolation_check
from cotenant.core.units import MiB, MilliGpu
from cotenant.local.isolation import ONE_USER, IsolationSettings, JobIsolation, rung_of
from cotenant.local.journal_schema import JournalError
from cotenant.local.mps_watch import MpsWatch
from cotenant.node.devices.compute_modes import ComputeModes
from cotenant.node.limits import GpuLimit
from cotenant.node.mps import Crash, Mps
from cotenant.signals import Signal
from cotenant.wire.job_views import JobView
from tests.local.daemon import Daemon, until
from tests.local.mps_machine import (
    DEFAULT,
    EXCLUSIVE,
    GPU,
    await_event,
    control_pid,
    gpus,
    holding,
    modes,
    mps_machine,
    survive,
)
from tests.local.standin_machine import output, submit_probe
from tests.native import kit
from tests.node.mps_kit import FileModes, command, processes_in, short_folder

LONG = "600000"
"""milliseconds: longer than any wait of a test"""
FAULT = """
from tests.native.standin_client import *
begin()
print("began", flush=True)
import time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
function = out(cu.cuModuleGetFunction, out(cu.cuModuleLoadData, b"i"), b"fault")
sys.exit(call(cu.cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, 0, None, None) % 256)
"""


@pytest.fixture(scope="module")
def started() -> Iterator[Daemon]:
    with mps_machine() as one:
        yield one


@pytest.fixture
def daemon(started: Daemon) -> Iterator[Daemon]:
    """Nothing runs before the test, and nothing is left of MPS after it."""
    yield started
    started.clear()
    until(lambda: modes(started) == [DEFAULT, DEFAULT])
    until(lambda: not processes_in(started.state))


@pytest.mark.slow
def test_a_job_through_mps_is_held_to_its_limits_and_says_so(daemon: Daemon) -> None:
    fits, too_much = (submit_probe(daemon, mib, "10", memory="256MiB", isolation="mps") for mib in ("200", "300"))
    ended = [daemon.ended(job.id) for job in (fits, too_much)]
    assert [job.code for job in ended] == [0, 0]
    assert [kit.values(output(daemon, job.id))["allocated"] for job in ended] == [0, 2]
    assert [job.isolation for job in ended] == ["mps", "mps"]
    assert daemon.job(fits.id).enforcement[0].startswith("memory: 256 MiB for each process, by MPS")


def test_jobs_learn_what_holds_them(daemon: Daemon) -> None:
    variables = "env | grep -E '^(COTENANT_ISOLATION|CUDA_MPS_|LD_PRELOAD)' | sort"
    jobs = [daemon.submit("sh", "-c", variables, compute="30%", isolation=rung) for rung in ("mps", "none", None)]
    pretends = {"COTENANT_ISOLATION": "mps"}
    jobs.append(daemon.submit("sh", "-c", f"{variables}; true", gpus=0, memory=None, env=pretends))
    said = []
    for job in jobs:
        assert daemon.ended(job.id).code == 0
        said.append(dict(line.split("=", 1) for line in output(daemon, job.id).splitlines()))
    assert said[0]["COTENANT_ISOLATION"] == "mps"
    assert said[0]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert said[0]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=100M"
    assert said[1] == {"COTENANT_ISOLATION": "none"}
    assert said[2]["COTENANT_ISOLATION"] == "preload"
    assert "libcotenant.so" in said[2]["LD_PRELOAD"]
    assert "COTENANT_ISOLATION" not in said[3]  # only the daemon says it


def test_a_job_that_makes_a_folder_among_the_sockets_of_mps_does_no_harm(daemon: Daemon) -> None:
    command = 'mkdir -p "$CUDA_MPS_PIPE_DIRECTORY/x/y"'
    for _ in range(2):
        job = daemon.submit("sh", "-c", command, compute="30%", isolation="mps")
        assert daemon.ended(job.id).code == 0
        until(lambda: modes(daemon) == [DEFAULT, DEFAULT])


def test_a_gpu_under_mps_takes_no_other_jobs_until_the_last_client_is_gone(daemon: Daemon) -> None:
    mps = submit_probe(daemon, "100", LONG, memory="256MiB", isolation="mps")
    until(lambda: holding(daemon, mps.id))
    assert modes(daemon) == [EXCLUSIVE, DEFAULT]
    assert [gpu.mps for gpu in gpus(daemon)] == [True, False]
    assert [gpu.isolation for gpu in gpus(daemon)] == [("mps", "preload", "none"), ("preload", "none")]
    beside = submit_probe(daemon, "100", LONG, memory="256MiB")
    assert until(lambda: daemon.job(beside.id).gpus) == (1,)
    second = submit_probe(daemon, "100", LONG, memory="256MiB", isolation="mps")
    assert until(lambda: daemon.job(second.id).gpus) == (0,)
    both = submit_probe(daemon, "100", "10", memory="256MiB", gpus=2)
    why = daemon.client.get(f"/v1/jobs/{both.id}/why", dict[str, object])
    assert "GPUs under MPS take no such job; the node has 1" in str(why["reasons"])
    for job in (mps, second, beside):
        daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
    assert daemon.ended(both.id).code == 0
    assert modes(daemon) == [DEFAULT, DEFAULT]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"isolation": "driver"}, "has a driver of CUDA 12.9, and memory partitioning needs CUDA 13.4 or later"),
        ({"isolation": "mps", "gpus": 2}, "each GPU has an MPS control daemon of its own"),
        ({"isolation": "mps", "memory": "1GiB:2GiB"}, "a limit above the request needs isolation preload"),
        ({"isolation": "mig"}, "jobs request a MIG instance by its profile; write --mig PROFILE instead"),
        ({"isolation": "mps", "gpus": 0, "memory": None}, "--isolation mps: needs at least 1 GPU"),
    ],
)
def test_a_wish_that_cannot_be_granted_is_refused_with_the_reason(
    daemon: Daemon, request_: dict[str, object], sentence: str
) -> None:
    with pytest.raises(RefusedByDaemonError, match=sentence.replace(".", r"\.")):
        submit_probe(daemon, "1", "1", **request_)


def test_an_unknown_rung_is_refused(daemon: Daemon) -> None:
    body = b'{"command": ["true"], "cwd": "/", "isolation": "magic"}'
    with pytest.raises(RefusedByDaemonError, match="isolation: Invalid enum value 'magic'"):
        daemon.client.post("/v1/jobs", JobView, body)


@pytest.mark.slow
def test_tenants_outlive_the_daemon_and_are_found_again(daemon: Daemon) -> None:
    job = submit_probe(daemon, "100", LONG, memory="256MiB", isolation="mps")
    until(lambda: holding(daemon, job.id))
    pretends = {"COTENANT_ISOLATION": "mps"}
    without = daemon.submit("sleep", "9999", gpus=0, memory=None)
    until(lambda: daemon.job(without.id).state == "running")
    pid = control_pid(daemon)
    daemon.kill()
    spec = daemon.state / "jobs" / without.id / "1" / "spec.json"
    stored = json.loads(spec.read_text())
    spec.write_text(json.dumps(stored | {"env": stored["env"] | pretends}))  # the job itself can do that
    try:
        daemon.up("--isolation-fallback", "refuse", "--isolation", "none")  # other settings do not change what runs
        assert daemon.job(job.id).isolation == "mps"
        until(lambda: holding(daemon, job.id))
        assert (modes(daemon), control_pid(daemon)) == ([EXCLUSIVE, DEFAULT], pid)
        assert (daemon.job(without.id).state, daemon.job(without.id).isolation) == ("running", None)
        for one in (job, without):
            daemon.client.post(f"/v1/jobs/{one.id}/cancel", JobView)
            daemon.ended(one.id)
    finally:
        daemon.stop()
        daemon.up("--isolation-fallback", "refuse")


@pytest.mark.slow
def test_a_control_daemon_that_is_killed_under_load_harms_no_job_for_good(daemon: Daemon) -> None:
    jobs = [submit_probe(daemon, "100", LONG, memory="256MiB", isolation="mps") for _ in range(4)]
    survive(daemon, jobs, 3)
    await_event(daemon, "the MPS control daemon of GPU", "has ended; stops j-")
    for job in jobs:
        daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
    limited = submit_probe(daemon, "300", "10", memory="256MiB", isolation="mps")
    daemon.ended(limited.id)
    assert kit.values(output(daemon, limited.id))["allocated"] == 2  # the limit holds after the restarts


def test_a_fault_is_shown_with_its_culprit_and_the_others_go_on(daemon: Daemon, tmp_path: Path) -> None:
    good = submit_probe(daemon, "100", LONG, memory="256MiB", isolation="mps")
    env = {"LD_LIBRARY_PATH": str(kit.standin()), "STANDIN_STATE": str(daemon.state / "gpus")}
    words = [sys.executable, "-c", FAULT, str(tmp_path / "now")]
    bad = daemon.submit(*words, env=env | {"PYTHONPATH": str(kit.ROOT)}, memory="256MiB", isolation="mps")
    until(lambda: holding(daemon, good.id) and daemon.client.get(f"/v1/jobs/{bad.id}", JobView).utilisation is not None)
    (tmp_path / "now").touch()
    until(lambda: daemon.job(good.id).attempts == 2)
    until(lambda: holding(daemon, good.id))
    ended = daemon.ended(bad.id)  # by itself, or by the daemon, which stops the culprit
    assert ended.code == 719 % 256 or ended.signal == signal.SIGTERM
    await_event(daemon, "a fault of process", "ended all MPS clients")


@pytest.mark.slow
def test_a_control_daemon_of_somebody_else_closes_the_gpu_and_is_left_alone(daemon: Daemon) -> None:
    folder = daemon.state / "run" / "mps" / GPU
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for made in pipes.values():
        Path(made).mkdir(parents=True, exist_ok=True, mode=0o700)
    until(lambda: not processes_in(daemon.state))
    subprocess.run([command(), "-d"], env=os.environ | pipes, check=True, timeout=300)
    job = submit_probe(daemon, "100", "10", memory="256MiB", isolation="mps")
    until(lambda: "that cotenant did not start" in (gpus(daemon)[0].fault or ""))
    until(lambda: daemon.job(job.id).state == "queued")
    assert modes(daemon) == [DEFAULT, DEFAULT]
    subprocess.run([command()], input=b"quit", env=os.environ | pipes, check=True, timeout=300)
    assert daemon.ended(job.id).code == 0


@pytest.mark.parametrize(("default", "rung"), [(Rung.MPS, Rung.MPS), (None, Rung.PRELOAD)])
def test_a_default_that_is_not_possible_becomes_no_other_rung(tmp_path: Path, default: Rung | None, rung: Rung) -> None:
    """A job waits for it that was queued before the daemon was started with this default."""
    gpu = Gpu(uuid=GPU, type="A100", memory=MiB(1024))
    silent = ComputeModes(SimpleNamespace(NVMLError=RuntimeError))  # so nothing is known of the GPU
    settings = IsolationSettings(default=default, gpus={"0": Rung.MPS})
    one = JobIsolation(settings, silent, Machine(name="here", gpus=(gpu,)), preload=True, root=tmp_path, owner="us")
    assert rung_of(one, None, 1) is rung
    node = Node.of(one.of_machine(Machine(name="here", gpus=(gpu,))), ())
    why = isolation_check(Demand(gpus=1, rung=rung_of(one, None, 1)), node, [0])
    assert str(why) == f"needs 1 GPU with isolation {rung}; the node has 0"


def test_no_job_of_a_daemon_for_all_users_is_a_client_of_mps(tmp_path: Path) -> None:
    machine = Machine(name="here", gpus=(Gpu(uuid=GPU, type="A100", memory=MiB(1024)),))
    silent = ComputeModes(SimpleNamespace(NVMLError=RuntimeError))
    granted = [
        JobIsolation(
            IsolationSettings(fallback=fallback),
            silent,
            machine,
            preload=True,
            root=tmp_path,
            owner="us",
            several_users=True,
        ).granted(Rung.MPS, 1)
        for fallback in Fallback
    ]
    why = f"GPU 0 has no MPS: {ONE_USER}"
    assert granted == [
        Refused(f"isolation mps is not possible here: {why}"),
        Granted(Rung.PRELOAD, f"isolation preload instead of mps: {why}"),
    ]


def test_a_journal_that_cannot_be_written_does_not_end_the_watch() -> None:
    with short_folder() as folder:
        mps = Mps(folder, "us", FileModes(folder / "mode"), command(), answer_s=30)
        mps.know(GPU, MiB(1024))
        mps.add("j", GpuLimit(GPU, None, MilliGpu(300)))
        mps.ready(GPU)
        heard: list[Crash] = []
        asyncio.run(watch(mps, folder, heard))
        # The second is the same crash, told again because the first could not be handled.
        assert heard == [Crash(GPU, f"the MPS control daemon of GPU {GPU} has ended")] * 2
        mps.remove("j")
        mps.step()


async def watch(mps: Mps, folder: Path, heard: list[Crash]) -> None:
    """Until a crash was told twice; the journal fails at the first."""
    again = asyncio.Event()

    def handle(crash: Crash, _: tuple[str, ...]) -> None:
        heard.append(crash)
        if len(heard) == 1:
            raise JournalError("the disk is full")
        again.set()

    devices: Any = SimpleNamespace(looked=Signal(), index=lambda _: 0, adjust=lambda: None)
    tenants: Any = SimpleNamespace(added=Signal(), removed=Signal(), placed={})
    looks = MpsWatch(mps, devices, tenants, cast(Any, None))
    looks.crashed.subscribe(handle)
    os.kill(int((folder / GPU / "pipe" / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    running = asyncio.create_task(looks.run())
    told = asyncio.create_task(again.wait())
    done, _ = await asyncio.wait({running, told}, timeout=300, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    assert done == {told}
