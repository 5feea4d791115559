# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Work on a simulated device's cores that no job of ours does: while there is much of it, no speed means anything."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from cotenant.node.devices.backend import Running
from cotenant.node.devices.processes import Process, job_members, process_table

SHORTEST = 0.9
"""seconds between two looks; processor time is counted in hundredths of a second, so shorter ones say little"""
LONGEST = 5.0
"""seconds after which the last look is forgotten"""
_TICKS = os.sysconf("SC_CLK_TCK")

Cores = tuple[int, ...]


class _Look(NamedTuple):
    """Seconds of work so far."""

    at: float
    cores: Mapping[int, float]
    processes: Mapping[tuple[int, int], tuple[Cores, float]]
    """of our jobs, with the cores they are kept on"""
    own: float
    """of this process, wherever it ran"""


class ForeignWork:
    """The share of each device's time that went to others, from one look to the next."""

    def __init__(
        self, devices: Mapping[int, Cores], *, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`devices` by number, with the cores of each."""
        self._devices, self._proc, self._clock = devices, proc, clock
        self._last: _Look | None = None

    def look(self, leaders: Mapping[int, Cores]) -> dict[int, float]:
        """By device; nothing where the last look was just now or long ago. `leaders` of jobs, with their cores."""
        now, last = self._clock(), self._last
        if last is not None and now - last.at < SHORTEST:
            return {}
        look = self._last = _Look(now, core_seconds(self._proc), self._process_seconds(leaders), time.process_time())
        if last is None or now - last.at > LONGEST:
            return {}
        foreign = {core: seconds - last.cores.get(core, seconds) for core, seconds in look.cores.items()}
        for key, (cores, seconds) in look.processes.items():
            _, before = last.processes.get(key, (cores, 0.0))
            for core in cores:
                foreign[core] = foreign.get(core, 0.0) - (seconds - before) / len(cores)
        # What this process did is no disturbance either: it serves the engine, at any batch size about alike.
        own = look.own - last.own
        return {
            device: max(0.0, sum(foreign[core] for core in cores) - own) / (len(cores) * (now - last.at))
            for device, cores in self._devices.items()
        }

    def _process_seconds(self, leaders: Mapping[int, Cores]) -> dict[tuple[int, int], tuple[Cores, float]]:
        table = process_table(self._proc)
        jobs = [Running(job=str(leader), gpus=(), supervisor=leader) for leader in leaders]
        members = job_members(jobs, table)
        found: dict[tuple[int, int], tuple[Cores, float]] = {}
        for process in table:
            if process.pid in leaders:
                found |= _seconds([process, *members[str(process.pid)]], leaders[process.pid])
        return found


def _seconds(processes: Iterable[Process], cores: Cores) -> dict[tuple[int, int], tuple[Cores, float]]:
    return {(process.pid, process.started): (cores, process.cpu_s) for process in processes}


def core_seconds(proc: Path = Path("/proc")) -> dict[int, float]:
    """Seconds that each core has been busy since the machine started, whoever used it."""
    seconds = {}
    for line in (proc / "stat").read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _, _, irq, softirq, steal = (int(tick) for tick in ticks[:8])
            seconds[int(name[3:])] = (user + nice + system + irq + softirq + steal) / _TICKS
    return seconds
