# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A machine within this machine: namespaces of its own, a network of its own, and nothing left when it ends.

What is started here ends with the process that started it, even if that is killed: the kernel kills the outermost
process then (pdeathsig), that one takes the node's first process with it, and that one everything inside, with mounts
and network.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import wait_for
from tests.cluster.binaries import Binaries

INIT = Path(__file__).with_name("init.py")
CGROUPS = Path("/sys/fs/cgroup")
CGROUP_PREFIX = "cotenant-cluster-"
NODES = "/sys/devices/system/node"
PRIVATE = ("--mount", "--net", "--pid", "--uts", "--ipc")
PROCESSES = 8
"""as many may compete outside: all pods of a machine together get as much of its CPU as so many processes would"""
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip", "openssl")


def why_impossible() -> str | None:
    """Why this process cannot have machines of its own, in a few words."""
    if os.geteuid() != 0:
        return "only root may make nodes"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"there is no {' and no '.join(missing)}"
    tried = subprocess.run(
        ["unshare", *PRIVATE, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True
    )
    if tried.returncode:
        return f"namespaces are not allowed here: {tried.stderr.strip()}"
    if not os.access(CGROUPS, os.W_OK):
        return f"{CGROUPS} cannot be written to"
    return None


@dataclass(frozen=True, slots=True)
class Machine:
    """A running node's namespaces: how to get in, and how to end it."""

    name: str
    folder: Path
    pid: int
    """of its first process, as the outside knows it"""
    outermost: subprocess.Popen[str]
    binaries: Binaries

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` inside; what runs inside ends when the one outside is killed."""
        path = f"PATH={self.binaries.path}"
        into = ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "-i"]
        return [*into, "setpriv", "--pdeathsig", "KILL", "env", path, *command]

    def run(self, *command: str, feed: str = "") -> str:
        """What `command` prints inside; raises when it fails."""
        done = subprocess.run(self.enter(command), input=feed, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"on {self.name}, {' '.join(command)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def network(self, *lines: str) -> None:
        """Gives the lines to `ip`, in this machine's network."""
        # Only the network: process numbers in the lines are the outside's.
        command = ["nsenter", "-t", str(self.pid), "-n", "ip", "-batch", "-"]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the network of {self.name}: {done.stderr.strip()}")

    def inside(self, path: str) -> Path:
        """A path of the machine, seen from outside."""
        return Path(f"/proc/{self.pid}/root{path}")

    def set_going(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Starts the machine's programs, each with a log named after it in the folder, and restarts those that end."""
        assert self.outermost.stdin is not None
        self.outermost.stdin.write(json.dumps(commands) + "\n")
        self.outermost.stdin.flush()

    def send(self, program: str, number: signal.Signals) -> None:
        """Sends a signal to a program that was set going."""
        self.kill(int((self.folder / f"{program}.pid").read_text()), number)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the process that has this number inside."""
        self.run("sh", "-c", f"kill -{number:d} {pid}")

    def restart(self, program: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a program by a signal, and waits until it has been started again."""
        before = (self.folder / f"{program}.pid").read_text()
        self.send(program, number)
        wait_for(f"{program} of {self.name} to be another process", lambda: self._pid(program) not in (None, before))

    @contextlib.contextmanager
    def without(self, program: str) -> Iterator[None]:
        """Ends a program, and starts it again afterwards."""
        held = self.folder / f"{program}.held"
        held.touch()
        try:
            self.send(program, signal.SIGKILL)
            wait_for(f"the end of {program} of {self.name}", lambda: self._pid(program) is None)
            yield
        finally:
            held.unlink()
            wait_for(f"{program} of {self.name}", lambda: self._pid(program))

    @contextlib.contextmanager
    def hanging(self, program: str) -> Iterator[None]:
        """Lets a program hang: it is there, and does nothing."""
        self.send(program, signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(program, signal.SIGCONT)

    def _pid(self, program: str) -> str | None:
        file = self.folder / f"{program}.pid"
        return file.read_text() if file.exists() else None

    def processes(self, words: str) -> list[int]:
        """The numbers, inside, of the processes whose command line contains these words."""
        found = []
        for process in self.inside("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                if words in (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(process.name))
        return sorted(found)

    def end(self) -> None:
        """Ends everything that runs inside, and waits until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.outermost.wait()
        for stream in (self.outermost.stdin, self.outermost.stdout):
            assert stream is not None
            stream.close()


def start_machine(name: str, folder: Path, binaries: Binaries) -> Machine:
    """An empty machine, with neither network nor programs."""
    folder.mkdir(parents=True)
    outside = ["setpriv", "--pdeathsig", "KILL", "unshare", *PRIVATE, "--fork", "--kill-child"]
    with open(folder / "init.log", "w") as log:
        outermost = subprocess.Popen(
            [*outside, sys.executable, "-I", str(INIT), str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={"PATH": binaries.path, "HOME": str(folder)},
            start_new_session=True,  # Ctrl-C is for the tests; they end this
        )
    assert outermost.stdout is not None
    said = outermost.stdout.readline()
    if not said:
        outermost.wait()
        raise RuntimeError(f"{name} did not start: {(folder / 'init.log').read_text()}")
    return Machine(name, folder, int(said), outermost, binaries)


def show_numa_nodes(machine: Machine, number: int) -> None:
    """Lets programs of a machine find so many NUMA nodes, which share the CPUs and the memory of the real ones."""
    tree = machine.folder / "numa"
    cpus = sorted(Path(NODES).parent.glob("cpu/cpu[0-9]*"))
    for node in range(number):
        folder = tree / f"node{node}"
        (folder / "hugepages").mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {node} MemTotal:       {8 << 20} kB\n")
        (folder / "distance").write_text(" ".join("10" if other == node else "21" for other in range(number)) + "\n")
        for cpu in cpus[node::number]:
            (folder / cpu.name).symlink_to(cpu)
    for file in ("online", "possible"):
        (tree / file).write_text(f"0-{number - 1}\n")
    machine.run("mount", "--bind", str(tree), NODES)


def make_cgroup(machine: Machine) -> str:
    """The cgroup for a machine's pods, as kubelet wants it named."""
    name = f"{CGROUP_PREFIX}{machine.pid}"
    for hierarchy in _hierarchies():
        _hand_controllers_down(hierarchy)
        (hierarchy / name).mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 starts with none
            if (hierarchy / setting).exists():
                (hierarchy / name / setting).write_text((hierarchy / setting).read_text())
        for setting, one in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (hierarchy / name / setting).exists():
                (hierarchy / name / setting).write_text(str(PROCESSES * one))
        _hand_controllers_down(hierarchy / name)
    return f"/{name}"


def _hand_controllers_down(folder: Path) -> None:
    controllers = folder / "cgroup.controllers"  # only version 2 has it
    if controllers.exists():
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers.read_text().split()))


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if folder.is_dir() and not folder.is_symlink()]


def remove_cgroups() -> None:
    """Removes the cgroups of all machines that have ended, whoever had started them."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob(f"{CGROUP_PREFIX}*"):
            # What has ended has no network any more, even before its parent takes note.
            if not Path(f"/proc/{group.name.removeprefix(CGROUP_PREFIX)}/ns/net").exists():
                for folder, _, _ in os.walk(group, topdown=False):
                    with contextlib.suppress(FileNotFoundError):  # another test process removes it too
                        os.rmdir(folder)
