# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Processes as the kernel shows them, and all processes of one job as a tree."""

import os
import signal
import time
from contextlib import suppress
from typing import NamedTuple

from cotenant.node.kernel import open_process, send_signal

PAGE = os.sysconf("SC_PAGE_SIZE")
STOP_S = 0.1
"""how long processes of a job may take in all to stop before their children are stopped all the same"""


class Seen(NamedTuple):
    """The fields of /proc/PID/stat that we need."""

    state: str
    parent: int
    session: int
    start: int  # in clock ticks since boot; together with the pid it identifies a process uniquely


def look_at(pid: int) -> Seen | None:
    """A process as it is now; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may contain spaces and brackets
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Seen(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])) if len(fields) > 19 else None


def all_pids() -> set[int]:
    """Every process that this one can see."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> number - 1 & 1)
    return False


def send(pid: int, start: int, number: int) -> None:
    """Signals a process, never a later one with its pid: the handle is opened before the start time is compared."""
    try:
        handle = open_process(pid)
    except OSError:
        return
    try:
        seen = look_at(pid)
        if seen is not None and seen.start == start:
            send_signal(handle, number)
    except OSError:
        pass  # it has ended, or belongs to another user now (setuid)
    finally:
        os.close(handle)


class Tree:
    """All descendants of this process. It is their subreaper, so even those that leave the session stay descendants."""

    def __init__(self) -> None:
        self.members: dict[int, int] = {}  # pid -> start time
        self._others: set[int] = {0}
        self._overcounted: dict[int, int] = {}  # pid -> bytes of its resident pages that are not counted for the job
        self._measure_at = 0.0

    def refresh(self, thorough: bool = False) -> None:
        """Finds new and ended processes; only unknown pids are read, so usually it costs one directory listing."""
        if thorough:
            self.members, self._others = {}, {0}
        listed = all_pids()
        listed.discard(os.getpid())
        self.members = {pid: start for pid, start in self.members.items() if pid in listed}
        self._others &= listed | {0}
        unknown = {pid: seen for pid in listed - self.members.keys() - self._others if (seen := look_at(pid))}
        found = True
        while found:  # a child may be listed before its parent
            found = False
            for pid, seen in list(unknown.items()):
                if seen.parent == os.getpid() or seen.parent in self.members:
                    self.members[pid] = seen.start
                elif seen.parent in self._others:
                    self._others.add(pid)
                else:
                    continue  # its parent is not known yet: decided in this loop or at the next refresh
                del unknown[pid]
                found = True

    def signal(self, number: int) -> None:
        """Signals every known member."""
        for pid, start in self.members.items():
            send(pid, start, number)

    def cpu_s(self, before: dict[int, float]) -> float:
        """CPU seconds used since `before`, which is updated; the last moments of ended processes are not counted."""
        used = 0.0
        now: dict[int, float] = {}
        for pid in self.members:
            try:
                now[pid] = time.clock_gettime(~pid << 3 | 2)  # the clock id of the CPU time of a process
            except OSError:
                continue
            used += now[pid] - before.get(pid, 0.0)
        before.clear()
        before.update(now)
        return used

    def memory(self, limit: int | None, now: float) -> int:
        """Bytes that count for the job: resident pages, each shared page once, without pages of mapped files.

        The exact number costs milliseconds, the sum of resident sizes microseconds, and their difference changes
        slowly. So the difference is stored per process, and measured again about once a second, or when the estimate
        exceeds the limit.
        """
        resident = {pid: size for pid in self.members if (size := resident_bytes(pid))}
        estimate = sum(max(size - self._overcounted.get(pid, 0), 0) for pid, size in resident.items())
        if now < self._measure_at and (limit is None or estimate <= limit):
            return estimate
        began = time.monotonic()
        exact = {pid: size if (charged := charged_bytes(pid)) is None else charged for pid, size in resident.items()}
        self._overcounted = {pid: size - exact[pid] for pid, size in resident.items()}
        self._measure_at = now + max(1.0, 100 * (time.monotonic() - began))  # at most 1 % of a core
        return sum(exact.values())


def resident_bytes(pid: int) -> int:
    """The resident size of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def charged_bytes(pid: int) -> int | None:
    """Its share of resident pages without those of mapped files; None: the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines()[1:])
        return (int(lines[b"Pss"].split()[0]) - int(lines.get(b"Pss_File", b"0").split()[0])) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


def signal_job(tree: Tree, leader: int, number: int, patience_s: float = STOP_S) -> None:
    """Signals the job's process group and every other member of its tree, each only once.

    A second SIGTERM may mean something else to a program. Call it only before the leader is reaped: until then no other
    process group can have its number. A shell that sees its child stopped thinks that Ctrl-Z was pressed, so parents
    are stopped before their children and continued after them.
    """
    others = sorted(tree.members.items(), key=lambda member: (member[1], member[0]), reverse=number == signal.SIGCONT)
    until = time.monotonic() + patience_s
    if number != signal.SIGCONT:
        with suppress(OSError):  # it is not the leader of a group yet
            os.killpg(leader, number)
        if number == signal.SIGSTOP and len(others) > 1:
            _await_stop(leader, until)
    for pid, start in others:
        with suppress(OSError):
            if os.getpgid(pid) != leader:
                send(pid, start, number)
                if number == signal.SIGSTOP:
                    _await_stop(pid, until)
    if number == signal.SIGCONT:
        with suppress(OSError):
            os.killpg(leader, number)


def _await_stop(pid: int, until: float) -> None:
    """Waits until a process runs no more: on a busy machine, SIGSTOP takes effect milliseconds after it was sent."""
    while (seen := look_at(pid)) is not None and seen.state not in "TtZX" and time.monotonic() < until:
        time.sleep(0.0005)
