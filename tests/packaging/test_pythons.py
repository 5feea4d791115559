# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`make test-pythons` finds the interpreters of the search path, of pyenv and of uv, and only those that work."""

import sys
from pathlib import Path

import pytest

from release import pythons


@pytest.fixture
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))


def interpreter(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("_nowhere")
@pytest.mark.parametrize(
    "place", ["bin/python3.14", "pyenv/versions/3.14.1/bin/python", "uv/cpython-3.14.1-linux/bin/python3.14"]
)
def test_an_interpreter_is_found(tmp_path: Path, place: str) -> None:
    assert pythons.find_python("3.14") is None
    found = interpreter(tmp_path / place, "3.14")
    assert pythons.find_python("3.14") == found
    assert pythons.find_python("3.13") is None


@pytest.mark.usefixtures("_nowhere")
def test_a_shim_that_does_not_work_is_passed_over(tmp_path: Path) -> None:
    interpreter(tmp_path / "bin/python3.14", "no such version")
    found = interpreter(tmp_path / "pyenv/versions/3.14.1/bin/python", "3.14")
    assert pythons.find_python("3.14") == found


def test_every_version_that_the_package_claims_is_tried() -> None:
    assert pythons.claimed() == set(pythons.VERSIONS)
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in pythons.VERSIONS
