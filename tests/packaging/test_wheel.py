# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A wheel of a release: for old machines, without tests, the same bytes every time, and with a library that works."""

import hashlib
import os
import platform
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.native import kit as native
from tests.packaging import kit

pytestmark = pytest.mark.slow

OLDEST = (2, 17)


def unpacked(wheel: Path, folder: Path) -> list[Path]:
    """The programs and libraries in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/_native/" in name]
        return [Path(archive.extract(name, folder)) for name in sorted(names)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_wheel_needs_nothing_that_glibc_2_17_lacks(machine: str, tmp_path: Path) -> None:
    wheel = kit.build("wheel", tmp_path, machine=machine)
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{machine}.whl")
    files = unpacked(wheel, tmp_path / "in")
    assert [file.name.partition("-")[0] for file in files] == ["cotenant", "libcotenant"]
    for file in files:
        said = kit.run([native.tool("readelf"), "-W", "-h", "-V", "-d", file]).stdout
        versions = {tuple(map(int, one.split("."))) for one in re.findall(r"Name: GLIBC_([\d.]+)", said)}
        needed = set(re.findall(r"Shared library: \[(.*?)\]", said))
        assert max(versions) <= OLDEST
        assert {name.partition(".so")[0] for name in needed} <= {"libc", "libdl", f"ld-linux-{machine}"}, needed
        assert {"x86_64": "X86-64", "aarch64": "AArch64"}[machine] in said
    auditwheel = native.environment("release") / "bin" / "python"
    said = kit.run([auditwheel, "-m", "auditwheel", "show", wheel]).stdout
    assert f'"manylinux_2_17_{machine}"' in said


def test_a_wheel_contains_the_package_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"cotenant"}
    assert not [name for name in names if "test" in Path(name).name or "__pycache__" in name]
    assert {"cotenant/_version.py", "cotenant/web/_uplot/uPlot.iife.js", "cotenant/py.typed"} <= set(names)


def test_a_build_at_another_time_in_another_folder_has_the_same_bytes(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(sdist, tmp_path / "elsewhere")
    (root,) = (tmp_path / "elsewhere").iterdir()
    for file in root.rglob("*"):
        os.utime(file, (0, 1e9))
    for package, kind in ((wheel, "wheel"), (sdist, "sdist")):
        again = kit.build(kind, tmp_path / "out", root=root, machine=platform.machine(), TZ="UTC-9")
        assert again.name == package.name
        assert digest(again) == digest(package)


def test_the_library_of_an_installed_wheel_holds_a_program_to_its_memory(wheel: Path, tmp_path: Path) -> None:
    installed = kit.install(f"{wheel}[nvidia]", tmp_path / "env")
    driver = {
        "LD_LIBRARY_PATH": str(native.standin()),
        "STANDIN_STATE": str(tmp_path / "state"),
        "COTENANT_RUNTIME": str(tmp_path / "run"),
    }
    options = ["run", "--memory", "1GiB", "--"]
    probe = str(native.program("run_probe"))
    within = native.values(installed.cotenant(*options, probe, "500", "0", env=driver).stdout)
    beyond = native.values(installed.cotenant(*options, probe, "1500", "0", env=driver).stdout)
    assert (within["total"], within["allocated"], beyond["allocated"]) == (1024, 0, 2)


@pytest.mark.parametrize(
    ("machine", "said"),
    [("x86_64", "libcotenant.so was not built"), ("s390x", "it is for Linux on x86_64 and aarch64")],
)
def test_a_release_is_not_built_without_the_library(machine: str, said: str, tmp_path: Path) -> None:
    root = kit.copy_sources(tmp_path / "tree")
    shutil.rmtree(root / "native" / "lib")
    python = native.environment("release") / "bin" / "python"
    done = kit.run(
        [python, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=root,
        env=kit.plain(COTENANT_RELEASE_FOR=machine),
        code=1,
    )
    assert said in done.stderr
