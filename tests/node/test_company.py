# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which processes belong to a slice is decided by what they have mapped."""

import mmap
import os
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.node.company import slice_processes, with_processes
from cotenant.node.limits import MOST_PROCESSES, Limits, SliceProcess, limits_text, parse_limits
from cotenant.node.region import make_region


def test_a_process_belongs_to_the_slice_whose_region_it_maps(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_region(tmp_path / name)
    regions = {name: tmp_path / name for name in ("a", "b", "gone")}
    assert slice_processes([os.getpid()], regions) == {"a": (), "b": (), "gone": ()}
    with open(tmp_path / "a", "r+b") as file, mmap.mmap(file.fileno(), 4096):
        found = slice_processes([os.getpid(), 2**22 + 1], regions)
    space = os.stat("/proc/self/ns/pid").st_ino
    assert [(one.host_pid, one.pid_space) for one in found["a"]] == [(os.getpid(), space)]
    assert (found["b"], found["gone"]) == ((), ())


@pytest.mark.parametrize("count", [0, 1, MOST_PROCESSES])
def test_processes_survive_the_limits_file(count: int) -> None:
    listed = tuple(SliceProcess(1000 + number, number + 1, 4026531836) for number in range(count))
    limits = with_processes(Limits(), listed)
    assert parse_limits(limits_text(limits)) == limits


def test_processes_beyond_the_format_are_not_written() -> None:
    listed = tuple(SliceProcess(number, number, 1) for number in range(1, MOST_PROCESSES + 9))
    kept = parse_limits(limits_text(Limits(processes=listed))).processes
    assert kept == listed[:MOST_PROCESSES]


@pytest.mark.parametrize("line", ["process 1", "process a 1 1"])
def test_a_malformed_line_is_refused(line: str) -> None:
    with pytest.raises(InputError):
        parse_limits(f"cotenant-limits 2\n{line}\nend\n")
