# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The package contains the vGPU library if it can be built, and works without it otherwise."""

import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.native import kit


def wheel(out: Path, **env: str) -> tuple[Path, str]:
    """The package as a wheel, and what was said while it was built."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(
        command, cwd=kit.ROOT, env=os.environ | env, capture_output=True, text=True, timeout=300, check=True
    )
    (built,) = out.glob("*.whl")
    return built, done.stderr


@pytest.mark.slow
def test_a_wheel_is_for_its_machine_and_carries_the_library_under_the_name_of_its_content(tmp_path: Path) -> None:
    kit.tool("cc")
    built, _ = wheel(tmp_path)
    assert built.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(built) as archive:
        smi, name = sorted(one for one in archive.namelist() if "_native" in one)
        assert smi.endswith(f"/{platform.machine()}/cotenant-smi")
        content = archive.read(name)
    digest = hashlib.sha256(content).hexdigest()[:16]
    assert name == f"cotenant/_native/{platform.machine()}/libcotenant-{digest}.so"
    (tmp_path / "library.so").write_bytes(content)
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(tmp_path / "library.so")}
    done = subprocess.run(["cat", "/proc/self/maps"], env=env, capture_output=True, text=True, check=True)
    assert "library.so" in done.stdout
    assert done.stderr == ""


def test_the_library_is_built_with_stack_protector_and_checked_copies() -> None:
    done = subprocess.run([kit.tool("nm"), "-D", kit.library()], capture_output=True, text=True, check=True)
    names = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    assert "__stack_chk_fail" in names
    assert any(name.endswith("_chk") for name in names)


def test_without_a_compiler_the_package_is_built_all_the_same_and_says_so(tmp_path: Path) -> None:
    built, said = wheel(tmp_path, CC="/no/such/compiler")
    assert built.name.endswith("-py3-none-any.whl")
    assert "built without the vGPU library" in said
    with zipfile.ZipFile(built) as archive:
        assert not [one for one in archive.namelist() if "_native" in one]


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    script = [sys.executable, str(kit.NATIVE / "build.py")]
    for arguments, said in (
        (["library"], "no C compiler: none of cc, gcc, clang is installed, and CC is not set"),
        (["program", "none"], "no such source; there are: "),
        (["standin", "--headers", str(tmp_path)], "no cuda.h there"),
    ):
        env = {"PATH": str(tmp_path)}
        done = subprocess.run([*script, *arguments, "--out", str(tmp_path)], env=env, capture_output=True, text=True)
        assert (done.returncode, said in done.stderr) == (1, True), done
        assert "Traceback" not in done.stderr
