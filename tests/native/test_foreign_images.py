# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that the library is not for start as ever, with nothing extra on their standard error."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.node.elf import AARCH64, read_library
from cotenant.node.preload import preload, stage
from tests.native import kit

HELLO = '#include <stdio.h>\nint main(void) { puts("hello"); return 3; }\n'
BARE_386 = r"""
static int call(int number, int a, const char *b, int c) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}
void _start(void) {
    call(4, 1, "hello\n", 6);
    call(1, 3, 0, 0);
    for (;;) { }
}
"""
OLDEST = (2, 17)
"""glibc of the images that CUDA itself still supports"""


def environment(place: kit.Slice, folder: Path) -> dict[str, str]:
    """As `cotenant run` starts a program."""
    return place.env() | {"LD_PRELOAD": preload(stage(kit.library(), folder))}


def starts_as_ever(program: Path, env: dict[str, str]) -> bool:
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=300, check=False)
    return (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "")


def compiled(source: str, command: list[str], folder: Path) -> Path:
    (folder / "hello.c").write_text(source)
    subprocess.run([*command, "hello.c", "-o", "hello"], cwd=folder, check=True, capture_output=True)
    return folder / "hello"


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_musl_program_starts_quietly(kind: str, place: kit.Slice, tmp_path: Path) -> None:
    flags = ["-static"] if kind == "static" else []
    program = compiled(HELLO, [kit.tool("musl-gcc"), *flags], tmp_path)
    assert starts_as_ever(program, environment(place.write(memory=kit.MIB), tmp_path / "staged"))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_32_bit_program_starts_quietly(kind: str, place: kit.Slice, tmp_path: Path) -> None:
    if kind == "dynamic" and not Path("/lib/ld-linux.so.2").exists():
        pytest.skip("needs the tool libc6-i386: there is no /lib/ld-linux.so.2")
    clang = [kit.tool("clang-14"), "-m32", "-nostdlib", "-ffreestanding", "-fuse-ld=bfd"]
    linking = (
        ["-static"]
        if kind == "static"
        else ["-Wl,--dynamic-linker=/lib/ld-linux.so.2", "-Wl,--export-dynamic", "-pie", "-fPIE"]
    )
    program = compiled(BARE_386, clang + linking, tmp_path)
    assert program.read_bytes()[4] == 1, "not a 32-bit program"
    assert starts_as_ever(program, environment(place.write(memory=kit.MIB), tmp_path / "staged"))


def test_a_64_bit_program_without_a_gpu_starts_quietly(place: kit.Slice, tmp_path: Path) -> None:
    program = compiled(HELLO, [kit.tool("cc")], tmp_path)
    env = environment(place.write(memory=kit.MIB), tmp_path / "staged") | {"LD_LIBRARY_PATH": ""}
    assert starts_as_ever(program, env)


def test_a_static_program_starts_quietly(place: kit.Slice, tmp_path: Path) -> None:
    program = compiled(HELLO, [kit.tool("cc"), "-static"], tmp_path)
    assert starts_as_ever(program, environment(place.write(memory=kit.MIB), tmp_path / "staged"))


@pytest.mark.parametrize("built", [kit.library, kit.smi])
def test_what_containers_get_asks_for_nothing_that_an_old_glibc_lacks(built: Callable[[], Path]) -> None:
    command = [kit.tool("readelf"), "-V", "-W", str(built())]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", said)}
    assert versions
    assert max(versions) <= OLDEST


def test_the_library_needs_only_the_c_library_and_its_loader() -> None:
    needed = read_library(kit.library()).needed
    assert [name for name in needed if not re.fullmatch(r"libc\.so\.6|ld-linux-[\w-]+\.so\.\d", name)] == []


@pytest.mark.slow
def test_the_library_builds_for_arm_with_the_same_functions() -> None:
    arm = read_library(kit.library(cc="aarch64-linux-gnu-gcc"))
    assert arm.machine == AARCH64
    assert {function.name for function in arm.functions} == {
        function.name for function in read_library(kit.library()).functions
    }


@pytest.mark.slow
def test_the_library_builds_with_both_compilers() -> None:
    assert kit.library(cc="clang-14").is_file()
    assert kit.library(cc="gcc").is_file()
