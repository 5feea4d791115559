# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The library comes into programs that it is made for, and all others start as if it were not there."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

from cotenant.errors import CotenantError, InputError
from cotenant.node import preload
from cotenant.node.preload import NAME, find_library, stage, staged_library
from tests.native import kit

LOADER_32, LIBC_32 = Path("/lib/ld-linux.so.2"), Path("/lib32/libc.so.6")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Any library will do here."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "one.c").write_text("int one_of_ours(void) { return 1; }\n")
    subprocess.run([kit.tool("cc"), "-shared", "-fPIC", "one.c", "-o", "one.so"], cwd=folder, check=True)
    return folder / "one.so"


def started(command: list[str | Path], value: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": value}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True)


def test_it_is_mapped_into_a_64_bit_program(library: Path, tmp_path: Path) -> None:
    folder = stage(library, tmp_path)
    done = started(["cat", "/proc/self/maps"], preload.preload(folder))
    assert str(staged_library(folder)) in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(not (LOADER_32.exists() and LIBC_32.exists()), reason="needs the tool libc6-i386")
def test_a_32_bit_program_starts_with_nothing_on_stderr(library: Path, tmp_path: Path) -> None:
    done = started([LOADER_32, LIBC_32], preload.preload(stage(library, tmp_path)))  # libc prints its version when run
    assert "GNU C Library" in done.stdout
    assert done.stderr == ""


def test_a_musl_program_starts_with_nothing_on_stderr(library: Path, tmp_path: Path) -> None:
    (tmp_path / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    subprocess.run([kit.tool("musl-gcc"), "hello.c", "-o", "hello"], cwd=tmp_path, check=True)
    done = started([tmp_path / "hello"], preload.preload(stage(library, tmp_path)))
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_what_the_user_preloads_stays_behind_it(library: Path, tmp_path: Path) -> None:
    folder = stage(library, tmp_path / "staged")
    value = preload.preload(folder, str(library))
    assert value == f"{folder}/$LIB/{NAME}:{library}"
    maps = started(["cat", "/proc/self/maps"], value).stdout
    assert str(staged_library(folder)) in maps
    assert str(library) in maps


def test_an_upgrade_touches_no_file_that_is_mapped(library: Path, tmp_path: Path) -> None:
    before = stage(library, tmp_path)
    inode = staged_library(before).stat().st_ino
    assert stage(library, tmp_path) == before
    newer = tmp_path / "newer.so"
    newer.write_bytes(library.read_bytes() + b"\0")
    after = stage(newer, tmp_path)
    assert after != before
    assert staged_library(before).stat().st_ino == inode
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([before.name, after.name, "newer.so"])


def test_every_machine_that_programs_here_may_be_of_has_its_library(library: Path, tmp_path: Path) -> None:
    folder = stage(library, tmp_path)
    usual = {"x86_64": "lib/x86_64-linux-gnu", "aarch64": "lib/aarch64-linux-gnu"}[platform.machine()]
    assert (folder / usual / NAME).resolve() == (folder / "lib64" / NAME).resolve() == staged_library(folder)
    for path in folder.rglob(NAME):
        header = path.read_bytes()[:20]
        wide = path.resolve() == staged_library(folder)
        assert (header[:4], header[4]) == (b"\x7fELF", 2 if wide else 1), path


def test_a_place_that_ld_preload_cannot_name_is_passed_over(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path / "two words"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert stage(library).is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a:b"))
    with pytest.raises(CotenantError, match="without spaces or colons"):
        stage(library)


def test_the_library_is_the_one_that_is_named(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_LIBRARY", str(library))
    assert find_library() == library
    monkeypatch.setenv("COTENANT_LIBRARY", str(library.with_name("none.so")))
    with pytest.raises(InputError, match="COTENANT_LIBRARY"):
        find_library()
