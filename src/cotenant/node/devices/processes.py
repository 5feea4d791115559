# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which processes belong to which job: all descendants of its supervisor, which also adopts orphaned ones."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MIB_BYTES, MiB
from cotenant.node.devices.backend import Running

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    started: int
    """Clock ticks after boot; together with the pid it identifies a process for good."""
    cpu_s: float
    memory: MiB
    """Resident."""


def process_table(proc: Path = Path("/proc")) -> list[Process]:
    """All processes that can be read; those that end meanwhile are left out."""
    found = (read_process(int(name), proc) for name in os.listdir(proc) if name.isdecimal())
    return [process for process in found if process is not None]


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """One process, None if it cannot be read (any more)."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return _parse_stat(pid, stat)


def _parse_stat(pid: int, stat: str) -> Process:
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        memory=MiB(int(fields[21]) * _PAGE // MIB_BYTES),
    )


def job_members(jobs: Iterable[Running], table: Sequence[Process]) -> dict[str, list[Process]]:
    """The processes of each job, without the supervisor itself."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process)
    members: dict[str, list[Process]] = {}
    for job in jobs:
        found: dict[int, Process] = {}
        waiting = list(children.get(job.supervisor, ()))
        while waiting:
            process = waiting.pop()
            if process.pid not in found:  # the table is not a snapshot, so a pid may seem to be its own ancestor
                found[process.pid] = process
                waiting += children.get(process.pid, ())
        members[job.job] = sorted(found.values())
    return members
