# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The list of a slice's processes: what an agent can know of a process, and a file that changes only with it."""

import os
import stat
from pathlib import Path

from cotenant.node.company import (
    MOST_PROCESSES,
    UNKNOWN_SPACE,
    SliceProcess,
    identify,
    write_list,
)
from tests.node.process_lists import read_list


def process_in(proc: Path, pid: int, *inner: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "status").write_text("Name:\tjob\nNSpid:\t" + "\t".join(map(str, (pid, *inner))) + "\n")


def test_a_process_is_known_by_its_ids_on_the_host_and_in_its_namespace(tmp_path: Path) -> None:
    process_in(tmp_path, 40213, 17)
    process_in(tmp_path, 40214, 300, 1)  # a namespace within a namespace
    assert identify(40213, tmp_path) == SliceProcess(40213, 17, UNKNOWN_SPACE)
    assert identify(40214, tmp_path) == SliceProcess(40214, 1, UNKNOWN_SPACE)
    assert identify(40215, tmp_path) is None
    assert identify(os.getpid()) == SliceProcess(os.getpid(), os.getpid(), os.stat("/proc/self/ns/pid").st_ino)


def test_a_list_is_written_only_if_it_has_changed_and_no_tenant_can_write_it(tmp_path: Path) -> None:
    path, one, other = tmp_path / "list", SliceProcess(40213, 17, 5), SliceProcess(40214, 18, 5)
    assert write_list(path, [other, one])
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    before = path.stat()
    assert not write_list(path, [one, other, one])
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert write_list(path, [one])
    assert read_list(path) == (one,)
    assert write_list(path, [])
    assert read_list(path) == ()


def test_whatever_is_in_the_place_of_a_list_is_replaced(tmp_path: Path) -> None:
    one, path = SliceProcess(40213, 17, 5), tmp_path / "list"
    path.write_bytes(b"\xff")
    assert write_list(path, [one])
    path.unlink()
    os.mkfifo(path)
    assert write_list(path, [one])
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert write_list(path, [one])
    assert (read_list(path), path.is_symlink()) == ((one,), False)


def test_processes_beyond_the_format_are_not_written(tmp_path: Path) -> None:
    many = [SliceProcess(number, number, 1) for number in range(1, MOST_PROCESSES + 9)]
    write_list(tmp_path / "list", many)
    assert read_list(tmp_path / "list") == tuple(many[:MOST_PROCESSES])
