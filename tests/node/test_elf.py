# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Shared libraries as they are read and written without a compiler's tools."""

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import InputError
from cotenant.node.elf import AARCH64, X86_64, Library, Symbol, read_library
from cotenant.node.front_end import build_front_end

NAMES = ["cuInit", "cuMemAlloc_v2", *(f"cuFunction{number}" for number in range(700))]


def driver(machine: int = X86_64, version: str | None = None, names: Sequence[str] = NAMES) -> Library:
    functions = tuple(Symbol(name, 16, weak=name == "cuInit", version=version) for name in names)
    return Library(machine=machine, soname="libcuda.so.1", needed=(), functions=functions)


def written(library: Library) -> bytes:
    return build_front_end(
        library, soname="libcuda.so.1", real="/opt/driver/libcuda.so.1", library="/opt/libcotenant.so"
    )


@pytest.fixture(scope="module")
def libc() -> Path:
    (path,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line}
    return Path(path)


def test_functions_of_the_c_library_are_those_the_loader_finds(libc: Path) -> None:
    library = read_library(libc)
    assert library.soname == "libc.so.6"
    assert len(library.functions) > 1000
    loaded = ctypes.CDLL(str(libc))
    for function in library.functions:
        assert ctypes.cast(loaded[function.name], ctypes.c_void_p).value
    known = {function.name: function for function in library.functions}
    assert known["qsort"].version == "GLIBC_2.2.5" or os.uname().machine != "x86_64"
    assert known["memcpy"].version == "GLIBC_2.14" or os.uname().machine != "x86_64"  # the default of two versions


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
@pytest.mark.parametrize("version", [None, "libcuda.so.1"])
def test_what_is_written_is_read_back(machine: int, version: str | None, tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(written(driver(machine, version)))
    found = read_library(path)
    assert (found.machine, found.soname) == (machine, "libcuda.so.1")
    assert found.needed == ("libdl.so.2", "libc.so.6", "/opt/libcotenant.so")
    assert sorted(found.functions) == sorted(driver(machine, version).functions)


def test_a_version_is_a_record_of_one_name_under_its_hash() -> None:
    content = written(driver(version="GLIBC_2.2.5"))
    revision, base, names = 1, 1, 1
    own = struct.pack("<HHHH", revision, base, 1, names)
    other = struct.pack("<HHHHI", revision, 0, 2, names, 0x09691A75)  # the hash that every program for x86-64 contains
    assert content.count(other) == 1
    assert content[content.index(other) - 28 :].startswith(own)


def test_arm_code_jumps_through_the_table(tmp_path: Path) -> None:
    objdump = shutil.which("aarch64-linux-gnu-objdump")
    if objdump is None:
        pytest.skip("needs the tool aarch64-linux-gnu-objdump")
    names = [*NAMES, *(f"cuFurther{number}" for number in range(3000))]  # the table is many pages from the code
    content = written(driver(AARCH64, names=names))
    (tmp_path / "code").write_bytes(content)
    command = [objdump, "-b", "binary", "-m", "aarch64", "-D", str(tmp_path / "code")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    jumps = re.findall(r"adrp\tx16, (0x\w+)\n.*ldr\tx17, \[x16(?:, #(\d+))?\]\n.*br\tx17", text)
    targets = [int(page, 16) + int(offset or 0) for page, offset in jumps]
    table, last = targets[:-1], targets[-1]
    assert [after - before for before, after in itertools.pairwise(table)] == [8] * len(names)  # and the mark
    assert last < table[0]  # the last jump is to the function that fills the table
    assert f"mov\tw0, #{hex(34)}" in text


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot mmap an empty file"),
        (b"\x7fELF", "expected a 64-bit little-endian ELF file"),
        (b"#!/bin/sh\necho\n", "expected a 64-bit little-endian ELF file"),
        (b"\x7fELF\x01\x01\x01".ljust(200, b"\0"), "expected a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x01\x01".ljust(200, b"\0"), "expected a shared object for x86-64 or arm64"),
    ],
)
def test_what_is_no_library_is_refused_in_one_line(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_library(path)
    assert str(path) in str(refused.value)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="expected a shared library"):
            read_library(path)


@pytest.mark.parametrize("cut", [63, 64, 200, 1000, 20_000])
def test_a_truncated_library_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(written(driver())[:cut])
    with pytest.raises(InputError):
        read_library(path)


WHOLE = written(driver(version="libcuda.so.1"))


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            # Headers and what they lead to; the dynamic section stands at the start of the last segment.
            st.one_of(st.integers(16, 400), st.integers(0, len(WHOLE) - 8)),
            st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8)])),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_library_with_anything_in_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    content = bytearray(WHOLE)
    for at, new in changes:
        content[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "changed.so"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        read_library(path)
