# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the start-up time of commands: the installed console script, from exec to exit."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Figure, at_most, benchmark

RUNS = 21
LIMIT_MS = 150


@benchmark("cli-start")
def cli_start() -> Iterator[Figure]:
    """Measures `--version`, `--help`, and `jobs` with and without a daemon, beside an interpreter that does nothing."""
    cotenant = str(Path(sys.executable).with_name("cotenant"))
    bare = [sys.executable, "-c", "pass"]
    with daemon(cotenant) as (there, nowhere):
        plain, version, helped, listed, alone = interleaved(
            (bare, there),
            ([cotenant, "--version"], there),
            ([cotenant, "--help"], there),
            ([cotenant, "jobs"], there),
            ([cotenant, "jobs"], nowhere),
        )
    baseline = f"python -c pass {plain:.0f}"
    note = f"median of {RUNS}, user and system time"
    yield at_most("cotenant --version, CPU", version, "ms", limit=LIMIT_MS, baseline=baseline, note=note)
    yield at_most("cotenant --help, CPU", helped, "ms", limit=LIMIT_MS, baseline=baseline, note=note)
    yield at_most("cotenant jobs, CPU", listed, "ms", limit=LIMIT_MS, baseline=baseline, note=note)
    yield at_most("cotenant jobs, no daemon, CPU", alone, "ms", limit=LIMIT_MS, baseline=baseline, note=note)


Timed = tuple[list[str], dict[str, str]]


def interleaved(*commands: Timed) -> list[float]:
    """The median CPU milliseconds of each command; they run in turns, so that a busy moment affects all alike."""
    rounds = [[cpu_ms(*command) for command in commands] for _ in range(RUNS + 1)]
    return [statistics.median(column) for column in zip(*rounds[1:], strict=True)]  # the first round fills caches


def cpu_ms(command: list[str], env: dict[str, str]) -> float:
    """CPU time of a process from start to exit, as counted by the kernel."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(command[0], command, env, file_actions=quiet)
    usage = os.wait4(pid, 0)[2]
    return (usage.ru_utime + usage.ru_stime) * 1000


@contextmanager
def daemon(cotenant: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Environments with and without a daemon."""
    state = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    there = {**os.environ, "COTENANT_STATE": str(state)}
    up = [cotenant, "up", "--detach", "--simulate", "1", "--gpu-memory", "1GiB"]
    try:
        subprocess.run(up, env=there, check=True, stdout=subprocess.DEVNULL)
        yield there, {**there, "COTENANT_STATE": str(state / "nowhere")}
        subprocess.run([cotenant, "down", "--wait"], env=there, check=True, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(state, ignore_errors=True)
