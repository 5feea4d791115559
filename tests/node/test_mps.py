# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The control daemons of MPS: started on first use, ended after the last, found again after a kill at any step."""

import os
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotenant.core.units import MiB, MilliGpu
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.node.devices.compute_modes import ComputeMode, ComputeModes
from cotenant.node.limits import GpuLimit
from cotenant.node.mps import Crash, Mps
from cotenant.node.mps_daemon import MpsDaemon
from cotenant.node.mps_files import MpsError, MpsUnknownError, culprits_in
from tests.native import kit
from tests.native.standins import client, finish, line_of, started
from tests.node.mps_kit import UUID, FileModes, command, daemon_in, processes_in, short_folder, until

HOLD = "begin()\ntell(pid=os.getpid())\nsys.stdin.readline()"


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def mode(folder: Path) -> ComputeMode | None:
    return FileModes(folder / "mode").mode(UUID)


def mps_in(folder: Path, *, answer_s: float = 30) -> Mps:
    """Asked at every step, so that nothing waits for the clock."""
    modes = FileModes(folder / "mode")
    mps = Mps(folder, "us", modes, command(), answer_s=answer_s, ask_every_s=0)
    mps.know(UUID, MiB(24576))
    return mps


def limit(mib: int | None = 512, compute: int = 300) -> GpuLimit:
    return GpuLimit(UUID, None if mib is None else mib << 20, MilliGpu(compute))


def control_pid(folder: Path) -> int:
    return int((folder / UUID / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def end(folder: Path, pid: int) -> None:
    """Kills a process of MPS, and waits until it is gone."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in processes_in(folder))


def test_it_is_started_in_folders_of_its_own_and_leaves_everything_as_it_was(folder: Path) -> None:
    daemon = daemon_in(folder)
    assert daemon.start() is None
    assert mode(folder) is ComputeMode.EXCLUSIVE_PROCESS
    assert {stat.S_IMODE(one.stat().st_mode) for one in (daemon.pipe, daemon.logs)} == {0o700}
    assert daemon.start() is None  # it runs already
    assert daemon.servers() == []
    daemon.clean()
    assert mode(folder) is ComputeMode.DEFAULT
    assert processes_in(folder) == []
    assert not daemon.is_recorded
    daemon.clean()


@pytest.mark.parametrize("at", ["record", "mode", "daemon", "answer", "never"])
def test_a_start_that_is_killed_is_finished_or_undone_by_the_next(folder: Path, at: str) -> None:
    run_until(folder, "start", at)
    before = processes_in(folder)
    daemon = daemon_in(folder)
    daemon.start()
    assert mode(folder) is ComputeMode.EXCLUSIVE_PROCESS
    if at == "never":
        assert control_pid(folder) in before  # adopted
    until(lambda: len(processes_in(folder)) == 1)  # what `-d` leaves by forks may live a moment longer
    daemon.clean()
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, [])


@pytest.mark.parametrize("at", ["quit", "kill", "restore", "forget"])
def test_an_end_that_is_killed_is_finished_by_the_next(folder: Path, at: str) -> None:
    daemon_in(folder).start()
    run_until(folder, "clean", at)
    daemon = daemon_in(folder)
    assert daemon.is_recorded
    daemon.clean()
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, [])
    assert not daemon.is_recorded


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount, and start MPS for other users")
def test_clients_in_containers_reach_the_pipe_as_any_user_and_cannot_fill_the_memory(folder: Path) -> None:
    mps = Mps(folder, "us", FileModes(folder / "mode"), command(), answer_s=30, has_shm=True)
    for uuid in (UUID, "GPU-2", "GPU-3", "GPU-4"):
        mps.know(uuid, MiB(24576))
    mps.add("j", limit())
    mps.ready(UUID)
    try:
        shm = os.statvfs(folder / UUID / "shm")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert 0.11 < shm.f_blocks * shm.f_frsize / memory < 0.13  # those of all four GPUs: half of the memory
        assert stat.S_IMODE((folder / UUID).stat().st_mode) == 0o700
        assert connects_as(65534, folder / UUID / "pipe")
    finally:
        mps.remove("j")
        mps.step()
    assert not os.path.ismount(folder / UUID / "shm")


def connects_as(user: int, pipe: Path) -> bool:
    """Whether a process of this user reaches the control daemon, if it has the pipe folder as a container has it."""
    child = os.fork()
    if child == 0:
        try:
            os.chdir(pipe)  # the mount of a container does not pass the folders above, either
            os.setuid(user)
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect("control")
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def run_until(folder: Path, action: str, at: str) -> None:
    words = [sys.executable, "-m", "tests.node.mps_kit", str(folder), action, at]
    done = subprocess.run(words, cwd=kit.ROOT, check=False, timeout=300)
    assert done.returncode == (0 if at == "never" else -signal.SIGKILL)


def test_a_control_daemon_of_somebody_else_on_the_pipe_is_refused_and_left_alone(folder: Path) -> None:
    daemon = daemon_in(folder)
    for made in (daemon.pipe, daemon.logs):
        made.mkdir(parents=True, mode=0o700)
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe), "CUDA_MPS_LOG_DIRECTORY": str(daemon.logs)}
    subprocess.run([command(), "-d"], env=os.environ | own, check=True, timeout=300)
    until(lambda: (daemon.pipe / "nvidia-cuda-mps-control.pid").exists())
    theirs = [control_pid(folder)]
    until(lambda: processes_in(folder) == theirs)
    mps = mps_in(folder)
    mps.add("j", limit())
    with pytest.raises(MpsError, match=r"that cotenant did not start uses .*end it with `echo quit"):
        mps.ready(UUID)
    assert UUID in mps.closed
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, theirs)
    mps.remove("j")
    mps.step()
    assert UUID in mps.closed  # until it has ended
    subprocess.run([command()], input=b"quit", env=os.environ | own, check=True, timeout=300)
    until(lambda: not processes_in(folder))
    until(lambda: mps.step() == [] and mps.closed == {})


def test_the_control_daemon_of_another_daemon_of_ours_is_left_alone(folder: Path) -> None:
    daemon_in(folder, owner="them").start()
    ours = daemon_in(folder)
    with pytest.raises(MpsError, match="another daemon of cotenant uses GPU"):
        ours.start()
    assert not ours.is_recorded
    until(lambda: len(processes_in(folder)) == 1)


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    (folder / UUID / "pipe").mkdir(parents=True)
    (folder / UUID / "pipe").chmod(0o777)
    with pytest.raises(MpsError, match="can be written to by other users"):
        daemon_in(folder).start()
    assert processes_in(folder) == []


def test_who_may_not_change_the_compute_mode_is_told_what_follows(folder: Path) -> None:
    modes = FileModes(folder / "mode", allowed=False)
    daemon = MpsDaemon(folder / UUID, UUID, "us", modes, command())
    assert daemon.start() == "its compute mode was not changed (only root may), so others can use it, too"
    daemon.clean()
    assert processes_in(folder) == []


def test_a_damaged_record_leaves_no_gpu_in_exclusive_mode(folder: Path) -> None:
    daemon = daemon_in(folder)
    daemon.start()
    pid = control_pid(folder)
    (folder / UUID / "state.json").chmod(0o600)
    (folder / UUID / "state.json").write_text("{")
    end(folder, pid)
    assert daemon.is_recorded
    daemon.clean()
    assert mode(folder) is ComputeMode.DEFAULT


def test_a_tenant_has_its_limits_and_none_more_than_the_largest(folder: Path) -> None:
    mps = mps_in(folder)
    mps.add("small", limit(256, 200))
    mps.ready(UUID)
    assert mps.variables(limit(256, 200)) == {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / UUID / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / UUID / "log"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=256M",
    }
    daemon = daemon_in(folder)
    allocate = "begin()\ntell(fits=call(cu.cuMemAlloc_v2, ctypes.byref(ctypes.c_uint64()), 300 * MIB))"
    own, none = mps.variables(limit(256, 200)), {"CUDA_MPS_PIPE_DIRECTORY": str(folder / UUID / "pipe")}
    assert [client(folder, allocate, **env)["fits"] for env in (own, none)] == [2, 2]
    mps.add("large", limit(512, 400))
    mps.ready(UUID)  # a server runs meanwhile: its limits change, too
    (server,) = daemon.servers()
    assert daemon.ask(f"get_active_thread_percentage {server}")[0] == "40.0"
    assert [client(folder, allocate, **env)["fits"] for env in (own, none)] == [2, 0]
    for job in ("small", "large"):
        mps.remove(job)
    assert mps.step() == []
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, [])


def test_a_crash_closes_the_gpu_until_its_tenants_are_gone_and_limits_are_right_again(folder: Path) -> None:
    mps = mps_in(folder)
    mps.add("j", limit(256))
    mps.ready(UUID)
    with started(folder, HOLD, **mps.variables(limit(256))) as process:
        line_of(process)
        assert mps.step() == []
        end(folder, control_pid(folder))
        assert mps.step() == [Crash(UUID, f"the MPS control daemon of GPU {UUID} has ended")]
        assert mps.step() == []  # it is told once
        with pytest.raises(MpsError, match="has ended"):
            mps.ready(UUID)
        finish(process, "\n")
    mps.remove("j")
    mps.step()
    assert (mps.closed, mode(folder), processes_in(folder)) == ({}, ComputeMode.DEFAULT, [])
    mps.add("j", limit(256))
    mps.ready(UUID)
    assert daemon_in(folder).ask("get_default_device_pinned_mem_limit 0")[0] == str(256 << 20)
    mps.remove("j")
    mps.step()


def test_a_server_that_ends_under_its_clients_is_a_crash(folder: Path) -> None:
    mps = mps_in(folder)
    mps.add("j", limit())
    mps.ready(UUID)
    with started(folder, HOLD, **mps.variables(limit())) as process:
        line_of(process)
        assert mps.step() == []
        (server,) = daemon_in(folder).servers()
        end(folder, server)
        assert [crash.why for crash in mps.step()] == [f"the MPS server of GPU {UUID} has ended"]
        finish(process, "\n")


def test_a_control_daemon_that_hangs_is_a_crash_and_can_be_ended(folder: Path) -> None:
    mps = mps_in(folder)
    mps.add("j", limit())
    mps.ready(UUID)
    os.kill(control_pid(folder), signal.SIGSTOP)
    again = mps_in(folder, answer_s=0.5)  # as after a restart of the daemon
    again.add("j", limit())
    assert [crash.why for crash in again.step()] == [f"the MPS control daemon of GPU {UUID} does not answer"]
    again.remove("j")
    until(lambda: again.step() == [] and again.closed == {})
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, [])


def test_a_fault_is_attributed_to_the_job_that_caused_it(folder: Path) -> None:
    mps = mps_in(folder)
    for job in ("good", "bad"):
        mps.add(job, limit())
    mps.ready(UUID)
    fault = 'call(cu.cuLaunchKernel, out(cu.cuModuleGetFunction, out(cu.cuModuleLoadData, b"i"), b"fault"), '
    fault += "1, 1, 1, 1, 1, 1, 0, 0, None, None)"
    env = mps.variables(limit())
    with started(folder, HOLD, **env) as good, started(folder, f"{HOLD}\n{fault}\nsys.stdin.readline()", **env) as bad:
        pids = [int(line_of(one).split()[1]) for one in (good, bad)]
        usage = [ProcessUsage(pid, None, None, job) for pid, job in zip(pids, ("good", "bad"), strict=True)]
        mps.note([GpuUsage(uuid=UUID, used_mib=None, utilisation=None, processes=tuple(usage))])
        assert mps.step() == []
        assert bad.stdin is not None
        bad.stdin.write("\n")
        bad.stdin.flush()
        found: list[Crash] = []

        def crashed() -> bool:
            found.extend(mps.step())
            return bool(found)

        until(crashed)
        why = f"a fault of process {pids[1]} (bad) ended all MPS clients of GPU {UUID}"
        assert found == [Crash(UUID, why, ("bad",))]
        # A victim that ends before the engine has heard of it is known as one until the GPU is open again.
        assert mps.fault_of("good") == found[0]
        assert UUID in mps.closed
    for job in ("good", "bad"):
        mps.remove(job)
    mps.step()
    mps.add("good", limit())
    assert (mps.closed, mps.fault_of("good")) == ({}, None)


def test_a_daemon_that_ran_before_is_adopted_with_its_tenants(folder: Path) -> None:
    before = mps_in(folder)
    before.add("j", limit())
    before.ready(UUID)
    pid = control_pid(folder)
    after = mps_in(folder)
    after.add("j", limit())
    assert after.step() == []
    after.ready(UUID)
    assert control_pid(folder) == pid
    after.remove("j")
    after.step()
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, [])


def test_without_the_command_what_was_left_is_cleaned_up_all_the_same(folder: Path) -> None:
    daemon_in(folder).start()
    gone = Mps(folder, "us", FileModes(folder / "mode"), Path("/nowhere/mps"))
    gone.know(UUID, MiB(1))
    gone.step()
    assert (mode(folder), processes_in(folder)) == (ComputeMode.DEFAULT, [])


def test_what_a_tenant_leaves_in_the_pipe_folder_is_removed_and_links_are_not_followed(folder: Path) -> None:
    kept = folder / "kept"
    kept.mkdir()
    (kept / "file").touch()
    daemon = daemon_in(folder)
    daemon.start()
    locked = daemon.pipe / "locked"
    (locked / "inner").mkdir(parents=True)
    locked.chmod(0)
    (daemon.pipe / "link").symlink_to(kept)
    os.mkfifo(daemon.pipe / "fifo")
    daemon.clean()
    assert not daemon.pipe.exists()
    assert not daemon.is_recorded
    for left in daemon.pipe.parent.glob("*/locked"):  # for another user than root
        left.chmod(0o700)
    assert (kept / "file").exists()
    daemon.start()
    daemon.clean()


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_tenant_that_replaces_the_pid_file_closes_its_gpu_and_nothing_hangs(
    folder: Path, put: Callable[[Path], None]
) -> None:
    mps = mps_in(folder)
    mps.add("j", limit())
    mps.ready(UUID)
    file = folder / UUID / "pipe" / "nvidia-cuda-mps-control.pid"
    file.unlink()
    put(file)
    assert [crash.why for crash in mps.step()] == [f"the MPS control daemon of GPU {UUID} has ended"]
    mps.remove("j")
    mps.step()
    assert (mps.closed, mode(folder), processes_in(folder)) == ({}, ComputeMode.DEFAULT, [])


def test_a_folder_that_cannot_be_written_to_closes_the_gpu_with_the_reason(folder: Path) -> None:
    daemon = daemon_in(folder)
    (folder / UUID / "state.json.new" / "x").mkdir(parents=True, mode=0o700)
    with pytest.raises(MpsError, match=f"GPU {UUID}: MPS cannot be started: Is a directory"):
        daemon.start()


def test_what_a_command_prints_need_not_be_text(folder: Path) -> None:
    daemon = MpsDaemon(folder / UUID, UUID, "us", FileModes(folder / "mode"), script(folder, "printf '\\377'"))
    assert daemon.ask("get_server_list") == ["\N{REPLACEMENT CHARACTER}"]


def test_an_unknown_compute_mode_is_left_as_it_is(folder: Path) -> None:
    changed: list[int] = []
    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeMode=lambda _: 7,
        nvmlDeviceSetComputeMode=lambda _, mode: changed.append(mode),
    )
    daemon = MpsDaemon(folder / UUID, UUID, "us", ComputeModes(library), command())
    assert daemon.start() == "its compute mode was not changed (it cannot be read), so others can use it, too"
    daemon.clean()
    assert changed == []


def script(folder: Path, text: str) -> Path:
    path = folder / "command"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_gpu_whose_mps_cannot_be_started_pauses_longer_each_time_until_it_can(folder: Path) -> None:
    now = 0.0
    broken = folder / "broken"
    broken.touch()
    real = shlex.quote(str(command()))
    name = script(folder, f'[ -e {shlex.quote(str(broken))} ] && {{ echo no >&2; exit 1; }}\nexec {real} "$@"')
    mps = Mps(folder, "us", FileModes(folder / "mode"), name, answer_s=30, ask_every_s=0, clock=lambda: now)
    mps.know(UUID, MiB(24576))

    def fails() -> float:
        """Seconds for which the GPU is closed."""
        nonlocal now
        mps.add("j", limit())
        with pytest.raises(MpsError, match="did not start: no"):
            mps.ready(UUID)
        mps.remove("j")
        began = now
        while mps.step() == [] and mps.closed:
            assert mps.closed[UUID].endswith(" s")
            now += 0.5
        return now - began

    assert [fails() for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    broken.unlink()
    mps.add("j", limit())
    mps.ready(UUID)
    mps.remove("j")
    mps.step()
    broken.touch()
    assert fails() == 1


def test_a_control_daemon_of_somebody_else_that_is_slow_keeps_its_sockets(folder: Path) -> None:
    daemon = daemon_in(folder)
    daemon.start()
    pid = control_pid(folder)
    (folder / UUID / "state.json").chmod(0o600)
    (folder / UUID / "state.json").write_text("{")  # so it is not known to be ours
    os.kill(pid, signal.SIGSTOP)
    slow = MpsDaemon(folder / UUID, UUID, "us", FileModes(folder / "mode"), command(), answer_s=0.5)
    for has_pid in (True, False):
        if not has_pid:
            (daemon.pipe / "nvidia-cuda-mps-control.pid").unlink()
        for act in (slow.clean, slow.start, slow.refuse_foreign):
            with pytest.raises(MpsError, match="that cotenant did not start uses"):
                act()
        assert (daemon.pipe / "control").exists()
        assert pid in processes_in(folder)


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_who_can_open_no_file_takes_nothing_for_a_crash(folder: Path) -> None:
    mps = mps_in(folder)
    mps.add("j", limit())
    mps.ready(UUID)
    assert mps.step() == []
    with no_free_descriptor():
        crashes = mps.step()
        with pytest.raises(MpsUnknownError):
            mps.ready(UUID)
        again = mps_in(folder)
    assert (crashes, mps.closed, again.ending()) == ([], {}, frozenset({UUID}))
    mps.ready(UUID)
    mps.remove("j")
    with no_free_descriptor():
        mps.step()
    assert control_pid(folder) in processes_in(folder)
    mps.step()
    assert (mps.closed, mode(folder), processes_in(folder)) == ({}, ComputeMode.DEFAULT, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [("default context of client 7", ()), ("MMU_FAULT of client 7", (7,)), ("a fatal exception: client 7", (7,))],
)
def test_a_word_of_the_log_that_contains_fault_is_not_a_fault(folder: Path, text: str, found: tuple[int, ...]) -> None:
    log = folder / "server.log"
    log.write_text(f"[now] New client 7 connected\n[now] {text}\n")
    assert culprits_in(log, 0) == found
