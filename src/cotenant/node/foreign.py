# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures CPU work on the cores of a simulated device that does not belong to its jobs.

While there is much of it, measured speeds of jobs are meaningless and are ignored.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from cotenant.node.devices.backend import Running
from cotenant.node.devices.processes import Process, job_members, process_table

SHORTEST = 0.9
"""least seconds between two samples; CPU time is counted in steps of 10 ms, so shorter intervals are too coarse"""
LONGEST = 5.0
"""seconds after which the last sample is too old to compare with"""
_TICKS = os.sysconf("SC_CLK_TCK")

Cores = tuple[int, ...]


class _Sample(NamedTuple):
    """Seconds of CPU work since boot, at one moment."""

    at: float
    cores: Mapping[int, float]
    processes: Mapping[tuple[int, int], tuple[Cores, float]]
    """of the jobs' processes, with the cores that they are pinned to"""
    own: float
    """of this process, on any core"""


class ForeignWork:
    """Computes, for each device, the share of its time that foreign work took between two samples."""

    def __init__(
        self, devices: Mapping[int, Cores], *, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`devices` maps the number of a device to its cores."""
        self._devices, self._proc, self._clock = devices, proc, clock
        self._last: _Sample | None = None

    def measure(self, leaders: Mapping[int, Cores]) -> dict[int, float]:
        """The share of foreign work by device; empty if the last sample is too recent or too old.

        `leaders` maps the process ID of each job's first process to the job's cores.
        """
        now, last = self._clock(), self._last
        if last is not None and now - last.at < SHORTEST:
            return {}
        sample = self._last = _Sample(
            now, core_seconds(self._proc), self._process_seconds(leaders), time.process_time()
        )
        if last is None or now - last.at > LONGEST:
            return {}
        foreign = {core: seconds - last.cores.get(core, seconds) for core, seconds in sample.cores.items()}
        for key, (cores, seconds) in sample.processes.items():
            _, before = last.processes.get(key, (cores, 0.0))
            for core in cores:
                foreign[core] = foreign.get(core, 0.0) - (seconds - before) / len(cores)
        # The work of this process does not count either: it serves the compute lock, which costs about the same at any
        # batch size.
        own = sample.own - last.own
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
    """Seconds that each core has been busy since boot, with any work."""
    seconds = {}
    for line in (proc / "stat").read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _, _, irq, softirq, steal = (int(tick) for tick in ticks[:8])
            seconds[int(name[3:])] = (user + nice + system + irq + softirq + steal) / _TICKS
    return seconds
