# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Processes without a job are seen, shown and counted, and never stopped."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cotenant.core.units import MiB
from cotenant.local.devices import Devices
from cotenant.local.journal import Journal
from cotenant.local.runs import Runs
from cotenant.local.tenants import Tenants
from cotenant.local.unmanaged import LOOKS, STEP_MIB, Unmanaged
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from tests.local.daemon import until
from tests.local.engines import TWO_CARDS, Cards, placed
from tests.local.standin_machine import environment, standin_machine, submit_probe
from tests.native import kit

ME = pwd.getpwuid(os.getuid()).pw_name


@dataclass
class Machine:
    """The parts that unmanaged use concerns."""

    tenants: Tenants
    unmanaged: Unmanaged
    noted: list[str] = field(default_factory=list)
    passes: int = 0

    def look(self, *processes: ProcessUsage, times: int = 1) -> None:
        """GPU 0 has these processes."""
        usage = [GpuUsage(uuid=f"GPU-{i}", used_mib=MiB(0), utilisation=0, processes=()) for i in range(2)]
        usage[0] = GpuUsage(uuid="GPU-0", used_mib=MiB(0), utilisation=0, processes=processes)
        for _ in range(times):
            self.unmanaged.look(usage)

    def free(self) -> tuple[int, ...]:
        return tuple(self.tenants.cluster.at(0).memory)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Journal.open(tmp_path / "journal.db") as journal:
        tenants = Tenants(TWO_CARDS, Runs(tmp_path))
        made = Machine(tenants, Unmanaged(Devices(Cards(TWO_CARDS), journal), tenants))
        made.unmanaged.noted.subscribe(lambda kind, job, text: made.noted.append(text))

        def count() -> None:
            made.passes += 1

        made.unmanaged.changed.subscribe(count)
        yield made


def mine(memory: int | None) -> ProcessUsage:
    """This process, as if it used a GPU."""
    return ProcessUsage(os.getpid(), None if memory is None else MiB(memory), 50)


def test_its_memory_is_not_free_for_jobs_and_it_is_reported_once(machine: Machine) -> None:
    machine.look(mine(300), times=LOOKS - 1)
    assert (machine.free(), machine.noted) == ((1024, 1024), []), "it may belong to a job that has just started"
    machine.look(mine(300), times=3)
    assert machine.free() == (1024 - 2 * STEP_MIB, 1024)
    (text,) = machine.noted
    assert f"of {ME} (process {os.getpid()}) uses 300 MiB of GPU 0 without a job; it is left alone" in text
    machine.look(mine(310))
    assert machine.passes == 1, "a small change starts no new pass"
    machine.look()
    assert (machine.free(), machine.unmanaged.processes) == ((1024, 1024), {})


def test_a_process_of_unknown_size_closes_its_gpu(machine: Machine) -> None:
    machine.look(mine(None), times=LOOKS)
    assert machine.free() == (0, 1024)


def test_what_is_promised_to_jobs_is_not_taken_from_them(machine: Machine) -> None:
    job = placed("j", JobRequest(command=("train",), cwd="/", memory="900MiB"))
    machine.tenants.add(job.placement, job.request, 1)
    machine.look(mine(800), times=LOOKS)
    assert machine.free() == (0, 1024)
    machine.tenants.remove("j")
    machine.look(mine(800))
    assert machine.free() == (0, 1024), "800 MiB are 1024 MiB in steps of 256"


@pytest.mark.parametrize(
    "process", [ProcessUsage(os.getpid(), MiB(300), 50, job="j-1"), ProcessUsage(2**22, MiB(9), 1)]
)
def test_processes_of_jobs_and_of_other_pid_namespaces_are_not_counted(machine: Machine, process: ProcessUsage) -> None:
    machine.look(process, times=LOOKS)
    assert (machine.free(), machine.noted) == ((1024, 1024), [])


def test_a_process_is_shown_with_its_user_whoever_owns_its_folder(tmp_path: Path) -> None:
    """The folder of a process in /proc belongs to root if the process asks for that (PR_SET_DUMPABLE)."""
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "stat").write_text(Path("/proc/self/stat").read_text())
    (tmp_path / "77" / "comm").write_text("train\n")
    (tmp_path / "77" / "status").write_text("Name:\ttrain\nUid:\t4000001\t0\t0\t0\n")
    with Journal.open(tmp_path / "journal.db") as journal:
        tenants = Tenants(TWO_CARDS, Runs(tmp_path))
        machine = Machine(tenants, Unmanaged(Devices(Cards(TWO_CARDS), journal), tenants, tmp_path))
        machine.look(ProcessUsage(77, MiB(9), 1), times=LOOKS)
        assert [(one.user, one.program) for one in machine.unmanaged.processes["GPU-0"]] == [("4000001", "train")]


@pytest.mark.slow
def test_a_program_beside_the_daemon_is_shown_and_left_alone() -> None:
    with standin_machine({"STANDIN_DEVICES": "1"}, "--policy", "binpack") as daemon:
        command = [str(kit.program("run_probe")), "100", "60000"]
        with subprocess.Popen(command, env={**os.environ, **environment(daemon)}, stdout=subprocess.DEVNULL) as other:
            try:

                def seen() -> GpuView | None:
                    return next((gpu for gpu in daemon.client.get("/v1/gpus", list[GpuView]) if gpu.unmanaged), None)

                gpu = until(seen)
                assert [(one.user, one.program, one.pid) for one in gpu.unmanaged] == [(ME, "run_probe", other.pid)]
                assert gpu.tenants == ()
                assert gpu.free_memory_mib < gpu.memory_mib
                job = submit_probe(daemon, "10", "10", memory=f"{gpu.memory_mib}MiB")
                until(lambda: daemon.job(job.id).reason)
                assert daemon.job(job.id).state == "queued"
                why = daemon.client.get(f"/v1/jobs/{job.id}/why", dict[str, Any])
                assert why["suggestions"] is not None
                assert any(f"without a job: {ME}:run_probe uses " in note for note in why["notes"])
                daemon.client.post("/v1/gpus/0/drain", GpuView, b'{"evict": true}')
                assert other.poll() is None
                daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
            finally:
                other.kill()
