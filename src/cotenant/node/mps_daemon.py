# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemon of one GPU: its folder, how it is started and ended, and the commands that it obeys.

What is on the disk decides. The file `state.json` is written before anything is changed and removed after everything is
restored. As long as it exists, there may be something to clean up: a control daemon or a server with the token of the
file in its environment, and a compute mode that was another one before. A control daemon on the same pipe without the
token is not ours, and is not touched.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from cotenant.node import mounts
from cotenant.node.devices.compute_modes import ComputeMode, is_instance
from cotenant.node.limits import write_read_only
from cotenant.node.mounts import mount_tmpfs, unmount
from cotenant.node.mps_files import (
    TOKEN,
    MpsError,
    MpsTimeoutError,
    MpsUnknownError,
    content_of,
    culprits_in,
    has_variable,
    mps_error,
    os_errors_as,
    processes_with,
    remove,
    size_of,
)
from cotenant.node.ownership import problem_of_folder

CONTROL = "nvidia-cuda-mps-control"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
ANSWER_S = 10.0
"""after which a control daemon that has not answered is called hung"""
START_S = 30.0
QUIT_S = 5
"""seconds that clients have when their control daemon is ended; by then they should have been stopped"""
LONGEST_SOCKET = 107
SHM_OPTIONS = "nr_inodes=100000,mode=1777"
"""of the /dev/shm that clients share with their control daemon; what they write counts as their own memory until they
end, and stays there until the last client has left"""


class Modes(Protocol):
    """The compute modes of the GPUs."""

    def mode(self, uuid: str) -> ComputeMode | None: ...

    def set_mode(self, uuid: str, mode: ComputeMode) -> bool: ...


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """The content of state.json."""

    version: int = 1
    owner: str
    """which daemon or agent of cotenant started it: there may be several on one machine"""
    token: str
    mode: ComputeMode | None
    """the compute mode before; None: it could not be read, so it was not changed"""


class Ceiling(NamedTuple):
    """The most that any one client may have: clients whose environment says less get less."""

    percent: int
    memory_mib: int


class MpsDaemon:
    """One GPU's. Its methods wait for processes, so they are called from a thread, one at a time."""

    def __init__(
        self,
        folder: Path,
        uuid: str,
        owner: str,
        modes: Modes,
        command: Path,
        *,
        answer_s: float = ANSWER_S,
        shm_percent: Callable[[], int] | None = None,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.uuid, self._folder, self._owner, self._modes, self._command = uuid, folder, owner, modes, command
        self._answer_s = answer_s
        self.pipe, self.logs, self._record = folder / "pipe", folder / "log", folder / "state.json"
        self._shm_percent, self._shm = shm_percent, None if shm_percent is None else folder / "shm"
        """/dev/shm of the control daemon, which its clients share with it, and the part of the machine's memory that it
        may have; None: they share that of the machine, and its users"""
        self._step = step
        """told before each step that changes something; tests kill the process there"""

    @property
    def is_recorded(self) -> bool:
        """Whether there may be something of ours to clean up."""
        state = self._state()
        return os.path.lexists(self._record) if state is None else state.owner == self._owner

    def start(self) -> str | None:
        """Starts it, or finds it running; a sentence if its GPU stays open to processes outside of MPS."""
        with os_errors_as(f"GPU {self.uuid}: MPS cannot be started"):
            return self._start()

    def _start(self) -> str | None:
        self._make_folders()
        state = self._state()
        if state is not None and state.owner != self._owner:
            raise MpsError(
                f"another daemon of cotenant uses GPU {self.uuid} through MPS; end its jobs there, or if it exists no "
                f"longer, its control daemon with `echo quit | {PIPE}={self.pipe} {CONTROL}`, and "
                f"remove {self._record}"
            )
        if state is not None and self._is_ours(state):
            return None
        if self.is_recorded:
            self.clean()
            self._make_folders()
        else:
            self.refuse_foreign()
        before = self._modes.mode(self.uuid)
        if before is ComputeMode.PROHIBITED:
            raise MpsError(f"GPU {self.uuid} is in compute mode PROHIBITED; run `nvidia-smi -i {self.uuid} -c DEFAULT`")
        self._step("record")
        state = _State(owner=self._owner, token=secrets.token_hex(16), mode=before)
        write_read_only(self._record, msgspec.json.encode(state).decode())
        try:
            self._step("mode")
            # A mode that cannot be read could not be restored.
            exclusive = before is not None and self._modes.set_mode(self.uuid, ComputeMode.EXCLUSIVE_PROCESS)
            self._step("daemon")
            self._launch(state)
            self._step("answer")
            self._until_it_answers(state)
        except MpsError:
            self.clean()
            raise
        if exclusive:
            return None
        if is_instance(self.uuid):
            return "a MIG instance has no compute mode, so others can use it, too"
        why = "it cannot be read" if before is None else "only root may"
        return f"its compute mode was not changed ({why}), so others can use it, too"

    def clean(self) -> None:
        """Ends what is left of it and restores the compute mode; can be called again after it failed or was killed.

        A control daemon that is not ours, or that is not known to be because the record is damaged, keeps its sockets.
        """
        with os_errors_as(f"GPU {self.uuid}: MPS cannot be ended"):
            state = self._state()
            if state is not None:
                self._end_processes(state)
            self.refuse_foreign()
            self._step("restore")
            if state is not None:
                if state.mode is not None and not self._modes.set_mode(self.uuid, state.mode):
                    raise MpsError(f"GPU {self.uuid}: its compute mode cannot be restored")
            elif self.is_recorded and self._modes.mode(self.uuid) is ComputeMode.EXCLUSIVE_PROCESS:
                self._modes.set_mode(self.uuid, ComputeMode.DEFAULT)  # the mode before is not known
            remove(self.pipe)
            if self._shm is not None and os.path.ismount(self._shm):
                unmount(str(self._shm))
            self._step("forget")
            remove(self._record)

    # What it can be asked

    def ask(self, *commands: str) -> list[str]:
        """The lines that it answers to these commands; MpsError if it does not answer."""
        text = "".join(f"{one}\n" for one in commands)
        try:
            done = subprocess.run(
                [str(self._command)],
                input=text,
                env=self._environment(),
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self._answer_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MpsTimeoutError(f"the MPS control daemon of GPU {self.uuid} does not answer") from None
        except OSError as error:
            raise mps_error(f"{self._command} cannot be run", error) from None
        if done.returncode != 0:
            raise MpsError(f"the MPS control daemon of GPU {self.uuid} has ended")
        return done.stdout.split("\n")

    def is_alive(self) -> bool:
        """Whether the process of our control daemon exists; whether it answers is another question."""
        state = self._state()
        return state is not None and self._pid_of(state) is not None

    def owns(self, pid: int) -> bool:
        """Whether a process is one of ours and has not ended."""
        state = self._state()
        return state is not None and has_variable(pid, TOKEN, state.token)

    def servers(self) -> list[int]:
        """The process IDs of its servers."""
        return [int(line) for line in self.ask("get_server_list") if line.strip().isdecimal()]

    def is_faulty(self, server: int) -> bool:
        """Whether a fatal exception has ended all clients of a server."""
        return any(line.strip() == "FAULT" for line in self.ask(f"get_server_status {server}"))

    def limit(self, ceiling: Ceiling) -> None:
        """Sets what one client may have at most; for clients that connect later, as MPS has it."""
        percent, memory = ceiling
        commands = [
            f"set_default_active_thread_percentage {percent}",
            f"set_default_device_pinned_mem_limit 0 {memory}M",
        ]
        for server in self.servers():
            commands.append(f"set_active_thread_percentage {server} {percent}")
            commands.append(f"set_device_pinned_mem_limit {server} 0 {memory}M")
        self.ask(*commands)

    def log_size(self) -> int:
        """Bytes of the log of its servers, which is kept when it ends."""
        return size_of(self.logs / "server.log")

    def culprits(self, since: int) -> tuple[int, ...]:
        """The clients that caused the last fault, by the log of its servers from that byte on."""
        return culprits_in(self.logs / "server.log", since)

    # Steps

    def _make_folders(self) -> None:
        for folder in (self._folder, self.pipe, self.logs):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                problem = problem_of_folder(folder)
            except OSError as error:
                raise MpsError(f"{folder}: cannot be made: {error.strerror}") from None
            if problem is not None:
                raise MpsError(f"{folder} {problem}")
        if self._shm is not None:
            # Clients in containers run as any user. On the node, only root passes the folder above.
            self.pipe.chmod(0o755)
        if len(os.fsencode(self.pipe / "control")) > LONGEST_SOCKET:
            raise MpsError(f"{self.pipe}: this path is too long for a socket; COTENANT_RUNTIME names a shorter one")

    def refuse_foreign(self) -> None:
        """MpsError if there is a control daemon on the pipe: to be called if ours has ended."""
        pid = self._pid()
        if pid is None or not has_variable(pid, PIPE, str(self.pipe)):
            try:
                self.ask("get_server_list")
            except MpsTimeoutError:
                pass  # it is slow, but it exists
            except MpsUnknownError:
                raise
            except MpsError:
                return
        raise MpsError(
            f"an MPS control daemon that cotenant did not start uses {self.pipe}; end it with "
            f"`echo quit | {PIPE}={self.pipe} {CONTROL}`"
        )

    def _end_processes(self, state: _State) -> None:
        self._step("quit")
        with contextlib.suppress(MpsError):
            if self._is_ours(state):
                self.ask(f"quit -t {QUIT_S}")
                _wait_until(lambda: not processes_with(state.token), QUIT_S + 2)
        self._step("kill")

        def gone() -> bool:
            """A control daemon may start a server before it is killed: each look kills what there is."""
            found = processes_with(state.token)
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not found

        if not _wait_until(gone, QUIT_S):
            raise MpsError(f"GPU {self.uuid}: its MPS server cannot be killed")

    def _launch(self, state: _State) -> None:
        environment = self._environment() | {"CUDA_VISIBLE_DEVICES": self.uuid, TOKEN: state.token}
        try:
            done = subprocess.run(
                [*self._with_shm(), str(self._command), "-d"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must stop our daemon only
                timeout=START_S,
                check=False,
            )
        except OSError as error:
            raise mps_error(f"GPU {self.uuid}: {CONTROL} cannot be started", error) from None
        except subprocess.TimeoutExpired:
            raise MpsError(f"GPU {self.uuid}: {CONTROL} did not start in {START_S:g} s") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise MpsError(f"GPU {self.uuid}: {CONTROL} did not start: {said[:200] or f'exit code {done.returncode}'}")

    def _with_shm(self) -> list[str]:
        """What starts the control daemon with a /dev/shm of its own."""
        if self._shm is None or self._shm_percent is None:
            return []
        self._shm.mkdir(mode=0o755, exist_ok=True)
        if not os.path.ismount(self._shm):
            mount_tmpfs(str(self._shm), f"size={self._shm_percent()}%,{SHM_OPTIONS}")
        return [sys.executable, "-IS", mounts.__file__, str(self._shm)]

    def _until_it_answers(self, state: _State) -> None:
        def answers() -> bool:
            with contextlib.suppress(MpsError):
                return self._is_ours(state)
            return False

        if not _wait_until(answers, START_S):
            raise MpsError(f"GPU {self.uuid}: {CONTROL} was started and does not answer")

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "COTENANT_"))}
        return own | {PIPE: str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}

    def _state(self) -> _State | None:
        try:
            return msgspec.json.decode(content_of(self._record) or b"", type=_State)
        except msgspec.MsgspecError:
            return None

    def _is_ours(self, state: _State) -> bool:
        """Whether the control daemon on the pipe has our token; MpsError if it has, and does not answer in time."""
        if self._pid_of(state) is None:
            return False
        self.ask("get_default_active_thread_percentage")
        return True

    def _pid_of(self, state: _State) -> int | None:
        """The process ID of the control daemon on the pipe if it has our token."""
        pid = self._pid()
        return pid if pid is not None and has_variable(pid, TOKEN, state.token) else None

    def _pid(self) -> int | None:
        """The process ID that the control daemon on the pipe has written, which may have ended since."""
        try:
            return int(content_of(self.pipe / f"{CONTROL}.pid") or b"")
        except ValueError:
            return None


def _wait_until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
