# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The installers that users have: pip from the sources, pipx, uvx; also without a C compiler."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.native import kit as native
from tests.packaging import kit

pytestmark = pytest.mark.slow

CONSTRAINTS = str(kit.ROOT / "requirements" / "dev.txt")


def version_of(package: Path) -> str:
    return package.name.split("-")[1].removesuffix(".tar.gz")


def test_an_sdist_installs_by_itself_into_an_empty_environment(sdist: Path, tmp_path: Path) -> None:
    native.tool("cc")
    installed = kit.install(sdist, tmp_path / "env")
    assert installed.cotenant("--version").stdout == f"cotenant, version {version_of(sdist)}\n"
    assert len(list(installed.folder.rglob("_native/*/libcotenant-*.so"))) == 1
    assert len(list(installed.folder.rglob("_uplot/uPlot.iife.js"))) == 1


def test_without_a_compiler_the_sdist_installs_and_the_missing_library_is_named_at_use(
    sdist: Path, tmp_path: Path
) -> None:
    installed = kit.install(sdist, tmp_path / "env", "--config-setting=compiler=none", CC="/no/such/compiler")
    assert list(installed.folder.rglob("_native")) == []
    said = installed.cotenant(
        "run", "--memory", "1GiB", "--", "true", env={"COTENANT_RUNTIME": str(tmp_path / "run")}, code=1
    )
    assert "built without a C compiler" in said.stderr


def test_an_sdist_contains_what_its_tests_need_and_nothing_that_was_made(sdist: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(sdist, tmp_path)
    (unpacked,) = tmp_path.iterdir()
    names = {entry.name for entry in unpacked.iterdir()}
    assert {"src", "native", "tests", "docs", "release", "Makefile", "LICENSE", "PKG-INFO"} <= names
    assert not [path for path in unpacked.rglob("*") if path.name in ("_native", "_version.py", "__pycache__", ".venv")]


def test_uvx_runs_the_command_from_a_wheel(wheel: Path) -> None:
    command: list[str | Path] = [
        kit.UV,
        "tool",
        "run",
        "--quiet",
        "--python",
        sys.executable,
        "--constraints",
        CONSTRAINTS,
    ]
    done = kit.run([*command, "--from", wheel, "cotenant", "--version"])
    assert done.stdout == f"cotenant, version {version_of(wheel)}\n"


@pytest.fixture
def pipx(tmp_path: Path) -> dict[str, str]:
    """Variables with which pipx leaves the user's own files alone."""
    folders = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    return folders | {"PIPX_DEFAULT_PYTHON": sys.executable, "PATH": f"{kit.UV.parent}:{os.environ['PATH']}"}


def test_pipx_installs_the_command_from_an_index_of_files(wheel: Path, tmp_path: Path, pipx: dict[str, str]) -> None:
    index = tmp_path / "index" / "cotenant"
    index.mkdir(parents=True)
    shutil.copyfile(wheel, index / wheel.name)
    (index / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    program = native.environment("release") / "bin" / "pipx"
    options = ["--backend=uv", f"--pip-args=--index file://{index.parent} --constraints {CONSTRAINTS}"]
    env = kit.plain(**pipx)
    kit.run([program, "install", "--quiet", *options, f"cotenant=={version_of(wheel)}"], env=env)
    done = kit.run([tmp_path / "bin" / "cotenant", "--version"], env=env)
    assert done.stdout == f"cotenant, version {version_of(wheel)}\n"
    assert os.readlink(tmp_path / "bin" / "kubectl-cotenant").endswith("/cotenant/bin/kubectl-cotenant")
    line = kit.run([tmp_path / "bin" / "cotenant", "kube", "scheduler"], env=env, code=1).stderr
    assert "`pipx install --force 'cotenant[kube]'`" in line
