# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An interpreter without newer calls of Linux, as uv installs them, has them nevertheless."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.node import kernel


@pytest.fixture(params=["own", "missing"])
def _interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own functions, or none."""
    if request.param == "missing":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.usefixtures("_interpreter")
def test_a_process_is_signalled_by_its_handle() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        handle = kernel.open_process(child.pid)
        try:
            assert not os.get_inheritable(handle)
            kernel.send_signal(handle, signal.SIGTERM)
            assert child.wait() == -signal.SIGTERM
            with pytest.raises(ProcessLookupError):
                kernel.send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)


@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("call", [kernel.open_process, lambda pid: kernel.send_signal(pid, 0)])
def test_what_is_not_there_is_an_error(call: Callable[[int], object]) -> None:
    with pytest.raises(OSError, match=r"No such process|Bad file descriptor|Invalid argument"):
        call(2**22 + 1)


@pytest.mark.usefixtures("_interpreter")
def test_a_file_in_memory_is_read_by_its_descriptor() -> None:
    handle = kernel.file_in_memory("client")
    try:
        os.write(handle, b"key")
        assert Path(f"/proc/self/fd/{handle}").read_bytes() == b"key"
        assert os.readlink(f"/proc/self/fd/{handle}").startswith("/memfd:client")
        assert not os.get_inheritable(handle)
    finally:
        os.close(handle)


WITHOUT = """
import fcntl, os, signal, sys
for module, name in ((os, "pidfd_open"), (os, "memfd_create"), (signal, "pidfd_send_signal"), (fcntl, "F_OFD_GETLK")):
    delattr(module, name)
real = os.posix_spawn
def spawn(*arguments, **options):
    if "setsid" in options:
        raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
    return real(*arguments, **options)
os.posix_spawn = spawn
"""
"""What makes an interpreter lack what one lacks that was built for glibc 2.17, in each process that it starts."""


@pytest.mark.slow
def test_a_machine_with_an_interpreter_of_uv_runs_and_cancels_jobs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "COTENANT_STATE": str(tmp_path / "s")}
    env["COTENANT_RUNTIME"] = str(tmp_path / "r")

    def run(*words: str) -> str:
        command = [sys.executable, "-c", "from cotenant.cli.main import main; main()", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "cotenant is up" in run("up", "--detach", "--simulate", "1", "--gpu-memory", "1GiB")
    try:
        run("submit", "--memory", "64MiB", "--wait", "--", "true")
        run("submit", "--memory", "64MiB", "--name", "long", "--", "sleep", "100")
        assert "was cancelled" in run("cancel", "long")
    finally:
        run("down", "--wait")
