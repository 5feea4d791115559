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
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from cotenant.errors import CotenantError
from cotenant.node.devices.compute_modes import ComputeMode
from cotenant.node.limits import write_read_only
from cotenant.node.ownership import problem_of_folder

CONTROL = "nvidia-cuda-mps-control"
TOKEN = "COTENANT_MPS"
"""the variable by which the control daemon and the servers that it starts are known as ours"""
ANSWER_S = 10.0
"""after which a control daemon that has not answered is called hung"""
START_S = 30.0
QUIT_S = 5
"""seconds that clients have when their control daemon is ended; by then they should have been stopped"""
LOG_TAIL = 65_536
"""bytes at the end of the server's log in which the client that caused a fault is looked for"""
LONGEST_SOCKET = 107
_FAULT = re.compile(r"fault|fatal|exception", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_CLIENT = re.compile(r"client (\d+) connected", re.IGNORECASE)


class MpsError(CotenantError):
    """MPS cannot be used on a GPU; the message is a sentence that begins with the GPU or the path."""


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
    mode: int | None
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
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.uuid, self._folder, self._owner, self._modes, self._command = uuid, folder, owner, modes, command
        self._answer_s = answer_s
        self.pipe, self.logs, self._record = folder / "pipe", folder / "log", folder / "state.json"
        self._step = step
        """told before each step that changes something; tests kill the process there"""

    @property
    def is_recorded(self) -> bool:
        """Whether there may be something of ours to clean up."""
        state = self._state()
        return self._record.exists() if state is None else state.owner == self._owner

    def start(self) -> str | None:
        """Starts it, or finds it running; a sentence if its GPU stays open to processes outside of MPS."""
        self._make_folders()
        state = self._state()
        if state is not None and state.owner != self._owner:
            raise MpsError(
                f"another daemon of cotenant uses GPU {self.uuid} through MPS; end its jobs there, or if it exists no "
                f"longer, its control daemon with `echo quit | CUDA_MPS_PIPE_DIRECTORY={self.pipe} {CONTROL}`, and "
                f"remove {self._record}"
            )
        if state is not None and self._is_ours(state):
            return None
        if self.is_recorded:
            self.clean()
        self.refuse_foreign()
        before = self._modes.mode(self.uuid)
        if before is ComputeMode.PROHIBITED:
            raise MpsError(f"GPU {self.uuid} is in compute mode PROHIBITED; run `nvidia-smi -i {self.uuid} -c DEFAULT`")
        self._step("record")
        state = _State(owner=self._owner, token=secrets.token_hex(16), mode=None if before is None else int(before))
        write_read_only(self._record, msgspec.json.encode(state).decode())
        try:
            self._step("mode")
            exclusive = self._modes.set_mode(self.uuid, ComputeMode.EXCLUSIVE_PROCESS)
            self._step("daemon")
            self._launch(state)
            self._step("answer")
            self._until_it_answers(state)
        except MpsError:
            self.clean()
            raise
        return None if exclusive else "its compute mode was not changed (only root may), so others can use it, too"

    def clean(self) -> None:
        """Ends what is left of it and restores the compute mode; can be called again after it failed or was killed."""
        state = self._state()
        if state is not None:
            self._step("quit")
            with contextlib.suppress(MpsError):
                if self._is_ours(state):
                    self.ask(f"quit -t {QUIT_S}")
                    _wait_until(lambda: not self._processes(state), QUIT_S + 2)
            self._step("kill")
            for pid in self._processes(state):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not _wait_until(lambda: not self._processes(state), QUIT_S):
                raise MpsError(f"GPU {self.uuid}: its MPS server cannot be killed")
            self._step("restore")
            if state.mode is not None and not self._modes.set_mode(self.uuid, ComputeMode(state.mode)):
                raise MpsError(f"GPU {self.uuid}: its compute mode cannot be restored")
        elif self.is_recorded and self._modes.mode(self.uuid) is ComputeMode.EXCLUSIVE_PROCESS:
            self._modes.set_mode(self.uuid, ComputeMode.DEFAULT)  # the record is damaged: the mode before is not known
        for left in self.pipe.glob("*") if self.pipe.is_dir() else ():
            left.unlink(missing_ok=True)
        self._step("forget")
        self._record.unlink(missing_ok=True)

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
                text=True,
                timeout=self._answer_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"the MPS control daemon of GPU {self.uuid} does not answer") from None
        except OSError as error:
            raise MpsError(f"{self._command} cannot be run: {error.strerror}") from None
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
        return state is not None and _has_token(pid, state.token)

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
        try:
            return (self.logs / "server.log").stat().st_size
        except OSError:
            return 0

    def culprits(self, since: int) -> tuple[int, ...]:
        """The clients that caused the last fault, by the log from that byte on; its words differ between versions."""
        size = self.log_size()
        if size <= since:
            return ()
        try:
            with open(self.logs / "server.log", "rb") as file:
                file.seek(max(since, size - LOG_TAIL))
                lines = file.read(LOG_TAIL).decode(errors="replace").splitlines()
        except OSError:
            return ()
        known = {pid for line in lines for pid in _CLIENT.findall(line)}
        for line in reversed(lines):
            named = {int(pid) for pid in known.intersection(_NUMBER.findall(line.partition("]")[2]))}
            if named and _FAULT.search(line):
                return tuple(sorted(named))
        return ()

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
        if len(os.fsencode(self.pipe / "control")) > LONGEST_SOCKET:
            raise MpsError(f"{self.pipe}: this path is too long for a socket; COTENANT_RUNTIME names a shorter one")

    def refuse_foreign(self) -> None:
        """MpsError if a control daemon that is not ours answers on the pipe."""
        try:
            self.ask("get_server_list")
        except MpsError:
            return
        raise MpsError(
            f"an MPS control daemon that cotenant did not start answers in {self.pipe}; end it with "
            f"`echo quit | CUDA_MPS_PIPE_DIRECTORY={self.pipe} {CONTROL}`"
        )

    def _launch(self, state: _State) -> None:
        environment = self._environment() | {"CUDA_VISIBLE_DEVICES": self.uuid, TOKEN: state.token}
        try:
            done = subprocess.run(
                [str(self._command), "-d"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must stop our daemon only
                timeout=START_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MpsError(f"GPU {self.uuid}: {CONTROL} cannot be started: {error}") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise MpsError(f"GPU {self.uuid}: {CONTROL} did not start: {said[:200] or f'exit code {done.returncode}'}")

    def _until_it_answers(self, state: _State) -> None:
        def answers() -> bool:
            with contextlib.suppress(MpsError):
                return self._is_ours(state)
            return False

        if not _wait_until(answers, START_S):
            raise MpsError(f"GPU {self.uuid}: {CONTROL} was started and does not answer")

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "COTENANT_"))}
        return own | {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}

    def _state(self) -> _State | None:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=_State)
        except (OSError, msgspec.MsgspecError):
            return None

    def _is_ours(self, state: _State) -> bool:
        """Whether the control daemon on the pipe has our token; MpsError if it has, and does not answer in time."""
        if self._pid_of(state) is None:
            return False
        self.ask("get_default_active_thread_percentage")
        return True

    def _pid_of(self, state: _State) -> int | None:
        """The process ID of the control daemon on the pipe if it has our token."""
        try:
            pid = int((self.pipe / f"{CONTROL}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if _has_token(pid, state.token) else None

    def _processes(self, state: _State) -> list[int]:
        """All processes with our token."""
        return [pid for pid in _all_pids() if _has_token(pid, state.token)]


def _has_token(pid: int, token: str) -> bool:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or is of another user
        return False
    return f"{TOKEN}={token}".encode() in content.split(b"\0")


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _wait_until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
