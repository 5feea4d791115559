# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The first process of a node: it makes the private places, runs the node's programs, and all of them end with it.

It runs as process 1 of fresh namespaces (`machine.py`), so the kernel ends everything that was started here when it
goes, whatever it goes by. It says its process number as the outside knows it, reads one line that tells what to run,
and runs that until it is killed: what ends is started again, unless a file NAME.held says to wait. NAME.pid has the
process number that a program has inside, and NAME.env may have variables for it (JSON). Standard library only.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

# Kubelet sets these for the whole machine; here it reads and writes files that only look like them.
MACHINE_WIDE = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
RESTART_AFTER = 0.2
LOOK_EVERY = 0.05


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def make_private(folder: Path) -> None:
    """Gives this node its own /run, /var/lib, /var/log, /proc and settings of the kernel; only logs are on disk."""
    mount("-t", "proc", "proc", "/proc")
    mount("--make-rshared", "/")  # as on a machine of its own: kubelet hands mounts on to containers
    for place in ("/run", "/var/lib"):
        mount("-t", "tmpfs", "tmpfs", place)
    for inside in ("/run/lock", "/run/netns"):
        Path(inside).mkdir()
    (folder / "pods").mkdir()
    mount("--bind", str(folder / "pods"), "/var/log")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this network only
    for name in MACHINE_WIDE:
        real = Path("/proc/sys") / name
        if real.exists():
            copy = folder / "sysctl" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(real.read_text())
            mount("--bind", str(copy), str(real))


def start(command: list[str], log: str, variables: Path) -> int:
    environment = {**os.environ, **(json.loads(variables.read_text()) if variables.exists() else {})}
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    outputs = [(os.POSIX_SPAWN_OPEN, 1, log, appending, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawnp(
        command[0], command, environment, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *outputs]
    )


def main(folder: Path, name: str) -> None:
    print(os.readlink("/proc/self"), flush=True)  # still the outer /proc
    socket.sethostname(name)
    make_private(folder)
    commands: dict[str, list[str]] = json.loads(sys.stdin.readline())
    running: dict[int, str] = {}
    due = dict.fromkeys(commands, 0.0)
    while True:
        for program, when in list(due.items()):
            if time.monotonic() >= when and not (folder / f"{program}.held").exists():
                del due[program]
                pid = start(commands[program], f"{folder}/{program}.log", folder / f"{program}.env")
                running[pid] = program
                (folder / f"{program}.pid").write_text(str(pid))
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)  # also whatever lost its parent
        except ChildProcessError:
            ended, status = 0, 0
        if program := running.pop(ended, ""):
            (folder / f"{program}.pid").unlink()
            due[program] = time.monotonic() + RESTART_AFTER
            with open(f"{folder}/{program}.log", "a") as log:
                log.write(f"--- {program} ended with {status}; it is started again\n")
        if not ended:
            time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
