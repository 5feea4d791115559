# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in of MPS: its command language, and that it really limits its clients over the stand-in driver."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.standins import MILLISECOND, client, finish, line_of, started

EXCLUSIVE = 3
HOLD = """
begin()
tell(pid=os.getpid())
sys.stdin.readline()
tell(later=cu.cuCtxSynchronize())
"""
LOSE = HOLD.replace("tell(later=", "import time\nwhile not cu.cuCtxSynchronize():\n    time.sleep(0.01)\ntell(later=")


class Mps:
    """A control daemon of the stand-in, and the folder of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}

    def run(self, *words: str, text: str | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
        command = [str(kit.mps() / "nvidia-cuda-mps-control"), *words]
        given = os.environ | self.variables | env
        return subprocess.run(command, env=given, input=text, capture_output=True, text=True, timeout=300, check=False)

    def ask(self, command: str) -> list[str]:
        done = self.run(text=command)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    @property
    def pid(self) -> int:
        return int((self.folder / "nvidia-cuda-mps-control.pid").read_text())

    @property
    def server(self) -> str:
        (pid,) = self.ask("get_server_list")
        return pid


@pytest.fixture
def mps() -> Iterator[Mps]:
    one = Mps(Path(tempfile.mkdtemp(prefix="mps")))  # the path of a socket must be short
    assert one.run("-d").returncode == 0
    try:
        yield one
    finally:
        one.run(text="quit -t 0")
        until_ended(one.folder / "control")
        shutil.rmtree(one.folder)


def until_ended(path: Path) -> None:
    deadline = time.monotonic() + 60
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_commands_are_answered_in_the_words_of_mps(mps: Mps) -> None:
    assert mps.ask("get_server_list") == []
    assert mps.ask("get_default_active_thread_percentage") == ["100.0"]
    assert mps.ask("set_default_active_thread_percentage 40") == ["40.0"]
    mps.ask(f"set_default_device_pinned_mem_limit 0 2G\nstart_server -uid {os.getuid()}")
    pid = mps.server
    assert mps.ask(f"get_active_thread_percentage {pid}") == ["40.0"]
    assert mps.ask(f"get_device_pinned_mem_limit {pid} 0") == [str(2 << 30)]
    mps.ask(f"set_active_thread_percentage {pid} 30\nset_device_pinned_mem_limit {pid} 0 1G")
    assert mps.ask(f"get_active_thread_percentage {pid}") == ["30.0"]
    assert mps.ask("get_default_active_thread_percentage") == ["40.0"]
    assert mps.ask(f"get_server_status {pid}") == ["ACTIVE"]
    assert mps.ask("dance") == ["Unknown", "command", "dance"]
    assert mps.run("-d").stderr == "An instance of this daemon is already running\n"


def test_a_client_is_held_to_the_smaller_of_its_own_limit_and_the_servers(mps: Mps, tmp_path: Path) -> None:
    script = "begin()\ntell(fits=call(cu.cuMemAlloc_v2, ctypes.byref(ctypes.c_uint64()), %d * MIB))"
    own = mps.variables | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M"}
    assert client(tmp_path, script % 500, **own) == {"fits": 0}
    assert client(tmp_path, script % 600, **own) == {"fits": 2}
    mps.ask(f"set_device_pinned_mem_limit {mps.server} 0 256M")
    assert client(tmp_path, script % 300, **own) == {"fits": 2}
    assert client(tmp_path, script % 300) == {"fits": 0}  # without MPS


def test_a_client_gets_its_share_of_the_device(mps: Mps, tmp_path: Path) -> None:
    script = f"""
begin()
function, began = kernel({2 * MILLISECOND}), cu.standinNow()
for _ in range(20):
    launch(function)
ok(cu.cuCtxSynchronize())
tell(took=cu.standinNow() - began)
"""
    quarter = client(tmp_path, script, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25", **mps.variables)["took"]
    assert quarter >= 19 * 8 * MILLISECOND


def test_in_exclusive_process_mode_only_clients_of_mps_share_a_device(mps: Mps, tmp_path: Path) -> None:
    mode = f"""
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
ok(nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
tell(set=nvml.nvmlDeviceSetComputeMode(device, {EXCLUSIVE}))
"""
    one = "tell(init=cu.cuInit(0), made=call(cu.cuDevicePrimaryCtxRetain, ctypes.byref(ctypes.c_void_p()), 0))"
    assert client(tmp_path, mode, unprivileged=1) == {"set": 4}
    assert client(tmp_path, mode) == {"set": 0}
    assert client(tmp_path, one) == {"init": 0, "made": 0}
    with started(tmp_path, HOLD, **mps.variables) as process:
        pid = line_of(process).split()[1]
        assert client(tmp_path, one) == {"init": 0, "made": 46}
        assert client(tmp_path, one, **mps.variables) == {"init": 0, "made": 0}
        assert mps.ask(f"get_client_list {mps.server}") == [pid]
        assert finish(process, "\n") == {"later": 0}


def test_clients_beyond_the_limit_are_refused(mps: Mps, tmp_path: Path) -> None:
    mps.run(text="quit")
    until_ended(mps.folder / "control")
    assert mps.run("-d", STANDIN_MPS_CLIENTS="1").returncode == 0
    with started(tmp_path, HOLD, **mps.variables) as process:
        line_of(process)
        assert client(tmp_path, "tell(init=cu.cuInit(0))", **mps.variables) == {"init": 808}
        finish(process, "\n")


def test_a_fault_in_one_client_ends_all_and_names_the_culprit(mps: Mps, tmp_path: Path) -> None:
    culprit = "begin()\ntell(pid=os.getpid(), fault=call(cu.cuLaunchKernel, out(cu.cuModuleGetFunction, "
    culprit += 'out(cu.cuModuleLoadData, b"image"), b"fault"), 1, 1, 1, 1, 1, 1, 0, 0, None, None))'
    with started(tmp_path, LOSE, **mps.variables) as process:
        line_of(process)
        said = client(tmp_path, culprit, **mps.variables)
        assert said["fault"] == 719
        assert mps.ask(f"get_server_status {mps.server}") == ["FAULT"]
        assert client(tmp_path, "tell(init=cu.cuInit(0))", **mps.variables) == {"init": 807}
        assert finish(process, "\n") == {"later": 719}
    assert f"Client {said['pid']} caused a fatal exception" in (mps.folder / "server.log").read_text()


def test_a_client_can_be_terminated_alone(mps: Mps, tmp_path: Path) -> None:
    with started(tmp_path, LOSE, **mps.variables) as first, started(tmp_path, HOLD, **mps.variables) as second:
        pids = [line_of(one).split()[1] for one in (first, second)]
        assert mps.ask(f"terminate_client {mps.server} {pids[0]}") == []
        assert [finish(one, "\n")["later"] for one in (first, second)] == [810, 0]


def test_clients_of_a_server_that_is_killed_have_lost_their_device(mps: Mps, tmp_path: Path) -> None:
    with started(tmp_path, LOSE, **mps.variables) as process:
        line_of(process)
        os.kill(int(mps.server), signal.SIGKILL)
        assert finish(process, "\n") == {"later": 806}


def test_clients_outlive_a_control_daemon_that_is_killed(mps: Mps, tmp_path: Path) -> None:
    with started(tmp_path, HOLD, **mps.variables) as process:
        line_of(process)
        server = int(mps.server)
        os.kill(mps.pid, signal.SIGKILL)
        assert mps.run(text="get_server_list").returncode == 1
        assert finish(process, "\n") == {"later": 0}
        os.kill(server, signal.SIGKILL)
        (mps.folder / "control").unlink()
