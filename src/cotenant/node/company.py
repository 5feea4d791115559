# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the processes on a GPU belong to which slice, by what no tenant can forge.

A process of a slice maps the slice's usage region, and a process of another slice cannot be made to do so. The kernel
shows both by the process IDs of the host, which NVML reports too, so the result holds across PID namespaces.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cotenant.node.limits import MOST_PROCESSES, Limits, SliceProcess

FileId = tuple[int, int]
"""device and inode of a file"""


def slice_processes(
    pids: Iterable[int], regions: Mapping[str, Path], proc: Path = Path("/proc")
) -> dict[str, tuple[SliceProcess, ...]]:
    """The processes among `pids` (of the host) that belong to each slice; `regions` are usage regions by slice."""
    names = {found: name for name, path in regions.items() if (found := _file_id(path)) is not None}
    members: dict[str, list[SliceProcess]] = {name: [] for name in regions}
    for pid in sorted(set(pids)):
        process = _identify(pid, proc)
        name = next((names[found] for found in _mapped_files(pid, proc) if found in names), None)
        if process is not None and name is not None:
            members[name].append(process)
    return {name: tuple(found[:MOST_PROCESSES]) for name, found in members.items()}


def with_processes(limits: Limits, processes: tuple[SliceProcess, ...]) -> Limits:
    """The limits with the processes of the slice, for `change_limits`."""
    return replace(limits, processes=processes)


def _file_id(path: Path) -> FileId | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mapped_files(pid: int, proc: Path) -> Iterable[FileId]:
    """The files that a process has mapped; none if it has ended or cannot be inspected."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        if inode != "0":
            major, minor = (int(part, 16) for part in device.split(":"))
            yield os.makedev(major, minor), int(inode)


def _identify(pid: int, proc: Path) -> SliceProcess | None:
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
        space = os.stat(proc / str(pid) / "ns" / "pid").st_ino
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return SliceProcess(pid, int(numbers[-1]) if numbers else pid, space)
