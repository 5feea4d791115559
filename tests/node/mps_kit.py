# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of MPS share: the stand-in's control daemon, and compute modes in a file, which outlive a process."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cotenant.node.devices.compute_modes import ComputeMode
from cotenant.node.mps_daemon import CONTROL, MpsDaemon
from cotenant.node.mps_files import MpsError
from tests.native import kit

UUID = kit.gpu()
PATIENCE_S = 180.0


class FileModes:
    """The compute mode of one GPU, in a file; `allowed` is whether it may be changed."""

    def __init__(self, path: Path, allowed: bool = True) -> None:
        self._path, self._allowed = path, allowed

    def mode(self, uuid: str) -> ComputeMode | None:
        return ComputeMode(int(self._path.read_text())) if self._path.exists() else ComputeMode.DEFAULT

    def set_mode(self, uuid: str, mode: ComputeMode) -> bool:
        if self._allowed:
            self._path.write_text(str(int(mode)))
        return self.mode(uuid) is mode


def command() -> Path:
    return kit.mps() / CONTROL


def daemon_in(folder: Path, step: Callable[[str], None] = lambda _: None, owner: str = "us") -> MpsDaemon:
    return MpsDaemon(folder / UUID, UUID, owner, FileModes(folder / "mode"), command(), answer_s=30, step=step)


def processes_in(folder: Path) -> list[int]:
    """All processes of MPS whose pipe is in that folder."""
    found = []
    mark = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(folder)
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if any(one.startswith(mark) for one in environ.read_bytes().split(b"\0")):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def short_folder() -> Iterator[Path]:
    """With a short path, for sockets; afterwards no MPS of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="ctm"))
    try:
        yield folder
    finally:
        for pid in processes_in(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def killed_at(folder: Path, action: str, at: str) -> None:
    """For a process of its own: does one thing and is killed before that step."""

    def step(name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    daemon = daemon_in(folder, step)
    try:
        daemon.start() if action == "start" else daemon.clean()
    except MpsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    killed_at(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
