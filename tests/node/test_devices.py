# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs: what they are made of, and what is used of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.core.units import MiB
from cotenant.errors import DeviceError, InputError
from cotenant.node.devices.backend import Running
from cotenant.node.devices.finding import find_backend
from cotenant.node.devices.processes import Process, job_members, process_table
from cotenant.node.devices.simulated import LARGEST, SimulatedBackend, deal, fair_memory, ranges
from cotenant.node.devices.vendors import Vendor


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in its own session, waited for until it says it is ready, and gone afterwards."""
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def fake_proc(folder: Path, available_mib: int) -> Path:
    (folder / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_mib * 1024} kB\n")
    return folder


def put_process(proc: Path, pid: int, *, ticks: int, pages: int, parent: int = 1, started: int = 5) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", str(parent), str(pid), str(pid), "0", "-1", "0", "0", "0", "0", "0", str(ticks), "0", "0", "0"]
    fields += ["20", "0", "1", "0", str(started), "1000000", str(pages)]
    (proc / str(pid) / "stat").write_text(f"{pid} (an odd) (name) {' '.join(fields)}\n")


# cores


def test_cores_are_dealt_out_in_turn_and_equally() -> None:
    assert deal([0, 1, 2, 3], 2) == ((0, 2), (1, 3))
    assert deal([0, 1, 2, 3, 4], 2) == ((0, 2), (1, 3))
    assert deal([4, 7], 2) == ((4,), (7,))


def test_with_too_few_cores_devices_share_them_and_the_notice_says_so() -> None:
    assert deal([0, 1], 3) == ((0,), (1,), (0,))
    assert "share cores" in SimulatedBackend(3, usable=[0, 1]).notes[1]
    assert len(SimulatedBackend(2, usable=[0, 1]).notes) == 1


def test_each_device_can_have_a_given_number_of_cores() -> None:
    assert deal([0, 1, 2, 3], 2, 1) == ((0,), (1,))
    assert deal([0, 1, 2], 2, 2) == ((0, 1), (0, 2))


def test_a_job_on_two_devices_has_the_cores_of_both() -> None:
    assert SimulatedBackend(2, usable=range(4)).cores((0, 1)) == (0, 1, 2, 3)


def test_no_core_at_all_is_one_clear_line() -> None:
    with pytest.raises(DeviceError, match="no CPU core"):
        deal([], 1)


def test_ranges_of_cores_are_short() -> None:
    assert ranges([8, 0, 1, 2, 3]) == "0-3,8"


# inventory


def test_a_device_has_the_same_name_after_a_restart_and_no_two_are_alike() -> None:
    first, again = (SimulatedBackend(4, memory=MiB(1024)).machine() for _ in range(2))
    assert first.gpus == again.gpus
    assert len({gpu.uuid for gpu in first.gpus}) == 4
    assert SimulatedBackend(1).machine().gpus[0].uuid == first.gpus[0].uuid


def test_devices_are_healthy_cards_of_one_type_with_the_given_memory() -> None:
    machine = SimulatedBackend(2, memory=MiB(4096)).machine()
    assert (machine.name, machine.types, machine.memory_capacities) == ("local", frozenset({"simulated"}), (4096, 4096))
    assert machine.unusable == frozenset()


def test_memory_is_a_fair_part_of_what_is_available(tmp_path: Path) -> None:
    assert fair_memory(2, fake_proc(tmp_path, 8192), tmp_path) == 3072
    assert fair_memory(2, fake_proc(tmp_path, 500_000), tmp_path) == LARGEST
    assert fair_memory(2, fake_proc(tmp_path, 100), tmp_path) == 256


def test_a_container_counts_with_its_own_memory(tmp_path: Path) -> None:
    fake_proc(tmp_path, 8192)
    (tmp_path / "memory.max").write_text("max\n")
    assert fair_memory(1, tmp_path, tmp_path) == 6144
    (tmp_path / "memory.max").write_text(f"{2048 * 1024 * 1024}\n")
    assert fair_memory(1, tmp_path, tmp_path) == 1536


def test_a_kernel_that_hides_its_memory_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="give the GPUs' memory"):
        fair_memory(1, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("count", "memory", "cores", "words"),
    [
        (0, None, None, "cannot simulate 0 GPUs; expected a number from 1 to 256"),
        (-1, None, None, "cannot simulate -1 GPUs"),
        (257, None, None, "cannot simulate 257 GPUs"),
        (1, 0, None, "expected at least 1 MiB"),
        (1, None, 0, "cannot have 0 cores"),
        (1, None, 9999, "cannot have 9999 cores"),
    ],
)
def test_devices_that_cannot_be_are_refused(count: int, memory: int | None, cores: int | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_backend(count, None if memory is None else MiB(memory), cores)


def test_as_many_devices_as_the_message_says_can_be_simulated() -> None:
    assert len(SimulatedBackend(256, memory=MiB(1)).machine().gpus) == 256


def test_simulation_can_be_asked_for() -> None:
    backend = find_backend(3, MiB(512))
    assert (backend.vendor, len(backend.machine().gpus), backend.faults()) == (Vendor.SIMULATED, 3, {})
    assert backend.notes[0].startswith("simulating 3 GPUs of 512 MiB each")
    backend.close()


def test_devices_have_the_memory_they_had_before_unless_told_otherwise() -> None:
    usual = {2: MiB(777)}
    assert [gpu.memory for gpu in find_backend(2, usual_memory=usual).machine().gpus] == [777, 777]
    assert find_backend(2, MiB(512), usual_memory=usual).machine().gpus[0].memory == 512
    assert find_backend(3, usual_memory=usual).machine().gpus[0].memory == fair_memory(3)


def test_without_a_driver_devices_are_simulated_and_one_line_says_why() -> None:
    backend = find_backend()
    if backend.vendor is Vendor.NVIDIA:
        backend.close()
        pytest.skip("this machine has an NVIDIA GPU")
    assert "simulating 2 GPUs" in backend.notes[0]
    assert "\n" not in backend.notes[0]
    assert not backend.notes[0].startswith("simulating")


# usage


def test_a_job_is_all_descendants_of_its_supervisor_but_not_that_itself() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, parent, 0, 0.0, MiB(0))

    table = [process(13, 12), process(10, 1), process(11, 10), process(12, 10), process(20, 1), process(30, 20)]
    jobs = [Running(job="a", gpus=(0,), supervisor=10), Running(job="b", gpus=(0,), supervisor=99)]
    members = job_members(jobs, table)
    assert [one.pid for one in members["a"]] == [11, 12, 13]
    assert members["b"] == []


def test_memory_counts_above_the_baseline_and_utilisation_is_of_the_devices_cores(tmp_path: Path) -> None:
    pages, ticks = 1024 * 1024 // os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    now = [0.0]
    job = Running(job="j", gpus=(1,), supervisor=9, baseline=MiB(100))
    backend = SimulatedBackend(
        2,
        memory=MiB(1024),
        usable=range(4),
        proc=tmp_path,
        clock=lambda: now[0],
    )
    put_process(tmp_path, 10, parent=9, ticks=5 * ticks, pages=300 * pages)
    put_process(tmp_path, 11, parent=10, ticks=0, pages=50 * pages)
    idle, busy = backend.usage([job])
    assert (idle.used_mib, idle.processes) == (0, ())
    assert (busy.used_mib, busy.utilisation) == (250, None)
    now[0] = 2.0
    put_process(tmp_path, 10, parent=9, ticks=7 * ticks, pages=300 * pages)
    idle, busy = backend.usage([job])
    assert (idle.utilisation, busy.utilisation) == (0, 50)
    assert busy.processes is not None
    assert [tuple(process) for process in busy.processes] == [(10, 300, 50, "j"), (11, 50, 0, "j")]
    now[0] = 2.01
    assert backend.usage([job])[1].utilisation == 50


def test_a_job_on_two_devices_uses_half_of_itself_on_each(tmp_path: Path) -> None:
    pages = 1024 * 1024 // os.sysconf("SC_PAGE_SIZE")
    put_process(tmp_path, 10, parent=9, ticks=0, pages=300 * pages)
    job = Running(job="j", gpus=(0, 1), supervisor=9, baseline=MiB(100))
    backend = SimulatedBackend(2, memory=MiB(1024), usable=[0, 1], proc=tmp_path)
    assert [usage.used_mib for usage in backend.usage([job])] == [100, 100]


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    ticks, now = os.sysconf("SC_CLK_TCK"), [0.0]
    job = Running(job="j", gpus=(0,), supervisor=9)
    backend = SimulatedBackend(1, memory=MiB(1024), usable=[0], proc=tmp_path, clock=lambda: now[0])
    put_process(tmp_path, 10, parent=9, ticks=100 * ticks, pages=1, started=5)
    backend.usage([job])
    now[0] = 4.0
    put_process(tmp_path, 10, parent=9, ticks=1 * ticks, pages=1, started=900)
    assert backend.usage([job])[0].utilisation == 25


def test_without_jobs_the_process_table_is_not_read(tmp_path: Path) -> None:
    backend = SimulatedBackend(1, memory=MiB(1024), proc=tmp_path / "missing")
    assert backend.usage()[0].used_mib == 0


def test_the_real_process_table_shows_this_process() -> None:
    own = next(process for process in process_table() if process.pid == os.getpid())
    assert own.parent == os.getppid()
    assert own.memory > 5


def test_a_real_busy_program_shows_its_memory_and_its_cpu_time() -> None:
    code = "import os\nif os.fork(): os.wait()\nheld = b'x' * (200 << 20)\nprint('ready', flush=True)\nwhile True: pass"
    with program(code) as parent:
        job = Running(job="j", gpus=(0,), supervisor=parent.pid)
        backend = SimulatedBackend(1, memory=MiB(1024), cores=1)
        (first,) = backend.usage([job])
        assert first.used_mib is not None
        assert 200 <= first.used_mib < 300
        time.sleep(1.0)
        (second,) = backend.usage([job])
    assert second.utilisation is not None
    assert 5 <= second.utilisation <= 100  # other work on the machine may take most of the core
    assert second.processes is not None
    (busy,) = second.processes
    assert (busy.pid > 0, busy.pid != parent.pid, busy.job) == (True, True, "j")
